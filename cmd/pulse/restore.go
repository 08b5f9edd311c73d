package main

import (
	"errors"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"pulse/cmd/node"
)

// restoreDone is what is printed about a restore.
type restoreDone struct {
	Data        string    `json:"data"`
	NodeID      string    `json:"node_id"`
	ClusterID   string    `json:"cluster_id"`
	LostCluster string    `json:"lost_cluster_id"`
	Index       uint64    `json:"index,string"`
	Clock       time.Time `json:"clock"`
	FenceBase   uint64    `json:"fence_base,string"`
	Rows        uint64    `json:"rows,string"`
	StateHash   string    `json:"state_hash"`
}

func (a *app) clusterRestoreCommand() *cobra.Command {
	var cfg node.RestoreConfig
	cmd := &cobra.Command{
		Use:   "restore SOURCE",
		Short: "Make a new cluster out of a backup, or of what a lost one has left",
		Long: `Make a new cluster out of SOURCE, a file that 'pulse cluster backup' wrote, or the data
directory of a stopped server whose cluster is lost because most of its servers are.
SOURCE is checked, and not changed. It runs on the machine of the new cluster's first
server and needs no server that runs.

--data becomes the data directory of that server. Start it with its ordinary flags: it
serves at once. Start the others with empty directories: they join it.

What was acknowledged up to the backup, or reached the server whose directory is taken,
is there. What the lost cluster handed out is void: its workers register anew, what they
say about their old attempts changes no task, and every fencing number of the new cluster
is larger than any of the lost one, also if one backup is restored twice.

What the lost cluster did after the backup is not known. Tasks that were not started at
the time may have been run since; those that are RECONCILE_ONLY are put up for review
instead of being run, and the others are marked effect_uncertain. --trust-waiting vouches
that nothing of the kind has happened.

Make sure that the lost cluster stays down. A server of it that meets the new one stops
itself.`,
		Example: "  pulse cluster restore pulse.backup --data /var/lib/pulse\n" +
			"  pulse cluster restore data-1 --data data-1-new --cluster-secret-file cluster.secret",
		Args: exactly("SOURCE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cfg.DataDir == "" {
				return usageError{errors.New("--data is missing: give the directory of the new cluster's first server")}
			}
			logger, _, err := a.nodeLogger(cmd, slog.LevelWarn)
			if err != nil {
				return usageError{err}
			}
			cfg.Source, cfg.Logger = args[0], logger
			shown := newByteProgress(cmd.ErrOrStderr(), "restored")
			cfg.Progress = shown
			r, err := node.Restore(cmd.Context(), cfg)
			shown.end()
			if err != nil {
				return err
			}
			done := restoreDone{
				Data: cfg.DataDir, NodeID: r.NodeID, ClusterID: r.ClusterID, LostCluster: r.LostCluster, Index: r.Index,
				Clock: r.Clock, FenceBase: r.FenceBase, Rows: r.Rows, StateHash: r.StateHash,
			}
			return a.done(cmd, done, "%s: %s rows, as of index %d at %s, for server %s of a new cluster whose fencing numbers begin above %d.",
				done.Data, commas(done.Rows), done.Index, done.Clock.Format(time.RFC3339), done.NodeID, done.FenceBase)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&cfg.DataDir, "data", "", "data directory of the new cluster's first server; empty or not there")
	flags.StringVar(&cfg.NodeID, "node-id", "", "name of that server (default: the one of a source directory, or "+node.DefaultNodeID+")")
	flags.StringVar(&cfg.ClusterSecretFile, "cluster-secret-file", "", "file with the secret of the new cluster (default: one made now, in the data directory)")
	flags.BoolVar(&cfg.TrustWaiting, "trust-waiting", false, "the lost cluster has run nothing that the source shows as not started")
	flags.Uint64Var(&cfg.FenceBase, "fence-base", 0, "fencing numbers begin above this (default: above all that the lost cluster can have issued)")
	return cmd
}
