package main

import (
	"log/slog"

	"github.com/spf13/cobra"

	"pulse/cmd/node"
)

// gatewayFlags are what a gateway is told.
type gatewayFlags struct {
	nodeID, data                 string
	certs, secretFile            string
	requireToken                 bool
	http, rpc, gossip, advertise string
	join                         []string
	config                       string
	address                      limitFlags
}

func (a *app) gatewayCommand() *cobra.Command {
	var f gatewayFlags
	cmd := &cobra.Command{
		Use:   "gateway",
		Short: "Run a node that serves clients and workers and keeps no state",
		Long: `Run a gateway: it holds the connections of clients and workers of a cluster, and sends
what they say to the server that leads. It has no vote and no log, so there can be any
number of them, and they can come and go: workers of one that dies go on through
another, with the leases that they have.

It needs a --node-id that no other node has, its --certs as a server has them ('pulse
cluster add-node --gateway' makes them), and --join with the gossip address of any server. It
serves once it has found a leader, and waits for one as long as it takes. --data is not
needed: with it, a gateway remembers which cluster it is of, and two of them cannot share
a name on one machine. Without --certs it stays on its own machine, and needs the
--cluster-secret-file of the servers.

--config names a file as that of 'pulse server'. SIGINT and SIGTERM end it politely: its
workers are sent to other nodes after the answers under way.`,
		Example: `  pulse gateway --node-id gateway-1 --join node-1.example.org:7403 \
    --certs /etc/pulse/certs --advertise gateway-1.example.org \
    --http 0.0.0.0:7400 --rpc 0.0.0.0:7401 --gossip 0.0.0.0:7403`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runNode(cmd, f.config, &f, "gateway") },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.config, "config", "", "file with flags, one \"name = value\" a line")
	flags.StringVar(&f.nodeID, "node-id", "", "name of this gateway, which no other node has")
	flags.StringSliceVar(&f.join, "join", nil, "gossip addresses of servers, tried for ever")
	flags.StringVar(&f.certs, "certs", "", "this node's directory of certificates: all ports speak TLS (default: plain text, on this machine alone)")
	flags.StringVar(&f.secretFile, "cluster-secret-file", "", "file with the secret of the cluster (default: the one in --certs)")
	flags.StringVar(&f.http, "http", node.DefaultHTTPAddr, "where clients and workers connect; port 0 takes a free one")
	flags.StringVar(&f.rpc, "rpc", "127.0.0.1:7401", "where the leader sends what workers are to be told")
	flags.StringVar(&f.gossip, "gossip", "127.0.0.1:7403", "where nodes find each other")
	flags.StringVar(&f.advertise, "advertise", "", "host under which other nodes reach this one")
	flags.BoolVar(&f.requireToken, "require-token", false, "ask for a token or a client certificate on this machine too")
	flags.StringVar(&f.data, "data", "", "directory that remembers the cluster; it is this gateway's alone (default: nothing is kept)")
	f.address.add(flags)
	return cmd
}

func (f *gatewayFlags) nodeConfig(logger *slog.Logger) node.Config {
	return node.Config{
		NodeID: f.nodeID, DataDir: f.data, Certs: f.certs, HTTPAddr: f.http, ClusterSecretFile: f.secretFile, RequireToken: f.requireToken, Version: version, Logger: logger,
		Limits: f.address.limits,
		Cluster: &node.ClusterConfig{
			Gateway: true, RPCAddr: f.rpc, GossipAddr: f.gossip, Advertise: f.advertise, Join: f.join,
		},
	}
}

// check refuses what cannot be before anything is opened.
func (f *gatewayFlags) check() error {
	switch {
	case f.nodeID == "":
		return usagef("--node-id is missing: each node of a cluster needs a name of its own")
	case len(f.join) == 0:
		return usagef("--join is missing: give the gossip address of a server of the cluster")
	case f.certs == "" && f.secretFile == "":
		return usagef("--certs is missing: 'pulse cluster add-node --gateway' makes a gateway's certificates. A gateway that stays on this machine can do with the --cluster-secret-file that the servers have")
	}
	if err := f.address.check(); err != nil {
		return err
	}
	all := []flagAddr{{"http", f.http}, {"rpc", f.rpc}, {"gossip", f.gossip}}
	if err := checkAddrs(all); err != nil {
		return err
	}
	return stayHere(all, f.certs)
}
