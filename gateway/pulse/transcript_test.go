package pulse

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/santhosh-tekuri/jsonschema/v6"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
	"pulse/schema/workerv1"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// The published schema, one direction each. Every frame that any test here
// reads is held to it.
var clientFrames, serverFrames = func() (client, server *jsonschema.Schema) {
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(schema.WorkerV1))
	if err != nil {
		panic(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("worker.v1.json", document); err != nil {
		panic(err)
	}
	return c.MustCompile("worker.v1.json#/$defs/clientFrame"), c.MustCompile("worker.v1.json#/$defs/serverFrame")
}()

func hold(t *testing.T, to *jsonschema.Schema, text string) {
	t.Helper()
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err == nil {
		err = to.Validate(value)
	}
	if err != nil {
		t.Errorf("not by the schema: %s\n%v", text, err)
	}
}

// One conversation with every type of frame in both directions, as it goes
// over the wire. A change of this file is a change of the protocol.
func TestTranscript(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		next := 9000
		h.handler.newID = func() schema.ID { next++; return ident(next) }
		var script bytes.Buffer
		w := h.dial()
		say := func(f workerv1.ClientFrame) {
			t.Helper()
			text := w.send(f)
			hold(t, clientFrames, text)
			fmt.Fprintf(&script, "> %s\n", text)
		}
		sayText := func(text string) {
			t.Helper()
			w.sendText([]byte(text))
			fmt.Fprintf(&script, "> %s\n", text)
		}
		hear := func() {
			t.Helper()
			text, code := w.readText()
			if code != 0 {
				fmt.Fprintf(&script, "< close %d\n", code)
				return
			}
			fmt.Fprintf(&script, "< %s\n", text)
		}
		note := func(text string) { fmt.Fprintf(&script, "\n# %s\n", text) }

		note("A hello that is refused, and one that is not.")
		h.state.script(refuses(schema.IdentityConflict, registers))
		say(helloFrame(1))
		hear()
		h.state.script(nil)
		say(helloFrame(2))
		hear()

		note("An offer, its repetition, and what the worker does with it.")
		h.hub.Deliver([]*pb.Delivery{assignment(1, `{"amount":2.50,"to":"B\u00e4cker"}`)})
		hear()
		h.hub.Deliver([]*pb.Delivery{assignment(1, `{"amount":2.50,"to":"B\u00e4cker"}`)})
		hear()
		say(about(3, 1, start))
		hear()
		say(about(4, 1, renew))
		hear()
		say(about(5, 1, resume))
		hear()
		h.hub.Deliver([]*pb.Delivery{cancellation(1)})
		hear()
		say(about(6, 1, func(r workerv1.AttemptRef) workerv1.ClientBody {
			return &workerv1.Finish{Ref: r, Outcome: workerv1.OutcomeFailed, Result: []byte(`{"reason":"cancelled too late"}`), ErrorCode: "card.declined", Retryable: true}
		}))
		hear()

		note("The same finish again, after the attempt was given up.")
		h.state.script(func(_ context.Context, c *pb.Command) *pb.Result {
			r := goesWell(c)
			if o := r.GetOperation(); o != nil {
				o.Deduplicated = true
				o.Receipt.Disposition = pb.Disposition_DISPOSITION_EVIDENCE_ONLY
				o.Receipt.TaskState = pb.TaskState_TASK_STATE_NEEDS_REVIEW
				o.Receipt.AttemptState = pb.AttemptState_ATTEMPT_STATE_EXPIRED
				o.Lease.State = pb.AttemptState_ATTEMPT_STATE_EXPIRED
			}
			return r
		})
		say(about(6, 1, finish))
		hear()
		h.state.script(nil)

		note("Capacity, and a drain that is final.")
		say(workerv1.ClientFrame{MessageID: ident(7), SessionID: sessionID, Body: &workerv1.Capacity{Sequence: 1, Capacity: 2}})
		hear()
		say(workerv1.ClientFrame{MessageID: ident(8), SessionID: sessionID, Body: &workerv1.Capacity{Sequence: 2, Capacity: 0, Drain: true}})
		hear()

		note("Errors that answer a frame and leave the connection open.")
		h.state.script(refuses(schema.LeaseLost, starts))
		say(about(9, 1, start))
		hear()
		h.state.script(nil)
		say(helloFrame(10))
		hear()
		say(about(11, 1, func(r workerv1.AttemptRef) workerv1.ClientBody { r.Epoch = 8; return start(r) }))
		hear()
		sayText(fmt.Sprintf(`{"protocol_version":"1","type":"task.start","message_id":"%s","session_id":"%s","body":{}}`, ident(12), sessionID))
		hear()

		note("The instance registers elsewhere.")
		h.hub.Deliver([]*pb.Delivery{closing(schema.SessionSuperseded)})
		hear()
		hear()
		synctest.Wait()
		golden(t, "transcript.txt", script.Bytes())
	})
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs; if that is meant, run with -update. Got:\n%s", path, got)
	}
}
