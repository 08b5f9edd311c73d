package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"pulse/cluster/clock"
	"pulse/fsm"
	"pulse/fsm/state"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

const (
	snapshotsDir = "snapshots"
	// loneHeartbeat replaces raft's timeouts where there is nobody to wait for:
	// a lone voter elects itself after this and not after a second or two.
	loneHeartbeat = 50 * time.Millisecond
)

// Node is one raft server with its machine. See the package comment.
type Node struct {
	cfg      Config
	logger   *slog.Logger
	started  time.Time
	counters Counters

	stores    *stores
	snaps     *snapshotStore
	transport raft.Transport
	stream    *streamLayer // beneath transport; nil if it is not TCP
	patient   *patient
	guard     *guard // around transport; nil on a lone voter without a port
	raft      *raft.Raft
	applier   *applier
	clock     *clock.Leader
	verifier  *verifier
	disk      *diskGauge
	watchdog  *Watchdog
	refused   refusals
	alarms    alarms

	office  atomic.Pointer[office] // serving; nil otherwise
	closing atomic.Bool

	stop    context.CancelFunc
	running sync.WaitGroup
}

// Open starts a node on its directory. The machine stays the caller's, who
// closes it after the node.
func Open(cfg Config) (_ *Node, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	lone := cfg.Transport == nil && cfg.Listen == ""
	if lone {
		def(&cfg.HeartbeatTimeout, loneHeartbeat)
	}
	cfg = cfg.withDefaults()
	n := &Node{cfg: cfg, started: time.Now(), logger: cfg.Logger.With("node", cfg.ID), transport: cfg.Transport}
	n.cfg.Logger = n.logger
	n.alarms.logger = n.logger
	defer func() {
		if err != nil {
			err = errors.Join(err, n.release())
		}
	}()
	n.watchdog = cfg.Watchdog
	if n.watchdog == nil {
		n.watchdog = NewWatchdog(WatchdogConfig{Logger: n.logger})
	}
	logger := raftLogger(n.logger)
	if err = n.openStorage(logger); err != nil {
		return nil, err
	}
	if n.transport, n.stream, err = openTransport(&n.cfg, logger); err != nil {
		return nil, err
	}
	if err = n.openGuard(lone); err != nil {
		return nil, err
	}
	if err = n.startRaft(logger); err != nil {
		return nil, err
	}
	n.watchdog.OnFire(n.disconnect)
	n.start()
	return n, nil
}

// openStorage opens log, votes and snapshots and brings the machine in line with
// them.
func (n *Node) openStorage(logger hclog.Logger) (err error) {
	cfg := &n.cfg
	if n.stores, err = openStores(cfg, n.watchdog, &n.counters, logger); err != nil {
		return err
	}
	if n.snaps, err = openSnapshotStore(filepath.Join(cfg.Dir, snapshotsDir), n.logger, &n.counters); err != nil {
		return err
	}
	started := time.Now()
	n.clock = clock.New(cfg.Wall, func() time.Duration { return time.Since(started) }, cfg.Machine.Clock())
	n.applier = &applier{
		machine: cfg.Machine, snaps: n.snaps, clock: n.clock, watchdog: n.watchdog,
		counters: &n.counters, logger: n.logger, onApply: cfg.OnApply, restored: cfg.OnRestore,
		durable: func(index uint64) error { return n.stores.ahead.await(index, nil) },
	}
	if n.applier.replayTo, err = n.reconcile(); err != nil {
		return err
	}
	n.applier.seen.advance(cfg.Machine.AppliedIndex())
	return nil
}

// openGuard keeps a server that begins empty out of elections.
func (n *Node) openGuard(lone bool) error {
	if lone {
		return nil
	}
	existing, err := raft.HasExistingState(n.stores.logs, n.stores.stable, n.snaps)
	if err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	g, err := newGuard(n.transport, n.cfg.Dir, !existing && len(n.cfg.Bootstrap) == 0, n.applier.era.begin, n.stores.ahead.await)
	if err != nil {
		return err
	}
	n.guard, n.transport = g, g
	return nil
}

// suffrage is this server's place in the newest configuration it knows, and the last
// index of its log, which that configuration is not older than.
func (n *Node) suffrage() (voter, known bool, last uint64) {
	last = n.raft.LastIndex()
	s, known := n.servers()[raft.ServerID(n.cfg.ID)]
	return s.Suffrage == raft.Voter, known, last
}

// reconcile makes sure, before raft exists, that machine, log and snapshots fit
// together, and returns the last index of the log. The machine's store is never
// synced for each entry: after a crash it may be behind the newest snapshot, and
// is then replaced by it. Ahead of everything it cannot be, unless files were
// mixed up or lost.
func (n *Node) reconcile() (lastIndex uint64, err error) {
	first, err := n.stores.logs.FirstIndex()
	if err != nil {
		return 0, fmt.Errorf("cluster: read the log: %w", err)
	}
	if lastIndex, err = n.stores.logs.LastIndex(); err != nil {
		return 0, fmt.Errorf("cluster: read the log: %w", err)
	}
	meta, header, found := n.snaps.newest()
	if err := n.verifyLog(first, lastIndex, meta.Index); err != nil {
		return 0, err
	}
	if err := n.stores.checkStable(lastIndex > 0 || found); err != nil {
		return 0, fmt.Errorf("%w (in %s)", err, n.cfg.Dir)
	}
	if err := n.stores.marks.check(n.cfg.Dir, lastIndex, meta.Index, n.stores.sealed.change); err != nil {
		return 0, err
	}
	if lastIndex > 0 && first > meta.Index+1 {
		return 0, fmt.Errorf("cluster: the log in %s begins at %d, but the newest snapshot ends at %d: entries are missing. "+
			"Put the newer snapshot back, or give this server an empty directory and let it rejoin, or restore a backup",
			n.cfg.Dir, first, meta.Index)
	}
	applied := n.cfg.Machine.AppliedIndex()
	if applied > max(lastIndex, meta.Index) {
		return 0, fmt.Errorf("cluster: the state is at index %d, but the log in %s ends at %d and the newest snapshot at %d: "+
			"state and log are not of the same server, or the log was lost. Put the right directories together, or empty both and let this server rejoin",
			applied, n.cfg.Dir, lastIndex, meta.Index)
	}
	if found && applied < header.AppliedIndex {
		n.logger.Info("the state is behind the newest snapshot and is restored from it", "applied", applied, "snapshot", meta.ID)
		if err := n.restore(meta.ID); err != nil {
			return 0, err
		}
	}
	if lastIndex > 0 && lastIndex < meta.Index {
		// A snapshot that was sent is in place before raft drops the log that ends
		// below it, and this server was killed in between. Behind the snapshot such
		// a log takes no entry, and what it has is in the snapshot.
		n.logger.Info("the log ends below the newest snapshot and begins anew behind it", "last", lastIndex, "snapshot", meta.ID)
		if err := n.stores.logs.DeleteRange(first, lastIndex); err != nil {
			return 0, fmt.Errorf("cluster: drop the log below the newest snapshot: %w", err)
		}
		lastIndex = 0
	}
	return lastIndex, nil
}

// verifyLog reads the log through. What it finds is an error of the start and
// not yet one of a process that serves.
func (n *Node) verifyLog(first, last, snapshot uint64) error {
	n.stores.over.Store(true)
	defer n.stores.over.Store(false)
	return n.stores.verify(first, last, snapshot)
}

func (n *Node) restore(id string) error {
	_, stream, err := n.snaps.Open(id)
	if err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	if err := errors.Join(n.applier.Restore(stream), stream.Close()); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	return nil
}

func (n *Node) startRaft(logger hclog.Logger) error {
	rc := raft.DefaultConfig()
	rc.LocalID = raft.ServerID(n.cfg.ID)
	rc.Logger = logger
	rc.HeartbeatTimeout = n.cfg.HeartbeatTimeout
	rc.ElectionTimeout = n.cfg.ElectionTimeout
	rc.LeaderLeaseTimeout = n.cfg.LeaderLeaseTimeout
	rc.CommitTimeout = n.cfg.CommitTimeout
	// Room for as many is made for each message; a full entry holds many commands.
	rc.MaxAppendEntries = 128
	rc.BatchApplyCh = true
	rc.SnapshotThreshold = math.MaxUint64 // snapshots are taken by takeSnapshots
	rc.SnapshotInterval = time.Hour
	rc.TrailingLogs = n.cfg.TrailingEntries
	rc.NoSnapshotRestoreOnStart = true // reconcile has seen to it
	rc.PreVoteDisabled = false
	rc.ShutdownOnRemove = false
	rc.NoLegacyTelemetry = true

	if err := n.bootstrap(rc); err != nil {
		return err
	}
	var running atomic.Pointer[raft.Raft]
	n.patient = newPatient(newAheadTransport(n.transport, n.stores.ahead.limit), func(d door, term uint64) bool {
		r := running.Load()
		return r != nil && r.State() == raft.Leader && r.CurrentTerm() == term && d.in(r.GetConfiguration().Configuration())
	})
	r, err := raft.NewRaft(rc, n.applier, n.stores.logs, n.stores.stable, n.snaps, n.patient)
	if err != nil {
		return fmt.Errorf("cluster: start raft: %w", err)
	}
	n.raft = r
	running.Store(r)
	if n.guard != nil { // a lone voter has nobody to send entries to meanwhile
		n.stores.ahead.lead(func() bool { return r.State() == raft.Leader })
		follows := func(term uint64) bool { return r.State() == raft.Follower && term <= r.CurrentTerm() }
		n.guard.follows.Store(&follows)
	}
	return nil
}

// bootstrap writes the first configuration of a new cluster. A directory that
// has any state is never touched.
func (n *Node) bootstrap(rc *raft.Config) error {
	if len(n.cfg.Bootstrap) == 0 {
		return nil
	}
	existing, err := raft.HasExistingState(n.stores.logs, n.stores.stable, n.snaps)
	if err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	if existing {
		return nil
	}
	var c raft.Configuration
	for _, s := range n.cfg.Bootstrap {
		address := raft.ServerAddress(s.Address)
		if s.ID == n.cfg.ID && address == "" {
			address = n.transport.LocalAddr()
		}
		c.Servers = append(c.Servers, raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(s.ID), Address: address})
	}
	if err := raft.BootstrapCluster(rc, n.stores.logs, n.stores.stable, n.snaps, n.transport, c); err != nil {
		return fmt.Errorf("cluster: bootstrap: %w", err)
	}
	n.logger.Info("a new cluster begins here", "servers", len(c.Servers))
	return nil
}

func (n *Node) start() {
	ctx, cancel := context.WithCancel(context.Background())
	n.stop = cancel
	n.verifier = &verifier{
		ask:    func(ctx context.Context) error { return await(ctx, n.raft.VerifyLeader()) },
		rounds: func() { n.counters.Verifications.Add(1) },
		wake:   make(chan struct{}, 1),
	}
	n.disk = &diskGauge{dir: n.cfg.Dir, min: n.cfg.FreeDiskMin, usage: diskUsage, logger: n.logger}
	n.disk.look()
	n.running.Go(func() { n.follow(ctx) })
	n.running.Go(func() { n.verifier.run(ctx) })
	n.running.Go(func() { n.disk.run(ctx) })
	n.running.Go(func() { n.takeSnapshots(ctx) })
	if n.guard != nil {
		n.guard.start(n.suffrage)
		n.running.Go(func() { n.watchGuard(ctx) })
	}
	if n.stream != nil {
		h := &haste{
			raft: n.raft, self: raft.ServerID(n.cfg.ID), lost: n.stream.lost, dial: n.stream.Dial,
			short: n.cfg.LeaderLeaseTimeout, logger: n.logger,
		}
		n.running.Go(func() { h.run(ctx) })
	}
}

// watchGuard notes the log's word about a learner also while nobody asks for
// its vote, and answers a follower that a snapshot did not help.
func (n *Node) watchGuard(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		if !n.guard.learner.Load() { // as it will be for good
			tick.Stop()
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			n.guard.keepsOut()
		case id := <-n.guard.again:
			n.snapshotAgain(ctx, id)
		}
	}
}

// Propose commits commands and returns their results in order, once applied
// here. Errors are *schema.Error: not_leader, unavailable, too_large and
// deadline_expired promise that nothing happened, result_unknown promises
// nothing. When the call needed several entries and they fared differently, the
// Results say so one by one. The commands belong to the node from now on.
func (n *Node) Propose(ctx context.Context, cmds []*pb.Command) ([]*pb.Result, error) {
	if len(cmds) == 0 {
		return nil, nil
	}
	if n.closing.Load() {
		return nil, failf(schema.NotLeader, "this node is shutting down")
	}
	o := n.office.Load()
	if o == nil {
		return nil, n.notLeader()
	}
	if err := n.checkLevel(cmds); err != nil {
		return nil, err
	}
	if err := n.admit(cmds); err != nil {
		return nil, err
	}
	return o.proposer.propose(ctx, cmds)
}

// checkLevel refuses commands that some server would not understand.
func (n *Node) checkLevel(cmds []*pb.Command) error {
	level := n.cfg.Machine.FormatLevel()
	for _, cmd := range cmds {
		if fsm.CommandLevel(cmd) > level {
			return failf(schema.Unavailable, "not every server of the cluster runs a version that can do this yet; upgrade them all")
		}
	}
	return nil
}

// admit refuses new work while the disk is low.
func (n *Node) admit(cmds []*pb.Command) error {
	free, _, low := n.disk.read()
	if !low {
		return nil
	}
	for _, cmd := range cmds {
		if n.cfg.IsAdmission(cmd) {
			n.counters.DiskRefused.Add(1)
			return failf(schema.Unavailable, "the leader's disk is nearly full (%d MiB free): new work is refused until there is room", free>>20)
		}
	}
	return nil
}

// takeSnapshots takes a snapshot whenever enough has gathered in the log. Raft's
// own schedule counts entries alone, and ours carry between nothing and 256 KiB.
func (n *Node) takeSnapshots(ctx context.Context) {
	began := n.counters.LogBytes.Load()
	for sleep(ctx, n.cfg.SnapshotInterval) {
		meta, _, _ := n.snaps.newest()
		entries := n.raft.LastIndex() - min(meta.Index, n.raft.LastIndex())
		bytes := n.counters.LogBytes.Load() - began
		// Servers see the same entries; they need not all be busy with a
		// snapshot in the same moment.
		late := 1 + rand.Float64()/4
		if float64(entries) < late*float64(n.cfg.SnapshotEntries) && float64(bytes) < late*float64(n.cfg.SnapshotBytes) {
			continue
		}
		n.trail(entries, bytes)
		if _, err := n.snapshot(ctx); err != nil {
			n.logger.Warn("no snapshot could be taken, trying again later", "error", err)
			continue
		}
		began = n.counters.LogBytes.Load()
	}
}

// trail sets how many entries stay in the log behind a snapshot.
func (n *Node) trail(entries, bytes uint64) {
	trailing := n.cfg.TrailingEntries
	if entries > 0 && bytes/entries > 0 {
		trailing = min(trailing, n.cfg.SnapshotBytes/2/(bytes/entries))
	}
	rc := n.raft.ReloadableConfig()
	if rc.TrailingLogs == trailing {
		return
	}
	rc.TrailingLogs = trailing
	if err := n.raft.ReloadConfig(rc); err != nil {
		n.logger.Warn("the length of the log could not be set", "entries", trailing, "error", err)
	}
}

// snapshot takes one now. The store is flushed first, beside the entries that
// go on being applied: the checkpoint, for which they have to wait, then has
// next to nothing to copy.
func (n *Node) snapshot(ctx context.Context) (raft.SnapshotFuture, error) {
	if err := n.cfg.Machine.Flush(); err != nil {
		return nil, err
	}
	future := n.raft.Snapshot()
	if err := await(ctx, future); err != nil {
		return nil, fmt.Errorf("take a snapshot: %w", err)
	}
	return future, nil
}

// Backup takes a snapshot, writes it as a stream and verifies what it wrote.
// After an error w holds nothing that is to be kept.
func (n *Node) Backup(ctx context.Context, w io.Writer) (state.Header, error) {
	future, err := n.snapshot(ctx)
	if err != nil {
		return state.Header{}, fmt.Errorf("backup: %w", err)
	}
	_, stream, err := future.Open()
	if err != nil {
		return state.Header{}, fmt.Errorf("backup: %w", err)
	}
	header, err := state.VerifyStream(io.TeeReader(&contextReader{ctx, stream}, w))
	if err = errors.Join(err, stream.Close()); err != nil {
		return state.Header{}, fmt.Errorf("backup: %w", err)
	}
	return header, nil
}

// contextReader ends with its context.
type contextReader struct {
	ctx context.Context //nolint:containedctx // it lives as long as one call
	r   io.Reader
}

func (r *contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// Counters are the node's numbers since its start.
func (n *Node) Counters() *Counters { return &n.counters }

// Close finishes what was proposed, ends the duties, hands leadership over
// where there is somebody to take it, and stops the node. After an error because
// the context ended something of the node still runs: end the process.
func (n *Node) Close(ctx context.Context) error {
	if n.closing.Swap(true) {
		return errors.New("cluster: the node is closed already")
	}
	o := n.office.Load()
	if o != nil {
		o.proposer.close(failf(schema.NotLeader, "this node is shutting down"), true)
		if err := o.proposer.awaitIdle(ctx); err != nil {
			n.logger.Warn("shutting down with entries whose outcome is not known")
		}
	}
	n.stop()
	n.patient.end()
	if err := awaitAll(ctx, n.running.Wait); err != nil {
		return fmt.Errorf("cluster: a duty does not end: %w", err)
	}
	if o != nil && n.voters() > 1 {
		if err := await(ctx, n.raft.LeadershipTransfer()); err != nil {
			n.logger.Warn("leadership was not handed over", "error", err)
		}
	}
	var err error
	if e := awaitAll(ctx, func() { err = n.raft.Shutdown().Error() }); e != nil {
		// Raft's main loop is inside a write. Its stores are still in use, and
		// the watchdog decides about the process.
		return fmt.Errorf("cluster: raft does not stop: %w", e)
	}
	if o != nil {
		o.proposer.forget()
	}
	return errors.Join(err, n.release())
}

// awaitAll waits for do to return, but no longer than the context allows.
func awaitAll(ctx context.Context, do func()) error {
	done := make(chan struct{})
	go func() {
		do()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (n *Node) voters() int {
	voters := 0
	for _, s := range n.raft.GetConfiguration().Configuration().Servers {
		if s.Suffrage == raft.Voter {
			voters++
		}
	}
	return voters
}

// disconnect closes the raft port and all its connections.
func (n *Node) disconnect() {
	if n.guard != nil {
		n.guard.close()
	}
	if t, ok := n.transport.(raft.WithClose); ok {
		_ = t.Close() // the process ends, or its user sees the error
	}
}

// release closes what Open opened, in the reverse order.
func (n *Node) release() error {
	n.disconnect()
	if n.watchdog != nil && n.cfg.Watchdog == nil {
		n.watchdog.Stop()
	}
	var err error
	if n.snaps != nil {
		err = n.snaps.close()
	}
	if n.stores != nil {
		err = errors.Join(err, n.stores.close())
	}
	return err
}
