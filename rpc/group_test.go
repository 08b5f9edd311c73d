package rpc

import (
	"slices"
	"testing"
	"testing/synctest"
)

func taken(g *Group) []string {
	var out []string
	for _, id := range g.Take() {
		out = append(out, string(id))
	}
	slices.Sort(out)
	return out
}

func TestAGroupSaysWhichOfItsTopicsChanged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := startFeed(t)
		g := f.Group()
		// What is added counts as changed: it may have changed just before.
		g.Change([][]byte{[]byte("a"), []byte("b"), nil}, nil)
		if !woken(g.Wake()) || !slices.Equal(taken(g), []string{"", "a", "b"}) {
			t.Error("what was added was not told")
		}
		f.Publish(1, append(taskEvents("c"), taskEvent("a")))
		f.Publish(2, taskEvents("a"))
		if !woken(g.Wake()) {
			t.Fatal("a group slept through a change")
		}
		if got := taken(g); !slices.Equal(got, []string{"", "a"}) {
			t.Errorf("changed: %q", got)
		}
		if woken(g.Wake()) || len(g.Take()) != 0 {
			t.Error("a change was told twice")
		}
		g.Change(nil, [][]byte{[]byte("a"), nil})
		f.Publish(3, taskEvents("a"))
		if woken(g.Wake()) || g.Size() != 1 {
			t.Errorf("a topic that was removed woke the group of %d", g.Size())
		}
		g.Close()
		if len(f.topics) != 0 {
			t.Errorf("%d topics left behind", len(f.topics))
		}
	})
}

func TestAGroupAndAWatcherShareATopicAndLeaveItToEachOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := startFeed(t)
		g := f.Group()
		g.Change([][]byte{[]byte("a")}, nil)
		g.Take()
		_, leave := f.Subscribe([]byte("a"))
		leave()
		f.Publish(1, taskEvents("a"))
		if synctest.Wait(); !slices.Equal(taken(g), []string{"a"}) {
			t.Error("a watcher took the group's topic along")
		}
		wake, cancel := f.Subscribe([]byte("a"))
		defer cancel()
		g.Close()
		f.Publish(2, taskEvents("a"))
		if !woken(wake) {
			t.Error("a group took the watcher's topic along")
		}
	})
}
