package main

import (
	"fmt"
	"log/slog"
	"net"

	"github.com/spf13/cobra"

	"pulse/cluster"
	"pulse/cmd/node"
)

// serverFlags are what a server is told.
type serverFlags struct {
	nodeID, data, certs                string
	secretFile, logStore               string
	tokenFile                          string
	requireToken                       bool
	http, rpc, raft, gossip, advertise string
	join                               []string
	expect                             int
	config                             string
	address                            limitFlags
}

func (a *app) serverCommand() *cobra.Command {
	var f serverFlags
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Run a node that keeps its state and serves clients and workers",
		Long: `Run a server: a voter of its cluster that serves clients and workers. What it has
acknowledged is on its disk first: stop it in any way and start it again, and it goes on.

Alone it is a cluster of one and opens only --http. With --bootstrap-expect 3 it founds a
cluster together with two others: give each its --certs, a --node-id of its own, and
--join with the gossip address of any of them. A server that comes later gives --join
alone: it joins as a learner, gets a vote when it keeps up, and takes the place of a dead
one.

--certs names this node's directory of the certificates that 'pulse cluster init-tls' has
made. With it every port speaks TLS: nodes let in nodes of their cluster alone, and
whoever calls the API, or works, shows an access token or a client certificate. Health,
metrics and the API's description need none. The files are looked at again all the time:
copy new ones there, no restart is needed. Without --certs the server serves this machine
alone, and asks nobody there who he is unless --require-token is given; servers of one
cluster then share a --cluster-secret-file.

--config names a file with a line for each flag, without its dashes:

  # /etc/pulse/server.conf
  node-id = node-1
  data = /var/lib/pulse
  certs = /etc/pulse/certs
  http = 0.0.0.0:7400

A flag on the command line wins. It logs text to a terminal and JSON elsewhere, to
standard error. SIGINT and SIGTERM end it politely: connections are closed after the
answers under way.`,
		Example: `  pulse server --data /var/lib/pulse
  pulse server --config /etc/pulse/server.conf --log-level warn
  pulse server --node-id node-1 --data /var/lib/pulse --certs /etc/pulse/certs \
    --advertise node-1.example.org --http 0.0.0.0:7400 --rpc 0.0.0.0:7401 \
    --raft 0.0.0.0:7402 --gossip 0.0.0.0:7403 --join node-2.example.org:7403 \
    --bootstrap-expect 3`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runNode(cmd, f.config, &f, "node") },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.config, "config", "", "file with flags, one \"name = value\" a line")
	flags.StringVar(&f.nodeID, "node-id", "", "name of this node for the life of its data (default: what the data says, or "+node.DefaultNodeID+")")
	flags.StringVar(&f.data, "data", "", "directory that keeps the state; it is this node's alone")
	flags.StringVar(&f.certs, "certs", "", "this node's directory of certificates: all ports speak TLS (default: plain text, on this machine alone)")
	flags.StringVar(&f.http, "http", node.DefaultHTTPAddr, "where clients and workers connect; port 0 takes a free one")
	flags.StringVar(&f.rpc, "rpc", "127.0.0.1:7401", "where other nodes send commands (not opened by a server alone)")
	flags.StringVar(&f.raft, "raft", "127.0.0.1:7402", "where other voters replicate the log (not opened by a lone voter)")
	flags.StringVar(&f.gossip, "gossip", "127.0.0.1:7403", "where nodes find each other (not opened by a lone voter)")
	flags.StringVar(&f.advertise, "advertise", "", "host under which other nodes reach this one (not used by a lone voter)")
	flags.StringSliceVar(&f.join, "join", nil, "gossip addresses of other nodes, tried for ever")
	flags.IntVar(&f.expect, "bootstrap-expect", 1, "empty servers that found a new cluster together")
	flags.StringVar(&f.secretFile, "cluster-secret-file", "", "file with the secret of the cluster (default: the one in --certs, or one made at the first start, in the data directory)")
	flags.StringVar(&f.tokenFile, "bootstrap-token-file", "", "file with the first admin token of a new cluster, made for its owner's eyes if it is not there; several servers may share one")
	flags.BoolVar(&f.requireToken, "require-token", false, "ask for a token or a client certificate on this machine too")
	flags.StringVar(&f.logStore, "log-store", string(cluster.LogStoreWAL), "how the log is kept: wal or bolt")
	f.address.add(flags)
	complete(cmd, "log-store", string(cluster.LogStoreWAL), string(cluster.LogStoreBolt))
	return cmd
}

// several says that the server is one of a cluster.
func (f *serverFlags) several() bool { return len(f.join) > 0 || f.expect > 1 }

func (f *serverFlags) nodeConfig(logger *slog.Logger) node.Config {
	cfg := node.Config{
		NodeID: f.nodeID, DataDir: f.data, Certs: f.certs, HTTPAddr: f.http, ClusterSecretFile: f.secretFile,
		BootstrapTokenFile: f.tokenFile, RequireToken: f.requireToken, Limits: f.address.limits,
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
	case f.several() && f.certs == "" && f.secretFile == "":
		return usagef("--certs is missing: 'pulse cluster init-tls' makes the certificates and the secret of a cluster. Servers that stay on this machine can do with --cluster-secret-file, shared by all, e.g. from 'openssl rand -hex 32'")
	}
	if err := f.address.check(); err != nil {
		return err
	}
	all := []flagAddr{{"http", f.http}, {"rpc", f.rpc}, {"raft", f.raft}, {"gossip", f.gossip}}
	if err := checkAddrs(all); err != nil {
		return err
	}
	if !f.several() {
		all = all[:1] // it opens no other
	}
	return stayHere(all, f.certs)
}

// flagAddr is an address with the flag that gave it.
type flagAddr struct{ flag, addr string }

func checkAddrs(all []flagAddr) error {
	for _, a := range all {
		if _, _, err := net.SplitHostPort(a.addr); err != nil {
			return usageError{fmt.Errorf("--%s is %q: give HOST:PORT", a.flag, a.addr)}
		}
	}
	return nil
}

// stayHere refuses, for want of certificates, addresses that other machines reach.
func stayHere(all []flagAddr, certs string) error {
	for _, a := range all {
		if host, _, err := net.SplitHostPort(a.addr); certs == "" && (err != nil || !loopback(host)) {
			return usagef("--%s is %q, and without certificates nobody is asked who he is, so this node stays on this machine: give --certs DIR ('pulse cluster init-tls' makes it), or 127.0.0.1:PORT", a.flag, a.addr)
		}
	}
	return nil
}
