package restore

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"pulse/sdk"
)

// nextVersion understands one format level more, and has one command that needs it.
var nextVersion = build("nextlevel")

func level(t *testing.T, s *server) int {
	t.Helper()
	_, body := get(s.URL() + "/v1/cluster")
	var status struct {
		State struct {
			FormatLevel int `json:"format_level"`
		} `json:"state"`
	}
	if err := json.Unmarshal([]byte(body), &status); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return status.State.FormatLevel
}

// load submits tasks, one after the other, until it is stopped; then all that were
// acknowledged have to be there.
func load(t *testing.T, servers []*server) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := client(servers...)
	var ids []string
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			// The client tries again elsewhere while a server is away.
			info, err := c.Submit(ctx, sdk.TaskSpec{Handler: "nobody"})
			switch {
			case err == nil:
				ids = append(ids, info.ID)
			case ctx.Err() == nil:
				t.Errorf("a submission failed: %v", err)
			}
		}
	})
	return func() {
		t.Helper()
		cancel()
		running.Wait()
		if len(ids) == 0 {
			t.Error("nothing was submitted meanwhile")
		}
		for _, id := range ids[max(0, len(ids)-50):] {
			if _, err := c.Get(t.Context(), id); err != nil {
				t.Errorf("task %s, which was acknowledged: %v", id, err)
			}
		}
		t.Logf("%d tasks were submitted meanwhile", len(ids))
	}
}

// TestServersAreUpgradedOneAfterAnother: old and new versions work together; what
// is new is refused until all have it; and there is no way back.
func TestServersAreUpgradedOneAfterAnother(t *testing.T) {
	if os.Getenv("PULSE_CHAOS") == "" {
		t.Skip("builds a second binary; runs with make chaos, or PULSE_CHAOS=1")
	}
	binary(t, nextVersion) // not while a server is away
	servers := three(t, secretFile(t))
	start(t, servers...)
	if _, err := pulse(t, "namespace", "create", "old", "--addr", servers[0].URL()); err != nil {
		t.Fatal(err)
	}
	stop := load(t, servers)
	for i := range servers {
		if got := level(t, servers[(i+1)%3]); got != 1 {
			t.Fatalf("with %d servers upgraded the level is %d", i, got)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		err := servers[i].Close(ctx)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		servers[i] = servers[i].of(nextVersion)
		start(t, servers[i])
		if i < 2 {
			// A new leader does not use the new command while an old server is there.
			if _, err := pulse(t, "cluster", "transfer", servers[i].id, "--addr", servers[i].URL()); err != nil {
				t.Fatal(err)
			}
			out, err := pulse(t, "namespace", "delete", "old", "--addr", servers[i].URL())
			if err == nil || !strings.Contains(out, "not every server") {
				t.Errorf("a command of the next level with %d servers upgraded: %v\n%s", i+1, err, out)
			}
		}
		stop()
		stop = load(t, servers)
	}
	until(t, "the level rises once all understand it", func() (bool, string) {
		for _, s := range servers {
			if level(t, s) != 2 {
				return false, s.id
			}
		}
		return true, ""
	})
	stop()
	// The old version refuses the data of the new level.
	kill(t, servers[2])
	if said := refused(t, servers[2].of(thisVersion)); !strings.Contains(said, "upgraded beyond this version") {
		t.Errorf("an old version on upgraded data: %v", said)
	}
	// And it refuses to join with nothing.
	if said := refused(t, servers[2].emptied()); !strings.Contains(said, "upgraded beyond this version") {
		t.Errorf("an old version that joins: %v", said)
	}
	// The new one goes on where it was.
	servers[2] = servers[2].of(nextVersion)
	until(t, "the new version starts again", func() (bool, string) {
		err := servers[2].try() // its name may still be taken
		return err == nil, fmt.Sprint(err)
	})
	until(t, "it is at its level again", func() (bool, string) {
		_, body := get(servers[2].URL() + "/v1/cluster")
		return strings.Contains(body, `"format_level":2`), body
	})
	submit(t, client(servers...), sdk.TaskSpec{Handler: "nobody"})
}

// refused is the last word of a server that does not start, or that ends once the
// others have told it what it does not understand. Until gossip has noticed the
// end of the one that was killed, its name is taken.
func refused(t *testing.T, s *server) (said string) {
	t.Helper()
	until(t, "it ends", func() (bool, string) {
		if err := s.try(); err == nil {
			select {
			case <-s.Dead():
			case <-time.After(30 * time.Second):
				kill(t, s)
				said = "it serves"
				return true, said
			}
		}
		said = s.LogTail()
		lines := strings.Split(strings.TrimSpace(said), "\n")
		return !strings.Contains(lines[len(lines)-1], "another node has this id"), said
	})
	return said
}
