package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"pulse/sdk"
)

func (a *app) taskWhyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "why ID",
		Short: "Say why a task is not done, and what to do about it",
		Long: `Say in a sentence why a task is where it is: what it waits for and until when, which
task holds its key, which workers could take it; and what to do about it.`,
		Example: "  pulse task why 0199f3c2a1b87d4e9a0b1c2d3e4f5061",
		Args:    exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := taskID(args[0])
			if err != nil {
				return err
			}
			c, ctx, cancel, err := a.call(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			task, err := c.Get(ctx, id)
			if err != nil {
				return err
			}
			w := &why{TaskID: task.ID, State: task.State, Waiting: task.Waiting, task: task, client: c}
			if err := w.explain(ctx); err != nil {
				return err
			}
			if a.format != formatTable {
				return a.printOne(cmd, w, nil)
			}
			fmt.Fprintln(cmd.OutOrStdout(), w.Because)
			for _, step := range w.Advice {
				fmt.Fprintf(cmd.OutOrStdout(), "  %s\n", step)
			}
			return nil
		},
	}
}

// why is the answer to "why is it not done".
type why struct {
	TaskID  string           `json:"task_id"`
	State   sdk.State        `json:"state"`
	Waiting *sdk.WaitingInfo `json:"waiting,omitempty"`
	Because string           `json:"because"`
	Advice  []string         `json:"advice,omitempty"`
	Workers []workerFit      `json:"workers,omitempty"` // of the queue, with reason no_capable_worker or workers_busy

	task   *sdk.TaskInfo
	client *sdk.Client
}

// workerFit says whether a worker could take the task.
type workerFit struct {
	InstanceID string `json:"instance_id"`
	Fits       bool   `json:"fits"`
	But        string `json:"but,omitempty"` // why it does not take it
}

func (w *why) because(format string, args ...any) { w.Because = fmt.Sprintf(format, args...) }
func (w *why) advise(format string, args ...any) {
	w.Advice = append(w.Advice, fmt.Sprintf(format, args...))
}

func (w *why) explain(ctx context.Context) error {
	t := w.task
	switch t.State {
	case sdk.StateWaiting:
		return w.explainWaiting(ctx)
	case sdk.StateLeased:
		w.because("It was offered to worker %s, which has until %s to start it.", t.Lease.InstanceID, clock(t.Lease.LeaseUntil))
		w.advise("If it is not started by then it is offered to another. The worker: pulse worker get %s", t.Lease.InstanceID)
	case sdk.StateRunning:
		w.explainRunning()
	case sdk.StateNeedsReview:
		w.because("A run of it began and nobody can know whether it was done%s, so it waits for a person.", codeIn(t.ErrorCode))
		w.advise("What happened: pulse task get %s", t.ID)
		w.advise("Settle it:     pulse review resolve %s --decision … --note …", t.ID)
		if t.ConcurrencyKey != "" {
			w.advise("It may still hold key %q: pulse key get %s", t.ConcurrencyKey, quote(t.ConcurrencyKey))
		}
	case sdk.StateSucceeded:
		w.because("It is done: it SUCCEEDED %s ago.", spell(time.Since(t.CompletedAt)))
	case sdk.StateFailed:
		w.because("It FAILED %s ago%s, after %d of %d attempts.", spell(time.Since(t.CompletedAt)), codeIn(t.ErrorCode), t.AttemptCount, t.Retry.MaxAttempts)
		w.advise("The attempts: pulse task get %s", t.ID)
		w.advise("Once more:    pulse task retry %s", t.ID)
	case sdk.StateCancelled:
		w.because("It was CANCELLED %s ago.", spell(time.Since(t.CompletedAt)))
		if t.EffectUncertain {
			w.advise("A run of it may have had an effect: pulse task get %s", t.ID)
		}
		w.advise("Once more: pulse task retry %s", t.ID)
	default:
		w.because("It is %s, a state this version of pulse does not know.", t.State)
	}
	return nil
}

func (w *why) explainRunning() {
	t := w.task
	w.because("It is running on worker %s, whose lease holds until %s and is renewed as long as the worker lives.", t.Lease.InstanceID, clock(t.Lease.LeaseUntil))
	if !t.CancelRequestedAt.IsZero() {
		w.advise("It was asked to stop %s ago; its handler decides when.", spell(time.Since(t.CancelRequestedAt)))
	}
	w.advise("The worker: pulse worker get %s", t.Lease.InstanceID)
}

func (w *why) explainWaiting(ctx context.Context) error {
	t := w.task
	if t.Waiting == nil {
		w.because("It waits, and the server does not say for what.")
		return nil
	}
	until := ""
	if at := t.Waiting.Until; !at.IsZero() {
		until = fmt.Sprintf(" until %s, %s from now", clock(at), spell(max(time.Until(at), 0)))
	}
	switch t.Waiting.Reason {
	case "ready":
		w.because("It is ready: nothing is in its way, and it goes to the next free worker.")
	case "delayed":
		w.because("It was submitted with a delay and waits%s.", until)
	case "retry_backoff":
		return w.explainBackoff(ctx, until)
	case "queue_paused":
		w.because("Queue %s/%s is paused.", t.Namespace, t.Queue)
		w.advise("Let it go on: pulse queue resume %s", t.Queue)
	case "queue_limit":
		return w.explainLimit(ctx)
	case "key_held":
		return w.explainKey(ctx)
	case "no_capable_worker", "workers_busy":
		return w.explainWorkers(ctx, until)
	default:
		w.because("It waits: %s%s.", t.Waiting.Reason, until)
	}
	return nil
}

func (w *why) explainBackoff(ctx context.Context, until string) error {
	attempts, err := w.client.Attempts(ctx, w.task.ID)
	if err != nil {
		return err
	}
	why := ""
	if n := len(attempts); n > 0 {
		why = codeIn(endOf(&attempts[n-1]))
	}
	w.because("Attempt %d of %d ended without success%s; the next one waits%s.", w.task.AttemptCount, w.task.Retry.MaxAttempts, why, until)
	w.advise("The attempts: pulse task get %s", w.task.ID)
	return nil
}

func (w *why) explainLimit(ctx context.Context) error {
	queue, err := w.client.Queue(ctx, w.task.Queue)
	if err != nil {
		return err
	}
	w.because("Queue %s/%s runs %s tasks at a time at most, and so many are with workers now.", w.task.Namespace, queue.Name, commas(queue.MaxActive))
	w.advise("Raise it: pulse queue update %s --max-active %d", queue.Name, 2*max(queue.MaxActive, 1))
	return nil
}

func (w *why) explainKey(ctx context.Context) error {
	key, holder := w.task.ConcurrencyKey, w.task.Waiting.HolderTaskID
	if holder == "" {
		w.because("Another task has its concurrency key %q.", key)
		w.advise("Who has it: pulse key get %s", quote(key))
		return nil
	}
	task, err := w.client.Get(ctx, holder)
	if err != nil {
		return err
	}
	w.because("Its concurrency key %q is held by task %s, which is %s.", key, holder, task.State)
	if task.State == sdk.StateNeedsReview {
		w.advise("It keeps the key until somebody settles it: pulse review resolve %s --decision … --note …", holder)
		w.advise("If the review has to wait and the key must not: pulse key free %s --note …", quote(key))
		return nil
	}
	w.advise("Why that one is not done: pulse task why %s", holder)
	w.advise("If it must not go on: pulse task cancel %s; the key is free when its attempt has ended", holder)
	return nil
}

// workersShown bounds how many workers an explanation looks at.
const workersShown = 100

func (w *why) explainWorkers(ctx context.Context, until string) error {
	fitting := 0
	for worker, err := range w.client.Workers(ctx, w.task.Queue) {
		if err != nil {
			return err
		}
		if len(w.Workers) == workersShown {
			break
		}
		fit := fitOf(worker, w.task)
		if fit.Fits {
			fitting++
		}
		w.Workers = append(w.Workers, fit)
	}
	t := w.task
	want := fmt.Sprintf("handler %s version %s with payload version %s", t.Handler, t.HandlerVersion, t.PayloadVersion)
	switch {
	case t.Waiting.Reason == "workers_busy":
		w.because("%s of queue %s could run it, and all are busy%s.", plural(fitting, "worker"), t.Queue, until)
		w.advise("It goes to the first that has room. More room: start more workers.")
	case len(w.Workers) == 0:
		w.because("No worker is connected to queue %s/%s.", t.Namespace, t.Queue)
		w.advise("Start one that registers %s.", want)
	default:
		w.because("No worker of queue %s/%s can run %s.", t.Namespace, t.Queue, want)
	}
	for _, fit := range w.Workers {
		if fit.But != "" {
			w.advise("Worker %s: %s", fit.InstanceID, fit.But)
		}
	}
	return nil
}

// fitOf says why a worker does not take a task, in the order in which the
// scheduler would ask.
func fitOf(worker *sdk.WorkerInfo, t *sdk.TaskInfo) workerFit {
	fit := workerFit{InstanceID: worker.InstanceID}
	wanted := sdk.Capability{Handler: t.Handler, HandlerVersion: t.HandlerVersion, PayloadVersion: t.PayloadVersion}
	switch {
	case worker.State != "connected" && worker.State != "draining":
		fit.But = "is not connected"
	case worker.Draining:
		fit.But = "is draining and takes nothing new"
	case !slices.Contains(worker.Capabilities, wanted):
		fit.But = "offers " + capabilities(worker, ", ")
	case t.ConcurrencyKey != "" && !worker.ConcurrencyKeys:
		fit.But = "takes no tasks with a concurrency key"
	default:
		fit.Fits = true
		if worker.Active >= worker.Capacity {
			fit.But = fmt.Sprintf("has %d of %d places taken", worker.Active, worker.Capacity)
		}
	}
	return fit
}

func codeIn(code string) string {
	if code == "" {
		return ""
	}
	return " (" + code + ")"
}

// clock is a time near now.
func clock(at time.Time) string {
	local := at.Local()
	if now := time.Now(); local.YearDay() == now.YearDay() && local.Year() == now.Year() {
		return local.Format("15:04:05")
	}
	return local.Format("2006-01-02 15:04:05")
}

// quote makes a word safe to paste into a shell.
func quote(word string) string {
	for _, c := range word {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '/' || c == '-' || c == '_' || c == '.' || c == ':' || c == '@') {
			return shellQuote(word)
		}
	}
	return word
}
