package workerv1

import (
	"encoding/base64"
	"strings"
	"testing"

	"pulse/schema"
)

// The sample frames of both directions, used by the golden, differential, fuzz and
// benchmark tests. Together they use every member of every shape.

func idOf(t testing.TB, hex string) ID {
	t.Helper()
	id, ok := schema.ParseID(strings.Repeat("0", 32-len(hex)) + hex)
	if !ok {
		t.Fatalf("%q is no id", hex)
	}
	return id
}

func timeOf(t testing.TB, text string) Time {
	t.Helper()
	at, ok := schema.ParseTime(text)
	if !ok {
		t.Fatalf("%q is no time", text)
	}
	return at
}

func secretOf(fill byte) (s Secret) {
	for i := range s {
		s[i] = fill + byte(i)
	}
	return s
}

func base64Of(s Secret) string { return base64.RawURLEncoding.EncodeToString(s[:]) }

type sample[F any] struct {
	name  string
	frame F
}

func clientSamples(t testing.TB) []sample[ClientFrame] {
	ref := AttemptRef{TaskID: idOf(t, "a1"), AttemptID: idOf(t, "b2"), Epoch: 1 << 63, LeaseSecret: secretOf(7)}
	session := idOf(t, "5e55")
	frame := func(n string, body ClientBody) ClientFrame {
		f := ClientFrame{MessageID: idOf(t, n), SessionID: session, Body: body}
		if _, hello := body.(*Hello); hello {
			f.SessionID = ID{}
		}
		return f
	}
	return []sample[ClientFrame]{
		{"hello", frame("1", &Hello{
			InstanceID: idOf(t, "11"), InstanceSecret: secretOf(1), QueueID: idOf(t, "12"),
			Capabilities: []Capability{{"charge", "1", "1"}, {"mail.send:v-2_x", "2.0", "2026-01"}},
			Capacity:     256, CancellationNotifications: true, ConcurrencyKeys: true,
		})},
		{"hello_small", frame("2", &Hello{
			InstanceID: idOf(t, "11"), InstanceSecret: secretOf(255), QueueID: idOf(t, "12"),
			Capabilities: []Capability{{"e", "1", "1"}}, Capacity: 1,
		})},
		{"capacity", frame("3", &Capacity{Sequence: 1<<64 - 1, Capacity: 0, Drain: true})},
		{"resume", frame("4", &Resume{Ref: ref})},
		{"start", frame("5", &Start{Ref: ref})},
		{"renew", frame("6", &Renew{Ref: ref})},
		{"finish_succeeded", frame("7", &Finish{Ref: ref, Outcome: OutcomeSucceeded, Result: []byte(`{"paid":2.50,"to":"Ärger & Söhne"}`)})},
		{"finish_failed", frame("8", &Finish{Ref: ref, Outcome: OutcomeFailed, Result: []byte(`"card refused"`), ErrorCode: "card.refused", Retryable: true})},
		{"finish_unknown", frame("9", &Finish{Ref: ref, Outcome: OutcomeUnknown, Result: []byte(`[1,[2,{"3":null}]]`), ErrorCode: "timeout"})},
		{"finish_cancelled", frame("a", &Finish{Ref: ref, Outcome: OutcomeCancelled, Result: []byte(`false`), ErrorCode: "cancelled"})},
	}
}

func serverSamples(t testing.TB) []sample[ServerFrame] {
	session, reply := Some(idOf(t, "5e55")), Some(idOf(t, "1"))
	now, later := timeOf(t, "2026-07-01T12:00:00.000001Z"), timeOf(t, "2026-07-01T12:00:30Z")
	welcome := Welcome{SessionID: session.V, Epoch: 42, ServerTime: now, ExpiresAt: later, LeaseDurationMillis: 30_000, Draining: true}
	lease := Lease{Active: true, State: AttemptRunning, LeaseUntil: later, ServerTime: now}
	over := Lease{State: AttemptExpired, LeaseUntil: now, ServerTime: later, CancelRequestedAt: Some(now)}
	receipt := Receipt{Operation: OperationFinish, TaskState: TaskNeedsReview, AttemptState: AttemptUnknown, TaskRevision: 7, LeaseUntil: now, Disposition: EvidenceOnly}
	small := Task{
		ID: idOf(t, "a1"), NamespaceID: idOf(t, "a2"), QueueID: idOf(t, "12"), Revision: 2,
		Handler: "charge", HandlerVersion: "1", PayloadVersion: "1", Payload: []byte(`{"amount":2.50}`),
		AvailableAt: now, DeadlineAt: later, RecoverySafety: Idempotent,
		Retry:        Retry{MaxAttempts: 3, InitialDelayMillis: 1000, MaxDelayMillis: 60_000, AttemptTimeoutMillis: 3_600_000},
		AttemptCount: 1, CreatedAt: now, UpdatedAt: now,
	}
	full := small
	full.Payload, full.Result = []byte(`[ "bytes as sent" , 1.0 ]`), []byte(`0`)
	full.BusinessKey, full.ConcurrencyKey = "order \"4711\"\n\u0001", "account/Ω"
	full.StartDeadlineAt, full.CancelRequestedAt, full.CompletedAt = Some(later), Some(now), Some(Time(0))
	full.RecoverySafety, full.EffectUncertain, full.Priority, full.RetryOf = ReconcileOnly, true, 9, Some(ID{})
	full.Retry = Retry{MaxAttempts: 100, MaxDelayMillis: delayMillisMax, AttemptTimeoutMillis: timeoutMillisMax}
	full.AttemptCount = 100
	assign := Assign{Task: small, AttemptID: idOf(t, "b2"), Epoch: 43, LeaseSecret: secretOf(7), LeaseUntil: later, ServerTime: now}
	keyed := assign
	keyed.Task, keyed.ConcurrencyToken = full, 44
	return []sample[ServerFrame]{
		{"welcome", ServerFrame{idOf(t, "21"), session, reply, &welcome}},
		{"assign", ServerFrame{MessageID: idOf(t, "22"), SessionID: session, Body: &assign}},
		{"assign_full", ServerFrame{MessageID: idOf(t, "23"), SessionID: session, Body: &keyed}},
		{"ack_capacity", ServerFrame{idOf(t, "24"), session, reply, &Ack{Welcome: &welcome}}},
		{"ack_resume", ServerFrame{idOf(t, "25"), session, reply, &Ack{Lease: &over}}},
		{"ack_finish", ServerFrame{idOf(t, "26"), session, reply, &Ack{Result: &CommandResult{Receipt: receipt, Lease: over, Deduplicated: true}}}},
		{"ack_start", ServerFrame{idOf(t, "27"), session, reply, &Ack{Result: &CommandResult{
			Receipt: Receipt{OperationStart, TaskRunning, AttemptRunning, 3, later, Applied}, Lease: lease,
		}}}},
		{"error_answer", ServerFrame{idOf(t, "28"), session, reply, &Error{schema.LeaseLost, "the attempt is over"}}},
		{"error_registration", ServerFrame{MessageID: idOf(t, "29"), ReplyTo: Some(ID{}), Body: &Error{"not_found", ""}}},
		{"error_fatal", ServerFrame{MessageID: idOf(t, "2a"), Body: &Error{schema.SessionSuperseded, "replaced \u2028 \U0001F642"}}},
		{"cancel", ServerFrame{MessageID: idOf(t, "2b"), SessionID: session, Body: &Cancel{idOf(t, "a1"), idOf(t, "b2"), 43, now}}},
	}
}
