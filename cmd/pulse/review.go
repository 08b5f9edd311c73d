package main

import (
	"cmp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulse/schema/apiv1"
	"pulse/sdk"
)

func (a *app) reviewCommand() *cobra.Command {
	return noun("review", "Settle tasks that only a person can settle",
		`A task is in NEEDS_REVIEW when it was started, must not be run again on suspicion,
and nobody can know how it ended: its worker vanished, or said itself that it does
not know. Find out what happened, then say so. Such a task is never removed, and it
keeps its concurrency key until it is settled.`,
		`  pulse review list
  pulse review resolve 0199f3c2a1b87d4e9a0b1c2d3e4f5061 \
      --decision SUCCEEDED --note 'found in the ledger'`,
		a.reviewListCommand(), a.reviewResolveCommand())
}

var reviewColumns = []column[*sdk.TaskInfo]{
	{"ID", func(t *sdk.TaskInfo) string { return t.ID }},
	{"QUEUE", func(t *sdk.TaskInfo) string { return t.Queue }},
	{"HANDLER", func(t *sdk.TaskInfo) string { return t.Handler }},
	{"FOR", func(t *sdk.TaskInfo) string { return age(reviewSince(t)) }},
	{"BUSINESS KEY", func(t *sdk.TaskInfo) string { return t.BusinessKey }},
	{"HOLDS KEY", func(t *sdk.TaskInfo) string {
		if !t.HoldsKey { // it needed none, entered the review without it, or somebody freed it
			return ""
		}
		return t.ConcurrencyKey
	}},
	{"BECAUSE", func(t *sdk.TaskInfo) string { return cmp.Or(t.ErrorCode, endTexts[t.ReviewCause], t.ReviewCause) }},
}

// reviewSince is when a task came to need a review. Servers of old do not say, and
// what they do say moves on with every change.
func reviewSince(t *sdk.TaskInfo) time.Time {
	if t.ReviewSince.IsZero() {
		return t.UpdatedAt
	}
	return t.ReviewSince
}

func (a *app) reviewListCommand() *cobra.Command {
	var filter sdk.TaskFilter
	var limit int
	var ids bool
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the tasks that need a review, newest first",
		Example: "  pulse review list\n  pulse review list --queue payments --ids",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, ctx, cancel, err := a.page(cmd, limit)
			if err != nil {
				return err
			}
			defer cancel()
			filter.States = []sdk.State{sdk.StateNeedsReview}
			walk := c.List(ctx, filter)
			if ids {
				return printIDs(cmd, walk, limit, func(t *sdk.TaskInfo) string { return t.ID })
			}
			return printList(a, cmd, reviewColumns, walk, limit, "Nothing needs a review.")
		},
	}
	cmd.Flags().StringVarP(&filter.Queue, "queue", "q", "", "tasks of this queue")
	cmd.Flags().StringVar(&filter.Handler, "handler", "", "tasks for this handler")
	limitFlag(cmd, &limit)
	cmd.Flags().BoolVar(&ids, "ids", false, "print ids alone, one a line")
	return cmd
}

var decisions = []string{string(apiv1.DecisionSucceeded), string(apiv1.DecisionFailed), string(apiv1.DecisionCancelled), string(apiv1.DecisionRetry)}

func (a *app) reviewResolveCommand() *cobra.Command {
	var decision, note, result, errorCode string
	var deadline moment
	var revision uint64
	cmd := &cobra.Command{
		Use:   "resolve ID --decision DECISION --note TEXT",
		Short: "Say what became of a task that needs a review",
		Long: `Settle a task in NEEDS_REVIEW, once you know:

  SUCCEEDED   it was done; --result keeps what it gave
  FAILED      it was not done and is not to be done; needs --error-code
  CANCELLED   it is not to be done, whatever happened
  RETRY       it was not done: run it again. It waits as before, with one attempt
              more; past its deadline it needs a new --deadline

The note says how you know. It is recorded with the decision.`,
		Example: `  pulse review resolve 0199f3c2a1b87d4e9a0b1c2d3e4f5061 --decision SUCCEEDED \
      --note 'booked as R-17' --result '{"number":"R-17"}'
  pulse review resolve 0199f3c2a1b87d4e9a0b1c2d3e4f5061 \
      --decision RETRY --note 'the bank has no trace of it'`,
		Args: exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := taskID(args[0])
			if err != nil {
				return err
			}
			word, err := oneOf("--decision", decision, decisions)
			if err != nil {
				return err
			}
			review := sdk.Review{Decision: sdk.ReviewDecision(word), Note: note, ErrorCode: errorCode, DeadlineAt: deadline.at}
			switch {
			case strings.TrimSpace(note) == "":
				return usagef("--note has to say how you know")
			case result != "" && review.Decision != sdk.ReviewSucceeded:
				return usagef("--result goes with --decision SUCCEEDED")
			case (errorCode != "") != (review.Decision == sdk.ReviewFailed):
				return usagef("--error-code goes with --decision FAILED, which needs it")
			case !deadline.at.IsZero() && review.Decision != sdk.ReviewRetry:
				return usagef("--deadline goes with --decision RETRY")
			}
			if result != "" {
				text, err := businessJSON(cmd, "--result", result)
				if err != nil {
					return err
				}
				review.Result = text
			}
			var options []sdk.CallOption
			if cmd.Flags().Changed("expected-revision") {
				options = append(options, sdk.WithExpectedRevision(revision))
			}
			c, ctx, cancel, err := a.call(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			task, err := c.Review(ctx, id, review, options...)
			if err != nil {
				return err
			}
			return a.done(cmd, task, "Task %s is %s.", task.ID, task.State)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&decision, "decision", "", strings.Join(decisions, ", "))
	flags.StringVar(&note, "note", "", "how you know; recorded")
	flags.StringVar(&result, "result", "", "JSON the task gave, @FILE or - (with SUCCEEDED)")
	flags.StringVar(&errorCode, "error-code", "", "why it failed, a word for programs (with FAILED)")
	flags.Var(&deadline, "deadline", "new deadline: a time, or e.g. 2h from now (with RETRY)")
	flags.Uint64Var(&revision, "expected-revision", 0, "only if the task is at this revision")
	required(cmd, "decision", "note")
	complete(cmd, "decision", decisions...)
	return cmd
}

// required marks flags without which a verb makes no sense.
func required(cmd *cobra.Command, flags ...string) {
	for _, flag := range flags {
		if err := cmd.MarkFlagRequired(flag); err != nil {
			panic(err) // a flag that is not there is a mistake in this program
		}
	}
}
