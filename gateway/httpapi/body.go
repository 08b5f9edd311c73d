package httpapi

import (
	"context"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"pulse/schema"
)

const (
	// bodyBytesMax bounds the body of every route but a batch: business JSON
	// with room for what stands around it.
	bodyBytesMax = 1 << 20
	// batchBytesMax bounds the body of a batch.
	batchBytesMax = 8 << 20
	// bodyChunkBytes is what is allocated for a body before any of it is
	// there. It then grows with what arrives.
	bodyChunkBytes = 64 << 10
)

// body reads the body within the bounds of the route. It is held until the
// exchange ends, because commands refer to it.
func (e *exchange) body() ([]byte, error) {
	limit := e.route.bodyMax
	if err := e.checkMedia(); err != nil {
		return nil, err
	}
	declared := e.r.ContentLength
	if declared > limit {
		return nil, tooLarge(limit)
	}
	if declared == 0 {
		return nil, nil
	}
	hold := declared
	if hold < 0 {
		hold = limit
	}
	if e.h.bodyBytes.Add(hold) > e.h.opt.BodyBytesMax {
		e.h.bodyBytes.Add(-hold)
		return nil, schema.Errorf(schema.Unavailable, "this gateway holds as many bodies as it can")
	}
	e.reserved = hold

	control := http.NewResponseController(e.w)
	if limit > bodyBytesMax {
		_ = control.SetReadDeadline(e.started.Add(3 * e.h.opt.BodyWithin)) // as in boundBody
	}
	data, err := readBody(e.r.Body, declared, limit)
	if err != nil {
		return nil, err
	}
	_ = control.SetReadDeadline(time.Time{}) // the connection now waits for the client to leave, or ask for more
	return data, nil
}

// boundBody gives a body its time to arrive, whether or not anybody reads it:
// net/http reads on behind an answer, to use the connection again, and a client
// that sends a byte a second would hold it for days.
func (h *Handler) boundBody(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		// A recorder in a test has no deadline to set.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(h.opt.BodyWithin))
	}
}

// checkMedia refuses a body that does not say it is JSON: a page of another
// origin can send any other kind without asking first.
func (e *exchange) checkMedia() error {
	if encoding := e.r.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return unsupportedMedia("a body must not be encoded; its Content-Encoding is %q", encoding)
	}
	sent := e.r.Header.Get("Content-Type")
	if sent == mediaJSON {
		return nil
	}
	if sent == "" && e.r.ContentLength == 0 {
		return nil
	}
	media, params, err := mime.ParseMediaType(sent)
	charset, given := params["charset"]
	if err != nil || media != mediaJSON || given && !strings.EqualFold(charset, "utf-8") {
		return unsupportedMedia("the body must be %s in UTF-8; its Content-Type is %q", mediaJSON, sent)
	}
	return nil
}

func unsupportedMedia(format string, args ...any) error {
	return &statusError{
		status: http.StatusUnsupportedMediaType, header: http.Header{"Accept": {mediaJSON}},
		err: schema.Errorf(schema.InvalidArgument, format, args...),
	}
}

func tooLarge(limit int64) error {
	return schema.Errorf(schema.TooLarge, "the body has more than %d bytes", limit)
}

// readBody reads to the end, never more than limit. Memory follows what has
// arrived, whatever the client declared.
func readBody(from io.Reader, declared, limit int64) ([]byte, error) {
	room := int64(bodyChunkBytes)
	if declared >= 0 {
		room = min(room, declared)
	}
	data := make([]byte, 0, room+1) // one more, to see the end without growing
	for {
		n, err := from.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		if int64(len(data)) > limit {
			return nil, tooLarge(limit)
		}
		switch {
		case errors.Is(err, io.EOF):
			return data, nil
		case err != nil:
			return nil, bodyError(err)
		}
		if len(data) == cap(data) {
			grown := make([]byte, len(data), min(2*int64(cap(data)), limit)+1)
			copy(grown, data)
			data = grown
		}
	}
}

// bodyError gives a body that did not arrive its meaning.
func bodyError(err error) error {
	var timeout net.Error
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return &statusError{
			status: http.StatusRequestTimeout, header: http.Header{"Connection": {"close"}},
			err: schema.Errorf(schema.DeadlineExpired, "the body did not arrive in time"),
		}
	case errors.Is(err, context.Canceled):
		return schema.Errorf(schema.DeadlineExpired, "the client left")
	}
	return schema.Errorf(schema.InvalidArgument, "the body could not be read to its end")
}
