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
	"net/url"
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
// starting behind the event with the id after, or now if that is empty. Events
// are kept for days, not for ever: ErrTooOld ends a watch that was away too
// long.
func (c *Client) WatchAll(ctx context.Context, after string) iter.Seq2[Event, error] {
	return c.stream(ctx, c.path("/events"), nil, after)
}

// stream reads server-sent events. A stream that ends or falls silent is opened
// again behind the last event.
func (c *Client) stream(ctx context.Context, path string, query url.Values, after string) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if c.fault != nil {
			yield(Event{}, c.fault)
			return
		}
		for tries := 0; ; tries++ {
			_, place := c.api.addr()
			r := request{method: http.MethodGet, path: path, query: query}
			more, err := c.api.follow(ctx, r, &after, func(event Event) bool {
				tries = 0
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

// follow reads one stream to its end, keeps after at the last id that was
// complete, and says whether there is more to come and the caller wants it.
func (a *api) follow(ctx context.Context, r request, after *string, yield func(Event) bool) (more bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(watchIdle, func() { cancel(errors.New("pulse: the stream fell silent")) })
	defer silence.Stop()
	r.header = http.Header{"Accept": {"text/event-stream"}}
	if *after != "" {
		r.header.Set("Last-Event-ID", *after)
	}
	answer, err := a.send(ctx, r)
	if err != nil {
		return true, err
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusNoContent {
		return false, nil // nothing will follow
	}
	lines := bufio.NewScanner(&heard{answer.Body, silence})
	lines.Buffer(nil, watchLineMax)
	var block eventBlock
	for lines.Scan() {
		if len(lines.Bytes()) > 0 {
			block.add(lines.Bytes())
			continue
		}
		if block.id != "" {
			*after = block.id // an id without data moves on all the same
		}
		if block.data == nil {
			continue
		}
		event := Event{ID: *after}
		if err := json.Unmarshal(block.data, &event); err != nil {
			return true, &answerError{fmt.Errorf("event %s: %w", strconv.Quote(*after), err)}
		}
		block = eventBlock{}
		if !yield(event) {
			return false, nil
		}
	}
	return true, lines.Err()
}

// eventBlock gathers the lines of an event up to the empty one.
type eventBlock struct {
	id   string
	data []byte // nil = none
}

func (b *eventBlock) add(line []byte) {
	name, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(name) {
	case "id":
		b.id = string(value)
	case "data":
		if b.data != nil {
			b.data = append(b.data, '\n')
		}
		b.data = append(b.data, value...)
		if b.data == nil {
			b.data = []byte{}
		}
	}
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

// HistoryEvent is one change of a task with all that is recorded about it.
type HistoryEvent struct {
	Index         uint64            `json:"index,string"`
	Place         int               `json:"place"` // among the changes of one log entry
	TaskID        string            `json:"task_id"`
	Revision      uint64            `json:"revision,string"`
	Type          string            `json:"type"`
	State         State             `json:"state"`
	Time          time.Time         `json:"time"`
	Operator      string            `json:"operator,omitempty"` // in whose name; empty for what fell due
	CommandType   string            `json:"command_type,omitempty"`
	CommandID     string            `json:"command_id,omitempty"`
	CausationID   string            `json:"causation_id,omitempty"`
	CorrelationID string            `json:"correlation_id,omitempty"`
	Facts         []json.RawMessage `json:"facts"` // {"type": …, …} each
}

// History walks over what has happened to a task, oldest first. If its beginning
// is no longer kept, an event of type "state" stands for it.
func (c *Client) History(ctx context.Context, id string, opts ...CallOption) iter.Seq2[*HistoryEvent, error] {
	return walk[*HistoryEvent](ctx, c, c.taskPath(id)+"/events", nil, "events", opts)
}
