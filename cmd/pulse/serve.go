package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	// readyWithin is how long a node that is alone may take to read its log again.
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
		err = saidOnce(err, n.Close(now))
	}()
	ready, cancel := awaitReady(ctx, cfg)
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

// saidOnce joins what ended a node and what closing it says, which may be the same.
func saidOnce(err, closed error) error {
	if closed != nil && errors.Is(err, closed) {
		return err
	}
	return errors.Join(err, closed)
}

// awaitReady bounds the wait for a node to be ready. One of several waits for the
// others, or for gigabytes of state from them, as long as it takes: ended and
// started again, it would begin from the start.
func awaitReady(ctx context.Context, cfg node.Config) (context.Context, context.CancelFunc) {
	if cfg.Cluster != nil {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, readyWithin)
}

// nodeFlags are what a node is told.
type nodeFlags interface {
	// check refuses what cannot be before anything is opened.
	check() error
	nodeConfig(*slog.Logger) node.Config
}

// runNode is a verb that runs a node of one kind. config is the file with flags,
// if there is one.
func (a *app) runNode(cmd *cobra.Command, config string, f nodeFlags, kind string) error {
	if config != "" {
		if err := readConfig(cmd, config); err != nil {
			return err
		}
	}
	if err := f.check(); err != nil {
		return err
	}
	logger, level, err := a.nodeLogger(cmd, slog.LevelInfo)
	if err != nil {
		return usageError{err}
	}
	cfg := f.nodeConfig(logger)
	traces, stop, err := tracesFromEnv(cmd.Context(), logger)
	if err != nil {
		return usageError{err}
	}
	defer stop()
	cfg.Traces, cfg.LogLevel = traces, level
	return a.serve(cmd, cfg, func(_ context.Context, n *node.Node) (func(), error) {
		ready := serving{URL: n.URL(), NodeID: n.ID(), Data: cfg.DataDir, PID: os.Getpid()}
		return func() {}, a.done(cmd, ready, "Pulse %s %s serves %s.", kind, ready.NodeID, ready.URL)
	})
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

// loopback says that a host is this machine and nothing else.
func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
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

// nodeLogger is the logger of a node and its level, which may be changed; quiet is
// the level if nobody chose one.
func (a *app) nodeLogger(cmd *cobra.Command, quiet slog.Level) (*slog.Logger, *slog.LevelVar, error) {
	level, err := levelOf(a.logLevel)
	if err != nil {
		return nil, nil, err
	}
	if a.logLevel == "" {
		level = quiet
	}
	changeable := new(slog.LevelVar)
	changeable.Set(level)
	return newLogger(cmd.ErrOrStderr(), changeable), changeable, nil
}
