package sdk

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strconv"
	"time"
)

const (
	// watchIdle is how long a stream may be silent before it is opened anew: a
	// gateway sends a comment more often than that, so silence is a dead peer.
	watchIdle = 60 * time.Second
	// watchLineMax bounds a line of the stream.
	watchLineMax = 1 << 20
)

// Event is one change of a task, as seen by a watcher.
type Event struct {
	ID       string `json:"-"` // resumes the stream behind this event, on any node
	Index    uint64 `json:"index,string"`
	TaskID   string `json:"task_id"`
	Revision uint64 `json:"revision,string"`
	Type     string `json:"type"`
	State    State  `json:"state"`
}

// Watch yields the changes of a task from its beginning, each once and in
// order, and then as they happen, until the task is in a terminal state. It
// goes on where it was after any failure that may pass; an error is the end.
//
//	for event, err := range client.Watch(ctx, task.ID) { … }
func (c *Client) Watch(ctx context.Context, id string) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for event, err := range c.stream(ctx, c.taskPath(id)+"/watch", nil, "") {
			if !yield(event, err) || event.State.Terminal() {
				return
			}
		}
	}
}

// WatchAll yields the changes of all tasks of the namespace as they happen,
// starting behind the event with the id after, or now if that is empty.
func (c *Client) WatchAll(ctx context.Context, after string) iter.Seq2[Event, error] {
	return c.stream(ctx, c.path("/events"), nil, after)
}

// stream reads server-sent events. A stream that ends or falls silent is opened
// again behind the last event.
func (c *Client) stream(ctx context.Context, path string, query map[string][]string, after string) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if c.fault != nil {
			yield(Event{}, c.fault)
			return
		}
		for tries := 0; ; tries++ {
			_, place := c.api.addr()
			more, err := c.api.follow(ctx, request{method: http.MethodGet, path: path, query: query}, after, func(event Event) bool {
				after, tries = event.ID, 0
				return yield(event, nil)
			})
			switch {
			case !more:
				return
			case ctx.Err() != nil:
				yield(Event{}, context.Cause(ctx))
				return
			case err != nil && !mayRetry(err):
				yield(Event{}, err)
				return
			case err != nil:
				c.api.moveOn(place)
			}
			c.api.logger.Debug("watch interrupted, going on behind the last event", "path", path, "after", after, "error", err)
			if !pause(ctx, backoff(tries, retryDelayFirst, retryDelayMax)) {
				yield(Event{}, context.Cause(ctx))
				return
			}
		}
	}
}

// follow reads one stream to its end and says whether the caller wants more.
func (a *api) follow(ctx context.Context, r request, after string, yield func(Event) bool) (more bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(watchIdle, func() { cancel(errors.New("pulse: the stream fell silent")) })
	defer silence.Stop()
	r.header = http.Header{"Accept": {"text/event-stream"}}
	if after != "" {
		r.header.Set("Last-Event-ID", after)
	}
	answer, err := a.send(ctx, r)
	if err != nil {
		return true, err
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(&heard{answer.Body, silence})
	lines.Buffer(nil, watchLineMax)
	var id string
	var data []byte
	for lines.Scan() {
		name, value, _ := bytes.Cut(lines.Bytes(), []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch {
		case len(lines.Bytes()) == 0 && data != nil:
			event := Event{ID: id}
			if err := json.Unmarshal(data, &event); err != nil {
				return true, &answerError{fmt.Errorf("event %s: %w", strconv.Quote(id), err)}
			}
			data = nil
			if !yield(event) {
				return false, nil
			}
		case string(name) == "id":
			id = string(value)
		case string(name) == "data" && data == nil:
			data = append([]byte{}, value...)
		case string(name) == "data":
			data = append(append(data, '\n'), value...)
		}
	}
	return true, lines.Err()
}

// heard restarts the timer of silence with everything that arrives.
type heard struct {
	body    io.Reader
	silence *time.Timer
}

func (h *heard) Read(p []byte) (int, error) {
	n, err := h.body.Read(p)
	if n > 0 {
		h.silence.Reset(watchIdle)
	}
	return n, err
}
