package httpapi

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// owedList keeps what there was no leader for.
type owedList struct{ kept []*pb.Command }

func (o *owedList) Keep(c *pb.Command) error {
	o.kept = append(o.kept, c)
	return nil
}

// deeds are what commands put on record, or what is kept for it.
func deeds(commands []*pb.Command) (out []string) {
	for _, c := range commands {
		if b := c.GetRecordAction(); b != nil {
			out = append(out, strings.TrimPrefix(b.Action, "pulse.cluster.")+" "+b.Target+": "+b.Detail)
		}
	}
	return out
}

// What was refused does not look done, and what was not heard of to its end does not
// look like either.
func TestTheRecordSaysHowItEnded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.do("POST", "/v1/cluster:remove", `{"node_id":"b","force":true}`)
	r.do("POST", "/v1/cluster:transfer", "")
	r.cluster.refuse = schema.Errorf(schema.Conflict, "two would be left")
	r.do("POST", "/v1/cluster:remove", `{"node_id":"b"}`)
	r.do("POST", "/v1/cluster:transfer", `{"node_id":"c"}`)
	r.cluster.refuse = errors.New("the connection broke")
	r.do("POST", "/v1/cluster:remove", `{"node_id":"b"}`)
	r.do("GET", "/v1/cluster/backup", "")
	r.cluster.backup = func(io.Writer) error { return schema.Errorf(schema.Unavailable, "no room") }
	r.do("GET", "/v1/cluster/backup", "")
	r.do("PUT", "/v1/cluster/log-level", `{"level":"debug"}`)
	want := []string{
		"Remove b: asked, by force", "Remove b: done",
		"Transfer : asked", "Transfer : done, node-3 leads",
		"Remove b: asked", "Remove b: not done: conflict: two would be left",
		"Transfer c: asked", "Transfer c: not done: conflict: two would be left",
		"Remove b: asked", "Remove b: not known to be done: result_unknown: the outcome of the request is not known",
		"Backup : asked", "Backup : done, 15 bytes",
		"Backup : asked", "Backup : not done: unavailable: no room",
		"LogLevel node-1: info to debug",
	}
	if got := deeds(r.commanded()); !slices.Equal(got, want) {
		t.Errorf("on record:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Without a leader nothing goes on record, and what is done all the same does later.
func TestWhatIsDoneWithoutALeaderIsKeptForTheRecord(t *testing.T) {
	t.Parallel()
	owed := &owedList{}
	r := newRig(t, func(o *Options) { o.Owed = owed })
	r.submit = func(context.Context, []*pb.Command) ([]*pb.Result, error) {
		return nil, schema.Errorf(schema.NoLeader, "none")
	}
	if w := r.do("GET", "/v1/cluster/backup", "", "X-Pulse-Note", "before we touch it"); w.Code != 200 {
		t.Errorf("the backup: %d", w.Code)
	}
	if w := r.do("PUT", "/v1/cluster/log-level", `{"level":"debug"}`); w.Code != 200 {
		t.Errorf("the log level: %d", w.Code)
	}
	if w := r.do("POST", "/v1/cluster:transfer", ""); w.Code != 503 {
		t.Errorf("a transfer that is not on record: %d", w.Code)
	}
	if len(r.cluster.removed) > 0 {
		t.Error(r.cluster.removed)
	}
	got := deeds(owed.kept)
	for i, want := range []string{"Backup : asked, at 20", "Backup : done, 15 bytes, at 20", "LogLevel node-1: info to debug, at 20"} {
		if i >= len(got) || !strings.HasPrefix(got[i], want) || !strings.HasSuffix(got[i], "there was no leader to record it then") {
			t.Fatalf("kept:\n%s", strings.Join(got, "\n"))
		}
	}
	if c := owed.kept[0]; c.Note != "before we touch it" || c.Caller.GetPrincipal() == "" {
		t.Errorf("kept %v", c)
	}

	t.Log("nor is it lost in silence where nothing keeps it")
	var log strings.Builder
	r = newRig(t, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	r.submit = func(context.Context, []*pb.Command) ([]*pb.Result, error) {
		return nil, schema.Errorf(schema.NoLeader, "none")
	}
	r.do("GET", "/v1/cluster/backup", "", "X-Pulse-Note", "before we touch it")
	if !strings.Contains(log.String(), "not on record") || !strings.Contains(log.String(), "before we touch it") {
		t.Errorf("the log says %s", log.String())
	}
}

// A batch with a reason is one line of the record, and its tasks are none.
func TestABatchWithAReasonIsOneLine(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	batch := `{"tasks":[{"handler":"h","handler_version":"1","payload_version":"1","payload":1},{"handler":"h","handler_version":"1","payload_version":"1","payload":2}]}`
	if w := r.do("POST", "/v1/namespaces/default/queues/mail/tasks:batch", batch, "X-Pulse-Note", "the January run"); w.Code != 200 {
		t.Fatal(w.Code, w.Body)
	}
	r.do("POST", "/v1/namespaces/default/queues/mail/tasks:batch", batch)
	var noted []string
	for _, c := range r.commanded() {
		if c.Note != "" {
			noted = append(noted, c.Namespace+" "+c.Note)
		}
	}
	if got := deeds(r.commanded()); !slices.Equal(got, []string{"pulse.task.SubmitBatch mail: 2 tasks"}) || !slices.Equal(noted, []string{"default the January run"}) {
		t.Errorf("on record %v, with notes %v", got, noted)
	}
}

// Every variable of a path says what it is of.
func TestAnIDIsDescribedAsWhatItIs(t *testing.T) {
	t.Parallel()
	s, err := theSpec()
	if err != nil {
		t.Fatal(err)
	}
	paths, _ := s.root["paths"].(map[string]any)
	seen := 0
	for path, item := range paths {
		what := "task"
		if strings.HasPrefix(path, "/v1/tokens") {
			what = "access token"
		}
		operations, _ := item.(map[string]any)
		for method, op := range operations {
			described, _ := op.(map[string]any)
			parameters, _ := described["parameters"].([]any)
			for _, p := range parameters {
				param, _ := p.(map[string]any)
				if about, _ := param["description"].(string); param["in"] == "path" && param["name"] == "id" {
					seen++
					if !strings.Contains(about, what) {
						t.Errorf("%s %s says of {id}: %s", method, path, about)
					}
				}
			}
		}
	}
	if seen < 5 {
		t.Errorf("%d paths with an id", seen)
	}
}
