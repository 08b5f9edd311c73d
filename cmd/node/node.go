package node

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace/noop"

	"pulse/cluster"
	"pulse/cluster/duty"
	"pulse/fsm"
	"pulse/fsm/state"
	"pulse/gateway/session"
	pb "pulse/proto/pulse/v1"
	"pulse/rpc"
)

// Node is a running node. Its methods may be called from any goroutine.
type Node struct {
	cfg      Config
	logger   *slog.Logger
	dir      *Dir
	machine  *fsm.Machine
	watchdog *cluster.Watchdog
	raft     *cluster.Node
	ready    *readiness // nil in a gateway
	feed     *rpc.Feed
	watch    *rpc.Watch // feeds a gateway; nil with a replica
	router   *rpc.Router
	courier  *duty.Courier
	carrier  *carrier
	hub      *session.Hub
	registry *prometheus.Registry
	recent   *recent // log lines
	meters   *meters
	spans    *taskSpans // nil: nobody takes them
	front    *front
	certs    *certs // nil: plain text
	links    *links // to the other nodes; nil on a lone voter

	opened  []part // in the order of opening
	closing sync.Once
	closed  chan struct{}
	err     error // set before closed is closed
}

// part is what Close has to close, with a name for the log.
type part struct {
	name  string
	close func(context.Context) error
}

// The seams that are filled here.
var (
	_ session.Backend = (*rpc.Router)(nil)
	_ rpc.Replica     = (*cluster.Node)(nil)
	_ cluster.Machine = (*fsm.Machine)(nil)
	_ duty.Source     = (*fsm.Machine)(nil)
	_ duty.Carrier    = (*carrier)(nil)
)

// Start opens a node and returns when it listens. It serves once there is a
// leader, which WaitReady waits for. ctx bounds the start, not the node.
func Start(ctx context.Context, cfg Config) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg.withDefaults(), recent: &recent{}, closed: make(chan struct{})}
	n.cfg.Logger = n.recent.tee(n.cfg.Logger)
	steps := []func() error{
		n.openDir, n.openCerts, n.listen, n.openMachine, func() error { return n.openLinks(ctx) },
		n.openRaft, n.openHub, n.openFront, n.serveLinks,
	}
	if n.cfg.gateway() {
		steps = []func() error{
			n.openDir, n.openCerts, n.listen, func() error { return n.openLinks(ctx) },
			n.openWatch, n.openHub, n.openFront, n.serveLinks,
		}
	}
	for _, step := range steps {
		err := ctx.Err()
		if err == nil {
			err = step()
		}
		if err != nil {
			now, cancel := context.WithTimeout(context.WithoutCancel(ctx), n.cfg.CloseTimeout)
			defer cancel()
			return nil, errors.Join(err, n.closeParts(now))
		}
	}
	n.logger.Info("node started", "http", n.Addr(), "data", n.cfg.DataDir, "cluster", n.dir.Node.ClusterID)
	return n, nil
}

func (n *Node) onClose(name string, close func(context.Context) error) {
	n.opened = append(n.opened, part{name, close})
}

// background runs f until the node closes the part of that name.
func (n *Node) background(name string, f func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { f(ctx) })
	n.onClose(name, func(context.Context) error {
		cancel()
		running.Wait()
		return nil
	})
}

func (n *Node) openDir() (err error) {
	if n.dir, err = openDir(n.cfg); err != nil {
		return err
	}
	n.logger = n.cfg.Logger.With("node", n.dir.Node.NodeID)
	n.onClose("data directory", func(context.Context) error { return n.dir.Close() })
	return nil
}

func (n *Node) openMachine() (err error) {
	n.watchdog = cluster.NewWatchdog(cluster.WatchdogConfig{Limit: n.cfg.WriteLimit, Logger: n.logger})
	n.onClose("watchdog", func(context.Context) error { n.watchdog.Stop(); return nil })
	n.machine, err = fsm.Open(fsm.Options{
		Dir: n.dir.stateDir(), NodeID: n.dir.Node.NodeID,
		SlowDisk: func(file string, took time.Duration) { n.watchdog.Slow("write "+file, took) },
		Beside:   func(read func()) { go read() }, // which Open waits for
		Broken:   func(err error) { n.watchdog.Fatal("use the state", n.stateAdvice(err)) },
	})
	if err != nil {
		return fmt.Errorf("node: %w", n.stateAdvice(err))
	}
	n.onClose("state", func(context.Context) error { return n.machine.Close() })
	return nil
}

// stateAdvice says what to do about a damaged state: it follows from the newest
// snapshot and the log, which have checksums of their own.
func (n *Node) stateAdvice(err error) error {
	if !errors.Is(err, state.ErrStoreDamaged) {
		return err
	}
	return fmt.Errorf("%w. Put %s aside and start this server again: it makes its state anew from its snapshot and its log. "+
		"If it then says that a snapshot is damaged too, put its whole data directory aside and start it empty; one of several "+
		"servers joins again by itself, one that is alone needs a backup", err, n.dir.stateDir())
}

// openRaft starts the log and everything that its goroutines call.
func (n *Node) openRaft() error {
	n.registry = newRegistry()
	n.meters = newMeters(n.registry, n.machine.QueueName, n.machine.NamespaceName)
	if _, none := n.cfg.Traces.(noop.TracerProvider); !none {
		n.spans = newTaskSpans(n.cfg.Traces, n.machine.Trace)
		n.background("spans", n.spans.run)
	}
	n.feed = rpc.NewFeed()
	n.feed.PublishAll(n.machine.FenceBase() + n.machine.AppliedIndex())
	n.background("feed", n.feed.Run)

	n.carrier = newCarrier(n.dir.Node.NodeID, n.links)
	var err error
	if n.courier, err = duty.NewCourier(n.machine, n.carrier, n.logger); err != nil {
		return err
	}

	cfg, err := n.raftConfig()
	if err != nil {
		return err
	}
	if n.raft, err = cluster.Open(cfg); err != nil {
		return err
	}
	n.onClose("raft", n.raft.Close)
	router := rpc.Config{Self: n.dir.Node.NodeID, Replica: n.raft, Feed: n.feed}
	if n.links != nil {
		router.Peers = n.links.peers
	}
	if n.router, err = rpc.NewRouter(router); err != nil {
		return err
	}
	n.ready = &readiness{
		status: n.raft.Status,
		read: func(ctx context.Context) error {
			_, err := n.router.Read(ctx, &pb.Query{Namespace: fsm.DefaultName, Body: &pb.Query_GetQueue{GetQueue: &pb.GetQueue{Name: fsm.DefaultName}}})
			return err
		},
		reports: func() bool {
			hub := n.carrier.inbox.hub.Load()
			return hub == nil || hub.Reporting() // nil: it is not open yet
		},
	}
	n.background("readiness", n.ready.run)
	return nil
}

func (n *Node) raftConfig() (cluster.Config, error) {
	clusterID, err := hex.DecodeString(n.dir.Node.ClusterID)
	if err != nil {
		return cluster.Config{}, fmt.Errorf("node: cluster id in %s: %w", identityFile, err)
	}
	cfg := cluster.Config{
		ID:          n.dir.Node.NodeID,
		ClusterID:   clusterID,
		Dir:         n.dir.raftDir(),
		Machine:     n.machine,
		Logger:      n.cfg.Logger, // it adds the node itself
		Listen:      n.cfg.RaftAddr,
		LogStore:    n.cfg.LogStore,
		OnApply:     n.applied,
		OnRestore:   n.restored,
		Duties:      []cluster.Duty{{Name: "courier", Run: n.courier.Run}, {Name: "format level", Run: n.raiseLevel}, {Name: "time zones", Run: n.renewZones}},
		IsAdmission: isAdmission,
		Watchdog:    n.watchdog,
		Wall:        wallClock,
		// Zero is the default of each.
		HeartbeatTimeout:   n.cfg.ElectionTimeout,
		ElectionTimeout:    n.cfg.ElectionTimeout,
		LeaderLeaseTimeout: n.cfg.ElectionTimeout,
		SnapshotEntries:    n.cfg.SnapshotEntries,
	}
	if n.links != nil {
		n.links.raftConfig(&cfg, n)
		return cfg, nil
	}
	for _, id := range n.dir.Node.FirstVoters {
		cfg.Bootstrap = append(cfg.Bootstrap, cluster.Server{ID: id, Address: n.cfg.RaftAddr})
	}
	return cfg, nil
}

// applied is called by the apply goroutine after each entry and never blocks.
func (n *Node) applied(o fsm.Outcome, leader bool) {
	n.meters.applied(o, leader)
	if n.spans != nil {
		n.spans.applied(o, leader)
	}
	if leader {
		n.courier.Offer(o.Effects)
	}
	n.feed.Publish(n.machine.FenceBase()+o.Index, o.Events)
}

// restored is called by the apply goroutine after the whole state was replaced.
func (n *Node) restored() {
	n.feed.PublishAll(n.machine.FenceBase() + n.machine.AppliedIndex())
}

// isAdmission says that a command brings new work. Such commands are refused
// first when room runs out; what finishes work goes on.
func isAdmission(c *pb.Command) bool {
	switch b := c.GetBody().(type) {
	case *pb.Command_SubmitTask, *pb.Command_RetryTask:
		return true
	case *pb.Command_BulkTasks:
		return b.BulkTasks.GetAction() == pb.BulkAction_BULK_ACTION_RETRY
	default:
		return false
	}
}

// openHub starts the sessions of this gateway. From here on the courier
// reaches them.
func (n *Node) openHub() error {
	key, err := session.NewLeaseKey(n.dir.secret)
	if err != nil {
		return err
	}
	n.hub, err = session.NewHub(session.Config{
		GatewayID: n.dir.Node.NodeID, Backend: n.router, LeaseKey: key, Logger: n.logger,
	})
	if err != nil {
		return err
	}
	n.carrier.inbox.hub.Store(n.hub)
	n.background("sessions", n.hub.Run)
	return nil
}

// Addr is where the node listens for HTTP.
func (n *Node) Addr() string { return n.front.listener.Addr().String() }

// URL is Addr as a client wants it. A node that listens everywhere is named by
// its loopback address.
func (n *Node) URL() string {
	scheme := "http://"
	if n.certs != nil {
		scheme = "https://"
	}
	host, port, err := net.SplitHostPort(n.Addr())
	if err != nil {
		return scheme + n.Addr()
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return scheme + net.JoinHostPort(host, port)
}

// ID is the node's name.
func (n *Node) ID() string { return n.dir.Node.NodeID }

// Status describes the raft side of the node; of a gateway, what it knows of it.
func (n *Node) Status() cluster.Status {
	if n.cfg.gateway() {
		return n.gatewayStatus()
	}
	return n.ready.amend(n.raft.Status())
}

// readyPoll is how often WaitReady looks.
const readyPoll = 5 * time.Millisecond

// WaitReady returns when the node would serve a linearizable read.
func (n *Node) WaitReady(ctx context.Context) error {
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		status := n.Status()
		if status.Ready {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("node is not ready: %v: %w", status.NotReady, ctx.Err())
		case <-n.closed:
			return cmp.Or(n.err, errors.New("node is closed"))
		case <-tick.C:
		}
	}
}

// Wait returns when the node is closed, with the reason if nobody asked for it.
func (n *Node) Wait() error {
	<-n.closed
	return n.err
}

// Close stops the node gracefully: connections are closed with 1001 after the
// answers under way, the cluster is told, and the log is left in order. ctx
// bounds the polite part, and so does CloseTimeout. It may be called twice; the
// second call waits for the first.
func (n *Node) Close(ctx context.Context) error {
	n.closing.Do(func() { n.stop(ctx, nil) })
	return n.Wait()
}

// fail closes the node because a part of it cannot go on.
func (n *Node) fail(why error) {
	n.closing.Do(func() { n.stop(context.Background(), why) })
}

func (n *Node) stop(ctx context.Context, why error) {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.CloseTimeout)
	defer cancel()
	if why != nil {
		n.logger.Error("node stops", "error", why)
	}
	n.err = errors.Join(why, n.closeParts(ctx))
	n.logger.Info("node stopped")
	close(n.closed)
}

// closeParts closes what is open, the last first. When time is up, what is left
// stays open: something may still use it, and the process is about to end.
func (n *Node) closeParts(ctx context.Context) (err error) {
	for len(n.opened) > 0 {
		last := n.opened[len(n.opened)-1]
		if e := last.close(ctx); e != nil {
			err = errors.Join(err, fmt.Errorf("node: close %s: %w", last.name, e))
			if ctx.Err() != nil {
				return err
			}
		}
		n.opened = n.opened[:len(n.opened)-1]
	}
	return err
}
