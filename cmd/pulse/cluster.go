package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulse/cluster/steady"
	"pulse/fsm/state"
	"pulse/schema/apiv1"
	"pulse/sdk"
)

func (a *app) clusterCommand() *cobra.Command {
	return noun("cluster", "See how the cluster stands, change its servers, back it up, secure it",
		`A cluster is the servers that keep one state together; each of them answers for all.`,
		"  pulse cluster status\n  pulse cluster members\n  pulse cluster backup pulse.backup",
		a.clusterStatusCommand(), a.clusterMembersCommand(), a.clusterTransferCommand(), a.clusterLogLevelCommand(), a.clusterSettingsCommand(), a.clusterRemoveCommand(), a.clusterBackupCommand(), a.clusterDebugCommand(),
		a.clusterRestoreCommand(),
		a.initTLSCommand(), a.addNodeCommand(), a.addClientCommand(), a.renewCommand(), a.rotateCACommand(), a.revokeCommand(), a.certsCommand())
}

func (a *app) clusterStatusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show how the node that answers and its cluster stand",
		Long: `Show how the node that answers sees itself and its cluster. It answers without a
leader too, which is when it is asked for most. The exit code is 1 if the node is not
ready to serve.`,
		Example: "  pulse cluster status\n  pulse cluster status --addr http://10.0.0.2:7400 -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, ctx, cancel, err := a.call(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			text, err := c.Cluster(ctx)
			if err != nil {
				return err
			}
			var status clusterStatus
			if err := json.Unmarshal(text, &status); err != nil {
				return fmt.Errorf("the answer is not a status of a cluster: %w", err)
			}
			// Its servers are those that should be; who of them lives is another question,
			// and a node that does not answer it has answered the first.
			members, _ := c.Members(ctx)
			if err := a.printOne(cmd, text, func(d *details) { describeCluster(d, &status, members) }); err != nil {
				return err
			}
			if !status.Node.Ready {
				return errSilent
			}
			return nil
		},
	}
}

// clusterStatus is what people are shown of GET /v1/cluster; -o json has all of it.
type clusterStatus struct {
	Node struct {
		ID            string   `json:"id"`
		Version       string   `json:"version"`
		Role          string   `json:"role"`
		Term          uint64   `json:"term,string"`
		LeaderID      string   `json:"leader_id"`
		LeaderAddress string   `json:"leader_address"`
		SourceID      string   `json:"source_id"`
		Ready         bool     `json:"ready"`
		NotReady      []string `json:"not_ready"`
		AppliedIndex  uint64   `json:"applied_index,string"`
		CommitIndex   uint64   `json:"commit_index,string"`
		SnapshotIndex uint64   `json:"snapshot_index,string"`
		LastContactMs int64    `json:"last_contact_ms"`
		DiskFree      uint64   `json:"disk_free_bytes,string"`
		DiskTotal     uint64   `json:"disk_total_bytes,string"`
		DiskLow       bool     `json:"disk_low"`
		Servers       []struct {
			ID      string `json:"id"`
			Address string `json:"address"`
			Voter   bool   `json:"voter"`
		} `json:"servers"`
		Alarms []string `json:"alarms"`
		Duties []struct {
			Name      string `json:"name"`
			Running   bool   `json:"running"`
			Restarts  int    `json:"restarts"`
			LastError string `json:"last_error"`
		} `json:"duties"`
	} `json:"node"`
	State *struct {
		ClusterID         string `json:"cluster_id"`
		StateHash         string `json:"state_hash"`
		FormatLevel       uint32 `json:"format_level"`
		TasksWaiting      uint64 `json:"tasks_waiting,string"`
		TasksInReview     uint64 `json:"tasks_in_review,string"`
		AttemptsLeased    uint64 `json:"attempts_leased,string"`
		AttemptsRunning   uint64 `json:"attempts_running,string"`
		SessionsConnected uint64 `json:"sessions_connected,string"`
		KeysHeld          uint64 `json:"keys_held,string"`
	} `json:"state"`
}

func describeCluster(d *details, s *clusterStatus, members []*sdk.Member) {
	n := &s.Node
	d.putf("Node", "%s, %s in term %d", n.ID, n.Role, n.Term)
	d.put("Version", n.Version)
	if n.Ready {
		d.put("Ready", "yes")
	} else {
		d.put("Ready", "no: "+strings.Join(n.NotReady, "; "))
	}
	switch {
	case n.LeaderID == "":
		d.put("Leader", "none is known")
	case n.Role == "gateway":
		d.putf("Leader", "%s at %s", n.LeaderID, n.LeaderAddress)
	case n.LeaderID != n.ID:
		d.putf("Leader", "%s at %s, heard of %s ago", n.LeaderID, n.LeaderAddress, spellMillis(n.LastContactMs))
	}
	for _, server := range n.Servers {
		role := "learner"
		if server.Voter {
			role = "voter"
		}
		if server.Address != "" && server.Address != server.ID {
			role += " at " + server.Address
		}
		if at := slices.IndexFunc(members, func(m *sdk.Member) bool { return m.ID == server.ID }); at >= 0 && memberState(members[at]) != "alive" {
			role += ", " + strings.ToUpper(memberState(members[at]))
		}
		d.putf("Server", "%s, %s", server.ID, role)
	}
	if voters, alive, _ := votes(members); alive < voters {
		text := quorum(voters, alive)
		if alive <= voters/2 {
			text += ": nothing is read or changed until then"
		}
		d.put("Quorum", text)
	}
	if n.Role == "gateway" {
		d.putf("Source", "%s, heard of %s ago, applied to %d", cmp.Or(n.SourceID, "none"), spellMillis(n.LastContactMs), n.AppliedIndex)
		describeState(d, s)
		return
	}
	d.putf("Log", "applied to %d, committed to %d, snapshot at %d", n.AppliedIndex, n.CommitIndex, n.SnapshotIndex)
	for _, alarm := range n.Alarms {
		d.put("Alarm", alarm)
	}
	for _, duty := range n.Duties {
		if !duty.Running || duty.Restarts > 0 {
			d.putf("Duty", "%s: running %t, %s %s", duty.Name, duty.Running, plural(duty.Restarts, "restart"), duty.LastError)
		}
	}
	if n.DiskTotal > 0 {
		low := ""
		if n.DiskLow {
			low = ": LOW, submissions are refused"
		}
		d.putf("Disk", "%s free of %s%s", size(n.DiskFree), size(n.DiskTotal), low)
	}
	describeState(d, s)
}

func describeState(d *details, s *clusterStatus) {
	if state := s.State; state != nil {
		d.put("Cluster", state.ClusterID)
		d.putf("Tasks", "%s waiting, %s leased, %s running, %s in review", commas(state.TasksWaiting),
			commas(state.AttemptsLeased), commas(state.AttemptsRunning), commas(state.TasksInReview))
		d.putf("Workers", "%s connected", commas(state.SessionsConnected))
		d.putf("Keys", "%s held", commas(state.KeysHeld))
		d.put("State hash", state.StateHash)
		d.putf("Format level", "%d", state.FormatLevel)
	}
}

var memberColumns = []column[*sdk.Member]{
	{"NODE", func(m *sdk.Member) string { return m.ID }},
	{"ROLE", func(m *sdk.Member) string { return m.Role }},
	{"LEADS", func(m *sdk.Member) string { return yes(m.Leader) }},
	{"STATE", memberState},
	{"HTTP", func(m *sdk.Member) string { return m.HTTP }},
	{"RAFT", func(m *sdk.Member) string { return m.Raft }},
	{"VERSION", func(m *sdk.Member) string { return m.Version }},
}

// memberState says what is known of a node. Gossip takes some seconds to miss one
// that has died; a server that does not say how far it is does not answer now.
func memberState(m *sdk.Member) string {
	switch {
	case !m.Alive:
		return "silent"
	case m.AppliedIndex == nil && (m.Voter || m.Role == "learner"):
		return "no answer"
	}
	return "alive"
}

func (a *app) clusterMembersCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "members",
		Short: "List the nodes of the cluster",
		Long: `List the nodes that are alive and the servers that should be, as the node that answers
sees them; it answers without a leader too.

A voter keeps the state and may lead. A learner keeps it and gets a vote when it keeps
up. A gateway keeps none. A node that is outside is alive, and not or no longer a
server of this cluster. One that was heard of in the last seconds and gives no answer has
died, or is cut off, or overloaded; one that is silent was missed by the others.`,
		Example: "  pulse cluster members\n  pulse cluster members -o jsonl",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, ctx, cancel, err := a.call(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			members, err := c.Members(ctx)
			if err != nil {
				return err
			}
			walk := func(yield func(*sdk.Member, error) bool) {
				for _, m := range members {
					if !yield(m, nil) {
						return
					}
				}
			}
			return printList(a, cmd, memberColumns, walk, 0, "No nodes.")
		},
	}
}

func (a *app) clusterLogLevelCommand() *cobra.Command {
	var node string
	var all bool
	cmd := &cobra.Command{
		Use:   "log-level [LEVEL]",
		Short: "See or change what nodes write to their logs",
		Long: `See the log level of the node at the address, or change it, until its process ends: debug,
info, warn or error. Other nodes keep theirs. --node names another node, and --all takes
all that are alive. With several addresses one of the two has to be said for a change.`,
		Example: "  pulse cluster log-level --all\n  pulse cluster log-level debug --node node-2\n  pulse cluster log-level debug --addr http://127.0.0.1:7400",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return exactly("LEVEL")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			level := ""
			if len(args) > 0 {
				var err error
				if level, err = oneOf("LEVEL", args[0], logLevels); err != nil {
					return err
				}
			}
			switch {
			case node != "" && all:
				return usagef("--node and --all exclude each other")
			case level != "" && node == "" && !all && len(a.conn.addrs()) > 1:
				return usagef("there are several addresses: say --node ID, or --all")
			}
			c, ctx, cancel, err := a.call(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			addrs := a.conn.addrs()
			if node != "" || all {
				if addrs, err = a.nodeAddrs(ctx, cmd, c, node); err != nil {
					return err
				}
			}
			return a.logLevels(ctx, cmd, addrs, level)
		},
	}
	cmd.Flags().StringVar(&node, "node", "", "the node of this name, see 'pulse cluster members'")
	cmd.Flags().BoolVar(&all, "all", false, "all nodes that are alive")
	cmd.ValidArgs = logLevels
	return cmd
}

func (a *app) clusterSettingsCommand() *cobra.Command {
	var retention span
	var set sdk.ClusterSettings
	cmd := &cobra.Command{
		Use:   "settings",
		Short: "See or change what holds for the whole cluster",
		Long: `See the settings that hold for all namespaces, or change those that flags name; the
others stay as they are. They are kept by the cluster, and in its backups.

An Idempotency-Key is remembered for 24 hours and takes memory and disk of every server.
Of a namespace that remembers as many as it may, a submission with a new one is refused
with rate_limited. What is remembered stays, also under a lower bound. Events that are
older than they are kept for go when that gets shorter.`,
		Example: "  pulse cluster settings\n  pulse cluster settings --event-retention 72h --idempotency-keys-max 20000000",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			changes := false
			if cmd.Flags().Changed("event-retention") {
				set.EventRetentionMillis, changes = retention.millis(), true
				if ms := set.EventRetentionMillis; ms < apiv1.EventRetentionMillisMin || ms > apiv1.RetentionMillisMax {
					return usagef("--event-retention is %s: give 1m to 3650d", spellMillis(ms))
				}
			}
			if cmd.Flags().Changed("idempotency-keys-max") {
				changes = true
				if n := set.IdempotencyKeysMax; n < 1 || n > apiv1.IdempotencyKeysMaxMax {
					return usagef("--idempotency-keys-max is %d: give 1 to %d", n, apiv1.IdempotencyKeysMaxMax)
				}
			}
			c, ctx, cancel, err := a.call(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			var is *sdk.ClusterSettings
			if changes {
				is, err = c.SetClusterSettings(ctx, set)
			} else {
				is, err = c.ClusterSettings(ctx)
			}
			if err != nil {
				return err
			}
			return a.printOne(cmd, is, func(d *details) {
				d.put("Events are kept for", spellMillis(is.EventRetentionMillis))
				d.put("Idempotency-Keys of a namespace", "at most "+commas(is.IdempotencyKeysMax))
			})
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().Var(&retention, "event-retention", "how long events stay in the feeds of namespaces, 1m to 3650d (3d unless it was changed)")
	cmd.Flags().Uint64Var(&set.IdempotencyKeysMax, "idempotency-keys-max", 0, "most Idempotency-Keys that a namespace remembers, 1 to 1000000000 (10000000 unless it was changed)")
	return cmd
}

// nodeAddrs are the addresses of the node of a name, or else of all that are alive.
func (a *app) nodeAddrs(ctx context.Context, cmd *cobra.Command, c *sdk.Client, name string) ([]string, error) {
	members, err := c.Members(ctx)
	if err != nil {
		return nil, err
	}
	scheme, _, _ := strings.Cut(a.conn.addrs()[0], "://")
	var addrs, known []string
	for _, m := range members {
		known = append(known, m.ID)
		switch {
		case name != "" && m.ID != name:
		case m.Alive && m.HTTP != "":
			addrs = append(addrs, scheme+"://"+m.HTTP)
		case name != "":
			return nil, fmt.Errorf("%s is silent: nothing can be asked of it", name)
		default:
			fmt.Fprintf(cmd.ErrOrStderr(), "%s is silent.\n", m.ID)
		}
	}
	if len(addrs) == 0 {
		return nil, fmt.Errorf("there is no node %s; there are: %s", name, strings.Join(known, ", "))
	}
	return addrs, nil
}

// logLevels sees or sets the level of the node at each address. One that does not
// answer does not keep the others from theirs.
func (a *app) logLevels(ctx context.Context, cmd *cobra.Command, addrs []string, level string) error {
	logger := a.patience(cmd.ErrOrStderr())
	if len(addrs) > 1 {
		logger = slog.New(slog.DiscardHandler) // each has a line of its own
	}
	client, err := a.conn.httpClient(logger)
	if err != nil {
		return err
	}
	silent := 0
	for _, addr := range addrs {
		c := sdk.NewClient(sdk.ClientOptions{Addr: addr, Token: a.conn.token, HTTPClient: client, Logger: logger, Note: a.note})
		var got *sdk.NodeLogLevel
		within, cancel := ctx, context.CancelFunc(func() {})
		if len(addrs) > 1 {
			within, cancel = context.WithTimeout(ctx, lookWithin)
		}
		if level == "" {
			got, err = c.LogLevel(within)
		} else {
			got, err = c.SetLogLevel(within, level)
		}
		cancel()
		switch {
		case err != nil && (len(addrs) == 1 || ctx.Err() != nil):
			return err
		case err != nil:
			silent++
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s", addr, a.explainItem(cmd, err))
			continue
		}
		if err := a.done(cmd, got, "%s logs at level %s.", got.NodeID, got.Level); err != nil {
			return err
		}
	}
	if silent > 0 {
		return errSilent
	}
	return nil
}

var logLevels = []string{"debug", "info", "warn", "error"}

func (a *app) clusterTransferCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "transfer [NODE]",
		Short: "Hand leadership to another server",
		Long: `Hand leadership to NODE, or to the first voter that can take it. Work goes on: what is
submitted meanwhile waits for the new leader. Do it before the leader's machine is
taken down, and before the leader is removed.`,
		Example: "  pulse cluster transfer\n  pulse cluster transfer node-2",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return exactly("NODE")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, ctx, cancel, err := a.call(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			leader, err := c.Transfer(ctx, strings.Join(args, ""))
			if err != nil {
				return err
			}
			return a.done(cmd, transferDone{leader}, "%s leads.", leader)
		},
	}
}

// transferDone and removeDone are what is printed about these verbs.
type (
	transferDone struct {
		LeaderID string `json:"leader_id"`
	}
	removeDone struct {
		NodeID  string `json:"node_id"`
		Removed bool   `json:"removed"`
	}
)

func (a *app) clusterRemoveCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "remove NODE",
		Short: "Take a server out of the cluster",
		Long: `Take a server out of the cluster for good: it has no vote any more and gets no more of
the log. Its data directory is of no use afterwards; a server comes back under the
same name with an empty one.

It is refused if NODE leads: transfer leadership first. It is refused if fewer than
three voters would be left, since fewer survive no failure: let another server join
first. Nor is a server removed that is needed because too many others are down: start
those or remove them first. With --force it is done all the same, for a cluster that
is to shrink.`,
		Example: "  pulse cluster remove node-3\n  pulse cluster remove node-3 --force",
		Args:    exactly("NODE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, ctx, cancel, err := a.call(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			if err := c.RemoveServer(ctx, args[0], force); err != nil {
				return err
			}
			return a.done(cmd, removeDone{args[0], true}, "%s is no server of this cluster any more.", args[0])
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "even if fewer than three voters, or too few that are up, are left")
	return cmd
}

// size is a number of bytes for people.
func size(n uint64) string {
	const kib = 1024
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	value, unit := float64(n), 0
	for value >= kib && unit < len(units)-1 {
		value /= kib
		unit++
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", value, units[unit])
}

// backupDone is what is printed about a backup.
type backupDone struct {
	File      string    `json:"file"`
	Bytes     int64     `json:"bytes"`
	Rows      uint64    `json:"rows,string"`
	ClusterID string    `json:"cluster_id"`
	Index     uint64    `json:"index,string"`
	StateHash string    `json:"state_hash"`
	Clock     time.Time `json:"clock"`
}

func (a *app) clusterBackupCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Write a consistent copy of the whole state while the cluster goes on",
		Long: `Write a copy of the whole state as it is at one place of the log, while the cluster
goes on. The file is read back and checked, row by row and by its checksum, before it
gets its name: a FILE that is there is whole.

It holds what tasks carry, but no secret of the cluster; keep that apart.`,
		Example: "  pulse cluster backup pulse-2026-03-01.backup",
		Args:    exactly("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := os.Stat(args[0]); err == nil && !force {
				return fmt.Errorf("%s is there already; --force replaces it", args[0])
			}
			c, ctx, cancel, err := a.long(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			header, bytes, err := backup(ctx, c, args[0], cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			done := backupDone{
				File: args[0], Bytes: bytes, Rows: header.Rows, ClusterID: header.ClusterID,
				Index: header.FenceBase + header.AppliedIndex, StateHash: fmt.Sprintf("%x", header.StateHash), Clock: time.UnixMicro(header.ClockUs).UTC(),
			}
			return a.done(cmd, done, "%s: %s, %s rows, as of index %d; read back and whole.", done.File, size(uint64(bytes)), commas(done.Rows), done.Index)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "replace FILE if it is there")
	return cmd
}

// backup writes the stream beside its place, verifies what the disk has, and then
// moves it there.
func backup(ctx context.Context, c *sdk.Client, path string, terminal io.Writer) (header state.Header, bytes int64, err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return header, 0, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}()
	stream, err := c.Backup(ctx)
	if err != nil {
		return header, 0, err
	}
	defer stream.Close()
	shown := newByteProgress(terminal, "backed up")
	bytes, err = io.Copy(io.MultiWriter(steady.NewWriter(f), shown), stream)
	shown.end()
	if err != nil {
		return header, 0, fmt.Errorf("the backup broke off: %w", err)
	}
	if err = f.Sync(); err != nil {
		return header, 0, err
	}
	if _, err = f.Seek(0, io.SeekStart); err != nil {
		return header, 0, err
	}
	if header, err = state.VerifyStream(&steady.Reader{R: f, Pace: steady.Reading()}); err != nil {
		return header, 0, fmt.Errorf("the backup is not whole: %w", err)
	}
	if err = f.Close(); err != nil {
		return header, 0, err
	}
	return header, bytes, os.Rename(f.Name(), path)
}
