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

Alone it is a cluster of one and opens only --http. With --bootstrap-expect 3 it founds a
cluster together with two others: give all three one --cluster-secret-file, a --node-id
of their own, ports of their own, and --join with the gossip address of any of them. A
server that comes later gives --join alone: it joins as a learner, gets a vote when it
keeps up, and takes the place of a dead one. It asks for no token and speaks without TLS,
so it serves this machine alone.

--config names a file with a line for each flag, without its dashes:

  # /etc/pulse/server.conf
  node-id = node-1
  data = /var/lib/pulse
  http = 127.0.0.1:7400

A flag on the command line wins. It logs text to a terminal and JSON elsewhere, to
standard error. SIGINT and SIGTERM end it politely: connections are closed after the
answers under way.`,
		Example: `  pulse server --data /var/lib/pulse
  pulse server --config /etc/pulse/server.conf --log-level warn
  pulse server --node-id b --data ./b --http 127.0.0.1:7410 --rpc 127.0.0.1:7411 \
    --raft 127.0.0.1:7412 --gossip 127.0.0.1:7413 --join 127.0.0.1:7403 \
    --bootstrap-expect 3 --cluster-secret-file secret`,
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
			cfg := f.nodeConfig(logger)
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
	flags.StringVar(&f.rpc, "rpc", "127.0.0.1:7401", "where other nodes send commands (not opened by a server alone)")
	flags.StringVar(&f.raft, "raft", "127.0.0.1:7402", "where other voters replicate the log (not opened by a lone voter)")
	flags.StringVar(&f.gossip, "gossip", "127.0.0.1:7403", "where nodes find each other (not opened by a lone voter)")
	flags.StringVar(&f.advertise, "advertise", "", "host under which other nodes reach this one (not used by a lone voter)")
	flags.StringSliceVar(&f.join, "join", nil, "gossip addresses of other nodes, tried for ever")
	flags.IntVar(&f.expect, "bootstrap-expect", 1, "empty servers that found a new cluster together")
	flags.StringVar(&f.secretFile, "cluster-secret-file", "", "file with the secret of the cluster (default: one made at the first start, in the data directory)")
	flags.StringVar(&f.logStore, "log-store", string(cluster.LogStoreWAL), "how the log is kept: wal or bolt")
	complete(cmd, "log-store", string(cluster.LogStoreWAL), string(cluster.LogStoreBolt))
	return cmd
}

// several says that the server is one of a cluster.
func (f *serverFlags) several() bool { return len(f.join) > 0 || f.expect > 1 }

func (f *serverFlags) nodeConfig(logger *slog.Logger) node.Config {
	cfg := node.Config{
		NodeID: f.nodeID, DataDir: f.data, HTTPAddr: f.http, ClusterSecretFile: f.secretFile,
		LogStore: cluster.LogStore(f.logStore), ElectionTimeout: loneElection, Version: version, Logger: logger,
	}
	if f.several() {
		cfg.ElectionTimeout = 0 // the default, which leaves others time to answer
		cfg.RaftAddr = f.raft
		cfg.Cluster = &node.ClusterConfig{
			RPCAddr: f.rpc, GossipAddr: f.gossip, Advertise: f.advertise, Join: f.join, BootstrapExpect: f.expect,
		}
		if f.expect < 2 {
			cfg.Cluster.BootstrapExpect = 0
		}
	}
	return cfg
}

// check refuses what this version cannot do before anything is opened.
func (f *serverFlags) check() error {
	switch {
	case f.data == "":
		return usagef("--data is missing: give a directory that survives restarts ('pulse dev' makes a temporary one)")
	case f.expect < 1 || f.expect > 9:
		return usagef("--bootstrap-expect is %d: give 1 for a server alone, or 3", f.expect)
	case f.several() && f.nodeID == "":
		return usagef("--node-id is missing: each server of a cluster needs a name of its own")
	case f.several() && f.secretFile == "":
		return usagef("--cluster-secret-file is missing: all servers of a cluster share one; make it once, e.g. with 'openssl rand -hex 32'")
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
