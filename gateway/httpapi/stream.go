package httpapi

import (
	"errors"
	"net/http"
	"time"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

const (
	// feedPage is how many events a stream reads at a time.
	feedPage = 500
	// feedPace is the least time between two wake-ups of a namespace's stream:
	// every entry of the log may wake it, and what came meanwhile is read in one.
	feedPace = 10 * time.Millisecond
)

// stream is an answer of server-sent events. Nothing is queued: it reads what
// comes next from the feed when the client has taken what came before, so a slow
// client costs no memory and one that takes nothing is cut off by the deadline
// of the write.
type stream struct {
	*exchange
	control *http.ResponseController
	at      position        // all up to here is sent, or is of no concern
	told    position        // the last id the client has
	ended   bool            // nothing will follow
	gone    <-chan struct{} // closed when the caller's token is no good any more
	pace    time.Duration
}

// watchTask is GET …/tasks/{id}/watch: the task's history from its start, or
// behind Last-Event-ID, and then what happens to it, until it is over.
func watchTask(e *exchange) error {
	from, err := e.startAt("")
	if err != nil {
		return err
	}
	s := &stream{exchange: e}
	if from != nil {
		s.at = *from
	}
	wake, cancel := e.h.opt.Backend.Subscribe(e.id[:])
	defer cancel()
	events, err := s.history(e.read)
	if err != nil {
		return err
	}
	if from != nil && from.index > e.index {
		return e.ahead("Last-Event-ID")
	}
	if len(events) == 0 {
		if over, err := s.over(); err != nil || over {
			return err
		}
	}
	return s.run(wake, events, func() ([]*pb.EventRow, error) { return s.history(e.follow) })
}

// over answers a client that came back behind the last event of a task: it would
// come back for ever, and this status stops it.
func (s *stream) over() (bool, error) {
	if !s.ended {
		answer, err := s.follow(&pb.Query{Body: &pb.Query_GetTask{GetTask: &pb.GetTask{TaskId: s.id[:]}}})
		if err != nil {
			return false, err
		}
		if !terminal(answer.GetTask().GetTask().GetState()) {
			return false, nil
		}
	}
	s.commonHeaders(s.w.Header())
	s.status = http.StatusNoContent
	s.w.WriteHeader(http.StatusNoContent)
	return true, nil
}

// history reads the task's events behind where the stream is.
func (s *stream) history(read func(*pb.Query) (*pb.Answer, error)) ([]*pb.EventRow, error) {
	after := s.at.revision
	var out []*pb.EventRow
	for {
		answer, err := read(&pb.Query{Body: &pb.Query_ListTaskEvents{ListTaskEvents: &pb.ListTaskEvents{
			TaskId: s.id[:], AfterVersion: after, Limit: feedPage,
		}}})
		if err != nil {
			return nil, err
		}
		read = s.follow
		for _, ev := range answer.GetEvents().GetEvents() {
			after = ev.GetVersion()
			s.ended = terminal(ev.GetTaskAfter().GetState()) || ev.GetDeleted()
			// An id without a revision is one of the namespace's stream.
			if s.at.revision != 0 || s.at.before(ev.GetIndex(), ev.GetPlace()) {
				out = append(out, ev)
			}
		}
		if !answer.GetEvents().GetMore() {
			return out, nil
		}
	}
}

func terminal(state pb.TaskState) bool {
	return state == pb.TaskState_TASK_STATE_SUCCEEDED || state == pb.TaskState_TASK_STATE_FAILED ||
		state == pb.TaskState_TASK_STATE_CANCELLED
}

// watchNamespace is GET /v1/namespaces/{ns}/events: what happens to its tasks
// from now on, or behind a position.
func watchNamespace(e *exchange) error {
	from, err := e.startAt(e.query.get("after"))
	if err != nil {
		return err
	}
	s := &stream{exchange: e}
	s.pace = feedPace
	wake, cancel := e.h.opt.Backend.Subscribe(nil)
	defer cancel()
	// The first read finds the present end of the feed, and that there is such
	// a namespace.
	answer, err := e.read(&pb.Query{Body: &pb.Query_ReadFeed{ReadFeed: &pb.ReadFeed{}}})
	if err != nil {
		return err
	}
	s.at = position{index: answer.GetIndex(), place: placeMax}
	if from == nil {
		return s.run(wake, nil, s.feed)
	}
	if from.index > answer.GetIndex() {
		return e.ahead("after or Last-Event-ID")
	}
	s.at, s.told = position{index: from.index, place: from.place}, position{index: from.index, place: from.place}
	events, err := s.feed()
	if err != nil {
		return tooOld(err)
	}
	return s.run(wake, events, s.feed)
}

// tooOld turns the refusal of a position into one that a client can tell from a
// namespace that is not there: what it missed is gone, it has to list anew.
func tooOld(err error) error {
	if refusal := asRefusal(err); refusal.Code == schema.NotFound {
		return &statusError{status: http.StatusGone, err: refusal}
	}
	return err
}

// feed reads the namespace's events behind where the stream is. A page that is
// the last moves the position to where it was read, so that a stream without
// events does not grow too old.
func (s *stream) feed() ([]*pb.EventRow, error) {
	for {
		answer, err := s.follow(&pb.Query{Body: &pb.Query_ReadFeed{ReadFeed: &pb.ReadFeed{
			AfterIndex: s.at.index, AfterPlace: s.at.place, Limit: feedPage,
		}}})
		if err != nil {
			return nil, err
		}
		list := answer.GetEvents()
		events := make([]*pb.EventRow, 0, len(list.GetEvents()))
		for _, ev := range list.GetEvents() {
			if ev.GetAggregate() == pb.Aggregate_AGGREGATE_TASK {
				events = append(events, ev)
			}
		}
		next := position{index: list.GetNextIndex(), place: list.GetNextPlace()}
		if !list.GetMore() && next.index < answer.GetIndex() {
			next = position{index: answer.GetIndex(), place: placeMax}
		}
		if s.at.before(next.index, next.place) {
			s.at = next
		}
		if len(events) > 0 || !list.GetMore() {
			return events, nil
		}
	}
}

// startAt reads where a stream is to begin: behind Last-Event-ID, which a client
// sends when it comes back, else behind after. Nil is neither.
func (e *exchange) startAt(after string) (*position, error) {
	where, text := "/query/after", after
	if last := e.r.Header.Get("Last-Event-ID"); last != "" {
		where, text = "/header/Last-Event-ID", last
	}
	if text == "" {
		return nil, e.query.err()
	}
	p, ok := parsePosition(text)
	if !ok {
		return nil, invalid([]schema.Violation{{Path: where, Message: "must be the id of an event, like 1042.3, or an index"}})
	}
	return &p, nil
}

func (e *exchange) ahead(what string) error {
	return schema.Errorf(schema.InvalidArgument, "%s is ahead of the cluster: it is the position of another one", what)
}

// run writes events as they come until the stream ends. read yields what comes
// next; no event means that there is nothing yet.
func (s *stream) run(wake <-chan struct{}, events []*pb.EventRow, read func() ([]*pb.EventRow, error)) error {
	s.begin(len(events) > 0)
	gone, release := s.who.Watch()
	defer release()
	s.gone = gone
	beat := time.NewTimer(s.h.opt.Heartbeat)
	defer beat.Stop()
	for {
		sent, err := s.send(events)
		if err != nil || s.ended && sent {
			return nil // the client left, or has everything
		}
		if sent {
			beat.Reset(s.h.opt.Heartbeat)
		}
		if len(events) == 0 && !s.idle(wake, beat) {
			return nil
		}
		if events, err = read(); err != nil {
			s.h.opt.Logger.Debug("stream ends", "route", s.pattern(), "error", err)
			return nil // the client comes back with the last id and learns why
		}
	}
}

// begin writes the headers and, unless events are about to follow, the place to
// come back to if the connection is lost before anything happens.
func (s *stream) begin(events bool) {
	s.control = http.NewResponseController(s.w)
	header := s.w.Header()
	header["Content-Type"] = []string{mediaEvents}
	header["X-Accel-Buffering"] = []string{"no"} // proxies on the way must not collect events
	s.commonHeaders(header)
	s.status = http.StatusOK
	s.writeWithin(s.h.opt.WriteWithin)
	s.w.WriteHeader(http.StatusOK)
	if !events {
		_ = s.comment("pulse") // whoever left is found out by the next write
	}
}

// idle waits for something to happen and keeps the connection alive meanwhile.
func (s *stream) idle(wake <-chan struct{}, beat *time.Timer) bool {
	select {
	case <-wake:
		return s.pause()
	case <-beat.C:
		beat.Reset(s.h.opt.Heartbeat)
		return s.comment("heartbeat") == nil
	case <-s.r.Context().Done():
		return false
	case <-s.h.draining:
		return false
	case <-s.gone:
		return false
	}
}

func (s *stream) pause() bool {
	if s.pace == 0 {
		return true
	}
	timer := time.NewTimer(s.pace)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.r.Context().Done():
		return false
	case <-s.h.draining:
		return false
	case <-s.gone:
		return false
	}
}

// comment writes a line that clients skip. If the position has moved without an
// event, its id goes along: an id without data changes where a client comes back
// to and nothing else.
func (s *stream) comment(text string) error {
	out := append([]byte(": "), text...)
	out = append(out, '\n')
	if s.route.id == opWatchNamespace && s.told != s.at {
		out = append(s.at.appendText(append(out, "id: "...)), '\n')
		s.told = s.at
	}
	return s.flush(append(out, '\n'))
}

// send writes events in one piece and says whether there were any.
func (s *stream) send(events []*pb.EventRow) (sent bool, err error) {
	if len(events) == 0 {
		return false, nil
	}
	buf := getBuffer()
	defer putBuffer(buf)
	for _, ev := range events {
		p := position{index: ev.GetIndex(), place: ev.GetPlace()}
		if s.route.id == opWatchTask {
			p.revision = ev.GetVersion()
			s.at = p
		}
		s.told = p
		buf.b = appendEvent(buf.b, p, ev)
	}
	return true, s.flush(buf.b)
}

func appendEvent(dst []byte, p position, ev *pb.EventRow) []byte {
	dst = p.appendText(append(dst, "id: "...))
	dst = append(dst, "\ndata: "...)
	w := writer{buf: dst}
	w.open()
	w.uint64("index", ev.GetIndex())
	w.id("task_id", ev.GetAggregateId())
	w.uint64("revision", ev.GetVersion())
	w.plain("type", eventType(ev))
	w.plain("state", nameOf(taskStates, ev.GetTaskAfter().GetState()))
	w.close()
	return append(w.buf, "\n\n"...)
}

// flush gives the client its time to take what is written.
func (s *stream) flush(out []byte) error {
	s.writeWithin(s.h.opt.WriteWithin)
	if _, err := s.w.Write(out); err != nil {
		return err
	}
	if err := s.control.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}
