package sdk

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"pulse/schema"
	"pulse/schema/workerv1"
)

const (
	capacityDefault = 16
	capacityMax     = 256
	handlersMax     = 32

	drainTimeoutDefault = 30 * time.Second
	stopGrace           = 5 * time.Second // for handlers whose context has ended at last
	drainAnswerWait     = 2 * time.Second // for the cluster to hear of the drain

	heartbeatDefault = time.Minute

	reconnectFirst = time.Second
	reconnectMax   = time.Minute
	stableAfter    = time.Minute // a session that lasted this long starts the back-off anew
	contestedMax   = 3           // supersessions in a row before the worker takes a new identity
)

// Handler does the work of a task. What its result and error mean is in the
// package documentation. It should return soon after ctx ends; context.Cause
// tells why it did: ErrLeaseLost, ErrCancelRequested or ErrWorkerStopped.
type Handler func(ctx context.Context, t *Task) (result any, err error)

// WorkerOptions say where a worker gets its tasks. The zero value takes them
// from queue default of a cluster started with pulse dev on this machine.
type WorkerOptions struct {
	Addrs     []string // of nodes or a balancer; another is tried when one fails; default DefaultAddr
	Namespace string   // default "default"
	Queue     string   // default "default"
	Capacity  int      // handlers at the same time, 1..256; default 16
	Token     string
	TLS       TLSFiles // whom to believe and what to show
	// HTTPClient carries other settings than TLS has for the connection.
	HTTPClient *http.Client
	Logger     *slog.Logger // default slog.Default()

	// DrainTimeout is how long running handlers may go on when Run's context
	// has ended, before theirs ends too. Default 30 s; below zero not at all.
	DrainTimeout time.Duration
	// Heartbeat is how long a connection may be idle before the worker tries,
	// with an operation that goes through the log, whether the way to the
	// cluster is still open. Default 1 minute; below zero never.
	Heartbeat time.Duration
	// TracerProvider makes a span for each run of a handler, as a child of where
	// the task was submitted. Without one there is no span, and the context of a
	// handler still carries that of the submission, so that what the handler
	// calls and submits goes on with it.
	TracerProvider trace.TracerProvider
}

func (o WorkerOptions) complete() (WorkerOptions, error) {
	o.Namespace, o.Queue = orDefault(o.Namespace, DefaultName), orDefault(o.Queue, DefaultName)
	if o.Capacity == 0 {
		o.Capacity = capacityDefault
	}
	if o.Capacity < 1 || o.Capacity > capacityMax {
		return o, fmt.Errorf("pulse: WorkerOptions.Capacity is %d, must be 1 to %d", o.Capacity, capacityMax)
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.DrainTimeout == 0 {
		o.DrainTimeout = drainTimeoutDefault
	}
	if o.TracerProvider == nil {
		o.TracerProvider = noop.NewTracerProvider()
	}
	if o.Heartbeat == 0 {
		o.Heartbeat = heartbeatDefault
	}
	return o, nil
}

// Worker runs the handlers of one queue. It is made by NewWorker, given its
// handlers with Handle, and lives in Run. It is one instance to the cluster,
// with an identity made anew for each Worker: a process that is restarted is
// another worker.
type Worker struct {
	options  WorkerOptions
	fault    error // of the options; Run returns it
	log      *slog.Logger
	api      *api
	handlers map[workerv1.Capability]Handler // read-only once Run has begun

	ops   *operations
	stats counters

	places   chan struct{} // holds a value for each handler that runs
	draining chan struct{} // closed when no new task is to be begun
	stop     chan struct{} // closed when running handlers have to stop
	ready    chan struct{} // closed with the first session
	attempts sync.WaitGroup
	report   capacityReport

	mu       sync.Mutex
	began    bool
	drains   bool // draining is closed
	identity identity
	queueID  workerv1.ID // zero until looked up
	live     map[workerv1.ID]*attempt
	past     recent // attempts that are over, to know a late repeat of their offer
	health   Health
}

// identity is who a worker is to the cluster.
type identity struct {
	id     workerv1.ID
	secret workerv1.Secret
}

// NewWorker makes a worker; it connects to nothing before Run.
func NewWorker(options WorkerOptions) *Worker {
	o, fault := options.complete()
	w := &Worker{
		options: o, fault: fault, log: o.Logger, handlers: map[workerv1.Capability]Handler{}, ops: newOperations(),
		draining: make(chan struct{}), stop: make(chan struct{}), ready: make(chan struct{}),
		identity: identity{newID(), newSecret()}, live: map[workerv1.ID]*attempt{},
	}
	if fault != nil {
		return w
	}
	w.health.InstanceID, w.health.Since = w.identity.id.String(), time.Now()
	w.places = make(chan struct{}, o.Capacity)
	w.past = newRecent(pastAttempts)
	w.report = newCapacityReport(o.Capacity)
	w.log = o.Logger.With("worker", w.identity.id.String(), "queue", o.Queue)
	w.api, w.fault = newAPI(o.Addrs, o.Token, o.TLS, o.HTTPClient, w.log)
	return w
}

// Handle registers a handler for tasks submitted with exactly this name,
// handler version and payload version. All of them, at most 32, have to be
// registered before Run. It panics on a name that no task can have and on a
// repeat, which are mistakes in the program.
func (w *Worker) Handle(name, version, payloadVersion string, handler Handler) {
	w.mu.Lock()
	defer w.mu.Unlock()
	capability := workerv1.Capability{Handler: name, HandlerVersion: version, PayloadVersion: payloadVersion}
	switch {
	case w.began:
		panic("pulse: Worker.Handle after Run")
	case handler == nil:
		panic("pulse: Worker.Handle without a handler for " + name)
	case !schema.ValidName(name, schema.HandlerCharsMax) || !schema.ValidName(version, schema.HandlerVersionCharsMax) ||
		!schema.ValidName(payloadVersion, schema.PayloadVersionCharsMax):
		panic(fmt.Sprintf("pulse: Worker.Handle(%q, %q, %q): a letter or digit, then letters, digits and _ . : -", name, version, payloadVersion))
	case w.handlers[capability] != nil:
		panic(fmt.Sprintf("pulse: Worker.Handle(%q, %q, %q) twice", name, version, payloadVersion))
	case len(w.handlers) == handlersMax:
		panic("pulse: a worker has at most 32 handlers")
	}
	w.handlers[capability] = handler
}

// Run connects and works until ctx ends. Whatever fails on the way there, it
// tries again for ever, at another address each time: Ready, Health and the log
// tell how it goes. Only wrong options, no handlers, or a second call make it
// return early.
//
// When ctx ends, the worker drains: it begins nothing new, lets running handlers
// finish for DrainTimeout, and then ends their contexts with ErrWorkerStopped.
// Run returns nil once the outcomes of all of them are with the cluster, and an
// error if some handlers would not return or some outcome could not be handed
// over.
func (w *Worker) Run(ctx context.Context) error {
	if err := w.begin(); err != nil {
		return err
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	var crew sync.WaitGroup
	crew.Go(func() { w.stayConnected(life) })
	crew.Go(func() { w.reportCapacity(life) })
	<-ctx.Done()
	idle := make(chan struct{}) // closed when no attempt is left
	told := w.beginDrain()
	crew.Go(func() {
		w.attempts.Wait()
		close(idle)
	})
	err := w.drain(idle, told)
	end() // ends the attempts that are left
	crew.Wait()
	w.disconnected(nil)
	return err
}

func (w *Worker) begin() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.fault != nil:
		return w.fault
	case len(w.handlers) == 0:
		return errors.New("pulse: a worker without handlers has nothing to do; call Handle before Run")
	case w.began:
		return errors.New("pulse: a Worker runs once; make a new one")
	}
	w.began = true
	return nil
}

// beginDrain makes sure that no attempt begins any more, and asks the cluster
// for no more. The channel is closed when it has heard.
func (w *Worker) beginDrain() (told <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drains, w.health.Draining = true, true
	close(w.draining)
	w.log.Info("draining", "attempts", len(w.live))
	return w.report.drain()
}

// drain waits for what is running, with less and less patience.
func (w *Worker) drain(idle, told <-chan struct{}) error {
	if !within(idle, w.options.DrainTimeout) {
		close(w.stop)
		if !within(idle, stopGrace) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return fmt.Errorf("pulse: %d attempts were not brought to an end when the worker stopped", len(w.live))
		}
	}
	// Leaving without a word would be safe too, but a task offered this very
	// moment would wait for its offer to end.
	if w.Health().Connected {
		within(told, drainAnswerWait)
	}
	return nil
}

// within waits for c to be closed, but not longer than d.
func within(c <-chan struct{}, d time.Duration) bool {
	if closed(c) {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-c:
		return true
	case <-timer.C:
		return false
	}
}

// stayConnected holds one session after the other.
func (w *Worker) stayConnected(life context.Context) {
	contested, failures := 0, 0
	for {
		_, place := w.api.addr()
		lasted, err := w.session(life)
		if life.Err() != nil {
			return
		}
		if lasted >= stableAfter {
			contested, failures = 0, 0
		}
		w.api.moveOn(place)
		w.takeLesson(err, &contested)
		delay := backoff(failures, reconnectFirst, reconnectMax)
		failures++
		w.disconnected(err)
		w.log.Warn("not connected, trying again", "delay", delay, "error", err)
		if !pause(life, delay) {
			return
		}
	}
}

// session connects, registers, and serves the connection to its end.
func (w *Worker) session(life context.Context) (lasted time.Duration, err error) {
	queueID, err := w.findQueue(life)
	if err != nil {
		return 0, err
	}
	w.mu.Lock()
	self := w.identity
	w.mu.Unlock()
	hello := &workerv1.Hello{
		InstanceID: self.id, InstanceSecret: self.secret, QueueID: queueID, Capabilities: w.capabilities(),
		Capacity: uint32(w.options.Capacity), CancellationNotifications: true, ConcurrencyKeys: true,
	}
	// An attempt has at most three operations under way, and there are at most
	// twice as many attempts as places.
	l, err := dial(life, w.api, hello, 8*w.options.Capacity)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	w.connected(l, self.id)
	err = l.serve(life, w.ops, w)
	return time.Since(began), err
}

// capabilities are always in the same order, as a reconnect has to repeat them.
func (w *Worker) capabilities() []workerv1.Capability {
	all := make([]workerv1.Capability, 0, len(w.handlers))
	for capability := range w.handlers {
		all = append(all, capability)
	}
	slices.SortFunc(all, compareCapabilities)
	return all
}

// findQueue looks the queue's id up once; a hello that does not find it makes
// the worker look again.
func (w *Worker) findQueue(ctx context.Context) (workerv1.ID, error) {
	w.mu.Lock()
	known := w.queueID
	w.mu.Unlock()
	if known != (workerv1.ID{}) {
		return known, nil
	}
	var queue struct {
		ID workerv1.ID `json:"id"`
	}
	path := "/v1/namespaces/" + escape(w.options.Namespace) + "/queues/" + escape(w.options.Queue)
	if err := w.api.try(ctx, request{method: http.MethodGet, path: path}, &queue); err != nil {
		return workerv1.ID{}, fmt.Errorf("looking up queue %s/%s: %w", w.options.Namespace, w.options.Queue, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queueID = queue.ID
	return queue.ID, nil
}

// takeLesson changes what would make the next session fail like the last.
//
// Being superseded once can be our own doing: a hello that we gave up on was
// still under way and got through after the next one. Being superseded again
// and again means that another process has our identity, which random numbers
// do not explain but a cloned machine does. Then both would throw each other
// out for ever, so this one becomes somebody else: its running attempts are
// lost, which their handlers learn as ErrLeaseLost.
func (w *Worker) takeLesson(err error, contested *int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch CodeOf(err) {
	case schema.NotFound:
		w.queueID = workerv1.ID{}
	case schema.SessionSuperseded:
		*contested++
		if *contested < contestedMax {
			return
		}
		fallthrough
	case schema.IdentityConflict:
		// The queue was deleted and made again, so it has another id.
		*contested = 0
		w.identity = identity{newID(), newSecret()}
		w.queueID = workerv1.ID{}
		w.report.forget()
		w.log.Error("the identity of this worker is taken or no longer fits; going on under a new one", "instance", w.identity.id.String())
	}
}

// liveMax bounds the attempts known here, in multiples of the capacity.
const liveMax = 8

// assigned begins an attempt, unless it is a repeat of one. What is dropped for
// another reason stays an offer and lapses: nothing has run.
func (w *Worker) assigned(life context.Context, offer *workerv1.Assign) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.live[offer.AttemptID] != nil || w.past.has(offer.AttemptID):
		w.stats.repeated.Add(1)
		return
	case w.drains:
		return
	case len(w.live) >= liveMax*w.options.Capacity:
		// More than the cluster should give: handlers that outlived their
		// leases have their places taken. A finish frees the slot in the
		// cluster before its answer is read here, and the next offers may be
		// read first, so being over the capacity is ordinary.
		w.log.Warn("no room for an offer", "attempt", offer.AttemptID.String())
		return
	}
	a := newAttempt(w, offer)
	w.live[offer.AttemptID] = a
	w.stats.assigned.Add(1)
	w.attempts.Go(func() {
		a.live(life)
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.live, offer.AttemptID)
		w.past.add(offer.AttemptID)
	})
}

func (w *Worker) cancelled(c *workerv1.Cancel) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a := w.live[c.AttemptID]; a != nil {
		a.askCancel()
	}
}
