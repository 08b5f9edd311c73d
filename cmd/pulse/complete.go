package main

import (
	"context"
	"iter"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulse/sdk"
)

// What a shell completes that only the cluster knows: names of queues, namespaces,
// schedules, workers, keys and servers. A cluster that does not answer at once offers
// nothing; the shell must not wait for it.

const (
	completeWithin = 2 * time.Second
	completeMax    = 200 // names; nobody looks through more
)

// names asks the cluster for what can be completed.
type names func(context.Context, *sdk.Client, func(string) bool) error

// each offers a name of everything in a list until there are enough.
func each[T any](list iter.Seq2[T, error], name func(T) string, offer func(string) bool) error {
	for one, err := range list {
		if err != nil {
			return err
		}
		if !offer(name(one)) {
			return nil
		}
	}
	return nil
}

func queueNames(ctx context.Context, c *sdk.Client, offer func(string) bool) error {
	return each(c.Queues(ctx), func(q *sdk.Queue) string { return q.Name }, offer)
}

func namespaceNames(ctx context.Context, c *sdk.Client, offer func(string) bool) error {
	return each(c.Namespaces(ctx), func(n *sdk.Namespace) string { return n.Name }, offer)
}

func scheduleNames(ctx context.Context, c *sdk.Client, offer func(string) bool) error {
	return each(c.Schedules(ctx), func(s *sdk.Schedule) string { return s.Name }, offer)
}

func workerNames(ctx context.Context, c *sdk.Client, offer func(string) bool) error {
	return each(c.Workers(ctx, ""), func(w *sdk.WorkerInfo) string { return w.InstanceID }, offer)
}

func keyNames(ctx context.Context, c *sdk.Client, offer func(string) bool) error {
	return each(c.Keys(ctx), func(k *sdk.Key) string { return k.Key }, offer)
}

func serverNames(ctx context.Context, c *sdk.Client, offer func(string) bool) error {
	all, err := c.Members(ctx)
	for _, m := range all {
		if m.Voter && !offer(m.ID) {
			break
		}
	}
	return err
}

// completions makes the shell complete the first argument of the verbs that take the
// name of something, and the flags that do.
func (a *app) completions(root *cobra.Command) {
	ofNoun := map[string]names{
		"queue": queueNames, "namespace": namespaceNames, "schedule": scheduleNames, "worker": workerNames, "key": keyNames,
	}
	ofVerb := map[string]names{"pulse cluster transfer": serverNames, "pulse cluster remove": serverNames}
	ofFlag := map[string]names{"queue": queueNames, "namespace": namespaceNames}
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		from := ofVerb[cmd.CommandPath()]
		if parent := cmd.Parent(); from == nil && parent != nil && cmd.Name() != "create" && strings.Contains(cmd.Use, " ") {
			from = ofNoun[parent.Name()]
		}
		if from != nil && cmd.ValidArgsFunction == nil {
			cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
				if len(args) > 0 {
					return nil, cobra.ShellCompDirectiveNoFileComp
				}
				return a.ask(cmd, from)
			}
		}
		for name, from := range ofFlag {
			if cmd.LocalFlags().Lookup(name) == nil || cmd != root && cmd.InheritedFlags().Lookup(name) != nil {
				continue
			}
			err := cmd.RegisterFlagCompletionFunc(name, func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
				return a.ask(cmd, from)
			})
			if err != nil {
				panic(err) // as in complete
			}
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(root)
}

// ask asks the cluster. The shell leaves out what does not begin as it should.
func (a *app) ask(cmd *cobra.Command, from names) ([]string, cobra.ShellCompDirective) {
	const none = cobra.ShellCompDirectiveNoFileComp
	if a.begin(cmd) != nil {
		return nil, none
	}
	quiet := slog.New(slog.DiscardHandler)
	httpClient, err := a.conn.httpClient(quiet)
	if err != nil {
		return nil, none
	}
	c := sdk.NewClient(sdk.ClientOptions{
		Addrs: a.conn.addrs(), Namespace: a.conn.namespace, Token: a.conn.token, HTTPClient: httpClient, Logger: quiet,
	})
	ctx, cancel := context.WithTimeout(cmd.Context(), completeWithin)
	defer cancel()
	var out []string
	err = from(ctx, c, func(name string) bool {
		out = append(out, name)
		return len(out) < completeMax
	})
	if err != nil {
		return nil, none
	}
	return out, none
}
