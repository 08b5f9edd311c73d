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
		a.namespaceCreateCommand(), a.namespaceListCommand(), a.namespaceDeleteCommand())
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
	{"AGE", func(n *sdk.Namespace) string { return age(n.CreatedAt) }},
}

func (a *app) namespaceListCommand() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List namespaces",
		Example: "  pulse namespace list",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, ctx, cancel, err := a.page(cmd, limit)
			if err != nil {
				return err
			}
			defer cancel()
			return printList(a, cmd, namespaceColumns, c.Namespaces(ctx), limit, "No namespaces.")
		},
	}
	limitFlag(cmd, &limit)
	return cmd
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
