package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"pulse/sdk"
)

func (a *app) workerCommand() *cobra.Command {
	return noun("worker", "See who runs tasks, and take workers out of service",
		`A worker is one process that has registered with a queue: what it can run, how much
at a time, and through which node it is connected.`,
		"  pulse worker list --queue mail\n  pulse worker drain 3f2c8a9d0b1e4f5061728394a5b6c7d8",
		a.workerListCommand(), a.workerGetCommand(), a.workerDrainCommand())
}

var workerColumns = []column[*sdk.WorkerInfo]{
	{"INSTANCE", func(w *sdk.WorkerInfo) string { return w.InstanceID }},
	{"QUEUE", func(w *sdk.WorkerInfo) string { return w.Queue }},
	{"STATE", func(w *sdk.WorkerInfo) string { return w.State }},
	{"ACTIVE", func(w *sdk.WorkerInfo) string { return fmt.Sprintf("%d of %d", w.Active, w.Capacity) }},
	{"GATEWAY", func(w *sdk.WorkerInfo) string { return w.GatewayID }},
	{"CONNECTED", func(w *sdk.WorkerInfo) string { return age(w.ConnectedAt) }},
	{"HANDLERS", func(w *sdk.WorkerInfo) string { return capabilities(w, ", ") }},
}

// capabilities are what a worker can run; versions are left away where they are
// the usual 1.
func capabilities(w *sdk.WorkerInfo, between string) string {
	words := make([]string, len(w.Capabilities))
	for i, c := range w.Capabilities {
		words[i] = capability(c)
	}
	return strings.Join(words, between)
}

func capability(c sdk.Capability) string {
	if c.HandlerVersion == "1" && c.PayloadVersion == "1" {
		return c.Handler
	}
	return fmt.Sprintf("%s %s/%s", c.Handler, c.HandlerVersion, c.PayloadVersion)
}

func (a *app) workerListCommand() *cobra.Command {
	var queue string
	var limit int
	var ids bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List workers",
		Long: `List the workers of a queue or of the whole namespace, those included that were
connected until lately.`,
		Example: "  pulse worker list\n  pulse worker list --queue mail --ids",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, ctx, cancel, err := a.page(cmd, limit)
			if err != nil {
				return err
			}
			defer cancel()
			walk := c.Workers(ctx, queue)
			if ids {
				return printIDs(cmd, walk, limit, func(w *sdk.WorkerInfo) string { return w.InstanceID })
			}
			return printList(a, cmd, workerColumns, walk, limit, "No workers. Tasks wait until one connects.")
		},
	}
	cmd.Flags().StringVarP(&queue, "queue", "q", "", "workers of this queue")
	limitFlag(cmd, &limit)
	cmd.Flags().BoolVar(&ids, "ids", false, "print instance ids alone, one a line")
	return cmd
}

func (a *app) workerGetCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "get INSTANCE",
		Short:   "Show a worker",
		Example: "  pulse worker get 3f2c8a9d0b1e4f5061728394a5b6c7d8",
		Args:    exactly("INSTANCE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := hexID("a worker", args[0])
			if err != nil {
				return err
			}
			c, ctx, cancel, err := a.call(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			worker, err := c.Worker(ctx, id)
			if err != nil {
				return err
			}
			return a.printOne(cmd, worker, func(d *details) { describeWorker(d, worker) })
		},
	}
}

func describeWorker(d *details, w *sdk.WorkerInfo) {
	d.put("Worker", w.InstanceID)
	d.put("State", w.State)
	d.putf("Queue", "%s/%s", w.Namespace, w.Queue)
	d.putf("Active", "%d of %d", w.Active, w.Capacity)
	d.put("Handlers", capabilities(w, ", "))
	if !w.ConcurrencyKeys {
		d.put("Limits", "takes no tasks with a concurrency key")
	}
	d.put("Gateway", w.GatewayID)
	d.put("Connected from", w.Peer)
	d.putf("Session", "%s, epoch %d", w.SessionID, w.SessionEpoch)
	d.time("Connected", w.ConnectedAt)
	d.time("Disconnected", w.DisconnectedAt)
	d.time("Heard of", w.HeardAt)
	d.time("Session ends", w.ExpiresAt)
}

func (a *app) workerDrainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "drain INSTANCE",
		Short: "Give a worker no more tasks",
		Long: `Give a worker no more tasks; it finishes what it has. There is no way back for this
instance: restart its process to take it into service again.`,
		Example: "  pulse worker drain 3f2c8a9d0b1e4f5061728394a5b6c7d8",
		Args:    exactly("INSTANCE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := hexID("a worker", args[0])
			if err != nil {
				return err
			}
			c, ctx, cancel, err := a.call(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			worker, err := c.DrainWorker(ctx, id)
			if err != nil {
				return err
			}
			return a.done(cmd, worker, "Worker %s drains: %s left.", worker.InstanceID, plural(worker.Active, "attempt"))
		},
	}
}
