package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"pulse/schema"
	"pulse/sdk"
)

func (a *app) scheduleCommand() *cobra.Command {
	return noun("schedule", "Submit tasks at set times",
		`A schedule submits a task at the times of a cron text or at an interval, each time once
whatever happens to the servers. What becomes of a time while a run is not over, and how
late a time may be, is a setting of it.`,
		"  pulse schedule create nightly report --cron '0 2 * * *' --time-zone Europe/Berlin\n  pulse schedule list",
		a.scheduleCreateCommand(), a.scheduleListCommand(), a.scheduleGetCommand(), a.schedulePreviewCommand(),
		a.scheduleSwitchCommand("pause", "Let no time of a schedule come", "pulse schedule pause nightly --note holidays", (*sdk.Client).PauseSchedule),
		a.scheduleSwitchCommand("resume", "Let a paused schedule go on, from now", "pulse schedule resume nightly", (*sdk.Client).ResumeSchedule),
		a.scheduleTriggerCommand(), a.scheduleBackfillCommand(), a.scheduleDeleteCommand())
}

// timesFlags say when a schedule runs.
type timesFlags struct {
	cron, timeZone string
	every, jitter  span
	start, end     moment
	maxFires       uint64
}

func (f *timesFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.cron, "cron", "", "minute, hour, day of the month, month, day of the week; a second first if there are six; or @daily and the like")
	flags.StringVar(&f.timeZone, "time-zone", "", "zone whose clock --cron is about, e.g. Europe/Berlin (default UTC)")
	flags.Var(&f.every, "every", "an interval of at least 1s, instead of --cron")
	flags.Var(&f.start, "start", "no time is before this one")
	flags.Var(&f.end, "end", "all times are before this one")
	flags.Uint64Var(&f.maxFires, "max-fires", 0, "end after as many runs; 0 = never")
	flags.Var(&f.jitter, "jitter", "be late by a part of this that is fixed for the schedule, so that schedules of one time spread")
}

func (f *timesFlags) spec() (sdk.ScheduleSpec, error) {
	if (f.cron == "") == (f.every == 0) {
		return sdk.ScheduleSpec{}, usagef("give --cron or --every, e.g. --cron '0 2 * * *'")
	}
	return sdk.ScheduleSpec{
		Cron: f.cron, TimeZone: f.timeZone, Every: time.Duration(f.every), StartAt: f.start.at, EndAt: f.end.at,
		MaxFires: f.maxFires, Jitter: time.Duration(f.jitter),
	}, nil
}

func (a *app) scheduleCreateCommand() *cobra.Command {
	var times timesFlags
	var task struct {
		queue, handlerVersion, payloadVersion, key string
		priority, maxAttempts                      int
		reconcileOnly                              bool
		startDeadline, deadline                    span
		initialDelay, maxDelay, timeout            span
	}
	var overlap string
	var catchUp span
	var paused, replace bool
	cmd := &cobra.Command{
		Use:   "create NAME HANDLER [JSON]",
		Short: "Create a schedule",
		Long: `Create a schedule that submits a task for a handler, with the payload {} if none is
given. One that is there already is left as it is and the verb fails, unless --replace is
given; then a change of its times holds from now on.`,
		Example: `  pulse schedule create nightly report '{"of":"yesterday"}' --cron '0 2 * * *'
  pulse schedule create poll fetch --every 30s --overlap skip
  pulse schedule create billing invoice --cron '0 6 1 * *' --overlap buffer_one --key billing`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 3 {
				return exactly("NAME", "HANDLER", "JSON")(cmd, args)
			}
			return exactly("NAME", "HANDLER")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			spec, err := times.spec()
			if err != nil {
				return err
			}
			payload := json.RawMessage("{}")
			if len(args) == 3 {
				if payload, err = businessJSON(cmd, "the payload", args[2]); err != nil {
					return err
				}
			}
			if cmd.Flags().Changed("max-attempts") && task.maxAttempts < 1 {
				return usagef("--max-attempts is %d: give 1 to 100", task.maxAttempts)
			}
			spec.Task = sdk.TaskSpec{
				Queue: task.queue, Handler: args[1], HandlerVersion: task.handlerVersion, PayloadVersion: task.payloadVersion,
				Payload: payload, ConcurrencyKey: task.key, Priority: task.priority,
				Retry: sdk.Retry{MaxAttempts: task.maxAttempts, InitialDelay: delayOf(cmd, "initial-delay", task.initialDelay),
					MaxDelay: delayOf(cmd, "max-delay", task.maxDelay), AttemptTimeout: time.Duration(task.timeout)},
			}
			if task.reconcileOnly {
				spec.Task.RecoverySafety = sdk.ReconcileOnly
			}
			spec.Overlap, spec.CatchUpWindow, spec.Paused = sdk.Overlap(overlap), time.Duration(catchUp), paused
			spec.StartDeadline, spec.Deadline = time.Duration(task.startDeadline), time.Duration(task.deadline)
			c, ctx, cancel, err := a.call(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			if !replace {
				switch _, err := c.Schedule(ctx, args[0], 0); {
				case err == nil:
					return fmt.Errorf("schedule %s/%s is there already\n  Replace its settings: add --replace", a.conn.namespace, args[0])
				case !errors.Is(err, schema.NotFound):
					return err
				}
			}
			s, err := c.PutSchedule(ctx, args[0], spec)
			if err != nil {
				return err
			}
			return a.done(cmd, s, "Schedule %s/%s is %s; %s.", s.Namespace, s.Name, s.State, nextTime(s))
		},
	}
	times.add(cmd)
	flags := cmd.Flags()
	flags.StringVar(&overlap, "overlap", "skip", "what happens to a time while a run is not over: skip, allow or buffer_one")
	flags.Var(&catchUp, "catch-up-window", "how late a time may be; one that is later is missed (default 1h)")
	flags.StringVarP(&task.queue, "queue", "q", sdk.DefaultName, "queue to submit to")
	flags.StringVar(&task.handlerVersion, "handler-version", "1", "version of the handler that workers must offer")
	flags.StringVar(&task.payloadVersion, "payload-version", "1", "version of the payload that workers must take")
	flags.BoolVar(&task.reconcileOnly, "reconcile-only", false, "never run a task again by itself once it has started")
	flags.StringVar(&task.key, "key", "", "concurrency key of the tasks")
	flags.IntVar(&task.priority, "priority", 0, "0 to 9, 9 first")
	flags.Var(&task.startDeadline, "start-deadline", "fail a task that has not started so long after its submission")
	flags.Var(&task.deadline, "deadline", "give a task up so long after its submission (default: the queue's)")
	flags.IntVar(&task.maxAttempts, "max-attempts", 0, "how often a task may be started (default: the queue's)")
	flags.Var(&task.initialDelay, "initial-delay", "wait before the second attempt; doubles with each (default: the queue's)")
	flags.Var(&task.maxDelay, "max-delay", "longest wait between attempts (default: the queue's)")
	flags.Var(&task.timeout, "attempt-timeout", "longest time an attempt may run (default: the queue's)")
	flags.BoolVar(&paused, "paused", false, "let no time come until the schedule is resumed")
	flags.BoolVar(&replace, "replace", false, "replace the settings of a schedule that is there")
	return cmd
}

// timeOrNone spells a time that may not be.
func timeOrNone(t time.Time) string {
	if t.IsZero() {
		return "none"
	}
	return t.UTC().Format(time.RFC3339)
}

func nextTime(s *sdk.Schedule) string {
	if s.NextAt.IsZero() {
		return "no time is to come"
	}
	return "its next time is " + timeOrNone(s.NextAt)
}

// when says in a word when a schedule runs.
func when(s *sdk.Schedule) string {
	if s.Cron != "" {
		return s.Cron + " " + s.TimeZone
	}
	return "every " + spellMillis(s.EveryMillis)
}

// lastFire says what became of the last time.
func lastFire(s *sdk.Schedule) string {
	if len(s.Recent) == 0 {
		return ""
	}
	f := s.Recent[0]
	if f.Reason != "" {
		return f.Outcome + ": " + f.Reason
	}
	return f.Outcome
}

var scheduleColumns = []column[*sdk.Schedule]{
	{"NAME", func(s *sdk.Schedule) string { return s.Name }},
	{"WHEN", when},
	{"HANDLER", func(s *sdk.Schedule) string { return s.Task.Handler }},
	{"STATE", func(s *sdk.Schedule) string { return s.State }},
	{"NEXT", func(s *sdk.Schedule) string {
		if s.NextAt.IsZero() {
			return ""
		}
		return timeOrNone(s.NextAt)
	}},
	{"LAST", lastFire},
	{"OPEN", func(s *sdk.Schedule) string { return commas(s.OpenTasks) }},
}

func (a *app) scheduleListCommand() *cobra.Command {
	return listCommand(a, "List the schedules of the namespace, their next times and what became of the last ones", "  pulse schedule list\n  pulse schedule list -o json",
		scheduleColumns, (*sdk.Client).Schedules, "No schedules.")
}

func (a *app) scheduleGetCommand() *cobra.Command {
	var upcoming int
	cmd := &cobra.Command{
		Use:     "get NAME",
		Short:   "Show a schedule: its settings, its next times and what became of the last ones",
		Example: "  pulse schedule get nightly\n  pulse schedule get nightly --upcoming 20",
		Args:    exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, ctx, cancel, err := a.call(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			s, err := c.Schedule(ctx, args[0], upcoming)
			if err != nil {
				return err
			}
			return a.printOne(cmd, s, func(d *details) { describeSchedule(d, s) })
		},
	}
	cmd.Flags().IntVar(&upcoming, "upcoming", 5, "how many of the next times to show, up to 100")
	return cmd
}

func describeSchedule(d *details, s *sdk.Schedule) {
	d.putf("Schedule", "%s/%s", s.Namespace, s.Name)
	d.put("Id", s.ID)
	d.put("State", s.State)
	d.put("When", when(s))
	d.putf("Task", "%s version %s on queue %s", s.Task.Handler, s.Task.HandlerVersion, s.Task.Queue)
	d.put("Payload", string(s.Task.Payload))
	d.put("Overlap", string(s.Overlap))
	d.put("Catch-up window", spellMillis(s.CatchUpWindowMillis))
	if s.JitterMillis > 0 {
		d.put("Jitter", spellMillis(s.JitterMillis))
	}
	d.time("Start", s.StartAt)
	d.time("End", s.EndAt)
	if s.MaxFires > 0 {
		d.putf("Runs", "%s of %s", commas(s.Fired), commas(s.MaxFires))
	}
	d.putf("Times", "%s fired, %s skipped, %s missed, %s refused, %s ordered", commas(s.Fired), commas(s.Skipped), commas(s.Missed), commas(s.Refused), commas(s.Ordered))
	d.put("Open tasks", commas(s.OpenTasks))
	if !s.BufferedAt.IsZero() {
		d.putf("Waits", "the time %s, for a run to be over", timeOrNone(s.BufferedAt))
	}
	for i, at := range s.Upcoming {
		d.put([]string{"Next", ""}[min(i, 1)], timeOrNone(at))
	}
	for i, f := range s.Recent {
		text := timeOrNone(f.NominalAt) + "  " + f.Outcome
		if f.Times > 1 {
			text += fmt.Sprintf(" %s times until %s", commas(f.Times), timeOrNone(f.Until))
		}
		if f.TaskID != "" {
			text += "  task " + f.TaskID
		}
		if f.Reason != "" {
			text += "  " + f.Reason
		}
		if f.Message != "" {
			text += ": " + f.Message
		}
		d.put([]string{"Last", ""}[min(i, 1)], text)
	}
	d.time("Created", s.CreatedAt)
	d.put("Revision", count(s.Revision))
}

func (a *app) schedulePreviewCommand() *cobra.Command {
	var times timesFlags
	var n int
	cmd := &cobra.Command{
		Use:     "preview --cron TEXT",
		Short:   "Show the times of a schedule that need not exist",
		Example: "  pulse schedule preview --cron '30 2 * * 1-5' --time-zone America/New_York\n  pulse schedule preview --every 90s --count 3",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			spec, err := times.spec()
			if err != nil {
				return err
			}
			c, ctx, cancel, err := a.call(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			upcoming, err := c.PreviewSchedule(ctx, spec, n)
			if err != nil {
				return err
			}
			return printList(a, cmd, []column[time.Time]{{"TIME", timeOrNone}}, func(yield func(time.Time, error) bool) {
				for _, at := range upcoming {
					if !yield(at, nil) {
						return
					}
				}
			}, 0, "It has no times.")
		},
	}
	times.add(cmd)
	cmd.Flags().IntVar(&n, "count", 10, "how many times to show, up to 100")
	return cmd
}

func (a *app) scheduleSwitchCommand(verb, short, example string, do func(*sdk.Client, context.Context, string, ...sdk.CallOption) (*sdk.Schedule, error)) *cobra.Command {
	return &cobra.Command{
		Use: verb + " NAME", Short: short, Example: "  " + example, Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, ctx, cancel, err := a.call(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			s, err := do(c, ctx, args[0], sdk.WithNote(a.note))
			if err != nil {
				return err
			}
			return a.done(cmd, s, "Schedule %s/%s is %s; %s.", s.Namespace, s.Name, s.State, nextTime(s))
		},
	}
}

func (a *app) scheduleTriggerCommand() *cobra.Command {
	var allow bool
	cmd := &cobra.Command{
		Use:   "trigger NAME",
		Short: "Run a schedule's task now",
		Long: `Submit a schedule's task now, also if it is paused or has ended. While a run is not over
it is refused, unless the schedule's overlap policy is allow or --allow-overlap is given.`,
		Example: "  pulse schedule trigger nightly\n  pulse schedule trigger nightly --allow-overlap --note 'the first run had the wrong day'",
		Args:    exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, ctx, cancel, err := a.call(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			task, err := c.TriggerSchedule(ctx, args[0], allow, sdk.WithNote(a.note))
			if err != nil {
				return err
			}
			return a.done(cmd, task, "Task %s is %s.", task.ID, task.State)
		},
	}
	cmd.Flags().BoolVar(&allow, "allow-overlap", false, "run although another run is not over")
	return cmd
}

func (a *app) scheduleBackfillCommand() *cobra.Command {
	var from, until string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "backfill NAME --from TIME --until TIME",
		Short: "Run the past times of a schedule that have no task",
		Long: `Submit the tasks of the times in a range of the past that have none, at once and whatever
the overlap policy is: at most 500. A time whose task is still kept is not run again.
--dry-run only tells the times.`,
		Example: "  pulse schedule backfill nightly --from 2030-01-01T00:00:00Z --until 2030-01-08T00:00:00Z --dry-run\n  pulse schedule backfill nightly --from 3h --until 1h",
		Args:    exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if from == "" || until == "" {
				return usagef("give --from and --until: times like 2030-01-31T12:00:00Z, or how long ago, like 3h")
			}
			first, err := instant("--from", from)
			if err != nil {
				return err
			}
			end, err := instant("--until", until)
			if err != nil {
				return err
			}
			c, ctx, cancel, err := a.call(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			b, err := c.BackfillSchedule(ctx, args[0], first, end, dryRun, sdk.WithNote(a.note))
			if err != nil {
				return err
			}
			if err := a.printBackfill(cmd, b); err != nil {
				return err
			}
			if b.Missing > b.Submitted && !b.DryRun {
				return errSilent // some were refused, and it says why
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "the first time that counts: a time like 2030-01-31T12:00:00Z, or how long ago, like 3h")
	cmd.Flags().StringVar(&until, "until", "", "all times are before it")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only tell the times")
	return cmd
}

// printBackfill tells every time, and then how many there are.
func (a *app) printBackfill(cmd *cobra.Command, b *sdk.Backfill) error {
	if a.format != formatTable {
		return a.printOne(cmd, b, nil)
	}
	table := newTable(cmd.OutOrStdout())
	for _, t := range b.Results {
		became := "task " + t.TaskID
		switch {
		case t.Existed:
			became = "has task " + t.TaskID
		case t.Error != nil:
			became = fmt.Sprintf("refused: %s (%s)", t.Error.Detail, t.Error.Code)
		case b.DryRun:
			became = "would be submitted"
		}
		fmt.Fprintf(table, "%s\t%s\n", t.NominalAt.UTC().Format(time.RFC3339Nano), became)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if b.DryRun {
		return a.done(cmd, b, "%s in the range, %s without a task. Nothing was done.", plural(b.Times, "time"), commas(b.Missing))
	}
	return a.done(cmd, b, "%s in the range, %s submitted.", plural(b.Times, "time"), plural(b.Submitted, "task"))
}

func (a *app) scheduleDeleteCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "delete NAME",
		Short:   "Delete a schedule; the tasks that it has submitted stay",
		Example: "  pulse schedule delete nightly",
		Args:    exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, ctx, cancel, err := a.call(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			if err := c.DeleteSchedule(ctx, args[0]); err != nil {
				return err
			}
			return a.done(cmd, deleted{Name: args[0], Deleted: true}, "Schedule %s/%s is deleted.", a.conn.namespace, args[0])
		},
	}
}
