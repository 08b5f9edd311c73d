package demo

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"pulse/sdk"
)

const (
	producers = 4
	batchMax  = 100
	// The submitting is spread over some time, so that there is a middle to kill
	// something in; a very large demo takes as long as it takes.
	spreadEach = 8 * time.Millisecond // for each task
	spreadMin  = 2 * time.Second
	spreadMax  = 12 * time.Second
	// callsPerSecond are even enough; what is more goes into batches.
	callsPerSecond = 40
)

// load submits the jobs and remembers which were acknowledged.
type load struct {
	client *sdk.Client
	seed   uint64
	tasks  int
	batch  int
	every  time.Duration // between two batches
	began  time.Time
	next   atomic.Int64 // batch

	acknowledged atomic.Int64
	watchFrom    atomic.Int64  // Unix nanoseconds; the first answer to a submission after it is noted
	firstAnswer  chan struct{} // closed then

	mu       sync.Mutex
	acked    map[string]job // by task id
	refused  []error
	answered time.Time // when firstAnswer was closed
}

func newLoad(client *sdk.Client, tasks int, seed uint64) *load {
	l := &load{client: client, seed: seed, tasks: tasks, acked: make(map[string]job, tasks), firstAnswer: make(chan struct{})}
	spread := min(max(time.Duration(tasks)*spreadEach, spreadMin), spreadMax)
	l.batch = min(max(int(float64(tasks)/(callsPerSecond*spread.Seconds())), 1), batchMax)
	l.every = spread / time.Duration((tasks+l.batch-1)/l.batch)
	return l
}

// run submits everything, over whatever happens to the servers, until ctx ends.
func (l *load) run(ctx context.Context) {
	l.began = time.Now()
	var all sync.WaitGroup
	for range producers {
		all.Go(func() {
			for l.turn(ctx) {
			}
		})
	}
	all.Wait()
}

// turn submits the next batch when it is due.
func (l *load) turn(ctx context.Context) (more bool) {
	k := int(l.next.Add(1) - 1)
	first := k * l.batch
	if first >= l.tasks || !pause(ctx, time.Until(l.began.Add(time.Duration(k)*l.every))) {
		return false
	}
	jobs := make([]job, 0, l.batch)
	specs := make([]sdk.TaskSpec, 0, l.batch)
	for n := first; n < min(first+l.batch, l.tasks); n++ {
		j := jobOf(l.seed, n)
		jobs, specs = append(jobs, j), append(specs, j.spec())
	}
	l.submit(ctx, k, jobs, specs)
	return true
}

// submit repeats itself under one key, inside the SDK, until there is an answer.
func (l *load) submit(ctx context.Context, k int, jobs []job, specs []sdk.TaskSpec) {
	key := sdk.WithIdempotencyKey(fmt.Sprintf("demo-%d-%d", l.seed, k))
	began := time.Now()
	if len(specs) == 1 {
		task, err := l.client.Submit(ctx, specs[0], key)
		l.answer(began, jobs[0], task, err)
		return
	}
	items, err := l.client.SubmitBatch(ctx, queue, specs, key)
	for i := range jobs {
		switch {
		case i < len(items):
			l.answer(began, jobs[i], items[i].Task, items[i].Err)
		default:
			l.answer(began, jobs[i], nil, err)
		}
	}
}

func (l *load) answer(began time.Time, j job, task *sdk.TaskInfo, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.refused = append(l.refused, fmt.Errorf("task %d: %w", j.n, err))
		return
	}
	l.acked[task.ID] = j
	l.acknowledged.Add(1)
	if from := l.watchFrom.Load(); from != 0 && l.answered.IsZero() && time.Now().UnixNano() > from {
		l.answered = time.Now()
		close(l.firstAnswer)
	}
}

// watch notes the first answer that comes after now.
func (l *load) watch() { l.watchFrom.Store(time.Now().UnixNano()) }

func (l *load) answeredAt() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.answered
}

// failures counts the submissions that were given up.
func (l *load) failures() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.refused)
}
