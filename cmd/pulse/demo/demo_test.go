package demo

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"pulse/sdk"
	"pulse/sdk/pulsetest"
)

// The judge is judged first: each thing that must never be, it has to see.
func TestTheResourceSeesWhatMustNotBe(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		effects []effect
		want    account
	}{
		"an effect each": {
			[]effect{{task: "a", attempt: "1", token: 5, once: true}, {task: "b", attempt: "2", token: 5, once: true}},
			account{accepted: 2},
		},
		"a task that must not be done twice is": {
			[]effect{{task: "a", attempt: "1", token: 5, once: true}, {task: "a", attempt: "2", token: 6, once: true}},
			account{accepted: 2, doubled: 1},
		},
		"a task that may be done twice is": {
			[]effect{{task: "a", attempt: "1", token: 5}, {task: "a", attempt: "2", token: 6}},
			account{accepted: 2, repeated: 1},
		},
		"the paused holder of a key writes after its successor": {
			[]effect{{task: "b", attempt: "2", key: "k", token: 9, once: true}, {task: "a", attempt: "1", key: "k", token: 5, once: true}},
			account{accepted: 1, refused: 1},
		},
		"two tasks have a key under the same token": {
			[]effect{{task: "a", attempt: "1", key: "k", token: 5, once: true}, {task: "b", attempt: "2", key: "k", token: 5, once: true}},
			account{accepted: 2, doubled: 1},
		},
		"two attempts of a task have the same token": {
			[]effect{{task: "a", attempt: "1", token: 5}, {task: "a", attempt: "2", token: 5}},
			account{accepted: 2, doubled: 1, repeated: 1},
		},
		"one holder writes twice under its token": {
			[]effect{{task: "a", attempt: "1", key: "k", token: 5}, {task: "a", attempt: "1", key: "k", token: 5}},
			account{accepted: 2, repeated: 1},
		},
	} {
		r := newResource()
		for _, e := range c.effects {
			r.apply(e)
		}
		if got := r.account(); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestAPlanIsAFunctionOfTheSeed(t *testing.T) {
	t.Parallel()
	once, keyed, slow := 0, 0, 0
	for n := range 3000 {
		j := jobOf(7, n)
		if j != jobOf(7, n) {
			t.Fatalf("job %d is drawn differently", n)
		}
		if j.once {
			once++
		}
		if j.key != "" {
			keyed++
		}
		if j.work+j.rest > 100*time.Millisecond {
			slow++
		}
		if !strings.HasSuffix(j.text, "0") {
			t.Errorf("%s: no zero at its end to lose", j.text)
		}
	}
	if once < 800 || once > 1200 || keyed < 400 || keyed > 600 || slow < 60 || slow > 160 {
		t.Errorf("of 3000 %d must not be doubled, %d have keys, %d are slow", once, keyed, slow)
	}
	if jobOf(7, 1) == jobOf(8, 1) {
		t.Error("another seed draws the same")
	}
}

// The audit believes neither side: what one of them made up or left out shows.
func TestTheAuditSeesWhatIsWrong(t *testing.T) {
	t.Parallel()
	server := pulsetest.Start(t)
	server.Handle(handler, "1", "1", func(_ context.Context, task *sdk.Task) (any, error) {
		var in struct{ N int }
		if err := task.Unmarshal(&in); err != nil {
			return nil, err
		}
		return jobOf(1, in.N).result(), nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), pulsetest.Patience)
	defer cancel()
	c, r, acked := server.Client(), newResource(), map[string]job{}
	for n := range 5 {
		j := jobOf(1, n)
		j.key, j.once = "", true
		task := server.Do(j.spec())
		acked[task.ID] = j
		if n > 0 { // the first has no effect
			r.apply(effect{task: task.ID, attempt: "1", token: 1, once: true})
		}
		if n == 1 {
			j.text = "another"
			acked[task.ID] = j
		}
	}
	waiting, err := c.Submit(ctx, sdk.TaskSpec{Queue: queue, Handler: handler, Delay: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	acked[waiting.ID] = job{}
	acked[strings.Repeat("f", 32)] = job{} // acknowledged, and not there
	a, err := examine(ctx, c, acked, r)
	if err != nil {
		t.Fatal(err)
	}
	if a.succeeded != 5 || len(a.lost) != 2 || len(a.missing) != 1 || len(a.altered) == 0 {
		t.Errorf("%+v", a)
	}
}

func TestTheScreenDrawsOneBlockAgainAndAgain(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	v := &Screen{W: &out}
	v.Say(0, "begun")
	for n := range 3 {
		v.last = time.Time{}
		v.Status(Status{Tasks: 10, Finished: n, Node: "node-1", Workers: 8, Connected: 8})
	}
	v.Say(time.Second, "killed")
	v.last = time.Time{}
	v.Status(Status{Tasks: 10, Finished: 5, Node: "node-1", Down: true, DownFor: 300 * time.Millisecond, Killed: true, Held: 4, Kept: 2, HeldLost: 1})
	v.End()
	lines, at := []string{""}, 0
	for part := range strings.SplitAfterSeq(out.String(), "\n") {
		for {
			i := strings.Index(part, "\x1b[")
			if i < 0 {
				break
			}
			var up int
			if _, err := fmt.Sscanf(part[i:], "\x1b[%dA\x1b[J", &up); err != nil {
				t.Fatalf("%q: %v", part, err)
			}
			at -= up
			lines = append(lines[:at], "")
			part = part[:i] + part[strings.Index(part, "\x1b[J")+3:]
		}
		lines[at] += strings.TrimSuffix(part, "\n")
		if strings.HasSuffix(part, "\n") {
			at++
			lines = append(lines, "")
		}
	}
	got := strings.Join(lines, "\n")
	if strings.Count(got, "  tasks ") != 1 || !strings.Contains(got, "5 of 10 done") || !strings.Contains(got, "DOWN for 0.3s") ||
		!strings.Contains(got, "4 under way at the kill, 2 kept, 1 lost") || strings.Index(got, "killed") < strings.Index(got, "begun") {
		t.Errorf("the screen shows:\n%s", got)
	}
}
