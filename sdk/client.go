package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"pulse/schema"
)

const (
	// DefaultAddr is where a node listens unless told otherwise.
	DefaultAddr = "http://127.0.0.1:7400"
	// DefaultName is the namespace, and the queue in it, that every cluster has.
	DefaultName = "default"

	batchTasksMax = 1000    // of one request
	batchBytesMax = 7 << 20 // below the 8 MiB that the API takes
	batchTimeout  = time.Minute
)

// ClientOptions say where the cluster is. The zero value is a cluster started
// with pulse dev on this machine.
type ClientOptions struct {
	Addr      string   // one address of a node or of a balancer; default DefaultAddr
	Addrs     []string // or several; another is tried when one fails
	Namespace string   // default "default"
	Queue     string   // of TaskSpecs that name none; default "default"
	Token     string
	TLS       TLSFiles // whom to believe and what to show
	// HTTPClient carries other settings than TLS has. Leave its Timeout at zero:
	// waiting and watching are long requests, and every other has a limit.
	HTTPClient *http.Client
	Logger     *slog.Logger // default slog.Default()
	// Note is the reason that changes go on record with (Audit), unless WithNote
	// gives another. Of use to programs that a person starts for one purpose. A
	// submission goes on record with a reason of its own alone: there may be any
	// number of them.
	Note string
}

// Client submits tasks and looks after them. It is safe from any goroutine and
// needs no closing.
//
// A call repeats what failed in a way that may pass (no leader, a full queue, an
// unknown result, a network error) until its context ends. That is safe: every
// call that changes something carries an Idempotency-Key of its own, under
// which the cluster answers a repeat with the first answer; Transfer,
// RemoveServer and SetClusterSettings do no harm when they are repeated. So give each call a context
// with an end.
type Client struct {
	api       *api
	submits   *submissions
	fault     error // of the options; every call returns it
	namespace string
	queue     string
}

// NewClient makes a client; it connects to nothing before the first call.
func NewClient(options ClientOptions) *Client {
	addrs := options.Addrs
	if options.Addr != "" {
		addrs = append([]string{options.Addr}, addrs...)
	}
	c := &Client{
		namespace: orDefault(options.Namespace, DefaultName),
		queue:     orDefault(options.Queue, DefaultName),
	}
	c.api, c.fault = newAPI(addrs, options.Token, options.TLS, options.HTTPClient, options.Logger)
	c.submits = &submissions{api: c.api, lanes: map[string]*lane{}}
	if c.fault == nil {
		c.api.note = options.Note
	}
	return c
}

// InNamespace is the same client for another namespace.
func (c *Client) InNamespace(namespace string) *Client {
	other := *c
	other.namespace = namespace
	return &other
}

// CallOption changes one call.
type CallOption func(*callOptions)

type callOptions struct {
	key              string
	ownKey           bool // key is the caller's
	expectedRevision uint64
	note             string
	query            url.Values
}

// WithIdempotencyKey gives a call a key of your own, so that a repeat by
// another process within 24 hours gets the first answer too. The same key with
// other content is refused with operation_conflict.
func WithIdempotencyKey(key string) CallOption { return func(o *callOptions) { o.key = key } }

// WithExpectedRevision refuses a change with revision_conflict unless the task
// or queue is at this revision.
func WithExpectedRevision(revision uint64) CallOption {
	return func(o *callOptions) { o.expectedRevision = revision }
}

// WithNote gives the reason for a change. It goes on record with it (Audit), and
// into the history of the task or schedule that it is about. Submissions are on
// record only if they come with one.
func WithNote(note string) CallOption { return func(o *callOptions) { o.note = note } }

// WithStaleRead lets any node answer a read from what it has.
func WithStaleRead() CallOption {
	return func(o *callOptions) { o.query.Set("consistency", "stale") }
}

func options(given []CallOption) callOptions {
	o := callOptions{query: url.Values{}}
	for _, option := range given {
		option(&o)
	}
	if o.ownKey = o.key != ""; !o.ownKey {
		o.key = newKey()
	}
	return o
}

// read and change are the two kinds of calls: a GET, and everything else.

func (c *Client) read(ctx context.Context, path string, query url.Values, out any, given []CallOption) error {
	if c.fault != nil {
		return c.fault
	}
	o := options(given)
	for name, values := range query {
		o.query[name] = values
	}
	return c.api.call(ctx, request{method: http.MethodGet, path: path, query: o.query}, out)
}

func (c *Client) change(ctx context.Context, method, path string, body []byte, out any, given []CallOption) error {
	if c.fault != nil {
		return c.fault
	}
	o := options(given)
	return c.api.call(ctx, request{method: method, path: path, body: body, key: o.key, note: o.note}, out)
}

func (c *Client) path(elements string) string {
	return "/v1/namespaces/" + escape(c.namespace) + elements
}

func (c *Client) queuePath(queue string) string {
	return c.path("/queues/" + escape(orDefault(queue, c.queue)))
}

func (c *Client) taskPath(id string) string { return c.path("/tasks/" + escape(id)) }

// Submit hands a task to the cluster. Once it returns without an error the task
// survives any single node. What many goroutines submit to a queue at the same
// time travels in few requests; each call fares as it would alone.
func (c *Client) Submit(ctx context.Context, spec TaskSpec, opts ...CallOption) (*TaskInfo, error) {
	body, err := spec.encode()
	if err != nil {
		return nil, err
	}
	path := c.queuePath(spec.Queue) + "/tasks"
	o := options(opts)
	switch {
	case c.fault != nil:
		return nil, c.fault
	case !alone(ctx, body, o):
		return c.submits.submit(ctx, path, body, o.key)
	}
	task := new(TaskInfo)
	if err := c.api.call(ctx, request{method: http.MethodPost, path: path, body: body, key: o.key, note: o.note, quiet: true}, task); err != nil {
		return nil, err
	}
	return task, nil
}

func (c *Client) changeTask(ctx context.Context, path string, body []byte, opts []CallOption) (*TaskInfo, error) {
	task := new(TaskInfo)
	if err := c.change(ctx, http.MethodPost, path, body, task, opts); err != nil {
		return nil, err
	}
	return task, nil
}

// BatchItem is the outcome of one task of a batch: a task, or why there is none.
type BatchItem struct {
	Task *TaskInfo `json:"task,omitempty"`
	Err  error     `json:"error,omitempty"`
}

// UnmarshalJSON reads a task or {"error": problem}.
func (i *BatchItem) UnmarshalJSON(text []byte) error {
	var result batchResult
	if err := json.Unmarshal(text, &result); err != nil {
		return err
	}
	var err error
	*i, err = result.item()
	return err
}

// batchResult is a BatchItem as it travels. An answer of a thousand is read as
// these, in one pass: what has an UnmarshalJSON of its own is looked through
// three times.
type batchResult struct {
	*TaskInfo
	Error *problem `json:"error"`
}

func (r *batchResult) item() (BatchItem, error) {
	switch {
	case r.Error != nil:
		return BatchItem{Err: r.Error.refusal()}, nil
	case r.TaskInfo != nil:
		return BatchItem{Task: r.TaskInfo}, nil
	}
	return BatchItem{}, errors.New("neither a task nor an error")
}

// SubmitBatch submits many tasks to one queue ("" is the client's), in as few
// requests as the limits allow. It is not atomic: each task stands for itself,
// in the order given, and items that were refused for the moment are submitted
// again until ctx ends. The answer has an item for each task whose request was
// answered; if err is not nil, those at the end are missing and may or may not
// have been taken: repeat the whole call under the same WithIdempotencyKey to
// find out.
func (c *Client) SubmitBatch(ctx context.Context, queue string, specs []TaskSpec, opts ...CallOption) ([]BatchItem, error) {
	o := options(opts)
	items := make([]BatchItem, 0, len(specs))
	encoded := make([][]byte, len(specs))
	for i := range specs {
		var err error
		if encoded[i], err = specs[i].encode(); err != nil {
			return nil, fmt.Errorf("task %d: %w", i, err)
		}
	}
	for first := 0; first < len(encoded); {
		body, count := batchBody(encoded[first:])
		// The key names the place of the request in the batch, so that the same
		// batch is cut and keyed the same way whoever repeats it.
		key := o.key + "/" + strconv.Itoa(first)
		answer, err := c.submitChunk(ctx, queue, body, count, key, o.note)
		items = append(items, answer...)
		if err != nil {
			return items, err
		}
		first += count
	}
	return items, nil
}

// batchBody packs as many tasks as one request may carry, at least one.
func batchBody(tasks [][]byte) (body []byte, count int) {
	body = append(body, `{"tasks":[`...)
	for _, task := range tasks {
		if count > 0 && (count == batchTasksMax || len(body)+len(task) > batchBytesMax) {
			break
		}
		if count > 0 {
			body = append(body, ',')
		}
		body = append(body, task...)
		count++
	}
	return append(body, "]}"...), count
}

// submitChunk repeats a request until none of its items was refused for the
// moment only; those already taken answer as before, because an item is keyed by
// the request's key and its place. When ctx ends the last answer stands, but for
// what another try may have done since, or before: see chunk.
func (c *Client) submitChunk(ctx context.Context, queue string, body []byte, count int, key, note string) ([]BatchItem, error) {
	if c.fault != nil {
		return nil, c.fault
	}
	r := request{method: http.MethodPost, path: c.queuePath(queue) + "/tasks:batch", body: body, key: key, note: note, quiet: true, try: batchTimeout}
	part := chunk{lost: make([]error, count)}
	err := c.api.persist(ctx, r.path, func(ctx context.Context) error {
		var answer struct {
			Results []batchResult `json:"results"`
		}
		if err := c.api.try(ctx, r, &answer); err != nil {
			part.failed(err)
			return err
		}
		if len(answer.Results) != count {
			return &answerError{fmt.Errorf("%d results for %d tasks", len(answer.Results), count)}
		}
		items := make([]BatchItem, count)
		for i := range items {
			var err error
			if items[i], err = answer.Results[i].item(); err != nil {
				err = &answerError{fmt.Errorf("result %d: %w", i, err)}
				part.failed(err)
				return err
			}
		}
		return part.answered(items)
	})
	if part.items != nil && err != nil && ctx.Err() != nil {
		return part.outcome(), nil //nolint:nilerr // each item says what became of it
	}
	return part.outcome(), err
}

// chunk is what the tries of a request for many tasks have said of them.
type chunk struct {
	items []BatchItem // of the newest answer
	lost  []error     // by place: why a try before that may have taken it
	since error       // why a try after it may have taken any
}

// failed notes a try without an answer about the items.
func (p *chunk) failed(err error) {
	if answerLost(err) {
		p.since = err
	}
}

// answered notes an answer, and returns the refusal that another try may mend.
func (p *chunk) answered(items []BatchItem) (again error) {
	for i := range items {
		if p.since != nil {
			p.lost[i] = p.since
		}
		refusal := items[i].Err
		if refusal == nil || !mayRetry(refusal) {
			continue
		}
		if again == nil {
			again = refusal
		}
		if answerLost(refusal) {
			p.lost[i] = refusal
		}
	}
	p.items, p.since = items, nil
	return again
}

// outcome is the items, each with a refusal only if no other try may have taken
// it. One that is final says that none before it did; and what breaks a rule is
// never taken.
func (p *chunk) outcome() []BatchItem {
	for i := range p.items {
		refusal, ok := errors.AsType[*Error](p.items[i].Err)
		switch {
		case !ok || refusal.Code == schema.ResultUnknown || refusal.Code == schema.InvalidArgument:
		case p.since != nil:
			p.items[i].Err = doubted(refusal, p.since)
		case refusal.Retryable && p.lost[i] != nil:
			p.items[i].Err = doubted(refusal, p.lost[i])
		}
	}
	return p.items
}
