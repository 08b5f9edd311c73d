package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulse/cmd/node"
)

const (
	// loneElection is how long a lone voter waits for a leader before it becomes
	// it: nobody else could.
	loneElection = 100 * time.Millisecond
	// readyWithin is how long a node may take to read its log again.
	readyWithin = 10 * time.Minute
	// closeWithin bounds a polite end.
	closeWithin = 15 * time.Second
)

// serving is what a node prints once it serves.
type serving struct {
	URL    string `json:"url"`
	NodeID string `json:"node_id"`
	Data   string `json:"data"`
	PID    int    `json:"pid"`
}

// serve runs a node until ctx ends or the node does. with is called once it is
// ready; when ctx of the node ends, what with returns is run before it is closed.
func (a *app) serve(cmd *cobra.Command, cfg node.Config, with func(ctx context.Context, n *node.Node) (end func(), err error)) (err error) {
	ctx := cmd.Context()
	n, err := node.Start(ctx, cfg)
	if err != nil {
		return explainStart(err)
	}
	failed := make(chan error, 1)
	go func() { failed <- n.Wait() }()
	defer func() {
		// The signal has ended ctx already; the end gets time of its own.
		now, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
		defer cancel()
		err = errors.Join(err, n.Close(now))
	}()
	ready, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	if err := n.WaitReady(ready); err != nil {
		if ctx.Err() != nil {
			return nil // asked to stop before it was up
		}
		return err
	}
	end, err := with(ctx, n)
	if err != nil {
		return err
	}
	defer end()
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return cmp.Or(err, errors.New("the node has stopped"))
	}
}

// explainStart adds the way out where there is one.
func explainStart(err error) error {
	switch {
	case errors.Is(err, node.ErrInUse):
		return fmt.Errorf("%w: is another pulse running on it?", err)
	case strings.Contains(err.Error(), "address already in use"):
		return fmt.Errorf("%w\n  Something listens there already, perhaps another pulse; --http chooses another address, port 0 a free one", err)
	}
	return err
}

// loopbackOnly refuses an address that others can reach: there are no access
// tokens, so whoever reaches a node may do everything.
func loopbackOnly(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return usagef("--http is %q: give HOST:PORT", addr)
	}
	if ip, err := netip.ParseAddr(host); host == "localhost" || err == nil && ip.IsLoopback() {
		return nil
	}
	return usagef("--http is %q: nodes ask for no token yet, so they serve this machine alone; give 127.0.0.1:PORT, [::1]:PORT or localhost:PORT", addr)
}

// selfName is how the reader can run this binary.
func selfName() string {
	if _, err := exec.LookPath("pulse"); err == nil {
		return "pulse"
	}
	if strings.Contains(os.Args[0], "go-build") {
		return "go run ./cmd/pulse"
	}
	return os.Args[0]
}

// nodeLogger is the logger of a node; quiet is the level if nobody chose one.
func (a *app) nodeLogger(cmd *cobra.Command, quiet slog.Level) (*slog.Logger, error) {
	level, err := levelOf(a.logLevel)
	if err != nil {
		return nil, err
	}
	if a.logLevel == "" {
		level = quiet
	}
	return newLogger(cmd.ErrOrStderr(), level), nil
}
