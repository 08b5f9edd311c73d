package node

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"pulse/gateway/session"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// recorder is a backend that puts on record, once it has a leader.
type recorder struct {
	session.Backend
	leads atomic.Bool
	got   chan *pb.Command
}

func (r *recorder) Submit(_ context.Context, cmds []*pb.Command) ([]*pb.Result, error) {
	switch c := cmds[0]; {
	case !r.leads.Load():
		return nil, schema.Errorf(schema.NoLeader, "none")
	case len(c.Caller.GetTokenId()) > 0:
		return []*pb.Result{{Code: string(schema.Unauthenticated), Message: "revoked"}}, nil
	default:
		r.got <- c
		return []*pb.Result{{}}, nil
	}
}

// A cluster that was lost can put nothing on record; the one that is made of its last
// server does.
func TestWhatIsOwedGoesOnRecordInTheRestoredCluster(t *testing.T) {
	t.Parallel()
	lost := testConfig(t)
	if err := startNode(t, lost).Close(soon(t)); err != nil {
		t.Fatal(err)
	}
	left, err := openOwed(filepath.Join(lost.DataDir, "owed"), nil, lost.Logger)
	if err != nil {
		t.Fatal(err)
	}
	if err := left.Keep(&pb.Command{Id: make([]byte, 16), Note: "before the restore", Body: &pb.Command_RecordAction{
		RecordAction: &pb.RecordAction{Action: "pulse.cluster.Backup", Detail: "done"},
	}}); err != nil {
		t.Fatal(err)
	}
	next := testConfig(t)
	if _, err := Restore(soon(t), RestoreConfig{Source: lost.DataDir, DataDir: next.DataDir, Logger: lost.Logger}); err != nil {
		t.Fatal(err)
	}
	n := startNode(t, next)
	eventually(t, "it is on record", func() bool {
		answer, err := http.Get(n.URL() + "/v1/audit")
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		return err == nil && bytes.Contains(text, []byte("before the restore"))
	})
}

// What was done without a leader goes on record when there is one, though the process
// ended in between and the token that it was done with was revoked.
func TestWhatIsOwedToTheRecordOutlivesTheProcess(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "owed")
	logger := slog.New(slog.DiscardHandler)
	backend := &recorder{got: make(chan *pb.Command, 8)}
	first, err := openOwed(path, backend, logger)
	if err != nil {
		t.Fatal(err)
	}
	for _, detail := range []string{"asked", "done"} {
		if err := first.Keep(&pb.Command{
			Note: "why", Caller: &pb.Caller{Principal: "token/7", TokenId: make([]byte, 16)},
			Body: &pb.Command_RecordAction{RecordAction: &pb.RecordAction{Action: "pulse.cluster.Backup", Detail: detail}},
		}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	first.run(ctx) // nobody leads, and the process ends

	second, err := openOwed(path, backend, logger)
	if err != nil {
		t.Fatal(err)
	}
	backend.leads.Store(true)
	ctx, cancel = context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); second.run(ctx) }()
	var got []string
	for range 2 {
		c := <-backend.got
		got = append(got, c.Caller.Principal+" "+c.GetRecordAction().Detail+" "+c.Note)
	}
	if !slices.Equal(got, []string{"token/7 asked why", "token/7 done why"}) {
		t.Errorf("on record: %q", got)
	}
	eventually(t, "the list is empty", func() bool {
		second.mu.Lock()
		defer second.mu.Unlock()
		return len(second.list) == 0
	})
	cancel()
	<-ended
	third, err := openOwed(path, backend, logger)
	if err != nil || len(third.list) != 0 {
		t.Errorf("left: %v %v", third, err)
	}
}
