package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulse/schema/apiv1"
	"pulse/sdk"
)

func (a *app) taskCommand() *cobra.Command {
	return noun("task", "Submit tasks and look after them",
		`A task is one call of a handler with a JSON payload. It waits in a queue, is leased
to a worker, and ends SUCCEEDED, FAILED or CANCELLED; or in NEEDS_REVIEW, when
nobody can know whether it was done.`,
		"  pulse task run echo '{\"hi\":1.50}' --wait\n  pulse task list --state NEEDS_REVIEW",
		a.taskRunCommand(), a.taskSubmitCommand(), a.taskListCommand(), a.taskGetCommand(), a.taskCancelCommand(),
		a.taskRetryCommand(), a.taskRunNowCommand(), a.taskWatchCommand(), a.taskWhyCommand())
}

// filterFlags select tasks.
type filterFlags struct {
	filter      sdk.TaskFilter
	states      []string
	from, until string
}

func (f *filterFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVarP(&f.filter.Queue, "queue", "q", "", "tasks of this queue")
	flags.StringSliceVarP(&f.states, "state", "s", nil, "tasks in these states: "+strings.Join(apiv1.States, ", "))
	flags.StringVar(&f.filter.Handler, "handler", "", "tasks for this handler")
	flags.StringVar(&f.filter.BusinessKey, "business-key", "", "the task with this business key")
	flags.StringVar(&f.filter.ConcurrencyKey, "key", "", "tasks that need this concurrency key")
	flags.StringVar(&f.filter.WaitingReason, "reason", "", "tasks that wait for this reason: "+strings.Join(apiv1.WaitingReasons, ", "))
	flags.StringVar(&f.filter.ErrorCode, "error-code", "", "tasks whose last error has this code")
	flags.StringVar(&f.from, "created-from", "", "tasks created since: a time like 2030-01-31T12:00:00Z, or how long ago, like 15m")
	flags.StringVar(&f.until, "created-until", "", "tasks created before: a time, or how long ago")
	complete(cmd, "state", apiv1.States...)
	complete(cmd, "reason", apiv1.WaitingReasons...)
}

// read completes the filter; some says whether it selects anything less than all.
func (f *filterFlags) read() (filter sdk.TaskFilter, some bool, err error) {
	f.filter.States = nil
	for _, state := range f.states {
		word, err := oneOf("--state", state, apiv1.States)
		if err != nil {
			return filter, false, err
		}
		f.filter.States = append(f.filter.States, sdk.State(word))
	}
	if f.filter.WaitingReason != "" {
		if f.filter.WaitingReason, err = oneOf("--reason", f.filter.WaitingReason, apiv1.WaitingReasons); err != nil {
			return filter, false, err
		}
	}
	if f.filter.CreatedFrom, err = instant("--created-from", f.from); err == nil {
		f.filter.CreatedUntil, err = instant("--created-until", f.until)
	}
	if err != nil {
		return filter, false, err
	}
	v := f.filter
	some = len(v.States) > 0 || v.Queue+v.Handler+v.BusinessKey+v.ConcurrencyKey+v.WaitingReason+v.ErrorCode != "" ||
		!v.CreatedFrom.IsZero() || !v.CreatedUntil.IsZero()
	return f.filter, some, nil
}

// instant reads a time, or a duration back from now; empty is none.
func instant(flag, given string) (time.Time, error) {
	if given == "" {
		return time.Time{}, nil
	}
	if at, err := time.Parse(time.RFC3339, given); err == nil {
		return at, nil
	}
	back, err := parseSpan(given)
	if err != nil {
		return time.Time{}, usagef("%s is %q: give a time like 2030-01-31T12:00:00Z, or how long ago, like 15m or 3d", flag, given)
	}
	return time.Now().Add(-back), nil
}

// oneOf finds a word whatever its case, and with - for _.
func oneOf(flag, given string, words []string) (string, error) {
	for _, word := range words {
		if strings.EqualFold(word, strings.ReplaceAll(given, "-", "_")) {
			return word, nil
		}
	}
	return "", usagef("%s is %q: give one of %s", flag, given, strings.Join(words, ", "))
}

var taskColumns = []column[*sdk.TaskInfo]{
	{"ID", func(t *sdk.TaskInfo) string { return t.ID }},
	{"STATE", func(t *sdk.TaskInfo) string { return string(t.State) }},
	{"QUEUE", func(t *sdk.TaskInfo) string { return t.Queue }},
	{"HANDLER", func(t *sdk.TaskInfo) string { return t.Handler }},
	{"AGE", func(t *sdk.TaskInfo) string { return age(t.CreatedAt) }},
	{"ATTEMPTS", func(t *sdk.TaskInfo) string { return fmt.Sprintf("%d/%d", t.AttemptCount, t.Retry.MaxAttempts) }},
	{"DETAIL", taskDetail},
}

// taskDetail is the one thing to know about a task in its state.
func taskDetail(t *sdk.TaskInfo) string {
	var parts []string
	if w := t.Waiting; w != nil && t.State == sdk.StateWaiting {
		text := w.Reason
		switch {
		case w.HolderTaskID != "":
			text += " by " + w.HolderTaskID
		case !w.Until.IsZero():
			text += " until " + w.Until.Local().Format("15:04:05")
		}
		parts = append(parts, text)
	}
	if t.Lease != nil {
		parts = append(parts, "worker "+t.Lease.InstanceID)
	}
	if !t.CancelRequestedAt.IsZero() && !t.State.Terminal() {
		parts = append(parts, "cancel requested")
	}
	if t.ErrorCode != "" {
		parts = append(parts, t.ErrorCode)
	}
	if t.BusinessKey != "" {
		parts = append(parts, "for "+t.BusinessKey)
	}
	return strings.Join(parts, ", ")
}

func (a *app) taskListCommand() *cobra.Command {
	var filter filterFlags
	var limit int
	var quiet bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List tasks, newest first",
		Example: `  pulse task list
  pulse task list --queue mail --state FAILED,CANCELLED
  pulse task list --state WAITING --reason key_held -o jsonl`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			selected, _, err := filter.read()
			if err != nil {
				return err
			}
			c, ctx, cancel, err := a.page(cmd, limit)
			if err != nil {
				return err
			}
			defer cancel()
			walk := c.List(ctx, selected)
			if quiet {
				return printIDs(cmd, walk, limit, func(t *sdk.TaskInfo) string { return t.ID })
			}
			return printList(a, cmd, taskColumns, walk, limit, "No tasks.")
		},
	}
	filter.add(cmd)
	limitFlag(cmd, &limit)
	cmd.Flags().BoolVar(&quiet, "ids", false, "print ids alone, one a line")
	return cmd
}

func limitFlag(cmd *cobra.Command, limit *int) {
	*limit = 50
	cmd.Flags().VarP((*limitValue)(limit), "limit", "l", "stop after this many; 0 = all")
}

// limitValue is a flag that is a number of things to show.
type limitValue int

func (l *limitValue) Set(text string) error {
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return errors.New("give a whole number, or 0 for all")
	}
	*l = limitValue(n)
	return nil
}

func (l *limitValue) Type() string   { return "int" }
func (l *limitValue) String() string { return strconv.Itoa(int(*l)) }

// taskWithAttempts is a task and every run of it.
type taskWithAttempts struct {
	*sdk.TaskInfo
	Attempts []sdk.Attempt `json:"attempts"`
}

func (a *app) taskGetCommand() *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use:   "get ID",
		Short: "Show a task and its attempts",
		Long: `Show a task with its payload, its result and every attempt: who ran it, under
which fencing number, how it ended, and what arrived too late and is kept as
evidence.`,
		Example: `  pulse task get 0199f3c2a1b87d4e9a0b1c2d3e4f5061
  pulse task get 0199f3c2a1b87d4e9a0b1c2d3e4f5061 --wait -o json`,
		Args: exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := taskID(args[0])
			if err != nil {
				return err
			}
			c, err := a.client(cmd)
			if err != nil {
				return err
			}
			task := new(taskWithAttempts)
			if wait {
				if task.TaskInfo, err = a.awaitTask(cmd, c, id); err != nil {
					return err
				}
			}
			_, ctx, cancel, err := a.call(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			if task.TaskInfo, err = c.Get(ctx, id); err != nil {
				return err
			}
			if task.Attempts, err = c.Attempts(ctx, id); err != nil {
				return err
			}
			return a.printOne(cmd, task, func(d *details) { describeTask(d, task) })
		},
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until the task is SUCCEEDED, FAILED, CANCELLED or NEEDS_REVIEW")
	return cmd
}

// awaitTask waits for a task to be settled.
func (a *app) awaitTask(cmd *cobra.Command, c *sdk.Client, id string) (*sdk.TaskInfo, error) {
	_, ctx, cancel, err := a.long(cmd)
	if err != nil {
		return nil, err
	}
	defer cancel()
	task, err := c.Wait(ctx, id)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("task %s is not settled after %s", id, spell(timeout(a)))
	}
	return task, err
}

func describeTask(d *details, t *taskWithAttempts) {
	d.put("Task", t.ID)
	d.put("State", taskState(t.TaskInfo))
	d.putf("Queue", "%s/%s", t.Namespace, t.Queue)
	d.putf("Handler", "%s version %s, payload version %s", t.Handler, t.HandlerVersion, t.PayloadVersion)
	d.put("Business key", t.BusinessKey)
	d.put("Concurrency key", keyText(t.TaskInfo))
	if t.Priority > 0 {
		d.put("Priority", strconv.Itoa(t.Priority))
	}
	d.put("Recovery safety", string(t.RecoverySafety))
	if t.EffectUncertain {
		d.put("Effect", "uncertain: some run may have had one")
	}
	d.putf("Attempts", "%d of %d", t.AttemptCount, t.Retry.MaxAttempts)
	d.put("Retry of", t.RetryOf)
	d.put("Retried as", t.RetriedAs)
	d.time("Created", t.CreatedAt)
	if t.AvailableAt.After(t.CreatedAt) {
		d.time("Available", t.AvailableAt)
	}
	d.time("Cancel requested", t.CancelRequestedAt)
	describeDecision(d, t.Decision)
	if t.State == sdk.StateNeedsReview {
		d.time("In review since", reviewSince(t.TaskInfo))
	}
	d.time("Completed", t.CompletedAt)
	if !t.State.Terminal() {
		d.time("Start deadline", t.StartDeadlineAt)
		d.time("Deadline", t.DeadlineAt)
	}
	if t.Lease != nil {
		d.put("Worker", t.Lease.InstanceID)
		d.time("Leased until", t.Lease.LeaseUntil)
	}
	d.put("Revision", count(t.Revision))
	d.put("Payload", string(t.Payload))
	d.put("Error code", t.ErrorCode)
	d.put("Result", string(t.Result))
	for i := range t.Attempts {
		describeAttempt(d, &t.Attempts[i])
	}
}

// keyText is the concurrency key, and whether a task for which nothing runs has it.
func keyText(t *sdk.TaskInfo) string {
	switch {
	case t.ConcurrencyKey == "" || t.State != sdk.StateNeedsReview:
		return t.ConcurrencyKey
	case t.HoldsKey:
		return t.ConcurrencyKey + ", which it holds until it is settled"
	}
	return t.ConcurrencyKey + ", which it does not hold"
}

// describeDecision says that somebody, not a worker, decided about a task: who, when
// and why.
func describeDecision(d *details, made *sdk.Decision) {
	if made == nil {
		return
	}
	what, text := "Reviewed", string(made.Decision)
	if made.Decision == sdk.DecisionCancel {
		what, text = "Cancel", "asked for"
	}
	by := made.By
	if made.ByName != "" {
		by = made.ByName + " (" + made.By + ")"
	}
	d.putf(what, "%s by %s, %s", text, by, timeAndAge(made.At))
	d.put("  because", made.Note)
}

func describeAttempt(d *details, at *sdk.Attempt) {
	text := fmt.Sprintf("%s on worker %s, epoch %d", at.State, at.InstanceID, at.Epoch)
	if at.ConcurrencyToken != 0 {
		text += fmt.Sprintf(", key token %d", at.ConcurrencyToken)
	}
	switch {
	case !at.StartedAt.IsZero() && !at.EndedAt.IsZero():
		text += ", ran " + spell(at.EndedAt.Sub(at.StartedAt))
	case !at.StartedAt.IsZero():
		text += ", running for " + age(at.StartedAt)
	}
	if why := endOf(at); why != "" && at.State != "SUCCEEDED" {
		text += ", " + why
	}
	if len(at.Result) > 0 && at.State != "SUCCEEDED" {
		text += ": " + string(at.Result)
	}
	d.put("Attempt "+short(at.ID), text)
	for _, e := range at.Evidence {
		late := fmt.Sprintf("came too late, %s: %s", timeAndAge(e.At), e.Outcome)
		if e.ErrorCode != "" {
			late += " " + e.ErrorCode
		}
		if len(e.Result) > 0 {
			late += " " + string(e.Result)
		}
		d.put("  evidence", late)
	}
}

// endTexts say in words why an attempt ended without its worker's word.
var endTexts = map[string]string{
	"lease":             "its lease ran out",
	"attempt_timeout":   "it ran longer than an attempt may",
	"deadline":          "the task's deadline passed",
	"start_deadline":    "the task's start deadline passed",
	"session_lost":      "its worker was gone",
	"undeliverable":     "it did not reach its worker",
	"unknown_outcome":   "the worker does not know",
	"uncertain_failure": "it failed, but an earlier attempt may have had an effect",
	"restored":          "a lost cluster, from whose backup this one was made, may have run it",
}

// endOf is the worker's word on how an attempt ended, or else the cluster's.
func endOf(at *sdk.Attempt) string {
	return cmp.Or(at.ErrorCode, endTexts[at.EndCause], at.EndCause)
}

// taskState is the state with the one thing that explains it.
func taskState(t *sdk.TaskInfo) string {
	if t.State == sdk.StateWaiting && t.Waiting != nil {
		return fmt.Sprintf("%s (%s; pulse task why %s tells more)", t.State, t.Waiting.Reason, t.ID)
	}
	return string(t.State)
}

func (a *app) taskCancelCommand() *cobra.Command {
	return a.bulkCommand(bulkVerb{
		action: sdk.BulkCancel, one: (*sdk.Client).Cancel, use: "cancel", short: "Cancel tasks",
		long: `Cancel tasks, named or selected by flags. One that waits ends at once. One that
runs is told, and its handler decides how it ends; until then it is RUNNING. Flags
without --state select those that are WAITING, LEASED or RUNNING.`,
		said: func(t *sdk.TaskInfo) string {
			if t.State == sdk.StateCancelled {
				return "Task " + t.ID + " is cancelled."
			}
			return "Task " + t.ID + " is " + string(t.State) + " and was asked to stop."
		},
	})
}

func (a *app) taskRetryCommand() *cobra.Command {
	return a.bulkCommand(bulkVerb{
		action: sdk.BulkRetry, one: (*sdk.Client).Retry, use: "retry", short: "Submit tasks that are over once more",
		long: `Submit tasks that are SUCCEEDED, FAILED or CANCELLED once more, as new tasks, named or
selected by flags. Flags without --state select those that are FAILED, and never one that
was retried already: name it to retry it again. One in NEEDS_REVIEW is for "pulse review
resolve". One that was done, or may have been, and is RECONCILE_ONLY is retried with --yes
alone: that does its work a second time.`,
		doubt: func(t *sdk.TaskInfo) string {
			done := "may have been done: its effect is uncertain"
			switch {
			case t.RecoverySafety != sdk.ReconcileOnly:
				return ""
			case t.State == sdk.StateSucceeded:
				done = "was done: it is SUCCEEDED"
			case !t.EffectUncertain:
				return ""
			}
			return fmt.Sprintf("task %s %s, and as RECONCILE_ONLY it is not to be done twice on suspicion. A retry does its work once more; if that is what you want, say --yes", t.ID, done)
		},
		said: func(t *sdk.TaskInfo) string { return "Task " + t.RetryOf + " goes again as " + t.ID + "." },
	})
}

func (a *app) taskRunNowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "run-now ID",
		Short: "End a task's wait for a time",
		Long: `End the wait of a task for a time: a delay that it was submitted with, or the pause before
it is tried again. It is ready then, and starts when a worker has room. One that waits for
anything else stays as it is; "pulse task why" says for what.`,
		Example: "  pulse task run-now 0199f3c2a1b87d4e9a0b1c2d3e4f5061",
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
			task, err := c.RunNow(ctx, id, sdk.WithNote(a.note))
			if err != nil {
				return err
			}
			if task.State == sdk.StateWaiting && task.Waiting != nil && task.Waiting.Reason != "ready" {
				return a.done(cmd, task, "Task %s waits for no time now; it waits because: %s.", task.ID, task.Waiting.Reason)
			}
			return a.done(cmd, task, "Task %s is %s.", task.ID, task.State)
		},
	}
}

// bulkVerb is something to do to tasks named one by one or selected by a filter.
type bulkVerb struct {
	action           sdk.BulkAction
	one              func(*sdk.Client, context.Context, string, ...sdk.CallOption) (*sdk.TaskInfo, error)
	use, short, long string
	said             func(*sdk.TaskInfo) string
	// doubt says why a named task is left alone without --yes; "" if it is not. Nil
	// has no doubts.
	doubt func(*sdk.TaskInfo) string
}

func (a *app) bulkCommand(v bulkVerb) *cobra.Command {
	var filter filterFlags
	var dryRun, yes bool
	cmd := &cobra.Command{
		Use:   v.use + " [ID]...",
		Short: v.short,
		Long:  v.long,
		Example: fmt.Sprintf(`  pulse task %[1]s 0199f3c2a1b87d4e9a0b1c2d3e4f5061
  pulse task %[1]s --queue mail --handler send --dry-run
  pulse task %[1]s --queue mail --handler send --yes`, v.use),
		RunE: func(cmd *cobra.Command, args []string) error {
			selected, some, err := filter.read()
			switch {
			case err != nil:
				return err
			case some && len(args) > 0:
				return usagef("ids and a filter exclude each other")
			case !some && len(args) == 0:
				return usagef("say which tasks: ids, or flags that select some")
			case some && !yes && !dryRun:
				return usagef("a filter may select many tasks: look with --dry-run, then say --yes")
			case len(args) > 0 && dryRun:
				return usagef("--dry-run goes with flags that select tasks")
			}
			if some {
				return a.bulk(cmd, sdk.Bulk{Action: v.action, Filter: &selected, Note: a.note, DryRun: dryRun})
			}
			if yes {
				v.doubt = nil
			}
			return a.each(cmd, args, v)
		},
	}
	filter.add(cmd)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only show which tasks the flags select")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do it: to all that the flags select, and to a named task that is in doubt")
	return cmd
}

// each acts on tasks one by one; a refusal does not keep the others from theirs.
func (a *app) each(cmd *cobra.Command, ids []string, v bulkVerb) error {
	for i := range ids {
		id, err := taskID(ids[i])
		if err != nil {
			return err
		}
		ids[i] = id
	}
	c, ctx, cancel, err := a.call(cmd)
	if err != nil {
		return err
	}
	defer cancel()
	failed := false
	for _, id := range ids {
		task, err := a.one(ctx, c, id, v)
		if err != nil {
			refusal, _ := errors.AsType[*sdk.Error](err)
			if len(ids) == 1 || cmd.Context().Err() != nil || unserved(err, refusal) {
				return err
			}
			failed = true
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s", id, a.explainItem(cmd, err))
			continue
		}
		if a.format == formatTable {
			fmt.Fprintln(cmd.OutOrStdout(), v.said(task))
		} else if err := a.printOne(cmd, task, nil); err != nil {
			return err
		}
	}
	if failed {
		return errSilent
	}
	return nil
}

// one acts on a task, unless there is a doubt.
func (a *app) one(ctx context.Context, c *sdk.Client, id string, v bulkVerb) (*sdk.TaskInfo, error) {
	if v.doubt != nil {
		task, err := c.Get(ctx, id)
		if err != nil {
			return nil, err
		}
		if doubt := v.doubt(task); doubt != "" {
			return nil, errors.New(doubt)
		}
	}
	return v.one(c, ctx, id, sdk.WithNote(a.note))
}

// bulk acts on what a filter selects, as many requests as it takes.
func (a *app) bulk(cmd *cobra.Command, b sdk.Bulk) error {
	c, ctx, cancel, err := a.long(cmd)
	if err != nil {
		return err
	}
	defer cancel()
	total := sdk.BulkAnswer{Action: b.Action, DryRun: b.DryRun, Results: []sdk.BulkResult{}}
	for {
		answer, err := c.Bulk(ctx, b)
		if err != nil {
			return err
		}
		total.Matched += answer.Matched
		total.Done += answer.Done
		total.Failed += answer.Failed
		total.Results = append(total.Results, answer.Results...)
		if b.Cursor = answer.NextCursor; b.Cursor == "" {
			break
		}
	}
	switch {
	case a.format != formatTable:
		err = a.printOne(cmd, &total, nil)
	case b.DryRun:
		sayDryRun(cmd.OutOrStdout(), &total)
	default:
		for _, r := range total.Results {
			if r.Err != nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s", r.TaskID, a.explainItem(cmd, r.Err))
			}
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s: %d done, %d refused.\n", plural(total.Matched, "task"), total.Done, total.Failed)
	}
	if err == nil && total.Failed > 0 {
		return errSilent
	}
	return err
}

// sayDryRun tells what the flags select, and which of it the action is not for: the
// answer has states alone.
func sayDryRun(w io.Writer, b *sdk.BulkAnswer) {
	refused := 0
	for _, r := range b.Results {
		why := ""
		switch {
		case r.State == sdk.StateNeedsReview:
			why = "  would refuse: it needs a review"
		case b.Action == sdk.BulkRetry && !r.State.Terminal():
			why = "  would refuse: it is not over"
		case b.Action == sdk.BulkCancel && r.State.Terminal() && r.State != sdk.StateCancelled:
			why = "  would refuse: it is over"
		}
		if why != "" {
			refused++
		}
		fmt.Fprintf(w, "%s  %s%s\n", r.TaskID, r.State, why)
	}
	but := ""
	if refused > 0 {
		but = fmt.Sprintf(", and %d would refuse", refused)
	}
	fmt.Fprintf(w, "The flags select %s; with --yes each would be asked to %s%s.\n", plural(b.Matched, "task"), b.Action, but)
	if b.Action == sdk.BulkRetry {
		warnOfRepeats(w, b.Results)
	}
}

// warnOfRepeats says how much of what would be retried must not be done twice on
// suspicion.
func warnOfRepeats(w io.Writer, results []sdk.BulkResult) {
	careful, doubtful := 0, 0
	for _, r := range results {
		if r.RecoverySafety != sdk.ReconcileOnly || !r.State.Terminal() {
			continue
		}
		careful++
		if r.State == sdk.StateSucceeded || r.EffectUncertain {
			doubtful++
		}
	}
	switch {
	case doubtful > 0:
		fmt.Fprintf(w, "RECONCILE_ONLY among them: %d; done, or maybe done: %d of these. A retry does their work once more.\n", careful, doubtful)
	case careful > 0:
		fmt.Fprintf(w, "RECONCILE_ONLY among them: %d; none of these was done.\n", careful)
	}
}

func (a *app) taskWatchCommand() *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:   "watch [ID]",
		Short: "Print the changes of a task, or of all tasks, as they happen",
		Long: `Print every change of a task from its beginning until it is settled. Without an id,
print the changes of all tasks of the namespace from now on. The connection may
break: nothing is left out and nothing comes twice.`,
		Example: `  pulse task watch 0199f3c2a1b87d4e9a0b1c2d3e4f5061
  pulse task watch -o jsonl`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, ctx, cancel, err := a.long(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			if len(args) == 0 {
				for event, err := range c.WatchAll(ctx, "") {
					if err != nil {
						return err
					}
					if err := a.printEvent(cmd, event, event.TaskID+"  "); err != nil {
						return err
					}
				}
				return nil
			}
			id, err := taskID(args[0])
			if err != nil {
				return err
			}
			changes := untilSettled(ctx, c, id)
			if follow {
				changes = c.Watch(ctx, id)
			}
			for event, err := range changes {
				if err != nil {
					return err
				}
				if err := a.printEvent(cmd, event, ""); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on while the task is in NEEDS_REVIEW")
	return cmd
}

// untilSettled yields the changes of a task until it is settled as it stands now.
// A review that was needed once, and has been made since, ends nothing: what came
// of it follows.
func untilSettled(ctx context.Context, c *sdk.Client, id string) iter.Seq2[sdk.Event, error] {
	return func(yield func(sdk.Event, error) bool) {
		for event, err := range c.Watch(ctx, id) {
			if !yield(event, err) || err != nil {
				return
			}
			if event.State != sdk.StateNeedsReview {
				continue
			}
			switch task, err := c.Get(ctx, id); {
			case err != nil:
				yield(sdk.Event{}, err)
				return
			case task.Revision == event.Revision:
				return
			}
		}
	}
}

// printEvent prints one change. With -o json it is a line as with jsonl: an array
// would have no end.
func (a *app) printEvent(cmd *cobra.Command, event sdk.Event, before string) error {
	if a.format != formatTable {
		return printLine(cmd.OutOrStdout(), event)
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s%-12s  %s\n", before, event.State, eventText(event.Type))
	return err
}

// eventTexts say in words what a change was; others are named as they are.
var eventTexts = map[string]string{
	"leased":          "offered to a worker",
	"lease_released":  "not started in time, offered again",
	"started":         "started by the worker",
	"succeeded":       "done",
	"attempt_unknown": "the worker does not know how it ended",
	"attempt_expired": "the worker was not heard of in time",
	"retry_scheduled": "to be tried again",
	"failed":          "known not to have been done",
	"review_needed":   "nobody can know how it ended",
	"reviewed":        "settled by a person",
	"state":           "what happened before is no longer kept",
}

func eventText(name string) string {
	if text := eventTexts[name]; text != "" {
		return text
	}
	return strings.ReplaceAll(name, "_", " ")
}

// exactly takes arguments by name, and names those that are missing.
func exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return fmt.Errorf("%s needs %s", cmd.CommandPath(), strings.Join(names[len(args):], " and "))
		case len(args) > len(names):
			return fmt.Errorf("%s takes %s and nothing more: what is %q?", cmd.CommandPath(), strings.Join(names, " and "), args[len(names)])
		}
		for i, name := range names {
			if args[i] == "" {
				return fmt.Errorf("%s is empty", name) // a variable that is not set, as a rule
			}
		}
		return nil
	}
}

// taskID checks an id before anybody is asked about it.
func taskID(text string) (string, error) { return hexID("a task", text) }

func hexID(of, text string) (string, error) {
	id := strings.ToLower(strings.TrimSpace(text))
	ok := len(id) == 32 && strings.Trim(id, "0123456789abcdef") == ""
	if !ok {
		return "", usagef("%q is not the id of %s: 32 hexadecimal digits", text, of)
	}
	return id, nil
}

// businessJSON reads a JSON argument: the text itself, @FILE, or - for standard
// input.
func businessJSON(cmd *cobra.Command, name, given string) (json.RawMessage, error) {
	text, err := textOrFile(cmd, given)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := checkBusinessJSON(text); err != nil {
		return nil, usagef("%s: %w", name, err)
	}
	if string(bytes.TrimSpace(text)) == "null" {
		return nil, usagef("%s is null, which the cluster does not keep: give {} or leave it out", name)
	}
	return text, nil
}
