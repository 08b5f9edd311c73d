package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "pulse/proto/pulse/v1"
)

// feed is a namespace's events as the state keeps them.
type feed struct {
	mu     sync.Mutex
	events []*pb.EventRow
	floor  uint64 // events up to this index have left
	index  uint64 // applied
}

func (f *feed) add(events ...*pb.EventRow) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, events...)
	for _, ev := range events {
		f.index = max(f.index, ev.Index)
	}
}

func (f *feed) read(_ context.Context, q *pb.Query) (*pb.Answer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := &pb.Answer{Index: f.index, Term: 3}
	switch b := q.Body.(type) {
	case *pb.Query_ReadFeed:
		f.readFeed(a, b.ReadFeed)
	case *pb.Query_ListTaskEvents:
		f.history(a, b.ListTaskEvents)
	case *pb.Query_GetTask:
		v := sampleTask(pb.TaskState_TASK_STATE_WAITING)
		for _, ev := range f.events {
			v.Task.State = ev.TaskAfter.GetState()
		}
		a.Body = &pb.Answer_Task{Task: v}
	default:
		return sampleAnswer(q), nil
	}
	return a, nil
}

func (f *feed) readFeed(a *pb.Answer, b *pb.ReadFeed) {
	list := &pb.EventList{NextIndex: b.AfterIndex, NextPlace: b.AfterPlace}
	a.Body = &pb.Answer_Events{Events: list}
	if b.Limit > 0 && b.AfterIndex < f.floor {
		a.Code, a.Message, a.Body = "not_found", "the position is too old", nil
		return
	}
	for _, ev := range f.events {
		if ev.Index < b.AfterIndex || ev.Index == b.AfterIndex && ev.Place <= b.AfterPlace || ev.Index <= f.floor {
			continue
		}
		if len(list.Events) == int(b.Limit) {
			list.More = true
			break
		}
		list.Events = append(list.Events, ev)
		list.NextIndex, list.NextPlace = ev.Index, ev.Place
	}
}

func (f *feed) history(a *pb.Answer, b *pb.ListTaskEvents) {
	list := &pb.EventList{}
	for _, ev := range f.events {
		if ev.Aggregate == pb.Aggregate_AGGREGATE_TASK && string(ev.AggregateId) == string(b.TaskId) && ev.Version > b.AfterVersion {
			list.Events = append(list.Events, ev)
		}
	}
	if len(list.Events) == 0 && b.AfterVersion == 0 {
		a.Code, a.Message = "not_found", "no such task"
		return
	}
	a.Body = &pb.Answer_Events{Events: list}
}

// listener is the client of a stream.
type listener struct {
	mu     sync.Mutex
	header http.Header
	status int
	text   strings.Builder
	leave  context.CancelFunc
	over   chan struct{}
}

func (l *listener) Header() http.Header { return l.header }

func (l *listener) WriteHeader(status int) { l.status = status }

func (l *listener) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *listener) Flush() {}

func (l *listener) heard() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// listen opens a stream; the bubble's goroutines then run until all wait.
func (r *rig) listen(target string, headers ...string) *listener {
	ctx, leave := context.WithCancel(r.t.Context())
	l := &listener{header: http.Header{}, leave: leave, over: make(chan struct{})}
	go func() {
		defer close(l.over)
		r.handler.ServeHTTP(l, request("GET", target, "", headers...).WithContext(ctx))
	}()
	synctest.Wait()
	return l
}

func (l *listener) close() {
	l.leave()
	<-l.over
}

// ids reads a stream as a client does: the ids of events, and the last id, which
// is where the client would come back to. No id may go back, or stand before an
// event it is not before.
func (l *listener) ids(t *testing.T) (ids []string, last string) {
	t.Helper()
	at := position{}
	for block := range strings.SplitSeq(l.heard(), "\n\n") {
		id, data := "", false
		for line := range strings.SplitSeq(block, "\n") {
			if rest, ok := strings.CutPrefix(line, "id: "); ok {
				id = rest
			}
			data = data || strings.HasPrefix(line, "data: ")
		}
		if p, ok := parsePosition(id); id != "" {
			if !ok || last != "" && !at.before(p.index, p.place) {
				t.Errorf("id %q comes behind %q", id, last)
			}
			at, last = p, id
		}
		if data {
			ids = append(ids, id)
		}
	}
	return ids, last
}

func TestAWatchTellsTheWholeStory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, f := newRig(t), &feed{}
		r.read = f.read
		story := sampleEvents()
		f.add(story[:2]...)
		l := r.listen(taskPath + "/watch")
		if l.status != 200 || l.header.Get("Content-Type") != "text/event-stream" || l.header.Get("X-Pulse-Index") != "62" || l.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%d %v", l.status, l.header)
		}
		f.add(story[2:]...)
		r.wake()
		<-l.over // the task is over, so is the stream
		want := `id: 61.1.1
data: {"index":"61","task_id":"00000000000000000000000000000001","revision":"1","type":"submitted","state":"WAITING"}

id: 62.1.2
data: {"index":"62","task_id":"00000000000000000000000000000001","revision":"2","type":"leased","state":"LEASED"}

id: 63.1.3
data: {"index":"63","task_id":"00000000000000000000000000000001","revision":"3","type":"retry_scheduled","state":"WAITING"}

id: 64.1.4
data: {"index":"64","task_id":"00000000000000000000000000000001","revision":"4","type":"reviewed","state":"SUCCEEDED"}

`
		if got := l.heard(); got != want {
			t.Errorf("heard\n%s\nwant\n%s", got, want)
		}
		if r.handler.Waiters() != 0 || r.subscribed() != 0 {
			t.Errorf("%d waiters and %d subscriptions are left", r.handler.Waiters(), r.subscribed())
		}
	})
}

func TestAWatchGoesOnBehindTheLastEvent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		story := sampleEvents()
		for last, want := range map[string]string{
			"61.1.1": "[62.1.2 63.1.3 64.1.4]",
			"63.1.3": "[64.1.4]",
			"62.1":   "[63.1.3 64.1.4]", // an id of the namespace's stream
			"61":     "[62.1.2 63.1.3 64.1.4]",
			"61.0":   "[61.1.1 62.1.2 63.1.3 64.1.4]",
		} {
			r, f := newRig(t), &feed{}
			r.read = f.read
			f.add(story...)
			l := r.listen(taskPath+"/watch", "Last-Event-Id", last)
			<-l.over
			if ids, _ := l.ids(t); fmt.Sprint(ids) != want {
				t.Errorf("behind %s: %v, want %s", last, ids, want)
			}
		}
	})
}

func TestAWatchThatHasEverythingIsToldNotToComeBack(t *testing.T) {
	t.Parallel()
	for _, last := range []string{"64.1.4", "64.1", "64"} {
		r, f := newRig(t), &feed{}
		r.read = f.read
		f.add(sampleEvents()...)
		w := r.do("GET", taskPath+"/watch", "", "Last-Event-Id", last)
		if w.Code != http.StatusNoContent || w.Header().Get("X-Pulse-Index") != "64" {
			t.Errorf("behind %s: %d %s", last, w.Code, w.Body)
		}
	}
}

func TestAWatchBehindNewsWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, f := newRig(t), &feed{}
		r.read = f.read
		f.add(sampleEvents()[:2]...)
		l := r.listen(taskPath+"/watch", "Last-Event-Id", "62.1.2")
		if got := l.heard(); got != ": pulse\n\n" {
			t.Errorf("heard %q", got)
		}
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if got := l.heard(); got != ": pulse\n\n: heartbeat\n\n" {
			t.Errorf("after 15 s heard %q", got)
		}
		l.close()
	})
}

func TestWhatAWatchIsRefusedFor(t *testing.T) {
	t.Parallel()
	r, f := newRig(t), &feed{}
	r.read = f.read
	if w := r.do("GET", taskPath+"/watch", ""); w.Code != http.StatusNotFound {
		t.Errorf("no such task: %d", w.Code)
	}
	f.add(sampleEvents()[:2]...)
	for _, last := range []string{"65.0.5", "x", "1.2.3.4", "01.1", "-1", "1.4294967296", "1.1.0"} {
		if w := r.do("GET", taskPath+"/watch", "", "Last-Event-Id", last); w.Code != http.StatusBadRequest {
			t.Errorf("behind %q: %d %s", last, w.Code, w.Body)
		}
	}
	if w := r.do("HEAD", taskPath+"/watch", ""); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("HEAD: %d", w.Code)
	}
}

func TestANamespaceIsWatchedFromNowOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, f := newRig(t), &feed{}
		r.read = f.read
		story := sampleEvents()
		f.add(story[:2]...)
		l := r.listen("/v1/namespaces/default/events")
		if got := l.heard(); got != ": pulse\nid: 62.4294967295\n\n" {
			t.Errorf("heard %q", got)
		}
		queue := &pb.EventRow{Index: 63, Place: 0, Aggregate: pb.Aggregate_AGGREGATE_QUEUE}
		f.add(queue)
		f.add(story[2:]...)
		r.wake()
		synctest.Wait()
		if got := l.heard(); strings.Contains(got, "63.1") {
			t.Error("it did not wait for more to come")
		}
		time.Sleep(feedPace)
		synctest.Wait()
		ids, last := l.ids(t)
		if fmt.Sprint(ids) != "[63.1 64.1]" || last != "64.1" {
			t.Errorf("heard %v, last %s", ids, last)
		}
		l.close()
	})
}

func TestANamespaceIsWatchedBehindAPosition(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			query  string
			header []string
			want   string
		}{
			"an id":                         {"?after=62.1", nil, "[63.1 64.1]"},
			"an index":                      {"?after=62", nil, "[63.1 64.1]"},
			"an id of a task's stream":      {"?after=62.1.2", nil, "[63.1 64.1]"},
			"the beginning":                 {"?after=0", nil, "[61.1 62.1 63.1 64.1]"},
			"the header wins over the rest": {"?after=0", []string{"Last-Event-Id", "63.1"}, "[64.1]"},
			"the end":                       {"?after=64.1", nil, "[]"},
		} {
			r, f := newRig(t), &feed{}
			r.read = f.read
			f.add(sampleEvents()...)
			l := r.listen("/v1/namespaces/default/events"+c.query, c.header...)
			if ids, _ := l.ids(t); fmt.Sprint(ids) != c.want {
				t.Errorf("%s: %v, want %s", name, ids, c.want)
			}
			l.close()
		}
	})
}

func TestAnOldPositionIsToldFromANamespaceThatIsNot(t *testing.T) {
	t.Parallel()
	r, f := newRig(t), &feed{floor: 62}
	r.read = f.read
	f.add(sampleEvents()...)
	w := r.do("GET", "/v1/namespaces/default/events?after=61.1", "")
	if p := problemOf(t, w); w.Code != http.StatusGone || p.Code != "not_found" || !strings.Contains(p.Detail, "too old") {
		t.Errorf("too old: %d %+v", w.Code, p)
	}
	if w := r.do("GET", "/v1/namespaces/default/events?after=65", ""); w.Code != http.StatusBadRequest {
		t.Errorf("ahead: %d", w.Code)
	}
	r.read = func(context.Context, *pb.Query) (*pb.Answer, error) {
		return &pb.Answer{Index: 79, Code: "not_found", Message: "no such namespace"}, nil
	}
	if w := r.do("GET", "/v1/namespaces/default/events?after=61.1", ""); w.Code != http.StatusNotFound {
		t.Errorf("no namespace: %d", w.Code)
	}
}

func TestAQuietStreamDoesNotGrowOld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, f := newRig(t), &feed{}
		r.read = f.read
		f.add(sampleEvents()[:1]...)
		l := r.listen("/v1/namespaces/default/events?after=61.1")
		// Things happen elsewhere for days, and then the feed forgets.
		f.mu.Lock()
		f.index = 5000
		f.mu.Unlock()
		r.wake()
		time.Sleep(16 * time.Second)
		synctest.Wait()
		f.mu.Lock()
		f.floor = 4000
		f.mu.Unlock()
		if _, last := l.ids(t); last != "5000.4294967295" {
			t.Errorf("the client comes back to %s: %q", last, l.heard())
		}
		ev := sampleEvents()[1]
		ev.Index = 5001
		f.add(ev)
		r.wake()
		time.Sleep(time.Second)
		synctest.Wait()
		if ids, _ := l.ids(t); fmt.Sprint(ids) != "[5001.1]" {
			t.Errorf("heard %v: %q", ids, l.heard())
		}
		l.close()
	})
}

func TestALongFeedIsReadInPages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, f := newRig(t), &feed{}
		r.read = f.read
		for i := range 2600 {
			ev := sampleEvents()[0]
			ev.Index, ev.Place = uint64(100+i/3), uint32(i%3)
			if i >= 1000 && i < 1700 { // more than a page of other things
				ev.Aggregate = pb.Aggregate_AGGREGATE_WORKER
			}
			f.add(ev)
		}
		l := r.listen("/v1/namespaces/default/events?after=99")
		ids, _ := l.ids(t)
		if len(ids) != 1900 || ids[0] != "100.0" || ids[1899] != "966.1" {
			t.Errorf("%d events, from %s to %s", len(ids), ids[0], ids[len(ids)-1])
		}
		for i := 1; i < len(ids); i++ {
			a, _ := parsePosition(ids[i-1])
			b, _ := parsePosition(ids[i])
			if !a.before(b.index, b.place) {
				t.Fatalf("%s comes before %s", ids[i-1], ids[i])
			}
		}
		l.close()
	})
}

func TestStreamsEndWhenTheNodeShutsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, f := newRig(t), &feed{}
		r.read = f.read
		f.add(sampleEvents()[:1]...)
		one, two := r.listen("/v1/namespaces/default/events"), r.listen(taskPath+"/watch")
		r.handler.Drain()
		r.handler.Drain() // twice is once
		<-one.over
		<-two.over
		w := r.do("GET", "/readyz", "")
		if got := decode[Readiness](t, w.Body.Bytes()); w.Code != 503 || got.Status != "not_ready" || len(got.Reasons) != 1 {
			t.Errorf("%d %+v", w.Code, got)
		}
	})
}

func TestStreamsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, f := newRig(t, func(o *Options) { o.WaitersMax = 2 }), &feed{}
		r.read = f.read
		f.add(sampleEvents()[:1]...)
		one, two := r.listen("/v1/namespaces/default/events"), r.listen(taskPath+"/watch")
		for _, target := range []string{"/v1/namespaces/default/events", taskPath + "/watch", taskPath + "?wait_state=terminal"} {
			if w := r.do("GET", target, ""); w.Code != http.StatusServiceUnavailable {
				t.Errorf("%s: %d", target, w.Code)
			}
		}
		if w := r.do("GET", "/v1/namespaces/default", ""); w.Code != 200 {
			t.Errorf("an ordinary read: %d", w.Code)
		}
		one.close()
		three := r.listen(taskPath + "/watch")
		if three.status != 200 {
			t.Errorf("once there is room: %d", three.status)
		}
		two.close()
		three.close()
	})
}

func TestAStreamIsOneThatAnEventSourceUnderstands(t *testing.T) {
	t.Parallel()
	for _, ev := range sampleEvents() {
		text := string(appendEvent(nil, position{index: ev.Index, place: ev.Place}, ev))
		lines := strings.Split(text, "\n")
		if len(lines) != 4 || !strings.HasPrefix(lines[0], "id: ") || !strings.HasPrefix(lines[1], "data: {") || lines[2]+lines[3] != "" {
			t.Errorf("%q", text)
		}
		var data WatchEventText
		if err := json.Unmarshal([]byte(strings.TrimPrefix(lines[1], "data: ")), &data); err != nil || data.Index == "" || data.TaskID != idOne || data.Revision == "" || data.Type == "" || data.State == "" {
			t.Errorf("%v: %+v", err, data)
		}
	}
}

// WatchEventText is the data of an event as a client decodes it.
type WatchEventText struct {
	Index    string `json:"index"`
	TaskID   string `json:"task_id"`
	Revision string `json:"revision"`
	Type     string `json:"type"`
	State    string `json:"state"`
}

func TestPositionsAreOrderedAndSpelledOneWay(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"0.0", "1.0", "18446744073709551615.4294967295", "7.3.2"} {
		p, ok := parsePosition(text)
		if got := string(p.appendText(nil)); !ok || got != text {
			t.Errorf("%s reads as %s (%v)", text, got, ok)
		}
	}
	if p, ok := parsePosition("7"); !ok || p.place != placeMax || p.index != 7 {
		t.Errorf("an index alone is %+v", p)
	}
	for _, text := range []string{"", ".", "1.", ".1", "1.2.", "+1.2", "1.02", "18446744073709551616.0", "1.4294967296", "1.2.0", "1.2.3.4", " 1.2", strings.Repeat("1", 100)} {
		if p, ok := parsePosition(text); ok {
			t.Errorf("%q reads as %+v", text, p)
		}
	}
}
