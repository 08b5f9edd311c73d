package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pulse/sdk"
)

// callTimeout bounds a verb that asks something and shows the answer. It is long
// enough to see an election or a restart through.
const callTimeout = 15 * time.Second

// connection says where the cluster is and who asks.
type connection struct {
	addr, namespace               string
	caCert, clientCert, clientKey string
	token                         string // from the environment or the context's file, never from a flag
	context                       string // name of the context in force; "" = none
	timeout                       span
}

func (c *connection) flags(flags *pflag.FlagSet) {
	flags.StringVar(&c.addr, "addr", sdk.DefaultAddr, "address of a node or balancer, several with commas (PULSE_ADDR)")
	flags.StringVarP(&c.namespace, "namespace", "n", sdk.DefaultName, "namespace (PULSE_NAMESPACE)")
	flags.StringVar(&c.caCert, "cacert", "", "file with the certificates to trust instead of the system's (PULSE_CACERT)")
	flags.StringVar(&c.clientCert, "client-cert", "", "file with the client's certificate (PULSE_CLIENT_CERT)")
	flags.StringVar(&c.clientKey, "client-key", "", "file with the client's key (PULSE_CLIENT_KEY)")
	flags.StringVar(&c.context, "context", "", "context to take instead of the current one (PULSE_CONTEXT)")
	flags.Var(&c.timeout, "timeout", "give up after this long, e.g. 30s (default 15s; none for what waits, watches or loads)")
}

// complete takes from the environment what no flag says, and from the context
// what that does not say either.
func (c *connection) complete(cmd *cobra.Command, getenv func(string) string) error {
	var from place
	if asksCluster(cmd) {
		// Verbs that ask nobody must work with contexts that do not, if only to
		// set them right.
		known, err := loadPlaces(getenv)
		if err != nil {
			return err
		}
		if c.context, from, err = known.chosen(cmp.Or(c.context, getenv("PULSE_CONTEXT"))); err != nil {
			return err
		}
	}
	for _, v := range []struct {
		flag, env string
		context   string
		value     *string
	}{
		{"addr", "PULSE_ADDR", from.Addr, &c.addr},
		{"namespace", "PULSE_NAMESPACE", from.Namespace, &c.namespace},
		{"cacert", "PULSE_CACERT", from.CACert, &c.caCert},
		{"client-cert", "PULSE_CLIENT_CERT", from.ClientCert, &c.clientCert},
		{"client-key", "PULSE_CLIENT_KEY", from.ClientKey, &c.clientKey},
	} {
		flag := cmd.Flags().Lookup(v.flag)
		if text := cmp.Or(getenv(v.env), v.context); text != "" && (flag == nil || !flag.Changed) {
			*v.value = text
		}
	}
	c.token = getenv("PULSE_TOKEN")
	if c.token == "" && from.TokenFile != "" {
		var err error
		if c.token, err = readToken(from.TokenFile); err != nil {
			return fmt.Errorf("context %s: %w", c.context, err)
		}
	}
	if (c.clientCert == "") != (c.clientKey == "") {
		return errors.New("--client-cert and --client-key go together (PULSE_CLIENT_CERT, PULSE_CLIENT_KEY): give both or none")
	}
	for _, addr := range c.addrs() {
		if !strings.HasPrefix(addr, "http://") && !strings.HasPrefix(addr, "https://") {
			return fmt.Errorf("--addr is %q (PULSE_ADDR): give http://HOST:PORT or https://HOST:PORT", addr)
		}
	}
	return nil
}

// asksCluster says whether a verb speaks to a cluster that is there already.
func asksCluster(cmd *cobra.Command) bool {
	for cmd.HasParent() && cmd.Parent().HasParent() {
		cmd = cmd.Parent()
	}
	return cmd.GroupID == groupUse || cmd.Name() == "bench"
}

func (c *connection) addrs() []string {
	var addrs []string
	for addr := range strings.SplitSeq(c.addr, ",") {
		if addr = strings.TrimSpace(addr); addr != "" {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// httpClient is for all connections to the cluster, those of workers too.
func (c *connection) httpClient(logger *slog.Logger) (*http.Client, error) {
	return sdk.TLSFiles{CACert: c.caCert, ClientCert: c.clientCert, ClientKey: c.clientKey}.HTTPClient(logger)
}

// client is the way to the cluster for everything but nodes.
func (a *app) client(cmd *cobra.Command) (*sdk.Client, error) {
	logger := a.patience(cmd.ErrOrStderr())
	httpClient, err := a.conn.httpClient(logger)
	if err != nil {
		return nil, err
	}
	return sdk.NewClient(sdk.ClientOptions{
		Addrs: a.conn.addrs(), Namespace: a.conn.namespace, Token: a.conn.token, HTTPClient: httpClient, Logger: logger, Note: a.note,
	}), nil
}

// call is a client and a context that ends when a question has waited too long
// for its answer.
func (a *app) call(cmd *cobra.Command) (*sdk.Client, context.Context, context.CancelFunc, error) {
	c, err := a.client(cmd)
	if err != nil {
		return nil, nil, nil, err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), cmp.Or(time.Duration(a.conn.timeout), callTimeout))
	return c, ctx, cancel, nil
}

// long is like call for verbs that wait for something to happen: only a
// --timeout that was given bounds them.
func (a *app) long(cmd *cobra.Command) (*sdk.Client, context.Context, context.CancelFunc, error) {
	c, err := a.client(cmd)
	if err != nil {
		return nil, nil, nil, err
	}
	ctx, cancel := cmd.Context(), context.CancelFunc(func() {})
	if a.conn.timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(a.conn.timeout))
	}
	return c, ctx, cancel, nil
}

// page is call for a list: the whole of it may take as long as it takes.
func (a *app) page(cmd *cobra.Command, limit int) (*sdk.Client, context.Context, context.CancelFunc, error) {
	if limit > 0 {
		return a.call(cmd)
	}
	return a.long(cmd)
}

// patience logs what the SDK says while it tries again, so that nobody stares at
// a silent terminal.
func (a *app) patience(w io.Writer) *slog.Logger {
	level, err := levelOf(a.logLevel)
	if err != nil || a.logLevel == "" {
		level = slog.LevelWarn
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: noTime}))
}

// noTime: whoever waits for the verb knows what time it is.
func noTime(groups []string, attr slog.Attr) slog.Attr {
	if len(groups) == 0 && attr.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return attr
}
