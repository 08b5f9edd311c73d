package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulse/sdk"
)

func (a *app) activityCommand() *cobra.Command {
	var queue string
	cmd := &cobra.Command{
		Use:   "activity",
		Short: "See how queues stand and what happened in the last minutes",
		Long: `See what waits and for what, what runs, how much room the workers have, how many tasks
a second were submitted and settled in the last minute, and the errors of the last quarter of
an hour. What happened is counted by the node that answers, from its start. "pulse top" shows
it live.`,
		Example: "  pulse activity\n  pulse activity --queue mail -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, ctx, cancel, err := a.call(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			seen, err := c.Activity(ctx, queue)
			if err != nil {
				return err
			}
			if a.format != formatTable {
				return a.printOne(cmd, seen, nil)
			}
			return describeActivity(cmd.OutOrStdout(), a.conn.namespace, seen)
		},
	}
	cmd.Flags().StringVarP(&queue, "queue", "q", "", "this queue alone")
	return cmd
}

// describeActivity writes what a person wants to know, the queues with the most
// work first.
func describeActivity(out io.Writer, namespace string, seen *sdk.Activity) error {
	t := &seen.Total
	lines := []string{
		fmt.Sprintf("Tasks    %s waiting, %s with workers, %s for review, in namespace %s", commas(t.Waiting), commas(t.Leased+t.Running), commas(t.NeedsReview), namespace),
		"Waiting  " + waitingFor(t, seen.At),
		fmt.Sprintf("Workers  %s, %s of %s taken", commas(t.WorkersConnected+t.WorkersDraining), commas(t.SlotsUsed), plural(int(t.Slots), "place")),
		"Rates    " + ratesOf(seen),
	}
	if t.Lately.PickupP50Millis != nil && t.Lately.PickupP99Millis != nil {
		lines = append(lines, fmt.Sprintf("Pickup   half within %s, 99 of 100 within %s", pickup(*t.Lately.PickupP50Millis), pickup(*t.Lately.PickupP99Millis)))
	}
	for i, e := range t.Errors {
		if i == errorsShown {
			lines = append(lines, fmt.Sprintf("Errors   and %d other codes", len(t.Errors)-errorsShown))
			break
		}
		lines = append(lines, fmt.Sprintf("Errors   %s: %s", e.Code, plural(int(e.Attempts), "attempt")))
	}
	if _, err := fmt.Fprintf(out, "%s\n\n", strings.Join(lines, "\n")); err != nil {
		return err
	}
	queues := slices.Clone(seen.Queues)
	slices.SortStableFunc(queues, func(a, b sdk.QueueActivity) int {
		return cmp.Or(cmp.Compare(b.Waiting+b.Leased+b.Running, a.Waiting+a.Leased+a.Running), cmp.Compare(b.NeedsReview, a.NeedsReview), cmp.Compare(a.Queue, b.Queue))
	})
	table := newTable(out)
	row(table, activityColumns(seen.At), func(c column[sdk.QueueActivity]) string { return c.title })
	for _, q := range queues {
		row(table, activityColumns(seen.At), func(c column[sdk.QueueActivity]) string { return c.cell(q) })
	}
	return table.Flush()
}

// errorsShown bounds the error codes that are listed; the API has more.
const errorsShown = 5

func activityColumns(now time.Time) []column[sdk.QueueActivity] {
	return []column[sdk.QueueActivity]{
		{"QUEUE", func(q sdk.QueueActivity) string { return q.Queue }},
		{"WAITING", func(q sdk.QueueActivity) string { return commas(q.Waiting) }},
		{"OLDEST", func(q sdk.QueueActivity) string {
			if q.OldestWaitingSince.IsZero() {
				return ""
			}
			return sinceOf(now.Sub(q.OldestWaitingSince))
		}},
		{"ACTIVE", func(q sdk.QueueActivity) string { return commas(q.Leased + q.Running) }},
		{"REVIEW", func(q sdk.QueueActivity) string { return commas(q.NeedsReview) }},
		{"WORKERS", func(q sdk.QueueActivity) string { return commas(q.WorkersConnected + q.WorkersDraining) }},
		{"PLACES", func(q sdk.QueueActivity) string { return fmt.Sprintf("%s of %s", commas(q.SlotsUsed), commas(q.Slots)) }},
		{"NOTE", activityNote},
	}
}

// activityNote is what somebody should know about a queue.
func activityNote(q sdk.QueueActivity) string {
	var notes []string
	if q.Paused {
		notes = append(notes, "paused")
	}
	for _, r := range q.Reasons {
		switch {
		case r.Reason == "no_capable_worker" && q.WorkersConnected == 0:
			notes = append(notes, "no worker")
		case r.Reason == "no_capable_worker":
			notes = append(notes, fmt.Sprintf("%s that no worker can run", plural(int(r.Tasks), "task")))
		case r.Reason == "workers_busy":
			notes = append(notes, "workers are full")
		case r.Reason == "queue_limit":
			notes = append(notes, "at its limit")
		}
	}
	if q.WorkersLost > 0 {
		notes = append(notes, plural(q.WorkersLost, "worker")+" lost")
	}
	return strings.Join(notes, ", ")
}

// waitingFor names the reasons, the most frequent first.
func waitingFor(t *sdk.Standing, now time.Time) string {
	if t.Waiting == 0 {
		return "nothing"
	}
	reasons := slices.Clone(t.Reasons)
	slices.SortStableFunc(reasons, func(a, b sdk.ReasonCount) int { return cmp.Compare(b.Tasks, a.Tasks) })
	var parts []string
	for _, r := range reasons {
		parts = append(parts, commas(r.Tasks)+" "+r.Reason)
	}
	text := strings.Join(parts, ", ")
	if !t.OldestWaitingSince.IsZero() {
		text += fmt.Sprintf("; the oldest for %s (%s)", sinceOf(now.Sub(t.OldestWaitingSince)), t.OldestWaitingTaskID)
	}
	return text
}

// ratesOf are per second, over the time that lately speaks of or since the node
// counts, if that is shorter.
func ratesOf(seen *sdk.Activity) string {
	over := time.Duration(seen.LatelyMillis) * time.Millisecond
	if counted := seen.At.Sub(seen.Since); !seen.Since.IsZero() && counted > 0 {
		over = min(over, counted)
	}
	per := func(n uint64) string { return perSecond(float64(n) / max(over.Seconds(), 1)) }
	l := seen.Total.Lately
	return fmt.Sprintf("%s submitted, %s succeeded, %s failed, %s cancelled, %s for review", per(l.Submitted), per(l.Succeeded), per(l.Failed), per(l.Cancelled), per(l.ReviewsNeeded))
}

func perSecond(rate float64) string {
	if rate > 0 && rate < 10 {
		return fmt.Sprintf("%.1f/s", rate)
	}
	return commas(uint64(rate+0.5)) + "/s"
}

func sinceOf(d time.Duration) string { return spell(max(d, 0).Truncate(time.Second)) }

// pickup is how long tasks waited for a worker, which may be hours.
func pickup(millis float64) string {
	if millis < 100 {
		return fmt.Sprintf("%.3g ms", millis)
	}
	if millis < 1000 {
		return fmt.Sprintf("%.0f ms", millis)
	}
	return spell(time.Duration(millis * float64(time.Millisecond)))
}
