package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// errLost says that a call was handed over and its answer never came.
var errLost = errors.New("the answer was lost")

const (
	messageBytesMax = 32 << 20
	// What may be on its way unread, in a stream and in a connection, is fixed.
	// Windows that adapt themselves are measured with a ping for nearly every
	// message, and each ping is answered: three packets for one.
	windowBytes     = 4 << 20
	connWindowBytes = 16 << 20
	dialTimeout     = 3 * time.Second
	// A path that swallows packets is noticed by data that stays unacknowledged
	// this long: the kernel's own patience is a quarter of an hour.
	unackedMax    = 5 * time.Second
	keepaliveTime = 10 * time.Second
)

// Directory knows where nodes listen for each other.
type Directory interface {
	// RPCAddress is host:port of a live node, or of a voter where it was last
	// seen.
	RPCAddress(nodeID string) (addr string, ok bool)
}

// PeersConfig of a Peers. Directory, Token and Logger are required.
type PeersConfig struct {
	Directory Directory
	Token     Token
	// TLS makes the client side for a connection to exactly that node; nil
	// means plain text, which is for loopback.
	TLS    func(nodeID string) (*tls.Config, error)
	Logger *slog.Logger
}

// Peers holds one connection, with one forward stream, to each node that was
// called. It is safe for use by any number of goroutines.
type Peers struct {
	cfg    PeersConfig
	ctx    context.Context // ends at Close; the streams' parent
	cancel context.CancelFunc
	links  sync.WaitGroup

	mu    sync.Mutex // guards nodes
	nodes map[string]*peer
}

// peer is the connection to one node.
type peer struct {
	lost  bool       // unknown at the last Prune; guarded by Peers.mu
	mu    sync.Mutex // guards what is below
	addr  string
	conn  *grpc.ClientConn
	lanes [lanes]lane
}

// Calls that change something and large reads have a stream each, so that a
// long list does not hold up a renewal.
const (
	laneCommands = iota
	laneReads
	lanes
)

// lane is a forward stream and the right to open it: whoever waits for another
// to open it waits no longer than it has time.
type lane struct {
	opening chan struct{} // capacity 1
	link    *link         // guarded by opening
}

// NewPeers makes an empty set.
func NewPeers(cfg PeersConfig) (*Peers, error) {
	if cfg.Directory == nil || cfg.Logger == nil || cfg.Token.value == "" {
		return nil, errors.New("rpc: Peers needs a Directory, a Token and a Logger")
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Peers{cfg: cfg, ctx: ctx, cancel: cancel, nodes: map[string]*peer{}}, nil
}

// Close ends every connection; calls under way end as if the network failed.
func (p *Peers) Close() error {
	p.cancel()
	p.links.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, n := range p.nodes {
		n.mu.Lock()
		if n.conn != nil {
			errs = append(errs, n.conn.Close())
			n.conn = nil
		}
		n.mu.Unlock()
	}
	return errors.Join(errs...)
}

// movedGrace is how long a node that was deposed has to answer what it was asked
// as the leader. One that is well does so at once.
const movedGrace = time.Second

// LeaderMoved says that a node does not lead any more. It may be paused, or cut
// off in a way that only a keepalive would notice; whoever still waits for it
// after a moment learns that the answer is lost, instead of waiting to the end of
// its time. The caller knows of another leader, so the next try finds it.
func (p *Peers) LeaderMoved(from string) {
	if from == "" {
		return
	}
	moved := time.Now()
	time.AfterFunc(movedGrace, func() { p.abandon(from, moved) })
}

// abandon gives up what a node was asked before a moment and has not answered.
func (p *Peers) abandon(id string, before time.Time) {
	p.mu.Lock()
	n := p.nodes[id]
	p.mu.Unlock()
	if n == nil {
		return
	}
	for i := range n.lanes {
		lane := &n.lanes[i]
		select {
		case lane.opening <- struct{}{}:
		default:
			continue // it is being opened: nothing is on it
		}
		l := lane.link
		<-lane.opening
		if l != nil {
			l.abandon(before)
		}
	}
}

// Prune closes the connections to nodes that the directory has not known since
// the call before. It is called now and then, so that gateways that come and go
// under ever new names leave nothing behind.
func (p *Peers) Prune() error {
	p.mu.Lock()
	var gone []*peer
	for id, n := range p.nodes {
		_, known := p.cfg.Directory.RPCAddress(id)
		if !known && n.lost {
			gone = append(gone, n)
			delete(p.nodes, id)
		}
		n.lost = !known
	}
	p.mu.Unlock()
	var errs []error
	for _, n := range gone {
		n.mu.Lock()
		if n.conn != nil {
			errs = append(errs, n.conn.Close())
			n.conn = nil
		}
		n.mu.Unlock()
	}
	return errors.Join(errs...)
}

func (p *Peers) peer(id string) *peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.nodes[id]
	if n == nil {
		n = &peer{}
		for i := range n.lanes {
			n.lanes[i].opening = make(chan struct{}, 1)
		}
		p.nodes[id] = n
	}
	return n
}

// conn is the connection to a node, new if its address has changed.
func (p *Peers) conn(id string) (*peer, *grpc.ClientConn, error) {
	addr, ok := p.cfg.Directory.RPCAddress(id)
	if !ok {
		return nil, nil, schema.Errorf(schema.NotLeader, "nobody knows where node %s is", id)
	}
	n := p.peer(id)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conn != nil && n.addr == addr {
		return n, n.conn, nil
	}
	creds := insecure.NewCredentials()
	if p.cfg.TLS != nil {
		config, err := p.cfg.TLS(id)
		if err != nil {
			return nil, nil, schema.Errorf(schema.NotLeader, "node %s cannot be called: %v", id, err)
		}
		creds = credentials.NewTLS(config)
	}
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(creds),
		grpc.WithPerRPCCredentials(p.cfg.Token),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(messageBytesMax), grpc.MaxCallSendMsgSize(messageBytesMax)),
		grpc.WithStaticStreamWindowSize(windowBytes), grpc.WithStaticConnWindowSize(connWindowBytes),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: unackedMax, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: dialTimeout,
		}),
	)
	if err != nil {
		return nil, nil, schema.Errorf(schema.NotLeader, "node %s at %s cannot be reached: %v", id, addr, err)
	}
	if n.conn != nil {
		_ = n.conn.Close() // its node is elsewhere now; nothing of it is wanted
	}
	n.conn, n.addr = conn, addr
	return n, conn, nil
}

// linkTo is a forward stream to a node, opened if there is none that works.
func (p *Peers) linkTo(ctx context.Context, id string, which int) (*link, error) {
	n, conn, err := p.conn(id)
	if err != nil {
		return nil, err
	}
	lane := &n.lanes[which]
	select {
	case lane.opening <- struct{}{}:
		defer func() { <-lane.opening }()
	case <-ctx.Done():
		return nil, schema.Errorf(schema.DeadlineExpired, "node %s could not be reached in time", id)
	}
	if lane.link != nil {
		select {
		case <-lane.link.done:
		default:
			return lane.link, nil
		}
	}
	if err := p.ctx.Err(); err != nil {
		return nil, schema.Errorf(schema.Unavailable, "this node is shutting down")
	}
	streamCtx, cancel := context.WithCancel(p.ctx)
	// The stream outlives this call, but a caller waits for its opening no
	// longer than it has time.
	stop := context.AfterFunc(ctx, cancel)
	stream, err := pb.NewNodeServiceClient(conn).Forward(streamCtx)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		return nil, schema.Errorf(schema.NotLeader, "node %s cannot be reached: %v", id, err)
	}
	l := newLink(stream, cancel)
	p.links.Go(l.run)
	lane.link = l
	return l, nil
}

// Remote is another node as the router sees it: the leader, if it is.
type Remote struct {
	peers *Peers
	id    string
}

// To names a node to call.
func (p *Peers) To(id string) Remote { return Remote{p, id} }

// call makes one forwarded call.
func (r Remote) call(ctx context.Context, lane int, call *pb.ForwardCall) (*pb.ForwardReply, error) {
	l, err := r.peers.linkTo(ctx, r.id, lane)
	if err != nil {
		return nil, err
	}
	return l.do(ctx, call)
}

// Propose forwards commands. Errors are *schema.Error as those of the leader's
// own Propose, and result_unknown if the answer was lost.
func (r Remote) Propose(ctx context.Context, cmds []*pb.Command) ([]*pb.Result, error) {
	reply, err := r.call(ctx, laneCommands, &pb.ForwardCall{Body: &pb.ForwardCall_Commands{Commands: &pb.CommandBatch{Commands: cmds}}})
	if errors.Is(err, errLost) {
		return nil, schema.Errorf(schema.ResultUnknown, "node %s was handed the call and did not answer; repeat it with the same id", r.id)
	}
	if err != nil {
		return nil, err
	}
	if b, ok := reply.Body.(*pb.ForwardReply_Results); ok {
		return b.Results.Results, nil
	}
	return nil, replyError(reply)
}

// Query asks the node. A lost answer to a read is no loss: unavailable.
func (r Remote) Query(ctx context.Context, q *pb.Query) (*pb.Answer, error) {
	reply, err := r.call(ctx, laneReads, &pb.ForwardCall{Body: &pb.ForwardCall_Query{Query: q}})
	if errors.Is(err, errLost) {
		return nil, r.silent(ctx)
	}
	if err != nil {
		return nil, err
	}
	if b, ok := reply.Body.(*pb.ForwardReply_Answer); ok {
		return b.Answer, nil
	}
	return nil, replyError(reply)
}

// silent is what becomes of a read without an answer: another node is asked, if
// there is time.
func (r Remote) silent(ctx context.Context) error {
	if ctx.Err() != nil {
		return schema.Errorf(schema.DeadlineExpired, "node %s did not answer in time", r.id)
	}
	return schema.Errorf(schema.NotLeader, "node %s did not answer", r.id)
}

// ReadIndex asks for the log index a linearizable read elsewhere has to reach.
func (r Remote) ReadIndex(ctx context.Context) (uint64, error) {
	reply, err := r.call(ctx, laneCommands, &pb.ForwardCall{Body: &pb.ForwardCall_ReadIndex{ReadIndex: &pb.ReadIndex{}}})
	if errors.Is(err, errLost) {
		return 0, r.silent(ctx)
	}
	if err != nil {
		return 0, err
	}
	if b, ok := reply.Body.(*pb.ForwardReply_ReadIndex); ok {
		return b.ReadIndex.Index, nil
	}
	return 0, replyError(reply)
}

// Describe asks a node what it is and how far it is.
func (r Remote) Describe(ctx context.Context, hashIndex uint64) (*pb.DescribeResponse, error) {
	_, conn, err := r.peers.conn(r.id)
	if err != nil {
		return nil, err
	}
	out, err := pb.NewNodeServiceClient(conn).Describe(ctx, &pb.DescribeRequest{HashIndex: hashIndex})
	if err != nil {
		return nil, fmt.Errorf("describe node %s: %w", r.id, err)
	}
	return out, nil
}

// Backup writes a checked copy of the node's state. After an error w holds
// nothing that is to be kept.
func (r Remote) Backup(ctx context.Context, w io.Writer) error {
	_, conn, err := r.peers.conn(r.id)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // a reader that fails leaves no stream behind
	stream, err := pb.NewNodeServiceClient(conn).Backup(ctx, &pb.BackupRequest{})
	if err != nil {
		return fromStatus(err)
	}
	for {
		msg, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("backup from node %s: %w", r.id, fromStatus(err))
		}
		if _, err := w.Write(msg.Data); err != nil {
			return err
		}
	}
}

// Remove asks the node, which must lead, to take a server out of the voters.
func (r Remote) Remove(ctx context.Context, nodeID string, force bool) error {
	_, conn, err := r.peers.conn(r.id)
	if err != nil {
		return err
	}
	_, err = pb.NewNodeServiceClient(conn).Remove(ctx, &pb.RemoveRequest{NodeId: nodeID, Force: force})
	return fromStatus(err)
}

// Transfer asks the node, which must lead, to hand leadership over.
func (r Remote) Transfer(ctx context.Context, nodeID string) (string, error) {
	_, conn, err := r.peers.conn(r.id)
	if err != nil {
		return "", err
	}
	out, err := pb.NewNodeServiceClient(conn).Transfer(ctx, &pb.TransferRequest{NodeId: nodeID})
	return out.GetLeaderId(), fromStatus(err)
}

// replyError gives a refusal or a failure its public meaning.
func replyError(reply *pb.ForwardReply) error {
	switch b := reply.Body.(type) {
	case *pb.ForwardReply_Refused:
		e := &schema.Error{Code: refusalCodes[b.Refused.Refusal], Message: b.Refused.Message}
		if e.Code == "" {
			e.Code = schema.Unavailable
		}
		if e.Code == schema.NotLeader && b.Refused.LeaderId != "" {
			return &notLeader{err: e, leaderID: b.Refused.LeaderId}
		}
		return e
	case *pb.ForwardReply_Failure:
		return &schema.Error{Code: schema.Code(b.Failure.Code), Message: b.Failure.Message}
	}
	return schema.Errorf(schema.ResultUnknown, "the leader's answer could not be understood")
}

// notLeader carries a hint who leads.
type notLeader struct {
	err      *schema.Error
	leaderID string
}

func (e *notLeader) Error() string { return e.err.Error() }
func (e *notLeader) Unwrap() error { return e.err }

var refusalCodes = map[pb.Refusal]schema.Code{
	pb.Refusal_REFUSAL_NOT_LEADER:      schema.NotLeader,
	pb.Refusal_REFUSAL_EXPIRED:         schema.DeadlineExpired,
	pb.Refusal_REFUSAL_UNKNOWN_COMMAND: schema.UnknownCommand,
	pb.Refusal_REFUSAL_TOO_LARGE:       schema.TooLarge,
	pb.Refusal_REFUSAL_UNAVAILABLE:     schema.Unavailable,
}
