// Package member knows who is alive: it gossips the id, role, addresses and
// version of every node of the cluster, voters and gateways alike.
//
// Gossip decides nothing. It never changes who votes, and whatever it says is
// confirmed over an authenticated connection before anybody acts on it. It
// refuses, with a message that says what to do, a node of another cluster and a
// second node with an id that is taken.
//
// A List is started and closed by its owner; its methods are safe from any
// goroutine. Names that gossip has forgotten are dialled for ever, so that a
// node comes back by itself after the longest partition.
package member

import (
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// Role is what a node is for.
type Role string

const (
	// Voter keeps a replica and may lead.
	Voter Role = "voter"
	// Gateway serves clients and workers and keeps no replica.
	Gateway Role = "gateway"
)

// Node is what a member says of itself.
type Node struct {
	ID        string `json:"i"`
	Role      Role   `json:"r"`
	HTTP      string `json:"h,omitempty"` // host:port
	RPC       string `json:"p,omitempty"`
	Raft      string `json:"f,omitempty"` // voters only
	Version   string `json:"v,omitempty"`
	ClusterID string `json:"c,omitempty"` // hex, empty before the first term
	Format    uint32 `json:"l,omitempty"` // highest command format it understands
	Expect    int    `json:"e,omitempty"` // voters it expects at bootstrap
	Fresh     bool   `json:"n,omitempty"` // its disk is empty
	Unproven  bool   `json:"u,omitempty"` // it began empty and was no learner yet
	// FenceBase tells which of two clusters with one secret was made from the
	// other: the one with the larger base, by a restore.
	FenceBase uint64 `json:"b,omitempty"`
	Sees      string `json:"s,omitempty"` // hash of the founders it sees, until the cluster is founded
	Gossip    string `json:"-"`           // where it gossips, as this node sees it
}

// metaBytesMax is what memberlist carries with each node.
const metaBytesMax = memberlist.MetaMaxSize

const (
	// dialTimeout bounds one exchange with another node.
	dialTimeout = 5 * time.Second
	// joinMore is what other addresses have once one was reached.
	joinMore = time.Second
)

// aloneRetry is how often a node that sees nobody dials the others.
const aloneRetry = 500 * time.Millisecond

// Config of a List. Self, Bind, Secret and Logger are required.
type Config struct {
	Self      Node
	Bind      string   // host:port to gossip at, port 0 for any
	Advertise string   // host:port for others, if not Bind
	Secret    []byte   // of the cluster; gives the gossip key and label
	Join      []string // host:port of others, tried for ever
	Logger    *slog.Logger
	// Remember is a file that keeps where the voters were last seen, so that a
	// node that comes back finds them again; empty: none.
	Remember string

	// OnSuperseded is called, once, when a node of a cluster is met that was made
	// from this one's state: this one was given up for lost. It must not block.
	OnSuperseded func(error)

	// RejoinEvery is how often members that are missing are dialled.
	RejoinEvery time.Duration
	// TakenFor is how long this node waits for one of its id at another address
	// to be found dead; 0: 15 s, about twice what gossip takes.
	TakenFor time.Duration
}

// Validate names the field that is wrong and what to do about it.
func (c *Config) Validate() error {
	switch {
	case c.Self.ID == "":
		return errors.New("member: Self.ID is empty: give the node a name that it keeps")
	case c.Self.Role != Voter && c.Self.Role != Gateway:
		return fmt.Errorf("member: Self.Role is %q: give %q or %q", c.Self.Role, Voter, Gateway)
	case len(c.Secret) < 16:
		return errors.New("member: Secret is shorter than 16 bytes: give the cluster secret")
	case c.Logger == nil:
		return errors.New("member: Logger is missing")
	}
	if _, _, err := hostPort(c.Bind); err != nil {
		return fmt.Errorf("member: Bind %q is no host:port: %w", c.Bind, err)
	}
	if c.Advertise != "" {
		if _, _, err := hostPort(c.Advertise); err != nil {
			return fmt.Errorf("member: Advertise %q is no host:port: %w", c.Advertise, err)
		}
	}
	return nil
}

func hostPort(addr string) (string, int, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return host, int(n), err
}

// ErrTaken says that another live node has this node's id.
var ErrTaken = errors.New("another node has this id: give each node an id of its own, or stop the other one")

// errElsewhere is ErrTaken by a node of the same kind at another address, which
// may be the life of this one that was killed a moment ago.
var errElsewhere = fmt.Errorf("%w", ErrTaken)

// ErrOtherCluster says that the nodes to join belong to another cluster.
var ErrOtherCluster = errors.New("these nodes belong to another cluster: check --join, or start with an empty data directory to become part of it")

// ErrSuperseded says that this node's cluster was given up for lost, and that
// another one goes on with its state.
var ErrSuperseded = errors.New("this data directory is of a cluster that was given up for lost, and another cluster was made from its state or a backup of it: move the directory away and start with an empty one to join that cluster")

// List is this node's view of the members.
type List struct {
	cfg    Config
	ml     *memberlist.Memberlist
	logger *slog.Logger
	cancel context.CancelFunc
	done   chan struct{}
	dials  sync.WaitGroup

	mu      sync.Mutex // guards what is below
	self    Node
	at      string // where this node gossips, as the others see it; empty before it does
	nodes   map[string]Node
	known   map[string]lastSeen // every other voter ever seen, by id
	changed chan struct{}       // closed and replaced at each change
	refusal error               // why the last merge was refused
	over    bool                // OnSuperseded was called
	dialled map[string]bool     // addresses that are being dialled

	learnt chan struct{} // capacity 1: known has something new
}

// Start begins to gossip. Members of Join that cannot be reached are tried
// again for as long as the list lives; a refusal by or of another cluster, or
// an id that is taken, is an error.
func Start(ctx context.Context, cfg Config) (*List, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.RejoinEvery == 0 {
		cfg.RejoinEvery = 5 * time.Second
	}
	if cfg.TakenFor == 0 {
		cfg.TakenFor = 15 * time.Second
	}
	l := &List{
		cfg: cfg, logger: cfg.Logger, self: cfg.Self, nodes: map[string]Node{}, known: map[string]lastSeen{}, dialled: map[string]bool{},
		changed: make(chan struct{}), done: make(chan struct{}), learnt: make(chan struct{}, 1),
	}
	l.recall()
	mc, err := l.config()
	if err != nil {
		return nil, err
	}
	if l.ml, err = memberlist.Create(mc); err != nil {
		return nil, fmt.Errorf("gossip at %s: %w", cfg.Bind, err)
	}
	l.mu.Lock()
	l.at = l.ml.LocalNode().Address()
	l.mu.Unlock()
	if err := l.joinFirst(ctx); errors.Is(err, ErrTaken) || errors.Is(err, ErrOtherCluster) || errors.Is(err, ErrSuperseded) {
		err = errors.Join(err, l.ml.Shutdown())
		l.dials.Wait()
		return nil, err
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l.cancel = cancel
	go l.rejoin(run)
	return l, nil
}

func (l *List) config() (*memberlist.Config, error) {
	key, err := hkdf.Key(sha256.New, l.cfg.Secret, nil, "pulse gossip key v1", 32)
	if err != nil {
		return nil, fmt.Errorf("derive the gossip key: %w", err)
	}
	label, err := hkdf.Key(sha256.New, l.cfg.Secret, nil, "pulse gossip label v1", 8)
	if err != nil {
		return nil, fmt.Errorf("derive the gossip label: %w", err)
	}
	mc := memberlist.DefaultLANConfig()
	mc.Name = l.cfg.Self.ID
	mc.SecretKey = key
	mc.Label = "pulse-" + hex.EncodeToString(label)
	mc.TCPTimeout = dialTimeout
	mc.EnableCompression = false // messages are short, and each compressor is made anew with a table of 64 KiB
	mc.BindAddr, mc.BindPort, err = hostPort(l.cfg.Bind)
	if err != nil {
		return nil, err
	}
	mc.AdvertisePort = mc.BindPort
	if l.cfg.Advertise != "" {
		if mc.AdvertiseAddr, mc.AdvertisePort, err = resolve(l.cfg.Advertise); err != nil {
			return nil, err
		}
	}
	// A node that restarts may come back elsewhere. What it says before its name
	// is free is dropped and not said again, so a dead one's name is free at once.
	mc.DeadNodeReclaimTime = time.Millisecond
	mc.GossipToTheDeadTime = 30 * time.Second
	mc.Logger = log.New(logWriter{l.logger}, "", 0)
	d := (*delegate)(l)
	mc.Delegate, mc.Events, mc.Merge, mc.Alive, mc.Conflict = d, d, d, d, d
	return mc, nil
}

// resolve gives memberlist the address it wants: it takes no names.
func resolve(addr string) (string, int, error) {
	host, port, err := hostPort(addr)
	if err != nil {
		return "", 0, err
	}
	if net.ParseIP(host) != nil {
		return host, port, nil
	}
	ips, err := net.DefaultResolver.LookupIPAddr(context.Background(), host)
	if err != nil || len(ips) == 0 {
		return "", 0, fmt.Errorf("look up the advertised host %q: %w", host, err)
	}
	return ips[0].IP.String(), port, nil
}

// joinFirst joins the others. A node that was killed and comes back elsewhere,
// as one in a container does, is in its own way until they miss it.
func (l *List) joinFirst(ctx context.Context) error {
	patience := time.NewTimer(l.cfg.TakenFor)
	defer patience.Stop()
	for said := false; ; said = true {
		err := l.join(l.cfg.Join)
		if !errors.Is(err, errElsewhere) {
			return err
		}
		if !said {
			l.logger.Warn("a node of this id is known at another address; if it was this one, it will soon be missed", "err", err, "patience", l.cfg.TakenFor.String())
		}
		select {
		case <-ctx.Done():
			return err
		case <-patience.C:
			return err
		case <-time.After(aloneRetry):
		}
	}
}

// join dials the others, all at once: a machine that is switched off answers nobody,
// and must not be waited for by those that are there. It returns when all have
// answered or failed, or one has been reached and the rest has had a moment.
func (l *List) join(addrs []string) error {
	l.mu.Lock()
	l.refusal = nil
	addrs = slices.DeleteFunc(slices.Clone(addrs), func(a string) bool { return l.dialled[a] })
	for _, a := range addrs {
		l.dialled[a] = true
	}
	l.mu.Unlock()
	if len(addrs) == 0 {
		return nil
	}
	outcomes := make(chan error, len(addrs))
	for _, a := range addrs {
		l.dials.Go(func() {
			_, err := l.ml.Join([]string{a})
			l.mu.Lock()
			delete(l.dialled, a)
			l.mu.Unlock()
			outcomes <- err
		})
	}
	var errs error
	reached, over := false, (<-chan time.Time)(nil)
	for range addrs {
		select {
		case err := <-outcomes:
			errs = errors.Join(errs, err)
			if err == nil && !reached {
				reached, over = true, time.After(joinMore)
			}
			continue
		case <-over:
		}
		break
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refusal != nil {
		return l.refusal
	}
	if !reached {
		return fmt.Errorf("reach any of %s: %w", strings.Join(addrs, ", "), errs)
	}
	return nil
}

// rejoin dials what is missing: addresses to join that no member has, and
// voters that gossip has forgotten.
func (l *List) rejoin(ctx context.Context) {
	defer close(l.done)
	next := time.NewTimer(0) // who is remembered is looked for at once
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			if len(l.learnt) > 0 {
				l.remember() // before the end, too
			}
			return
		case <-l.learnt:
			l.remember()
			continue
		case <-next.C:
		}
		missing, alone := l.missing()
		pause := l.cfg.RejoinEvery
		if alone {
			// Alone: servers that are started together are up in a moment.
			missing = append(missing, l.cfg.Join...)
			pause = min(pause, aloneRetry)
		}
		slices.Sort(missing)
		if err := l.join(slices.Compact(missing)); err != nil {
			l.logger.Debug("members are missing", "err", err)
		}
		next.Reset(pause)
	}
}

// missing lists the addresses of voters that were seen and are gone. alone says
// that no other voter is there: gateways that see each other and no voter have
// not found their cluster.
func (l *List) missing() (addrs []string, alone bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, seen := range l.known {
		if _, alive := l.nodes[id]; !alive {
			addrs = append(addrs, seen.Gossip)
		}
	}
	alone = true
	for id, n := range l.nodes {
		alone = alone && (n.Role != Voter || id == l.self.ID)
	}
	return addrs, alone
}

// Members lists who is alive, this node included, by id.
func (l *List) Members() []Node {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]Node, 0, len(l.nodes))
	for _, n := range l.nodes {
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b Node) int { return strings.Compare(a.ID, b.ID) })
	return out
}

// Member finds a live member by id.
func (l *List) Member(id string) (Node, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, ok := l.nodes[id]
	return n, ok
}

// Self is what this node says of itself.
func (l *List) Self() Node {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.self
}

// Changed is closed at the next change of the members.
func (l *List) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// Update changes what this node says of itself and spreads it.
func (l *List) Update(change func(*Node)) error {
	l.mu.Lock()
	was := l.self
	change(&l.self)
	same := was == l.self
	l.mu.Unlock()
	if same {
		return nil
	}
	if err := l.ml.UpdateNode(time.Second); err != nil {
		return fmt.Errorf("spread the change of %s: %w", l.cfg.Self.ID, err)
	}
	return nil
}

// Addr is where this node gossips.
func (l *List) Addr() string { return l.ml.LocalNode().Address() }

// Close says goodbye and stops. Whom the goodbye does not reach in time finds out
// by itself, a few seconds later: that is no failure of a node that ends in good
// order on a busy machine.
func (l *List) Close() error { return l.close(goodbyeWithin) }

func (l *List) close(within time.Duration) error {
	l.cancel()
	<-l.done
	l.dials.Wait()
	if err := l.ml.Leave(within); err != nil {
		l.logger.Warn("gossip is slow; the others will notice by themselves that this node is gone", "error", err)
	}
	return l.ml.Shutdown()
}

// goodbyeWithin is how long the goodbye may take: it is repeated four times, 200 ms
// apart.
const goodbyeWithin = 2 * time.Second

// Kill stops without saying goodbye, as a crash would. For tests.
func (l *List) Kill() error {
	l.cancel()
	<-l.done
	l.dials.Wait()
	return l.ml.Shutdown()
}

func (l *List) change(n Node, alive bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if alive {
		l.nodes[n.ID] = n
		// A gateway that was parted dials the voters itself. To dial every one
		// that ever was would hold up the search for those that matter.
		if n.Role == Voter {
			l.note(n)
		}
	} else {
		delete(l.nodes, n.ID)
	}
	close(l.changed)
	l.changed = make(chan struct{})
}

// delegate is the List as memberlist calls it, on its own goroutines.
type delegate List

// NodeMeta is what is gossiped of this node.
func (d *delegate) NodeMeta(limit int) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	data, err := json.Marshal(d.self)
	if err != nil || len(data) > limit {
		d.logger.Error("what this node says of itself does not fit into gossip", "bytes", len(data), "limit", limit)
		return nil
	}
	return data
}

// NotifyMsg, GetBroadcasts, LocalState and MergeRemoteState: nothing but the
// node's own words is gossiped.
func (d *delegate) NotifyMsg([]byte)                {}
func (d *delegate) GetBroadcasts(int, int) [][]byte { return nil }
func (d *delegate) LocalState(bool) []byte          { return nil }
func (d *delegate) MergeRemoteState([]byte, bool)   {}

func decode(n *memberlist.Node) (Node, error) {
	if len(n.Meta) > metaBytesMax {
		return Node{}, errors.New("too long")
	}
	out := Node{}
	if err := json.Unmarshal(n.Meta, &out); err != nil {
		return Node{}, err
	}
	if out.ID != n.Name || (out.Role != Voter && out.Role != Gateway) {
		return Node{}, errors.New("it does not name itself")
	}
	out.Gossip = n.Address()
	return out, nil
}

func (d *delegate) NotifyJoin(n *memberlist.Node) { d.NotifyUpdate(n) }
func (d *delegate) NotifyUpdate(n *memberlist.Node) {
	m, err := decode(n)
	if err != nil {
		d.logger.Warn("a member says something that cannot be understood", "member", n.Name, "err", err)
		return
	}
	(*List)(d).change(m, true)
}

func (d *delegate) NotifyLeave(n *memberlist.Node) { (*List)(d).change(Node{ID: n.Name}, false) }

// NotifyAlive refuses one node of another cluster.
func (d *delegate) NotifyAlive(n *memberlist.Node) error {
	m, err := decode(n)
	if err != nil {
		return fmt.Errorf("member %q cannot be understood: %w", n.Name, err)
	}
	return d.refuse(m)
}

// NotifyMerge sees the other side's members before they become ours.
func (d *delegate) NotifyMerge(peers []*memberlist.Node) error {
	for _, p := range peers {
		if p.State == memberlist.StateDead || p.State == memberlist.StateLeft {
			continue // a node that is gone has no name and no cluster to defend
		}
		m, err := decode(p)
		if err != nil {
			continue // NotifyAlive keeps it out
		}
		if err := d.refuse(m); err != nil {
			return err
		}
	}
	return nil
}

func (d *delegate) refuse(m Node) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	other := m.ClusterID != "" && d.self.ClusterID != "" && m.ClusterID != d.self.ClusterID
	switch {
	case other && m.FenceBase < d.self.FenceBase:
		// It is kept out and told by its own side; here it is no reason to stop.
		return fmt.Errorf("node %s is of cluster %s, from which this one, %s, was made", m.ID, m.ClusterID, d.self.ClusterID)
	case other && m.FenceBase > d.self.FenceBase:
		d.refusal = fmt.Errorf("%w (this one is %s, node %s is of %s)", ErrSuperseded, d.self.ClusterID, m.ID, m.ClusterID)
		if d.cfg.OnSuperseded != nil && !d.over {
			d.over = true
			go d.cfg.OnSuperseded(d.refusal) // it may close this list
		}
	case other:
		d.refusal = fmt.Errorf("%w (node %s is of cluster %s, this one of %s)", ErrOtherCluster, m.ID, m.ClusterID, d.self.ClusterID)
	// What is said of this node at this very address is of a former life, and corrected by
	// this one. To wait until that is missed would be in vain: who calls it gets an answer.
	case m.ID == d.self.ID && m.Gossip != d.at && (m.RPC != d.self.RPC || m.HTTP != d.self.HTTP):
		taken := ErrTaken
		if m.Role == d.self.Role {
			taken = errElsewhere
		}
		d.refusal = fmt.Errorf("%w (id %s is at %s)", taken, m.ID, m.Gossip)
	default:
		return nil
	}
	return d.refusal
}

// NotifyConflict: two addresses claim one id. Gossip keeps the first.
func (d *delegate) NotifyConflict(existing, other *memberlist.Node) {
	d.logger.Error("two nodes claim one id; the later one is not let in",
		"id", existing.Name, "at", existing.Address(), "refused", other.Address())
}

// logWriter takes memberlist's lines.
type logWriter struct{ logger *slog.Logger }

func (w logWriter) Write(p []byte) (int, error) {
	line := strings.TrimSpace(string(p))
	switch {
	case strings.Contains(line, "[ERR]"), strings.Contains(line, "[WARN]"):
		w.logger.Warn("gossip", "line", line)
	default:
		w.logger.Debug("gossip", "line", line)
	}
	return len(p), nil
}
