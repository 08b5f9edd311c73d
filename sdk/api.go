package sdk

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	mrand "math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/propagation"

	"pulse/schema"
)

const (
	// callTimeout bounds one try of an ordinary request. It is above the time
	// an election may take, because the gateway waits for the new leader.
	callTimeout = 15 * time.Second
	// answerBytesMax bounds the body of one answer; a larger one is an error.
	answerBytesMax = 128 << 20

	retryDelayFirst = 100 * time.Millisecond
	retryDelayMax   = 5 * time.Second
	triesQuiet      = 4 // about a second of them
)

// api is the HTTP side of a cluster as both Client and Worker need it: some
// addresses of which one is in use, a credential, and the rule for trying again.
// Safe from any goroutine.
type api struct {
	addrs  []*url.URL
	vitals []vital       // of each of addrs
	inUse  atomic.Uint64 // place in addrs, modulo its length; moves on when a try fails
	token  string
	note   string // of requests that have none
	http   *http.Client
	logger *slog.Logger
}

func newAPI(addrs []string, token string, files TLSFiles, client *http.Client, logger *slog.Logger) (*api, error) {
	if len(addrs) == 0 {
		addrs = []string{DefaultAddr}
	}
	a := &api{token: token, http: client, logger: logger}
	if a.logger == nil {
		a.logger = slog.Default()
	}
	switch {
	case files != (TLSFiles{}) && client != nil:
		return nil, errors.New("pulse: both TLS and HTTPClient are set: give one of them")
	case files != (TLSFiles{}):
		var err error
		if a.http, err = files.HTTPClient(a.logger); err != nil {
			return nil, err
		}
	case client == nil:
		a.http = &http.Client{}
	}
	for _, addr := range addrs {
		u, err := url.Parse(addr)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
			return nil, fmt.Errorf("pulse: address %q is not of the form http://host:port", addr)
		}
		u.Path, u.RawPath, u.RawQuery, u.Fragment = strings.TrimRight(u.Path, "/"), "", "", ""
		a.addrs = append(a.addrs, u)
	}
	// Many processes start from one configuration: let them not all begin at
	// its first line.
	mrand.Shuffle(len(a.addrs), func(i, j int) { a.addrs[i], a.addrs[j] = a.addrs[j], a.addrs[i] })
	a.vitals = make([]vital, len(a.addrs))
	return a, nil
}

// addr is the address in use; moveOn leaves it for the next, once, however many
// calls found it wanting at the same time.
func (a *api) addr() (base *url.URL, place uint64) {
	place = a.inUse.Load()
	return a.addrs[place%uint64(len(a.addrs))], place
}

func (a *api) moveOn(place uint64) { a.inUse.CompareAndSwap(place, place+1) }

// request is one API request. It can be sent any number of times: whatever
// changes something carries an Idempotency-Key, under which the cluster
// answers a repeat with the first answer.
type request struct {
	method string
	path   string // escaped
	query  url.Values
	body   []byte // JSON, or nil
	key    string // Idempotency-Key, or "" with GET
	note   string // why, or ""
	quiet  bool   // a reason of the client's own is not for it
	header http.Header
	try    time.Duration // limit of one try; 0 = callTimeout
}

// call sends a request until there is a final answer or ctx ends, and decodes
// the answer's body into out unless that is nil.
func (a *api) call(ctx context.Context, r request, out any) error {
	return a.persist(ctx, r.method+" "+r.path, func(ctx context.Context) error { return a.try(ctx, r, out) })
}

// persist repeats attempt while its error says that another may do better. When
// ctx ends first, the error wraps both that and the last failure, since the
// latter may be a result_unknown. An attempt that ctx cut short says nothing
// about the network, so what the one before found there is told, too; not a
// refusal of it, which does not hold for the attempt that was cut short.
//
// A refusal speaks of its own try. If the answer to an earlier one was lost, that
// one may have been carried out, whatever the last one promises: the refusal of a
// change becomes a result_unknown then. (One that is final does not: the key of the
// call would have found what was done.)
func (a *api) persist(ctx context.Context, what string, attempt func(context.Context) error) error {
	var before, lost error
	final := func(err error) error {
		if refusal, ok := errors.AsType[*Error](err); ok && lost != nil && refusal.Code != schema.ResultUnknown && !strings.HasPrefix(what, http.MethodGet) {
			err = doubted(refusal, lost)
		}
		return fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	for tries := 0; ; tries++ {
		_, place := a.addr()
		err := attempt(ctx)
		if err == nil || !mayRetry(err) {
			return err
		}
		if ctx.Err() != nil {
			if before != nil && errors.Is(err, ctx.Err()) {
				err = fmt.Errorf("%w; the try before: %w", err, before)
			}
			return final(err)
		}
		if answerLost(err) {
			lost = err
		}
		a.moveOn(place)
		before = err
		delay := backoff(tries, retryDelayFirst, retryDelayMax)
		if refusal, ok := errors.AsType[*Error](err); ok {
			before = nil
			delay = max(delay, refusal.retryAfter)
		}
		level := slog.LevelDebug
		if tries == triesQuiet {
			level = slog.LevelWarn // once: a caller whose context never ends should know why it waits
		}
		a.logger.Log(ctx, level, "request still failing, trying again", "request", what, "tries", tries+1, "delay", delay, "error", err)
		if !pause(ctx, delay) {
			return final(err)
		}
	}
}

// doubted is what a refusal becomes if another try may have been carried out.
func doubted(refusal *Error, lost error) *Error {
	return &Error{Code: schema.ResultUnknown, Retryable: true, Message: fmt.Sprintf("a try may have been carried out, as its answer was lost (%v); the last one was refused: %s", lost, refusal.Message)}
}

// answerLost says that a try may have been carried out: it was sent, or may have
// been, and nobody said what became of it.
func answerLost(err error) bool {
	if refusal, ok := errors.AsType[*Error](err); ok {
		return refusal.Code == schema.ResultUnknown
	}
	fault, ok := errors.AsType[*net.OpError](err)
	return !ok || fault.Op != "dial"
}

// mayRetry: a refusal says itself whether it may; anything else is a network
// that failed, unless it is an answer that nobody can read.
func mayRetry(err error) bool {
	if refusal, ok := errors.AsType[*Error](err); ok {
		return refusal.Retryable
	}
	_, fault := errors.AsType[*answerError](err)
	return !fault
}

// answerError is an answer with a good status that is not what it should be.
type answerError struct{ err error }

func (e *answerError) Error() string { return "pulse: unreadable answer: " + e.err.Error() }
func (e *answerError) Unwrap() error { return e.err }

// try sends a request once, to the address in use.
func (a *api) try(ctx context.Context, r request, out any) error {
	if r.try == 0 {
		r.try = callTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, r.try)
	defer cancel()
	ctx, release := a.whileAlive(ctx)
	defer release()
	answer, err := a.send(ctx, r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := readBody(answer.Body)
	if err != nil {
		return err
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(body, out); err != nil {
		return &answerError{err}
	}
	if out, ok := out.(interface{ replayed() }); ok && answer.Header.Get("Idempotency-Replayed") == "true" {
		out.replayed()
	}
	return nil
}

// send sends a request and returns the answer with its body open, or the
// refusal it carries.
func (a *api) send(ctx context.Context, r request) (*http.Response, error) {
	base, _ := a.addr()
	target := base.String() + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	var body io.Reader
	if r.body != nil {
		body = bytes.NewReader(r.body)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, body)
	if err != nil {
		return nil, &answerError{err}
	}
	propagator.Inject(ctx, propagation.HeaderCarrier(req.Header))
	for name, values := range r.header {
		req.Header[name] = values
	}
	if r.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if r.key != "" {
		req.Header.Set("Idempotency-Key", r.key)
	}
	note := r.note
	if !r.quiet {
		note = cmp.Or(note, a.note)
	}
	if note := headerText(note); note != "" {
		req.Header.Set("X-Pulse-Note", note)
	}
	a.authorize(req.Header)
	answer, err := a.http.Do(req)
	if err != nil {
		if errors.Is(context.Cause(ctx), errSilent) {
			err = errSilent // says more than "context canceled"
		}
		return nil, fmt.Errorf("pulse: %w", err)
	}
	if answer.StatusCode/100 == 2 {
		return answer, nil
	}
	defer answer.Body.Close()
	text, err := readBody(answer.Body)
	if err != nil {
		return nil, err
	}
	return nil, refusalOf(answer, text)
}

// headerText is text as a header can carry it, in one line.
func headerText(text string) string { return strings.Join(strings.Fields(text), " ") }

func (a *api) authorize(header http.Header) {
	if a.token != "" {
		header.Set("Authorization", "Bearer "+a.token)
	}
	header.Set("User-Agent", "pulse-go-sdk")
}

func readBody(body io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(body, answerBytesMax+1))
	if err != nil {
		return nil, fmt.Errorf("pulse: reading the answer: %w", err)
	}
	if len(text) > answerBytesMax {
		return nil, &answerError{fmt.Errorf("more than %d bytes", answerBytesMax)}
	}
	return text, nil
}

// backoff is a random delay up to first, doubling with each try up to most
// (full jitter): those who failed together do not come back together.
func backoff(tries int, first, most time.Duration) time.Duration {
	ceiling := most
	if tries < 32 {
		ceiling = min(first<<tries, most)
	}
	return mrand.N(ceiling) + 1
}

// pause waits unless ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// newKey makes an Idempotency-Key: 128 random bits.
func newKey() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// escape writes a name for use as one path segment. Everything but letters,
// digits, '-' and '_' is percent-encoded, so that no name can look like a verb
// (":free") or like a step in the path ("..").
func escape(name string) string {
	const digits = "0123456789ABCDEF"
	var b strings.Builder
	for _, c := range []byte(name) {
		switch {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '-', c == '_':
			b.WriteByte(c)
		default:
			b.Write([]byte{'%', digits[c>>4], digits[c&15]})
		}
	}
	return b.String()
}
