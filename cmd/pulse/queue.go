package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pulse/schema"
	"pulse/sdk"
)

func (a *app) queueCommand() *cobra.Command {
	return noun("queue", "Set up queues, pause and resume them",
		`A queue holds tasks for a group of workers and has settings of its own: how long a
lease lasts, how many tasks may run, what a task that says nothing is given.`,
		"  pulse queue list\n  pulse queue create mail --lease 10s --max-active 20",
		a.queueCreateCommand(), a.queueListCommand(), a.queueGetCommand(), a.queueUpdateCommand(),
		a.queueSwitchCommand("pause", "Assign no more tasks of a queue; it keeps taking them", "pulse queue pause mail", (*sdk.Client).PauseQueue),
		a.queueSwitchCommand("resume", "Let a paused queue go on", "pulse queue resume mail", (*sdk.Client).ResumeQueue),
		a.queueDeleteCommand())
}

// queueFlags are the settings of a queue.
type queueFlags struct {
	cmd                                       *cobra.Command
	lease, offer, retention, deadline, ageing span
	initialDelay, maxDelay, attemptTimeout    span
	maxActive, maxAttempts                    int
	maxWaiting                                uint64
	paused                                    bool
}

func (f *queueFlags) add(cmd *cobra.Command) {
	f.cmd = cmd
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.Var(&f.lease, "lease", "how long a worker may be silent about a task, 1s to 2m (default 30s)")
	flags.Var(&f.offer, "offer", "how long a worker may take to start a task, 1s to the lease (default 10s)")
	flags.IntVar(&f.maxActive, "max-active", 0, "most tasks with workers at a time; 0 = no cap")
	flags.Uint64Var(&f.maxWaiting, "max-waiting", 0, "most waiting tasks; beyond it submissions are refused (default 1000000)")
	flags.Var(&f.retention, "retention", "how long a task is kept after it ended (default 3d)")
	flags.Var(&f.deadline, "default-deadline", "when a task without a deadline is given up (default 30d)")
	flags.Var(&f.ageing, "ageing", "a waiting task gains one priority each time this passes; 0 = off")
	flags.IntVar(&f.maxAttempts, "max-attempts", 0, "how often a task may be started, unless it says so itself (default 3)")
	flags.Var(&f.initialDelay, "initial-delay", "wait before the second attempt, unless the task says so itself (default 1s)")
	flags.Var(&f.maxDelay, "max-delay", "longest wait between attempts, unless the task says so itself (default 1m)")
	flags.Var(&f.attemptTimeout, "attempt-timeout", "longest run of an attempt, unless the task says so itself (default 1h)")
	flags.BoolVar(&f.paused, "paused", false, "assign no tasks until the queue is resumed")
}

// check refuses a 0 that nobody means: the API takes it for "not given", so the
// default would come instead.
func (f *queueFlags) check() error {
	for _, d := range []struct {
		flag string
		zero bool
	}{
		{"lease", f.lease == 0}, {"offer", f.offer == 0}, {"retention", f.retention == 0}, {"default-deadline", f.deadline == 0},
		{"max-waiting", f.maxWaiting == 0}, {"max-attempts", f.maxAttempts == 0}, {"attempt-timeout", f.attemptTimeout == 0},
	} {
		if f.cmd.Flags().Changed(d.flag) && d.zero {
			return usagef("--%s is 0: give more, or leave it out for the default", d.flag)
		}
	}
	return nil
}

// change puts what the flags say into settings and leaves the rest.
func (f *queueFlags) change(s *sdk.QueueSettings) {
	changed := f.cmd.Flags().Changed
	for _, d := range []struct {
		flag  string
		given span
		to    *int64
	}{
		{"lease", f.lease, &s.LeaseDurationMillis},
		{"offer", f.offer, &s.OfferDurationMillis},
		{"retention", f.retention, &s.RetentionMillis},
		{"default-deadline", f.deadline, &s.DefaultDeadlineMillis},
		{"ageing", f.ageing, &s.AgeingMillis},
	} {
		if changed(d.flag) {
			*d.to = d.given.millis()
		}
	}
	if changed("max-active") {
		s.MaxActive = f.maxActive
	}
	if changed("max-waiting") {
		s.MaxWaiting = f.maxWaiting
	}
	if changed("paused") {
		s.Paused = f.paused
	}
	// A shorter lease brings the offer with it: it can be no longer.
	if changed("lease") && !changed("offer") && s.OfferDurationMillis > s.LeaseDurationMillis {
		s.OfferDurationMillis = s.LeaseDurationMillis
	}
	f.changeRetry(s)
}

func (f *queueFlags) changeRetry(s *sdk.QueueSettings) {
	changed := f.cmd.Flags().Changed
	if !changed("max-attempts") && !changed("initial-delay") && !changed("max-delay") && !changed("attempt-timeout") {
		return
	}
	retry := sdk.RetryPolicy{
		MaxAttempts: schema.RetryMaxAttemptsDefault, InitialDelayMillis: schema.RetryInitialDelayMsDefault,
		MaxDelayMillis: schema.RetryMaxDelayMsDefault, AttemptTimeoutMillis: schema.RetryAttemptTimeoutMsDefault,
	}
	if s.DefaultRetry != nil {
		retry = *s.DefaultRetry
	}
	if changed("max-attempts") {
		retry.MaxAttempts = f.maxAttempts
	}
	if changed("initial-delay") {
		retry.InitialDelayMillis = f.initialDelay.millis()
	}
	if changed("max-delay") {
		retry.MaxDelayMillis = f.maxDelay.millis()
	}
	if changed("attempt-timeout") {
		retry.AttemptTimeoutMillis = f.attemptTimeout.millis()
	}
	s.DefaultRetry = &retry
}

func (a *app) queueCreateCommand() *cobra.Command {
	var flags queueFlags
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a queue",
		Long:  "Create a queue. One that is there already is left as it is, and the verb fails.",
		Example: `  pulse queue create mail
  pulse queue create payments --lease 10s --max-attempts 1 --retention 30d`,
		Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := flags.check(); err != nil {
				return err
			}
			c, ctx, cancel, err := a.call(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			switch _, err := c.Queue(ctx, args[0]); {
			case err == nil:
				return fmt.Errorf("queue %s/%s is there already\n  Change it: pulse queue update %s", a.conn.namespace, args[0], args[0])
			case !errors.Is(err, schema.NotFound):
				return err
			}
			var settings sdk.QueueSettings
			flags.change(&settings)
			queue, err := c.PutQueue(ctx, args[0], settings)
			if err != nil {
				return err
			}
			return a.done(cmd, queue, "Queue %s/%s is there.", queue.Namespace, queue.Name)
		},
	}
	flags.add(cmd)
	return cmd
}

func (a *app) queueUpdateCommand() *cobra.Command {
	var flags queueFlags
	cmd := &cobra.Command{
		Use:   "update NAME",
		Short: "Change some settings of a queue and leave the others",
		Example: `  pulse queue update mail --max-active 50
  pulse queue update mail --lease 20s --retention 7d`,
		Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !changesAny(cmd) {
				return usagef("say what to change: pulse queue update --help lists the settings")
			}
			if err := flags.check(); err != nil {
				return err
			}
			c, ctx, cancel, err := a.call(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			queue, err := updateQueue(ctx, c, args[0], flags.change)
			if err != nil {
				return err
			}
			return a.printOne(cmd, queue, func(d *details) { describeQueue(d, queue) })
		},
	}
	flags.add(cmd)
	return cmd
}

func changesAny(cmd *cobra.Command) bool {
	local := false
	cmd.LocalNonPersistentFlags().VisitAll(func(flag *pflag.Flag) { local = local || flag.Changed && flag.Name != "help" })
	return local
}

// updateTries bounds how often an update meets somebody else's.
const updateTries = 5

// updateQueue changes what is there. If somebody else does so at the same time it
// looks again, so that neither change is lost.
func updateQueue(ctx context.Context, c *sdk.Client, name string, change func(*sdk.QueueSettings)) (*sdk.Queue, error) {
	for tries := 1; ; tries++ {
		queue, err := c.Queue(ctx, name)
		if err != nil {
			return nil, err
		}
		settings := queue.QueueSettings
		change(&settings)
		queue, err = c.PutQueue(ctx, name, settings, sdk.WithExpectedRevision(queue.Revision))
		if err == nil || tries == updateTries || !errors.Is(err, schema.RevisionConflict) {
			return queue, err
		}
	}
}

var queueColumns = []column[*sdk.Queue]{
	{"NAME", func(q *sdk.Queue) string { return q.Name }},
	{"WAITING", func(q *sdk.Queue) string { return commas(q.Waiting) }},
	{"ACTIVE", func(q *sdk.Queue) string {
		if q.MaxActive > 0 {
			return fmt.Sprintf("%s of %s", commas(q.Active), commas(q.MaxActive))
		}
		return commas(q.Active)
	}},
	{"NEEDS REVIEW", func(q *sdk.Queue) string { return commas(q.NeedsReview) }},
	{"LEASE", func(q *sdk.Queue) string { return spellMillis(q.LeaseDurationMillis) }},
	{"PAUSED", func(q *sdk.Queue) string { return yes(q.Paused) }},
}

func (a *app) queueListCommand() *cobra.Command {
	return listCommand(a, "List the queues of the namespace and how they stand", "  pulse queue list\n  pulse queue list -n billing -o json",
		queueColumns, (*sdk.Client).Queues, "No queues.")
}

func (a *app) queueGetCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "get NAME",
		Short:   "Show a queue: its settings and how it stands",
		Example: "  pulse queue get default",
		Args:    exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, ctx, cancel, err := a.call(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			queue, err := c.Queue(ctx, args[0])
			if err != nil {
				return err
			}
			return a.printOne(cmd, queue, func(d *details) { describeQueue(d, queue) })
		},
	}
}

func describeQueue(d *details, q *sdk.Queue) {
	d.putf("Queue", "%s/%s", q.Namespace, q.Name)
	d.put("Id", q.ID)
	if q.Paused {
		d.putf("Paused", "yes (pulse queue resume %s lets it go on)", q.Name)
	}
	d.put("Waiting", commas(q.Waiting))
	d.put("Active", commas(q.Active))
	d.put("Needs review", commas(q.NeedsReview))
	d.put("Lease", spellMillis(q.LeaseDurationMillis))
	d.put("Offer", spellMillis(q.OfferDurationMillis))
	d.put("Max active", orWord(q.MaxActive, "no cap"))
	d.put("Max waiting", commas(q.MaxWaiting))
	d.put("Retention", spellMillis(q.RetentionMillis))
	d.put("Default deadline", spellMillis(q.DefaultDeadlineMillis))
	if q.AgeingMillis > 0 {
		d.putf("Ageing", "one priority every %s", spellMillis(q.AgeingMillis))
	}
	if r := q.DefaultRetry; r != nil {
		d.putf("Retry", "%s, first after %s, at most %s apart, each up to %s", plural(r.MaxAttempts, "attempt"),
			spellMillis(r.InitialDelayMillis), spellMillis(r.MaxDelayMillis), spellMillis(r.AttemptTimeoutMillis))
	}
	d.time("Created", q.CreatedAt)
	d.put("Revision", count(q.Revision))
}

func orWord(n int, zero string) string {
	if n == 0 {
		return zero
	}
	return strconv.Itoa(n)
}

func (a *app) queueSwitchCommand(verb, short, example string, do func(*sdk.Client, context.Context, string, ...sdk.CallOption) (*sdk.Queue, error)) *cobra.Command {
	return &cobra.Command{
		Use:     verb + " NAME",
		Short:   short,
		Example: "  " + example,
		Args:    exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, ctx, cancel, err := a.call(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			queue, err := do(c, ctx, args[0])
			if err != nil {
				return err
			}
			how := "goes on"
			if queue.Paused {
				how = "is paused"
			}
			return a.done(cmd, queue, "Queue %s/%s %s: %s waiting, %s active.", queue.Namespace, queue.Name, how, commas(queue.Waiting), commas(queue.Active))
		},
	}
}

func (a *app) queueDeleteCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "delete NAME",
		Short: "Delete a queue with no open tasks",
		Long: `Delete a queue. Its tasks have to be over and its workers gone; tasks that are over
are kept for their retention.`,
		Example: "  pulse queue delete mail",
		Args:    exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, ctx, cancel, err := a.call(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			if err := c.DeleteQueue(ctx, args[0]); err != nil {
				return err
			}
			return a.done(cmd, deleted{Name: args[0], Deleted: true}, "Queue %s/%s is deleted.", a.conn.namespace, args[0])
		},
	}
}
