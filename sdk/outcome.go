package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"pulse/schema"
	"pulse/schema/workerv1"
)

// Why a handler's context ended; context.Cause tells which.
var (
	// ErrLeaseLost: the worker can no longer be sure that the attempt is its
	// own. Somebody else may run the task from now on: stop, and write nothing
	// that a fencing token does not protect.
	ErrLeaseLost = errors.New("pulse: the lease is lost")
	// ErrCancelRequested: somebody asked for the cancellation. Stop if that can
	// be done cleanly, and return Cancelled() if nothing remains of the work.
	ErrCancelRequested = errors.New("pulse: cancellation was requested")
	// ErrWorkerStopped: the worker is stopping and its drain timeout is over.
	ErrWorkerStopped = errors.New("pulse: the worker is stopping")
)

// Error codes that the SDK itself reports, beside those given to Failed.
const (
	CodeHandlerError  = "handler_error"   // a handler returned an error without a code
	CodePanic         = "panic"           // a handler panicked: nothing is known about its effect
	CodeExit          = "handler_exit"    // a handler ended its goroutine instead of returning
	CodeBadResult     = "bad_result"      // the work was done, but its result is no JSON the cluster keeps
	CodeNoHandler     = "no_such_handler" // the worker was given a task it cannot run
	CodeNotRun        = "not_run"         // the attempt was over before the handler could begin
	CodeCancelled     = "cancelled"
	CodeLeaseLost     = "lease_lost"     // the handler stopped because its lease was lost
	CodeWorkerStopped = "worker_stopped" // the handler stopped because its worker was stopping
)

// verdict is an error that says how an attempt ended.
type verdict struct {
	outcome   workerv1.Outcome
	retryable bool
	code      string
	err       error
}

func (v *verdict) Error() string {
	if v.err == nil {
		return "pulse: " + v.code
	}
	return v.err.Error()
}

func (v *verdict) Unwrap() error { return v.err }

// Retryable says that the work has definitely not been done and may be tried
// again. Whether it is, is up to the task: its retry policy, and ReconcileOnly,
// which is never run again by itself. Nil stays nil.
func Retryable(err error) error {
	if err == nil {
		return nil
	}
	return &verdict{outcome: workerv1.OutcomeFailed, retryable: true, err: err}
}

// Failed says that the work has definitely not been done and that trying again
// would not help. The code is for programs and dashboards: a letter or digit,
// then up to 63 of letters, digits and _ . : -
//
// Retryable(Failed(code, err)) carries a code and is retried. Nil stays nil.
func Failed(code string, err error) error {
	if err == nil {
		return nil
	}
	return &verdict{outcome: workerv1.OutcomeFailed, code: code, err: err}
}

// Unknown says that the work may have been done. An idempotent task is then
// tried again, any other waits for a review. Nil stays nil.
func Unknown(err error) error {
	if err == nil {
		return nil
	}
	return &verdict{outcome: workerv1.OutcomeUnknown, err: err}
}

// Cancelled says that the handler stopped because it was asked to, leaving no
// effect behind. Without such a request the attempt counts as failed.
func Cancelled() error {
	return &verdict{outcome: workerv1.OutcomeCancelled, code: CodeCancelled}
}

// errorTextMax bounds the text of an error that becomes a result.
const errorTextMax = 4 << 10

// conclude turns what a handler returned into the finish to send. The table is
// in the package documentation.
func conclude(t *Task, cause error, result any, err error) workerv1.Finish {
	if err == nil {
		text, bad := resultJSON(result)
		if bad != nil {
			// The work is done: calling it failed would be a lie.
			return finish(workerv1.OutcomeUnknown, false, CodeBadResult, errorJSON(bad))
		}
		return finish(workerv1.OutcomeSucceeded, false, "", text)
	}
	v := judge(t, cause, err)
	text := errorJSON(err)
	if result != nil {
		if given, bad := resultJSON(result); bad == nil {
			text = given
		}
	}
	return finish(v.outcome, v.retryable, codeFor(v.outcome, cause, err), text)
}

// judge says what an error means. A handler that says so itself is believed. A
// plain error of an idempotent task is a failure worth another try. Any other
// task must not be presumed untouched: unless its handler says so, its outcome
// is unknown.
func judge(t *Task, cause, err error) verdict {
	if v, ok := errors.AsType[*verdict](err); ok {
		if v.outcome == workerv1.OutcomeCancelled && (errors.Is(cause, ErrLeaseLost) || errors.Is(cause, ErrWorkerStopped)) {
			// Nobody asked for the cancellation; the handler stopped for our
			// reasons and left no effect, so another worker may begin again.
			return verdict{outcome: workerv1.OutcomeFailed, retryable: true}
		}
		return *v
	}
	if t.RecoverySafety != Idempotent {
		return verdict{outcome: workerv1.OutcomeUnknown}
	}
	if errors.Is(cause, ErrCancelRequested) && (errors.Is(err, context.Canceled) || errors.Is(err, ErrCancelRequested)) {
		return verdict{outcome: workerv1.OutcomeCancelled}
	}
	return verdict{outcome: workerv1.OutcomeFailed, retryable: true}
}

// codeFor is the outermost code in the error's chain, or else one that tells
// why the context ended, if that is what the error says.
func codeFor(outcome workerv1.Outcome, cause, err error) string {
	if outcome == workerv1.OutcomeCancelled {
		return CodeCancelled
	}
	stopped := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, cause)
	for next := err; ; {
		v, ok := errors.AsType[*verdict](next)
		if !ok {
			break
		}
		if v.outcome == workerv1.OutcomeCancelled {
			stopped = true
		} else if schema.ValidName(v.code, schema.ErrorCodeCharsMax) {
			return v.code
		}
		next = v.err
	}
	switch {
	case stopped && errors.Is(cause, ErrLeaseLost):
		return CodeLeaseLost
	case stopped && errors.Is(cause, ErrWorkerStopped):
		return CodeWorkerStopped
	}
	return CodeHandlerError
}

// finish is a Finish but for the reference to its attempt.
func finish(outcome workerv1.Outcome, retryable bool, code string, result json.RawMessage) workerv1.Finish {
	return workerv1.Finish{Outcome: outcome, Retryable: retryable, ErrorCode: code, Result: result}
}

func resultJSON(result any) (json.RawMessage, error) {
	text, err := toJSON(result)
	if err != nil {
		return nil, fmt.Errorf("the result is not JSON: %w", err)
	}
	if err := schema.CheckResult(text); err != nil {
		return nil, fmt.Errorf("the result cannot be kept: %w", err)
	}
	return text, nil
}

// errorJSON is the result of an attempt that has only an error to show.
func errorJSON(err error) json.RawMessage {
	message := err.Error()
	message = strings.ToValidUTF8(message[:min(len(message), errorTextMax)], "\uFFFD")
	text, fault := marshal(map[string]string{"error": message})
	if fault != nil {
		return json.RawMessage("{}")
	}
	return text
}
