package main

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"pulse/schema"
	"pulse/sdk"
)

func (a *app) namespaceCommand() *cobra.Command {
	return noun("namespace", "Keep teams or stages apart",
		`A namespace holds queues, tasks, workers and keys of its own; nothing crosses from
one to another. Every cluster has the namespace default.`,
		"  pulse namespace create billing\n  pulse queue list -n billing",
		a.namespaceCreateCommand(), a.namespaceListCommand(), a.namespaceUpdateCommand(), a.namespaceDeleteCommand())
}

func (a *app) namespaceCreateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "create NAME",
		Short: "Create a namespace",
		Long: `Create a namespace; its queues come with "pulse queue create -n NAME". One that is
there already is left as it is, and the verb fails.`,
		Example: "  pulse namespace create billing",
		Args:    exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, ctx, cancel, err := a.call(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			switch _, err := c.Namespace(ctx, args[0]); {
			case err == nil:
				return fmt.Errorf("namespace %s is there already", args[0])
			case !errors.Is(err, schema.NotFound):
				return err
			}
			namespace, err := c.PutNamespace(ctx, args[0])
			if err != nil {
				return err
			}
			return a.done(cmd, namespace, "Namespace %s is there.", namespace.Name)
		},
	}
}

var namespaceColumns = []column[*sdk.Namespace]{
	{"NAME", func(n *sdk.Namespace) string { return n.Name }},
	{"QUEUES", func(n *sdk.Namespace) string { return strconv.Itoa(n.Queues) }},
	{"WAITING", func(n *sdk.Namespace) string { return ofQuota(n.Usage.TasksWaiting, n.Quota.TasksWaiting) }},
	{"PAYLOAD BYTES", func(n *sdk.Namespace) string { return ofQuota(n.Usage.PayloadBytes, n.Quota.PayloadBytes) }},
	{"WORKERS", func(n *sdk.Namespace) string { return ofQuota(n.Usage.Workers, n.Quota.Workers) }},
	{"AGE", func(n *sdk.Namespace) string { return age(n.CreatedAt) }},
}

// ofQuota is what a namespace holds, of how much it may hold.
func ofQuota(holds, quota uint64) string {
	if quota == 0 {
		return commas(holds)
	}
	return commas(holds) + " of " + commas(quota)
}

func (a *app) namespaceUpdateCommand() *cobra.Command {
	var set sdk.Quota
	cmd := &cobra.Command{
		Use:   "update NAME",
		Short: "Change what a namespace may hold",
		Long: `Change the quota of a namespace. What no flag names stays as it is; 0 takes a bound
away. It is looked at when something new comes: what is there stays.`,
		Example: "  pulse namespace update billing --tasks-waiting 100000 --payload-bytes 1000000000 --workers 200",
		Args:    exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, ctx, cancel, err := a.call(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			namespace, err := c.Namespace(ctx, args[0])
			if err != nil {
				return err
			}
			quota, changed := namespace.Quota, false
			for _, f := range []struct {
				name     string
				to, from *uint64
			}{{"tasks-waiting", &quota.TasksWaiting, &set.TasksWaiting}, {"payload-bytes", &quota.PayloadBytes, &set.PayloadBytes}, {"workers", &quota.Workers, &set.Workers}} {
				if cmd.Flags().Changed(f.name) {
					*f.to, changed = *f.from, true
				}
			}
			if !changed {
				return usagef("nothing to change: give --tasks-waiting, --payload-bytes or --workers")
			}
			if namespace, err = c.SetQuota(ctx, args[0], quota); err != nil {
				return err
			}
			return a.done(cmd, namespace, "Namespace %s may hold %s tasks waiting, %s payload bytes and %s workers (0: any number).",
				namespace.Name, commas(quota.TasksWaiting), commas(quota.PayloadBytes), commas(quota.Workers))
		},
	}
	cmd.Flags().Uint64Var(&set.TasksWaiting, "tasks-waiting", 0, "tasks that may wait at a time; 0 is any number")
	cmd.Flags().Uint64Var(&set.PayloadBytes, "payload-bytes", 0, "bytes of the payloads of tasks that are not over; 0 is any number")
	cmd.Flags().Uint64Var(&set.Workers, "workers", 0, "workers that may be connected at a time; 0 is any number")
	return cmd
}

func (a *app) namespaceListCommand() *cobra.Command {
	return listCommand(a, "List namespaces", "  pulse namespace list",
		namespaceColumns, (*sdk.Client).Namespaces, "No namespaces.")
}

func (a *app) namespaceDeleteCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "delete NAME",
		Short:   "Delete a namespace that is empty",
		Long:    "Delete a namespace. Its queues have to be deleted and its finished tasks to be gone first.",
		Example: "  pulse namespace delete billing",
		Args:    exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, ctx, cancel, err := a.call(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			if err := c.DeleteNamespace(ctx, args[0]); err != nil {
				return err
			}
			return a.done(cmd, deleted{Name: args[0], Deleted: true}, "Namespace %s is deleted.", args[0])
		},
	}
}

// deleted is what is left to print of something that is gone.
type deleted struct {
	Name    string `json:"name"`
	Deleted bool   `json:"deleted"`
}
