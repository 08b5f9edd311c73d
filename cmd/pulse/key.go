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
		Short: "Take a key from the task that holds it",
		Long: `Take a key from its holder, so that the next task may have it. A holder that still
runs is not stopped: from then on only the token keeps the two apart, so be sure that
what they write to checks it. The note is recorded.`,
		Example: "  pulse key free account/1 --note 'the worker was shut down by hand'",
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
			key, err := c.FreeKey(ctx, args[0], note)
			if err != nil {
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
