package main

import (
	"strings"

	"github.com/spf13/cobra"

	"pulse/sdk"
)

func (a *app) keyCommand() *cobra.Command {
	return noun("key", "See who holds a concurrency key, and free it",
		`A concurrency key is held by one task at a time. It comes with a token that grows
with every holder: what the holder writes to can refuse the token of an earlier one.`,
		"  pulse key list\n  pulse key get account/1",
		a.keyListCommand(), a.keyGetCommand(), a.keyFreeCommand())
}

var keyColumns = []column[*sdk.Key]{
	{"KEY", func(k *sdk.Key) string { return k.Key }},
	{"HELD BY", func(k *sdk.Key) string { return k.HolderTaskID }},
	{"FOR", func(k *sdk.Key) string { return age(k.AcquiredAt) }},
	{"TOKEN", func(k *sdk.Key) string {
		if k.Token == 0 {
			return ""
		}
		return count(k.Token)
	}},
	{"IN REVIEW", func(k *sdk.Key) string { return yes(k.InReview) }},
	{"WAITING", func(k *sdk.Key) string { return commas(k.Waiters) }},
}

func (a *app) keyListCommand() *cobra.Command {
	return listCommand(a, "List the keys that are held or waited for", "  pulse key list",
		keyColumns, (*sdk.Client).Keys, "No key is held or waited for.")
}

func (a *app) keyGetCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "get KEY",
		Short:   "Show who holds a key and how many wait for it",
		Example: "  pulse key get account/1",
		Args:    exactly("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, ctx, cancel, err := a.call(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			key, err := c.Key(ctx, args[0])
			if err != nil {
				return err
			}
			return a.printOne(cmd, key, func(d *details) { describeKey(d, key) })
		},
	}
}

func describeKey(d *details, k *sdk.Key) {
	d.put("Key", k.Key)
	if k.HolderTaskID == "" {
		d.put("Held by", "nobody")
	} else {
		d.put("Held by", "task "+k.HolderTaskID)
		d.put("Attempt", k.AttemptID)
		d.put("Token", count(k.Token))
		d.time("Since", k.AcquiredAt)
	}
	if k.InReview {
		d.putf("In review", "yes: settle the task to free the key (pulse review resolve %s --help)", k.HolderTaskID)
	}
	d.put("Waiting", commas(k.Waiters))
}

func (a *app) keyFreeCommand() *cobra.Command {
	var note string
	cmd := &cobra.Command{
		Use:   "free KEY --note TEXT",
		Short: "Take a key from a task that needs a review",
		Long: `Take a key from a task in NEEDS_REVIEW, which keeps it until it is settled, so that the
next task may have it and the review may take its time. Be sure that what the task may
have left half done harms nobody. The note is recorded.

A key cannot be taken from a task that runs. "pulse task cancel" asks its handler to stop,
and the key is free when the attempt has ended, or its lease. A key that nobody holds is
free: that is said, and nothing is changed.`,
		Example: "  pulse key free account/1 --note 'the bank answers tomorrow; others may go on'",
		Args:    exactly("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if strings.TrimSpace(note) == "" {
				return usagef("--note has to say why")
			}
			c, ctx, cancel, err := a.call(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			// A key that nobody holds is answered like one that was freed just now. Whoever
			// frees a key by hand wants to know which it was, as a name with a slip in it
			// would look like a success; and what changed nothing is not put on record.
			key, err := c.Key(ctx, args[0])
			switch {
			case err != nil:
				return err
			case key.HolderTaskID == "" && key.Waiters == 0:
				return a.done(cmd, key, "Nobody holds the key %q or waits for it: nothing was changed. 'pulse key list' shows those in use.", key.Key)
			case key.HolderTaskID == "":
				return a.done(cmd, key, "Key %s is free already.", key.Key)
			}
			if key, err = c.FreeKey(ctx, args[0], note); err != nil {
				return err
			}
			if key.HolderTaskID != "" {
				return a.done(cmd, key, "Key %s went on to task %s.", key.Key, key.HolderTaskID)
			}
			return a.done(cmd, key, "Key %s is free.", key.Key)
		},
	}
	cmd.Flags().StringVar(&note, "note", "", "why; recorded")
	required(cmd, "note")
	return cmd
}
