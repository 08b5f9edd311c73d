package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulse/schema/access"
	"pulse/sdk"
)

func (a *app) tokenCommand() *cobra.Command {
	return noun("token", "Give programs and people rights, and take them back",
		`An access token says who may do what: a role in one namespace, or in all of them.

  reader     looks at everything, changes nothing
  submitter  an application: submits, follows, cancels and retries tasks
  operator   a person on call: settles reviews, cancels, retries, pauses, drains
  worker     takes work, from single queues if they are named
  admin      everything in its namespaces; in all of them, the cluster too

It is shown once and kept nowhere. Give it to a client in PULSE_TOKEN. The first one of
a cluster is made with a client certificate, on the machine of a node that serves itself
alone, or by 'pulse server --bootstrap-token-file'.`,
		"  pulse token create billing-app --grant submitter@billing\n  pulse token list",
		a.tokenCreateCommand(), a.tokenListCommand(), a.tokenRevokeCommand())
}

func (a *app) tokenCreateCommand() *cobra.Command {
	var grants []string
	var expires span
	var file string
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Make an access token and show it once",
		Long: `Make an access token. NAME says what it is for. Each --grant is ROLE@NAMESPACE, with *
for all namespaces; a worker's may name queues, worker@NAMESPACE/QUEUE,QUEUE. An admin
gives rights in its own namespaces.`,
		Example: `  pulse token create billing-app --grant submitter@billing
  pulse token create mailer --grant worker@billing/mail --expires-in 90d --file mailer.token
  pulse token create anna --grant operator@billing --grant 'reader@*'`,
		Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			spec := sdk.TokenSpec{Name: args[0]}
			for _, text := range grants {
				g, err := access.ParseGrant(text)
				if err != nil {
					return usageError{fmt.Errorf("--grant: %w", err)}
				}
				spec.Grants = append(spec.Grants, sdk.Grant{Role: string(g.Role), Namespace: g.Namespace, Queues: g.Queues})
			}
			if len(spec.Grants) == 0 {
				return usagef("--grant is missing: give ROLE@NAMESPACE, like submitter@billing")
			}
			if cmd.Flags().Changed("expires-in") {
				if expires == 0 {
					return usagef("--expires-in is 0: give more, or leave it out for a token that does not end")
				}
				spec.ExpiresAt = time.Now().Add(time.Duration(expires))
			}
			return a.createToken(cmd, spec, file)
		},
	}
	cmd.Flags().StringArrayVar(&grants, "grant", nil, "right to give, ROLE@NAMESPACE or worker@NAMESPACE/QUEUE,QUEUE; may be repeated")
	cmd.Flags().Var(&expires, "expires-in", "end it after this long, e.g. 90d (default: never)")
	cmd.Flags().StringVar(&file, "file", "", "new file to write the token to, for its owner's eyes, instead of showing it")
	return cmd
}

func (a *app) createToken(cmd *cobra.Command, spec sdk.TokenSpec, file string) (err error) {
	var out *os.File
	if file != "" { // before there is a token that would be lost
		if out, err = os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, out.Close()) }()
	}
	c, ctx, cancel, err := a.call(cmd)
	if err != nil {
		return err
	}
	defer cancel()
	token, err := c.CreateToken(ctx, spec)
	if err != nil {
		if file != "" {
			err = errors.Join(err, os.Remove(file))
		}
		return err
	}
	if file != "" {
		if _, err := out.WriteString(token.Secret + "\n"); err != nil {
			return fmt.Errorf("%w; the token is lost: 'pulse token revoke %s' and make another", err, token.ID)
		}
		token.Secret = ""
		return a.done(cmd, token, "Token %s (%s) is in %s.", token.Name, token.ID, file)
	}
	return a.done(cmd, token, "Token %s (%s). It is shown once:\n\n%s", token.Name, token.ID, token.Secret)
}

func grantText(grants []sdk.Grant) string {
	var out []string
	for _, g := range grants {
		out = append(out, access.Grant{Role: access.Role(g.Role), Namespace: g.Namespace, Queues: g.Queues}.String())
	}
	return strings.Join(out, " ")
}

var tokenColumns = []column[*sdk.Token]{
	{"ID", func(t *sdk.Token) string { return t.ID }},
	{"NAME", func(t *sdk.Token) string { return brief(t.Name) }},
	{"STATE", tokenState},
	{"GRANTS", func(t *sdk.Token) string { return grantText(t.Grants) }},
	{"AGE", func(t *sdk.Token) string { return age(t.CreatedAt) }},
	{"USED", func(t *sdk.Token) string {
		if t.UsedAt == nil {
			return "never"
		}
		return age(*t.UsedAt) + " ago"
	}},
	{"BY", func(t *sdk.Token) string { return t.CreatedBy }},
}

func tokenState(t *sdk.Token) string {
	switch {
	case t.RevokedAt != nil:
		return "revoked"
	case t.ExpiresAt == nil:
		return "good"
	case time.Now().After(*t.ExpiresAt):
		return "over"
	}
	return "good for " + spell(time.Until(*t.ExpiresAt).Truncate(time.Minute))
}

func (a *app) tokenListCommand() *cobra.Command {
	cmd := listCommand(a, "List access tokens, without their secrets", "  pulse token list",
		tokenColumns, (*sdk.Client).Tokens, "No tokens.")
	cmd.Long = `List the tokens that give rights in your namespaces alone. Revoked ones and those that
are over are shown for 30 days.`
	return cmd
}

func (a *app) tokenRevokeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "revoke ID",
		Short: "End an access token for ever",
		Long: `End a token. Nothing is changed with it any more from then on, and what it holds open
ends within seconds: workers' connections, watches, waits. ID is the part of the token
between the two underscores; 'pulse token list' shows it.`,
		Example: "  pulse token revoke 0198c0ffee0000000000000000000001",
		Args:    exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := tokenID(args[0])
			if err != nil {
				return err
			}
			c, ctx, cancel, err := a.call(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			token, err := c.RevokeToken(ctx, id)
			if err != nil {
				return err
			}
			return a.done(cmd, token, "Token %s (%s) is revoked.", token.Name, token.ID)
		},
	}
}

// tokenID reads the id of a token, also out of a token that was pasted whole. What
// looks like a token and is none is not repeated: most of it may be a secret.
func tokenID(text string) (string, error) {
	if t, ok := access.ParseToken(text); ok {
		return t.ID.String(), nil
	}
	if strings.HasPrefix(text, "pulse_") {
		return "", usagef("this is not a whole token: give its ID, the 32 hexadecimal digits between its two underscores")
	}
	return hexID("a token", text)
}

func (a *app) auditCommand() *cobra.Command {
	var f sdk.AuditFilter
	var since span
	var limit int
	var all bool
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "See who changed what, and why",
		Long: `List changes, newest first: who, what, why. Every verb that changes something is on
record for 400 days, with the note it was given. What may be refused or take long, like a
transfer of the lead, is there when it was asked for and once more with how it ended.
Submissions are on record if they were given a --note; all of them, and what workers do,
are in the histories of their tasks.`,
		Example: `  pulse audit --since 1d
  pulse audit --action pulse.queue. --principal client/anna
  pulse audit --all-namespaces --action pulse.token.Create`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, ctx, cancel, err := a.page(cmd, limit)
			if err != nil {
				return err
			}
			defer cancel()
			if !all {
				f.Namespace = a.conn.namespace
			}
			if since > 0 {
				f.From = time.Now().Add(-time.Duration(since))
			}
			if err := printList(a, cmd, changeColumns, c.Audit(ctx, f), limit, "No changes."); err != nil || all || a.format != formatTable {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "In namespace %s; --all-namespaces shows the others too, and what was done to the cluster and its tokens.\n", f.Namespace)
			return nil
		},
	}
	cmd.Flags().StringVar(&f.Principal, "principal", "", "by this caller alone, like token/ID or client/NAME")
	cmd.Flags().StringVar(&f.Action, "action", "", "of this kind alone, like pulse.queue.Pause; pulse.queue. is all that begin so")
	cmd.Flags().StringVar(&f.Target, "target", "", "of this task, queue, worker, key, namespace, token or node alone")
	cmd.Flags().Var(&since, "since", "not longer ago than this, e.g. 2h or 7d")
	cmd.Flags().BoolVar(&all, "all-namespaces", false, "in all namespaces that you may see, and of the cluster")
	limitFlag(cmd, &limit)
	return cmd
}

var changeColumns = []column[*sdk.Change]{
	{"AT", func(c *sdk.Change) string { return c.At.UTC().Format(time.DateTime) }},
	{"NAMESPACE", func(c *sdk.Change) string { return strings.Join(c.Namespaces, " ") }},
	{"WHO", func(c *sdk.Change) string {
		if c.TokenName != "" {
			return c.TokenName + " (" + c.Principal + ")"
		}
		return c.Principal
	}},
	{"WHAT", func(c *sdk.Change) string { return strings.TrimPrefix(c.Action, "pulse.") }},
	{"TARGET", func(c *sdk.Change) string { return c.Target }},
	{"DETAIL", func(c *sdk.Change) string { return c.Detail }},
	{"WHY", func(c *sdk.Change) string { return c.Note }},
}
