package main

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"pulse/sdk"
)

// specFlags are what a submission may say beside handler and payload.
type specFlags struct {
	queue, handlerVersion, payloadVersion string
	businessKey, key                      string
	priority, maxAttempts                 int
	delay                                 span
	at, startDeadline, deadline           moment
	reconcileOnly                         bool
	initialDelay, maxDelay, timeout       span
	cmd                                   *cobra.Command
}

func (f *specFlags) add(cmd *cobra.Command) {
	f.cmd = cmd
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&f.queue, "queue", "q", sdk.DefaultName, "queue to submit to")
	flags.StringVar(&f.handlerVersion, "handler-version", "1", "version of the handler that workers must offer")
	flags.StringVar(&f.payloadVersion, "payload-version", "1", "version of the payload that workers must take")
	flags.BoolVar(&f.reconcileOnly, "reconcile-only", false, "never run it again by itself once it has started: without a known end a person decides")
	flags.StringVar(&f.businessKey, "business-key", "", "name of the work itself, e.g. order/4711: the same submission again finds this task")
	flags.StringVar(&f.key, "key", "", "concurrency key, e.g. account/1: one task with it runs at a time")
	flags.IntVar(&f.priority, "priority", 0, "0 to 9, 9 first")
	flags.Var(&f.delay, "delay", "run it no sooner than this long from now, e.g. 30s, 2h, 3d")
	flags.Var(&f.at, "at", "run it no sooner than at this time")
	flags.Var(&f.startDeadline, "start-deadline", "fail it if it has not started by then: a time, or e.g. 10m from now")
	flags.Var(&f.deadline, "deadline", "give it up then: a time, or e.g. 2h from now (which differs from call to call, so not with --business-key)")
	flags.IntVar(&f.maxAttempts, "max-attempts", 0, "how often it may be started (default: the queue's)")
	flags.Var(&f.initialDelay, "initial-delay", "wait before the second attempt; doubles with each (default: the queue's)")
	flags.Var(&f.maxDelay, "max-delay", "longest wait between attempts (default: the queue's)")
	flags.Var(&f.timeout, "attempt-timeout", "longest time an attempt may run (default: the queue's)")
}

// spec is what the flags say. A zero that was asked for is not the zero of a flag
// that was not given.
func (f *specFlags) spec(handler string, payload json.RawMessage) (sdk.TaskSpec, error) {
	changed := f.cmd.Flags().Changed
	if changed("delay") && changed("at") {
		return sdk.TaskSpec{}, usagef("--delay and --at exclude each other")
	}
	if changed("max-attempts") && f.maxAttempts < 1 {
		return sdk.TaskSpec{}, usagef("--max-attempts is %d: give 1 to 100", f.maxAttempts)
	}
	spec := sdk.TaskSpec{
		Queue: f.queue, Handler: handler, HandlerVersion: f.handlerVersion, PayloadVersion: f.payloadVersion, Payload: payload,
		BusinessKey: f.businessKey, ConcurrencyKey: f.key, Priority: f.priority,
		Delay: time.Duration(f.delay), AvailableAt: f.at.at, StartDeadlineAt: f.startDeadline.at, DeadlineAt: f.deadline.at,
		Retry: sdk.Retry{
			MaxAttempts: f.maxAttempts, InitialDelay: delayOf(f.cmd, "initial-delay", f.initialDelay), MaxDelay: delayOf(f.cmd, "max-delay", f.maxDelay),
			AttemptTimeout: time.Duration(f.timeout),
		},
	}
	if f.reconcileOnly {
		spec.RecoverySafety = sdk.ReconcileOnly
	}
	return spec, nil
}

// delayOf is a wait between attempts: none if it is 0 and somebody said so.
func delayOf(cmd *cobra.Command, flag string, s span) time.Duration {
	if s == 0 && cmd.Flags().Changed(flag) {
		return sdk.NoDelay
	}
	return time.Duration(s)
}

func (a *app) taskRunCommand() *cobra.Command {
	var flags specFlags
	var wait bool
	var idempotencyKey string
	cmd := &cobra.Command{
		Use:   "run HANDLER [JSON]",
		Short: "Submit one task and, with --wait, see it through",
		Long: `Submit one task to a queue. The payload is {} if there is none; @FILE reads it from
a file and - from standard input. It reaches the worker byte for byte as it is
given: 1.50 stays 1.50.

With --wait every change of state is printed, and then the result. The exit code is
0 if the task SUCCEEDED and 1 if it ended in any other way.`,
		Example: `  pulse task run echo '{"hi":1.50}' --wait
  pulse task run charge @order.json --queue payments --reconcile-only --business-key order/4711
  pulse task run report --delay 2h --max-attempts 5`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				return exactly("HANDLER", "JSON")(cmd, args)
			}
			return exactly("HANDLER")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			payload := json.RawMessage("{}")
			if len(args) == 2 {
				var err error
				if payload, err = businessJSON(cmd, "the payload", args[1]); err != nil {
					return err
				}
			}
			spec, err := flags.spec(args[0], payload)
			if err != nil {
				return err
			}
			var options []sdk.CallOption
			if a.note != "" {
				options = append(options, sdk.WithNote(a.note))
			}
			if idempotencyKey != "" {
				options = append(options, sdk.WithIdempotencyKey(idempotencyKey))
			}
			c, ctx, cancel, err := a.call(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			task, err := c.Submit(ctx, spec, options...)
			if err != nil {
				return err
			}
			if wait {
				return a.seeThrough(cmd, c, task)
			}
			switch {
			case task.Duplicate:
				return a.done(cmd, task, "Task %s was submitted before; it is %s.", task.ID, task.State)
			case task.Replayed && idempotencyKey != "":
				return a.done(cmd, task, "Task %s was submitted before under this --idempotency-key. See how it stands: pulse task get %s", task.ID, task.ID)
			}
			return a.done(cmd, task, "Task %s is %s. See it through: pulse task watch %s", task.ID, task.State, task.ID)
		},
	}
	flags.add(cmd)
	cmd.Flags().StringVar(&idempotencyKey, "idempotency-key", "", "name of this call: repeated within 24 hours it submits nothing new")
	cmd.Flags().BoolVarP(&wait, "wait", "w", false, "print the changes of state and the result")
	return cmd
}

// seeThrough prints the changes of a task until it is settled, then its result.
func (a *app) seeThrough(cmd *cobra.Command, c *sdk.Client, task *sdk.TaskInfo) error {
	_, ctx, cancel, err := a.long(cmd)
	if err != nil {
		return err
	}
	defer cancel()
	out := cmd.OutOrStdout()
	if a.format == formatTable {
		before := ""
		if task.Duplicate || task.Replayed {
			before = " was submitted before"
		}
		fmt.Fprintf(out, "Task %s%s\n", task.ID, before)
	}
	for event, err := range untilSettled(ctx, c, task.ID) {
		if err != nil {
			return fmt.Errorf("task %s goes on without a watcher: %w", task.ID, err)
		}
		switch a.format {
		case formatTable:
			fmt.Fprintf(out, "  ")
			err = a.printEvent(cmd, event, "")
		case formatLines:
			err = a.printEvent(cmd, event, "")
		}
		if err != nil {
			return err
		}
	}
	_, ctx, cancelRead, err := a.call(cmd)
	if err != nil {
		return err
	}
	defer cancelRead()
	if task, err = c.Get(ctx, task.ID); err != nil {
		return err
	}
	return a.outcome(cmd, task)
}

// outcome prints how a settled task ended, and fails unless it succeeded.
func (a *app) outcome(cmd *cobra.Command, task *sdk.TaskInfo) error {
	if a.format != formatTable {
		if err := a.printOne(cmd, task, nil); err != nil {
			return err
		}
	} else if len(task.Result) > 0 {
		fmt.Fprintf(cmd.OutOrStdout(), "%s\n", task.Result)
	}
	switch {
	case task.State == sdk.StateSucceeded:
		return nil
	case a.format != formatTable:
		return errSilent
	case task.State == sdk.StateNeedsReview:
		return fmt.Errorf("task %s needs a review: nobody can know whether it was done.\n  Look at it: pulse task get %s\n  Settle it:  pulse review resolve %s --help", task.ID, task.ID, task.ID)
	case task.ErrorCode != "":
		return fmt.Errorf("task %s is %s: %s", task.ID, task.State, task.ErrorCode)
	}
	return fmt.Errorf("task %s is %s", task.ID, task.State)
}
