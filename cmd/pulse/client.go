package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pulse/schema"
	"pulse/sdk"
)

// callTimeout bounds a verb that asks something and shows the answer. It is long
// enough to see an election or a restart through.
const callTimeout = 15 * time.Second

// connection says where the cluster is and who asks.
type connection struct {
	addr, namespace               string
	caCert, clientCert, clientKey string
	token                         string // from the environment alone
	timeout                       span
}

func (c *connection) flags(flags *pflag.FlagSet) {
	flags.StringVar(&c.addr, "addr", sdk.DefaultAddr, "address of a node or balancer, several with commas (PULSE_ADDR)")
	flags.StringVarP(&c.namespace, "namespace", "n", sdk.DefaultName, "namespace (PULSE_NAMESPACE)")
	flags.StringVar(&c.caCert, "cacert", "", "file with the certificates to trust instead of the system's (PULSE_CACERT)")
	flags.StringVar(&c.clientCert, "client-cert", "", "file with the client's certificate (PULSE_CLIENT_CERT)")
	flags.StringVar(&c.clientKey, "client-key", "", "file with the client's key (PULSE_CLIENT_KEY)")
	flags.Var(&c.timeout, "timeout", "give up after this long, e.g. 30s (default 15s; none for what waits, watches or loads)")
}

// complete takes from the environment what no flag says.
func (c *connection) complete(cmd *cobra.Command, getenv func(string) string) error {
	for _, v := range []struct {
		flag, env string
		value     *string
	}{
		{"addr", "PULSE_ADDR", &c.addr},
		{"namespace", "PULSE_NAMESPACE", &c.namespace},
		{"cacert", "PULSE_CACERT", &c.caCert},
		{"client-cert", "PULSE_CLIENT_CERT", &c.clientCert},
		{"client-key", "PULSE_CLIENT_KEY", &c.clientKey},
	} {
		flag := cmd.Flags().Lookup(v.flag)
		if text := getenv(v.env); text != "" && (flag == nil || !flag.Changed) {
			*v.value = text
		}
	}
	c.token = getenv("PULSE_TOKEN")
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
func (c *connection) httpClient() (*http.Client, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 64
	transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	if c.caCert != "" {
		text, err := os.ReadFile(c.caCert)
		if err != nil {
			return nil, fmt.Errorf("--cacert: %w", err)
		}
		transport.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !transport.TLSClientConfig.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("--cacert: %s holds no certificate in PEM form", c.caCert)
		}
	}
	if c.clientCert != "" {
		pair, err := tls.LoadX509KeyPair(c.clientCert, c.clientKey)
		if err != nil {
			return nil, fmt.Errorf("--client-cert: %w", err)
		}
		transport.TLSClientConfig.Certificates = []tls.Certificate{pair}
	}
	return &http.Client{Transport: transport}, nil
}

// client is the way to the cluster for everything but nodes.
func (a *app) client(cmd *cobra.Command) (*sdk.Client, error) {
	httpClient, err := a.conn.httpClient()
	if err != nil {
		return nil, err
	}
	return sdk.NewClient(sdk.ClientOptions{
		Addrs: a.conn.addrs(), Namespace: a.conn.namespace, Token: a.conn.token,
		HTTPClient: httpClient, Logger: a.patience(cmd.ErrOrStderr()),
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

// explain is an error as a person wants to read it, with what to do about it.
func (a *app) explain(ctx context.Context, err error) string {
	var b strings.Builder
	refusal, refused := errors.AsType[*sdk.Error](err)
	switch {
	case ctx.Err() != nil:
		return "pulse: interrupted\n"
	case refused:
		fmt.Fprintf(&b, "pulse: %s (%s)\n", cmp.Or(refusal.Message, "refused"), refusal.Code)
		for _, v := range refusal.Violations {
			fmt.Fprintf(&b, "  %s %s\n", cmp.Or(v.Path, "the request"), v.Message)
		}
	case unreachable(err) != nil:
		fmt.Fprintf(&b, "pulse: no answer: %v\n", unreachable(err))
	default:
		fmt.Fprintf(&b, "pulse: %s\n", strings.TrimPrefix(err.Error(), "pulse: "))
	}
	if errors.Is(err, context.DeadlineExceeded) && refused {
		fmt.Fprintf(&b, "  given up; --timeout waits longer\n")
	}
	if hint := a.hint(err, refusal); hint != "" {
		fmt.Fprintf(&b, "  %s\n", hint)
	}
	return b.String()
}

// unreachable is the network's own word on why there is no answer.
func unreachable(err error) error {
	if fault, ok := errors.AsType[*net.OpError](err); ok && fault.Op != "listen" {
		return fault
	}
	return nil
}

func (a *app) hint(err error, refusal *sdk.Error) string {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "Nobody listens at " + a.conn.addr + ". Start a node with 'pulse dev', or say where one is with --addr or PULSE_ADDR."
	case refusal == nil:
		return ""
	case refusal.ExistingTaskID != "":
		return "The other task: pulse task get " + refusal.ExistingTaskID
	case refusal.Code == schema.Unauthenticated:
		return "The token is taken from PULSE_TOKEN."
	case refusal.Code == schema.ResultUnknown:
		return "It may or may not have been done: look before you repeat it."
	case refusal.Code == schema.RevisionConflict:
		return fmt.Sprintf("It is at revision %d now.", refusal.CurrentRevision)
	}
	return ""
}
