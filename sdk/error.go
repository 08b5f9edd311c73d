package sdk

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"pulse/schema"
)

// Error is a refusal by the cluster. Decide by Code, with errors.Is and the
// codes of package schema:
//
//	if errors.Is(err, schema.QueueFull) { … }
//
// Every code but result_unknown promises that nothing happened. A call of a
// Client repeats what may be repeated by itself, so a retryable Error comes
// back only when the caller's context ended first.
type Error struct {
	Code            schema.Code        `json:"code"`
	Message         string             `json:"message"`          // for people; may change
	Status          int                `json:"status,omitempty"` // of the HTTP answer; 0 if it came another way
	Retryable       bool               `json:"retryable"`
	Violations      []schema.Violation `json:"violations,omitempty"`              // what is wrong with the request, by JSON Pointer
	ExistingTaskID  string             `json:"existing_task_id,omitempty"`        // with conflict on a business key: the task that has it
	CurrentRevision uint64             `json:"current_revision,omitempty,string"` // with revision_conflict

	retryAfter time.Duration
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "pulse: %s", e.Code)
	if e.Message != "" {
		fmt.Fprintf(&b, ": %s", e.Message)
	}
	for _, v := range e.Violations {
		fmt.Fprintf(&b, "; %s %s", v.Path, v.Message)
	}
	if e.ExistingTaskID != "" {
		fmt.Fprintf(&b, " (task %s)", e.ExistingTaskID)
	}
	return b.String()
}

// ErrTooOld says that what a watch asks for is no longer kept: list anew, and
// watch from now on.
var ErrTooOld = errors.New("pulse: the events behind this id are no longer kept")

// Is matches a schema.Code, whatever the message, and ErrTooOld.
func (e *Error) Is(target error) bool {
	if target == ErrTooOld {
		return e.Status == http.StatusGone
	}
	code, ok := target.(schema.Code)
	return ok && code == e.Code
}

// CodeOf is the code of the refusal in err's chain, or "" if there is none.
func CodeOf(err error) schema.Code {
	if refusal, ok := errors.AsType[*Error](err); ok {
		return refusal.Code
	}
	return ""
}

// problem is a body of type application/problem+json.
type problem struct {
	Title           string             `json:"title"`
	Status          int                `json:"status"`
	Detail          string             `json:"detail"`
	Code            schema.Code        `json:"code"`
	Retryable       bool               `json:"retryable"`
	Violations      []schema.Violation `json:"violations"`
	ExistingTaskID  string             `json:"existing_task_id"`
	CurrentRevision uint64             `json:"current_revision,string"`
}

func (p *problem) refusal() *Error {
	message := p.Detail
	if message == "" {
		message = p.Title
	}
	return &Error{
		Code: p.Code, Message: message, Status: p.Status, Retryable: p.Retryable, Violations: p.Violations,
		ExistingTaskID: p.ExistingTaskID, CurrentRevision: p.CurrentRevision,
	}
}

// refusalOf reads the error of an HTTP answer. What a proxy on the way answered
// has no code of ours; it gets the one its status comes closest to, and a
// gateway status counts as result_unknown or unavailable, so as retryable.
func refusalOf(answer *http.Response, body []byte) *Error {
	var p problem
	if err := json.Unmarshal(body, &p); err != nil || p.Code == "" {
		code, retryable := codeOfStatus(answer.StatusCode)
		p = problem{Code: code, Retryable: retryable, Detail: fmt.Sprintf("HTTP status %s: %s", answer.Status, excerpt(body))}
	}
	refusal := p.refusal()
	refusal.Status = answer.StatusCode
	if seconds, err := strconv.ParseUint(answer.Header.Get("Retry-After"), 10, 16); err == nil {
		refusal.retryAfter = time.Duration(seconds) * time.Second
	}
	return refusal
}

func codeOfStatus(status int) (code schema.Code, retryable bool) {
	switch status {
	case http.StatusBadRequest:
		return schema.InvalidArgument, false
	case http.StatusUnauthorized:
		return schema.Unauthenticated, false
	case http.StatusForbidden:
		return schema.Forbidden, false
	case http.StatusNotFound, http.StatusGone:
		return schema.NotFound, false
	case http.StatusConflict:
		return schema.Conflict, false
	case http.StatusRequestEntityTooLarge:
		return schema.TooLarge, false
	case http.StatusTooManyRequests:
		return schema.RateLimited, true
	case http.StatusServiceUnavailable:
		return schema.Unavailable, true
	case http.StatusBadGateway, http.StatusGatewayTimeout:
		// A proxy may have passed the request on before it gave up.
		return schema.ResultUnknown, true
	}
	return schema.Internal, false
}

// excerpt is the beginning of a body that is not ours, fit for a message.
func excerpt(body []byte) string {
	const bytesMax = 200
	text := strings.ToValidUTF8(string(body[:min(len(body), bytesMax)]), "?")
	return strings.Join(strings.Fields(text), " ")
}
