package httpapi

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

const (
	mediaJSON    = "application/json"
	mediaProblem = "application/problem+json"
	mediaEvents  = "text/event-stream"

	// retryAfter is what Retry-After says with 429 and 503: an election and a
	// queue that drains both take about that long.
	retryAfter = "1"
	// detailBytesMax bounds the text of a problem.
	detailBytesMax = 4096
)

// problem answers with an error.
func (e *exchange) problem(err error) {
	if e.status != 0 {
		// The answer has begun: breaking it off is all that is left to say.
		e.h.opt.Logger.Debug("answer broken off", "route", e.pattern(), "error", err)
		panic(http.ErrAbortHandler)
	}
	refusal := asRefusal(err)
	status := refusal.Code.HTTPStatus()
	header := e.w.Header()
	var special *statusError
	if errors.As(err, &special) {
		status = special.status
		for name, values := range special.header {
			header[name] = values
		}
	}
	if refusal.Code == schema.Internal {
		e.h.opt.Logger.Error("request failed", "method", e.r.Method, "route", e.pattern(), "error", err)
	}
	switch status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		header.Set("Retry-After", retryAfter)
	case http.StatusUnauthorized:
		header.Set("WWW-Authenticate", "Bearer")
	}
	buf := getBuffer()
	defer putBuffer(buf)
	buf.b = appendProblem(buf.b, status, refusal)
	e.write(status, mediaProblem, buf.b)
}

// appendProblem writes an error as problem+json (RFC 9457).
func appendProblem(dst []byte, status int, refusal *schema.Error) []byte {
	w := writer{buf: dst}
	w.open()
	w.text("type", refusal.Code.URN())
	w.text("title", title(refusal.Code))
	w.integer("status", int64(status))
	detail := refusal.Message
	if len(detail) > detailBytesMax {
		detail = detail[:detailBytesMax]
	}
	w.text("detail", detail)
	w.text("code", string(refusal.Code))
	w.bool("retryable", refusal.Code.Retryable())
	if len(refusal.Violations) > 0 {
		w.name("violations")
		w.openArray()
		for _, v := range refusal.Violations {
			w.next()
			w.open()
			w.text("path", v.Path)
			w.text("message", v.Message)
			w.close()
		}
		w.closeArray()
	}
	if refusal.ExistingTaskID != "" {
		w.text("existing_task_id", refusal.ExistingTaskID)
	}
	if refusal.CurrentRevision != 0 {
		w.uint64("current_revision", refusal.CurrentRevision)
	}
	w.close()
	return w.buf
}

// title is the code in words.
func title(code schema.Code) string {
	words := strings.ReplaceAll(string(code), "_", " ")
	if words == "" {
		return ""
	}
	return strings.ToUpper(words[:1]) + words[1:]
}

// Refuse answers a request with an error, for what stands in front of the
// Handler, in the same form.
func (h *Handler) Refuse(w http.ResponseWriter, r *http.Request, status int, refusal *schema.Error) {
	h.boundBody(w, r)
	h.Stamp(w, r)
	body := appendProblem(nil, status, refusal)
	header := w.Header()
	header.Set("Content-Type", mediaProblem)
	header.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // it fails with its reader
}

// Stamp sets the headers every answer has, for answers that are not the
// Handler's.
func (h *Handler) Stamp(w http.ResponseWriter, r *http.Request) {
	e := exchange{h: h, r: r}
	e.commonHeaders(w.Header())
}

// refusalOf is the error a Result carries, or nil.
func refusalOf(r *pb.Result) *schema.Error {
	if r.GetCode() == "" {
		return nil
	}
	refusal := &schema.Error{Code: schema.Code(r.Code), Message: r.Message, CurrentRevision: r.CurrentRevision}
	for _, v := range r.Violations {
		refusal.Violations = append(refusal.Violations, schema.Violation{Path: v.Path, Message: v.Message})
	}
	if id, ok := idOf(r.ExistingTaskId); ok {
		refusal.ExistingTaskID = id.String()
	}
	return refusal
}

func idOf(b []byte) (schema.ID, bool) {
	if len(b) != len(schema.ID{}) {
		return schema.ID{}, false
	}
	return schema.ID(b), true
}

// answer writes a complete answer.
func (e *exchange) answer(status int, body []byte) error {
	e.write(status, mediaJSON, body)
	return nil
}

func (e *exchange) write(status int, media string, body []byte) {
	header := e.w.Header()
	header["Content-Type"] = []string{media}
	header["Content-Length"] = []string{strconv.Itoa(len(body))}
	e.commonHeaders(header)
	e.writeWithin(e.h.opt.WriteWithin)
	e.status = status
	e.w.WriteHeader(status)
	if e.r.Method != http.MethodHead {
		_, _ = e.w.Write(body) // it fails with its reader
	}
}

// commonHeaders are those of every answer.
func (e *exchange) commonHeaders(header http.Header) {
	header["X-Content-Type-Options"] = nosniff
	header["Cache-Control"] = noStore
	if e.isV1() {
		header["X-Pulse-Index"] = []string{strconv.FormatUint(e.newestIndex(), 10)}
	}
}

var (
	nosniff = []string{"nosniff"}
	noStore = []string{"no-store"}
)

func (e *exchange) isV1() bool {
	return strings.HasPrefix(e.r.URL.Path, "/v1/")
}

// newestIndex is the index this answer speaks of, or where nothing was asked of
// the state, what this node has seen.
func (e *exchange) newestIndex() uint64 {
	if e.index != 0 {
		return e.index
	}
	return e.h.opt.Backend.AppliedIndex()
}

func (e *exchange) writeWithin(d time.Duration) {
	// A recorder in a test has no deadline to set.
	_ = http.NewResponseController(e.w).SetWriteDeadline(time.Now().Add(d))
}
