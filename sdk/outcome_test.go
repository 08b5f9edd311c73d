package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"pulse/schema"
	"pulse/schema/workerv1"
)

func TestWhatAHandlersEndMeans(t *testing.T) {
	t.Parallel()
	fault := errors.New("no route to host")
	type end struct {
		outcome   workerv1.Outcome
		retryable bool
		code      string
	}
	const (
		succeeded = workerv1.OutcomeSucceeded
		failed    = workerv1.OutcomeFailed
		unknown   = workerv1.OutcomeUnknown
		cancelled = workerv1.OutcomeCancelled
	)
	for name, c := range map[string]struct {
		result        any
		err           error
		cause         error
		idempotent    end
		reconcileOnly end
	}{
		"a result": {
			result: 1, idempotent: end{succeeded, false, ""}, reconcileOnly: end{succeeded, false, ""}},
		"a result after all, the lease being lost": {
			cause: ErrLeaseLost, idempotent: end{succeeded, false, ""}, reconcileOnly: end{succeeded, false, ""}},
		"a plain error is tried again only where that is safe": {
			err: fault, idempotent: end{failed, true, CodeHandlerError}, reconcileOnly: end{unknown, false, CodeHandlerError}},
		"Retryable": {
			err: Retryable(fault), idempotent: end{failed, true, CodeHandlerError}, reconcileOnly: end{failed, true, CodeHandlerError}},
		"Failed": {
			err: Failed("card_declined", fault), idempotent: end{failed, false, "card_declined"}, reconcileOnly: end{failed, false, "card_declined"}},
		"Failed in a wrapper": {
			err: fmt.Errorf("charging: %w", Failed("card_declined", fault)), idempotent: end{failed, false, "card_declined"}, reconcileOnly: end{failed, false, "card_declined"}},
		"a retryable failure with a code": {
			err: Retryable(Failed("busy", fault)), idempotent: end{failed, true, "busy"}, reconcileOnly: end{failed, true, "busy"}},
		"the outermost counts": {
			err: Unknown(Retryable(fault)), idempotent: end{unknown, false, CodeHandlerError}, reconcileOnly: end{unknown, false, CodeHandlerError}},
		"a code that is no name": {
			err: Failed("has blanks", fault), idempotent: end{failed, false, CodeHandlerError}, reconcileOnly: end{failed, false, CodeHandlerError}},
		"Unknown": {
			err: Unknown(fault), idempotent: end{unknown, false, CodeHandlerError}, reconcileOnly: end{unknown, false, CodeHandlerError}},
		"Cancelled on request": {
			err: Cancelled(), cause: ErrCancelRequested, idempotent: end{cancelled, false, CodeCancelled}, reconcileOnly: end{cancelled, false, CodeCancelled}},
		"stopping half way on request is clean only for an idempotent task": {
			err: context.Canceled, cause: ErrCancelRequested, idempotent: end{cancelled, false, CodeCancelled}, reconcileOnly: end{unknown, false, CodeHandlerError}},
		"another error after the request": {
			err: fault, cause: ErrCancelRequested, idempotent: end{failed, true, CodeHandlerError}, reconcileOnly: end{unknown, false, CodeHandlerError}},
		"stopping because the lease is lost": {
			err: fmt.Errorf("read: %w", context.Canceled), cause: ErrLeaseLost, idempotent: end{failed, true, CodeLeaseLost}, reconcileOnly: end{unknown, false, CodeLeaseLost}},
		"stopping because the worker stops": {
			err: ErrWorkerStopped, cause: ErrWorkerStopped, idempotent: end{failed, true, CodeWorkerStopped}, reconcileOnly: end{unknown, false, CodeWorkerStopped}},
		"Cancelled because the worker stops: nothing was done, others may": {
			err: Cancelled(), cause: ErrWorkerStopped, idempotent: end{failed, true, CodeWorkerStopped}, reconcileOnly: end{failed, true, CodeWorkerStopped}},
		"a result that is no JSON does not undo the work": {
			result: math.Inf(1), idempotent: end{unknown, false, CodeBadResult}, reconcileOnly: end{unknown, false, CodeBadResult}},
		"a result that is too large": {
			result: strings.Repeat("x", schema.BusinessBytesMax), idempotent: end{unknown, false, CodeBadResult}, reconcileOnly: end{unknown, false, CodeBadResult}},
	} {
		for safety, want := range map[RecoverySafety]end{Idempotent: c.idempotent, ReconcileOnly: c.reconcileOnly} {
			f := conclude(&Task{RecoverySafety: safety}, c.cause, c.result, c.err)
			if got := (end{f.Outcome, f.Retryable, f.ErrorCode}); got != want {
				t.Errorf("%s (%s): got %v, want %v", name, safety, got, want)
			}
			f.Ref = workerv1.AttemptRef{TaskID: newID(), AttemptID: newID(), Epoch: 1, LeaseSecret: newSecret()}
			frame := workerv1.ClientFrame{MessageID: newID(), SessionID: newID(), Body: &f}
			if _, err := workerv1.AppendClient(nil, frame); err != nil {
				t.Errorf("%s (%s): the finish cannot be sent: %v", name, safety, err)
			}
		}
	}
	for name, err := range map[string]error{"Retryable": Retryable(nil), "Failed": Failed("code", nil), "Unknown": Unknown(nil)} {
		if err != nil {
			t.Errorf("%s(nil) is %v", name, err)
		}
	}
}

func TestWhatBecomesOfAResult(t *testing.T) {
	t.Parallel()
	var nilMap map[string]int
	raw := json.RawMessage(`{ "a" : 2.50, "big": 12345678901234567890 }`)
	for name, c := range map[string]struct {
		result any
		err    error
		want   string
	}{
		"nothing":              {nil, nil, `{}`},
		"a typed nothing":      {nilMap, nil, `{}`},
		"raw null":             {json.RawMessage("null"), nil, `{}`},
		"raw JSON":             {raw, nil, string(raw)},
		"a pointer to it":      {&raw, nil, string(raw)},
		"text with a < sign":   {"a<b", nil, `"a<b"`},
		"an error":             {nil, errors.New("out of <paper>"), `{"error":"out of <paper>"}`},
		"a result beside it":   {map[string]int{"charged": 1}, Unknown(errors.New("x")), `{"charged":1}`},
		"an error of bad text": {nil, errors.New("\xff"), `{"error":"` + "\uFFFD" + `"}`},
	} {
		if f := conclude(&Task{RecoverySafety: Idempotent}, nil, c.result, c.err); string(f.Result) != c.want {
			t.Errorf("%s: %s, want %s", name, f.Result, c.want)
		}
	}
	long := conclude(&Task{}, nil, nil, errors.New(strings.Repeat("ü", 10_000)))
	if len(long.Result) > errorTextMax+100 || !json.Valid(long.Result) {
		t.Errorf("a long error became %d bytes", len(long.Result))
	}
}

type explosive struct{}

func (explosive) MarshalJSON() ([]byte, error) { panic("while encoding") }

func TestAHandlerThatDoesNotReturnHasAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		handler Handler
		code    string
	}{
		"it panics":                {func(context.Context, *Task) (any, error) { panic("at the disco") }, CodePanic},
		"it panics with nil":       {func(context.Context, *Task) (any, error) { panic(nil) }, CodePanic}, //nolint:govet // that is the point
		"its result panics":        {func(context.Context, *Task) (any, error) { return explosive{}, nil }, CodePanic},
		"it ends its goroutine":    {func(context.Context, *Task) (any, error) { runtime.Goexit(); return nil, nil }, CodeExit},
		"it panics with an error":  {func(context.Context, *Task) (any, error) { panic(Retryable(errors.New("x"))) }, CodePanic},
		"it indexes out of bounds": {func(_ context.Context, t *Task) (any, error) { return t.Payload()[100], nil }, CodePanic},
	} {
		ended := make(chan workerv1.Finish, 1)
		a := &attempt{
			w:    &Worker{log: slog.New(slog.DiscardHandler)},
			task: &Task{RecoverySafety: Idempotent, deadline: time.Now().Add(time.Hour)},
		}
		go a.handle(t.Context(), c.handler, ended)
		if f := <-ended; f.Outcome != workerv1.OutcomeUnknown || f.ErrorCode != c.code || f.Retryable {
			t.Errorf("%s: %+v", name, f)
		}
	}
}
