package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pulse/schema"
)

// crowd is many goroutines that submit to one queue, and the gateway that lets
// each of their requests wait for the test's word.
type crowd struct {
	*server
	t      *testing.T
	client *Client
	words  chan http.HandlerFunc
	group  sync.WaitGroup

	mu     sync.Mutex
	ends   map[string]error // of each submission
	payers map[string]string
}

func newCrowd(t *testing.T) *crowd {
	c := &crowd{t: t, words: make(chan http.HandlerFunc), ends: map[string]error{}, payers: map[string]string{}}
	steps := make([]http.HandlerFunc, 100)
	for i := range steps {
		steps[i] = func(rw http.ResponseWriter, r *http.Request) {
			select {
			case word := <-c.words:
				word(rw, r)
			case <-r.Context().Done():
			}
		}
	}
	c.server = newServer(t, steps...)
	c.client = c.connect()
	return c
}

// submit submits a task with this payload and returns when its request is on its
// way or it waits for others.
func (c *crowd) submit(ctx context.Context, payload string) {
	c.group.Go(func() {
		task, err := c.client.Submit(ctx, TaskSpec{Handler: "echo", Payload: payload})
		c.mu.Lock()
		defer c.mu.Unlock()
		c.ends[payload] = err
		if task != nil {
			c.payers[payload] = string(task.Payload)
		}
	})
	synctest.Wait()
}

// says answers the request that has waited longest.
func (c *crowd) says(word http.HandlerFunc) {
	c.words <- word
	synctest.Wait()
}

// takes answers a request with the tasks in it.
func (c *crowd) takes(request int) {
	c.says(func(rw http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(rw, taken(c.seen()[request].body, nil))
	})
}

// taken is the answer to a submission, or to a batch in which some are refused.
func taken(body string, refused map[int]schema.Code) string {
	var sent struct {
		Payload json.RawMessage
		Tasks   []struct{ Payload json.RawMessage }
	}
	_ = json.Unmarshal([]byte(body), &sent)
	task := func(payload json.RawMessage) string {
		return fmt.Sprintf(`{"id":"0123456789abcdef0123456789abcdef","state":"WAITING","revision":"1","payload":%s}`, payload)
	}
	if sent.Tasks == nil {
		return task(sent.Payload)
	}
	results := make([]string, len(sent.Tasks))
	for i, each := range sent.Tasks {
		results[i] = task(each.Payload)
		if code, ok := refused[i]; ok {
			results[i] = fmt.Sprintf(`{"error":{"status":%d,"code":%q,"detail":"/tasks/%d is bad","retryable":%t}}`, code.HTTPStatus(), code, i, code.Retryable())
		}
	}
	return `{"results":[` + strings.Join(results, ",") + `]}`
}

// busy has the four requests under way that make others wait.
func (c *crowd) busy() {
	for i := range submitsAtOnce {
		c.submit(c.t.Context(), fmt.Sprint("early ", i))
	}
	if n := len(c.seen()); n != submitsAtOnce {
		c.t.Fatalf("%d requests", n)
	}
}

// end lets everything be taken that is under way, and wants each submission to
// have ended with its own task, but for those named.
func (c *crowd) end(but map[string]error) {
	done := make(chan struct{})
	go func() {
		c.group.Wait()
		close(done)
	}()
	for !closed(done) {
		select {
		case c.words <- func(rw http.ResponseWriter, r *http.Request) {
			for _, seen := range c.seen() {
				if seen.key == r.Header.Get("Idempotency-Key") {
					fmt.Fprint(rw, taken(seen.body, nil))
					return
				}
			}
		}:
		case <-done:
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for payload, err := range c.ends {
		want := but[payload]
		switch {
		case want != nil && !errors.Is(err, want):
			c.t.Errorf("%s ended with %v, want %v", payload, err, want)
		case want == nil && (err != nil || c.payers[payload] != fmt.Sprintf("%q", payload)):
			c.t.Errorf("%s was given the task of %s, %v", payload, c.payers[payload], err)
		}
	}
}

func TestWhatWaitsWhileOthersAreUnderWayTravelsTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t)
		c.busy()
		for i := range 5 {
			c.submit(t.Context(), fmt.Sprint("late ", i))
		}
		if n := len(c.seen()); n != submitsAtOnce {
			t.Errorf("%d requests, want %d and the others waiting", n, submitsAtOnce)
		}
		c.takes(0)
		seen := c.seen()
		if len(seen) != submitsAtOnce+1 || !strings.HasSuffix(seen[submitsAtOnce].target, "/queues/default/tasks:batch") || strings.Count(seen[submitsAtOnce].body, "late") != 5 {
			t.Fatalf("requests: %+v", seen[submitsAtOnce:])
		}
		c.end(nil)
		c.submit(t.Context(), "alone again")
		if last := c.seen()[submitsAtOnce+1]; !strings.HasSuffix(last.target, "/tasks") {
			t.Errorf("request: %+v", last)
		}
		c.end(nil)
		if len(c.client.submits.lanes) != 0 {
			t.Errorf("remembered although nothing is under way: %v", c.client.submits.lanes)
		}
	})
}

func TestACallWithAKeyOrANoteOfItsOwnSharesNoRequest(t *testing.T) {
	t.Parallel()
	for name, option := range map[string]CallOption{"key": WithIdempotencyKey("order/7"), "note": WithNote("as agreed")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := newCrowd(t)
				c.busy()
				c.group.Go(func() {
					_, _ = c.client.Submit(t.Context(), TaskSpec{Handler: "echo"}, option)
				})
				synctest.Wait()
				seen := c.seen()
				if len(seen) != submitsAtOnce+1 || !strings.HasSuffix(seen[submitsAtOnce].target, "/tasks") {
					t.Fatalf("requests: %+v", seen)
				}
				if name == "key" && seen[submitsAtOnce].key != "order/7" {
					t.Errorf("its key: %+v", seen[submitsAtOnce])
				}
				c.end(nil)
			})
		})
	}
}

func TestARefusalInASharedRequestIsHeardAgainAsTheCallersOwn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t)
		c.busy()
		for _, payload := range []string{"good", "bad", "too many"} {
			c.submit(t.Context(), payload)
		}
		c.takes(0)
		shared := c.seen()[submitsAtOnce]
		for range submitsAtOnce - 1 { // which have waited longer
			c.says(func(rw http.ResponseWriter, r *http.Request) {
				for i, seen := range c.seen() {
					if seen.key == r.Header.Get("Idempotency-Key") {
						fmt.Fprint(rw, taken(c.seen()[i].body, nil))
					}
				}
			})
		}
		c.says(func(rw http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(rw, taken(shared.body, map[int]schema.Code{1: schema.InvalidArgument, 2: schema.QueueFull}))
		})
		seen := c.seen()
		if len(seen) != submitsAtOnce+2 || seen[submitsAtOnce+1].key != shared.key+"#1" || !strings.HasSuffix(seen[submitsAtOnce+1].target, "/tasks") {
			t.Fatalf("requests: %+v", seen[submitsAtOnce:])
		}
		c.says(answerProblem(schema.InvalidArgument))
		time.Sleep(retryDelayMax)
		synctest.Wait()
		if last := c.seen()[submitsAtOnce+2]; last.key != shared.key+"#2" || !strings.Contains(last.body, "too many") {
			t.Errorf("request: %+v", last)
		}
		c.end(map[string]error{"bad": schema.InvalidArgument})
		if err := c.ends["bad"]; err == nil || strings.Contains(err.Error(), "/tasks/1") {
			t.Errorf("the refusal is that of a request that the caller did not make: %v", err)
		}
	})
}

func TestASharedRequestThatFailsIsRepeatedByEachCallerUnderItsKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t)
		c.busy()
		c.submit(t.Context(), "one")
		c.submit(t.Context(), "two")
		for range submitsAtOnce {
			c.says(func(rw http.ResponseWriter, r *http.Request) {
				for _, seen := range c.seen() {
					if seen.key == r.Header.Get("Idempotency-Key") {
						fmt.Fprint(rw, taken(seen.body, nil))
					}
				}
			})
		}
		shared := c.seen()[submitsAtOnce]
		c.says(answerProblem(schema.ResultUnknown)) // the transport itself repeats what breaks off
		time.Sleep(retryDelayMax)
		synctest.Wait()
		keys := map[string]string{}
		for _, r := range c.seen()[submitsAtOnce+1:] {
			keys[r.key] = r.body
		}
		if len(keys) != 2 || !strings.Contains(keys[shared.key+"#0"], "one") || !strings.Contains(keys[shared.key+"#1"], "two") {
			t.Errorf("requests: %v", keys)
		}
		c.end(nil)
	})
}

func TestACallerThatLeavesTakesOnlyItselfAlong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t)
		c.busy()
		soon, cancelSoon := context.WithCancel(t.Context())
		later, cancelLater := context.WithCancel(t.Context())
		defer cancelLater()
		c.submit(soon, "left while it waited")
		c.submit(later, "left on the way")
		c.submit(t.Context(), "stayed")
		cancelSoon()
		synctest.Wait()
		c.takes(0)
		if shared := c.seen()[submitsAtOnce]; strings.Contains(shared.body, "left while") || strings.Count(shared.body, "echo") != 2 {
			t.Errorf("request: %+v", shared)
		}
		cancelLater()
		synctest.Wait()
		c.end(map[string]error{"left while it waited": context.Canceled, "left on the way": context.Canceled})
	})
}

func TestASharedRequestEndsWithTheLastOfItsCallers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t)
		c.busy()
		ctx, cancel := context.WithCancel(t.Context())
		c.submit(ctx, "one")
		c.submit(ctx, "two")
		c.takes(0)
		cancel()
		synctest.Wait()
		c.submit(t.Context(), "three") // takes the place of the request that was given up
		if last := c.seen()[submitsAtOnce+1]; !strings.Contains(last.body, "three") || !strings.HasSuffix(last.target, "/tasks") {
			t.Errorf("request: %+v", last)
		}
		c.end(map[string]error{"one": context.Canceled, "two": context.Canceled})
	})
}
