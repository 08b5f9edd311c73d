package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"

	"github.com/spf13/cobra"

	"pulse/cluster"
	"pulse/cmd/node"
)

// serverFlags are what a server is told.
type serverFlags struct {
	nodeID, data, secretFile, logStore string
	http, rpc, raft, gossip, advertise string
	join                               []string
	expect                             int
	config                             string
}

func (a *app) serverCommand() *cobra.Command {
	var f serverFlags
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Run a node that keeps its state and serves clients and workers",
		Long: `Run a server: a voter of its cluster that serves clients and workers. What it has
acknowledged is on its disk first: stop it in any way and start it again, and it goes on.

This version runs one voter. It takes the flags of a cluster (--rpc, --raft, --gossip,
--advertise), opens none of those ports, and refuses --join and a --bootstrap-expect
above 1. It asks for no token, so it serves this machine alone.

--config names a file with a line for each flag, without its dashes:

  # /etc/pulse/server.conf
  node-id = node-1
  data = /var/lib/pulse
  http = 127.0.0.1:7400

A flag on the command line wins. It logs text to a terminal and JSON elsewhere, to
standard error. SIGINT and SIGTERM end it politely: connections are closed after the
answers under way.`,
		Example: `  pulse server --data /var/lib/pulse
  pulse server --config /etc/pulse/server.conf --log-level warn`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.config != "" {
				if err := readConfig(cmd, f.config); err != nil {
					return err
				}
			}
			if err := f.check(); err != nil {
				return err
			}
			logger, err := a.nodeLogger(cmd, slog.LevelInfo)
			if err != nil {
				return usageError{err}
			}
			cfg := node.Config{
				NodeID: f.nodeID, DataDir: f.data, HTTPAddr: f.http, ClusterSecretFile: f.secretFile,
				LogStore: cluster.LogStore(f.logStore), ElectionTimeout: loneElection, Version: version, Logger: logger,
			}
			return a.serve(cmd, cfg, func(_ context.Context, n *node.Node) (func(), error) {
				ready := serving{URL: n.URL(), NodeID: n.ID(), Data: f.data, PID: os.Getpid()}
				return func() {}, a.done(cmd, ready, "Pulse node %s serves %s.", ready.NodeID, ready.URL)
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.config, "config", "", "file with flags, one \"name = value\" a line")
	flags.StringVar(&f.nodeID, "node-id", "", "name of this node for the life of its data (default: what the data says, or "+node.DefaultNodeID+")")
	flags.StringVar(&f.data, "data", "", "directory that keeps the state; it is this node's alone")
	flags.StringVar(&f.http, "http", node.DefaultHTTPAddr, "where clients and workers connect, on this machine; port 0 takes a free one")
	flags.StringVar(&f.rpc, "rpc", "127.0.0.1:7401", "where other nodes send commands (not opened by a lone voter)")
	flags.StringVar(&f.raft, "raft", "127.0.0.1:7402", "where other voters replicate the log (not opened by a lone voter)")
	flags.StringVar(&f.gossip, "gossip", "127.0.0.1:7403", "where nodes find each other (not opened by a lone voter)")
	flags.StringVar(&f.advertise, "advertise", "", "host under which other nodes reach this one (not used by a lone voter)")
	flags.StringSliceVar(&f.join, "join", nil, "gossip addresses of the cluster to join (refused: this version runs one voter)")
	flags.IntVar(&f.expect, "bootstrap-expect", 1, "voters that begin a new cluster together (this version: 1)")
	flags.StringVar(&f.secretFile, "cluster-secret-file", "", "file with the secret of the cluster (default: one made at the first start, in the data directory)")
	flags.StringVar(&f.logStore, "log-store", string(cluster.LogStoreWAL), "how the log is kept: wal or bolt")
	complete(cmd, "log-store", string(cluster.LogStoreWAL), string(cluster.LogStoreBolt))
	return cmd
}

// check refuses what this version cannot do before anything is opened.
func (f *serverFlags) check() error {
	switch {
	case f.data == "":
		return usagef("--data is missing: give a directory that survives restarts ('pulse dev' makes a temporary one)")
	case len(f.join) > 0:
		return usagef("--join: this version runs one voter; a server cannot join others yet")
	case f.expect != 1:
		return usagef("--bootstrap-expect is %d: this version runs one voter; leave it away or give 1", f.expect)
	}
	for _, a := range []struct{ flag, addr string }{
		{"http", f.http}, {"rpc", f.rpc}, {"raft", f.raft}, {"gossip", f.gossip},
	} {
		if _, _, err := net.SplitHostPort(a.addr); err != nil {
			return usageError{fmt.Errorf("--%s is %q: give HOST:PORT", a.flag, a.addr)}
		}
	}
	return loopbackOnly(f.http)
}
