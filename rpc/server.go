package rpc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

const (
	// callsAtOnce bounds the calls one stream has under way; beyond it the
	// stream is not read, and the other end waits.
	callsAtOnce = 4096
	streamsMax  = 256
	// replyBytesMax bounds a message of replies. A list with payloads may be
	// larger by itself; then it goes in parts.
	replyBytesMax = 4 << 20
	partBytes     = 1 << 20
	// backupChunk is how much of a backup one message carries.
	backupChunk = 256 << 10
)

var (
	errNoReplica = status.Error(codes.Unimplemented, "this node has no replica")
	errTooMuch   = status.Error(codes.ResourceExhausted, "too much is watched")
)

// endOfStream is what a handler returns when its stream has ended.
func endOfStream(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// Local is the node a server answers for. It never forwards: what is asked of
// it here has come one hop already.
type Local interface {
	Leader
	ReadIndex(ctx context.Context) (uint64, error)
	// LeaderID names who leads as far as this node knows; empty if nobody.
	LeaderID() string
	// Describe fills in what the node says of itself.
	Describe(hashIndex uint64) *pb.DescribeResponse
	// Backup writes a checked copy of the node's whole state.
	Backup(ctx context.Context, w io.Writer) error
	Remove(ctx context.Context, nodeID string, force bool) error
	Transfer(ctx context.Context, nodeID string) (leaderID string, err error)
}

// Inbox takes what the leader tells the sessions of this node.
type Inbox interface {
	Deliver(deliveries []*pb.Delivery)
}

// ServerConfig of a Server. All but Feed are required.
type ServerConfig struct {
	Local  Local
	Inbox  Inbox
	Feed   *Feed // that apply publishes to; nil on a node without a replica
	Token  Token
	Logger *slog.Logger
}

// Server answers other nodes.
type Server struct {
	pb.UnimplementedNodeServiceServer
	cfg  ServerConfig
	grpc *grpc.Server
}

// NewServer makes a server; Serve starts it.
func NewServer(cfg ServerConfig) (*Server, error) {
	if cfg.Local == nil || cfg.Inbox == nil || cfg.Logger == nil || cfg.Token.value == "" {
		return nil, errors.New("rpc: Server needs Local, Inbox, Token and Logger")
	}
	opts := []grpc.ServerOption{
		grpc.Creds(shaken{insecure.NewCredentials()}),
		grpc.UnaryInterceptor(cfg.Token.unary),
		grpc.StreamInterceptor(cfg.Token.stream),
		grpc.MaxRecvMsgSize(messageBytesMax), grpc.MaxSendMsgSize(messageBytesMax),
		grpc.MaxConcurrentStreams(streamsMax),
		grpc.StaticStreamWindowSize(windowBytes), grpc.StaticConnWindowSize(connWindowBytes),
		grpc.MaxHeaderListSize(16 << 10),
		grpc.ConnectionTimeout(dialTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: unackedMax, Timeout: unackedMax}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	}
	s := &Server{cfg: cfg, grpc: grpc.NewServer(opts...)}
	pb.RegisterNodeServiceServer(s.grpc, s)
	return s, nil
}

// Serve answers on the listener until Close. Who may connect is the listener's
// decision: it hands out connections that have shaken hands, or, on loopback,
// plain ones.
func (s *Server) Serve(l net.Listener) error {
	if err := s.grpc.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("rpc at %s: %w", l.Addr(), err)
	}
	return nil
}

// Close ends every stream and returns when no handler runs any more.
func (s *Server) Close() { s.grpc.Stop() }

// Forward answers the calls of one other node.
func (s *Server) Forward(stream grpc.BidiStreamingServer[pb.ForwardRequest, pb.ForwardResponse]) error {
	f := &forward{
		server: s, stream: stream, wake: make(chan struct{}, 1), slots: make(chan struct{}, callsAtOnce),
		stopped: make(chan struct{}),
	}
	var sending sync.WaitGroup
	sending.Go(f.send)
	err := f.receive()
	f.calls.Wait()
	close(f.stopped)
	sending.Wait()
	return err
}

// forward is the server's end of one stream.
type forward struct {
	server  *Server
	stream  grpc.BidiStreamingServer[pb.ForwardRequest, pb.ForwardResponse]
	calls   sync.WaitGroup
	slots   chan struct{}
	wake    chan struct{} // capacity 1
	stopped chan struct{}

	mu    sync.Mutex // guards ready
	ready []*pb.ForwardReply
}

func (f *forward) receive() error {
	for {
		msg, err := f.stream.Recv()
		if err != nil {
			return endOfStream(err)
		}
		for _, call := range msg.Calls {
			f.slots <- struct{}{} // bounded: answers free the slots
			f.calls.Go(func() {
				f.put(f.server.answer(f.stream.Context(), call))
				<-f.slots
			})
		}
	}
}

func (f *forward) put(r *pb.ForwardReply) {
	f.mu.Lock()
	f.ready = append(f.ready, r)
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// send sends replies that have gathered, many in one message.
func (f *forward) send() {
	for {
		select {
		case <-f.stopped:
			return
		case <-f.wake:
			runtime.Gosched() // whoever is about to answer gets to; nobody is waited for
		}
		f.mu.Lock()
		ready := f.ready
		f.ready = nil
		f.mu.Unlock()
		for len(ready) > 0 {
			n, bytes := 0, 0
			for n < len(ready) && n < callsPerMessage {
				if bytes += proto.Size(ready[n]); n > 0 && bytes > replyBytesMax {
					break
				}
				n++
			}
			if err := f.reply(ready[:n]); err != nil {
				return // Recv fails too and ends the stream
			}
			ready = ready[n:]
		}
	}
}

// reply sends replies in one message, or one that is too large for it in parts.
func (f *forward) reply(replies []*pb.ForwardReply) error {
	if len(replies) > 1 || proto.Size(replies[0]) <= replyBytesMax {
		return f.stream.Send(&pb.ForwardResponse{Replies: replies})
	}
	data, err := proto.Marshal(replies[0])
	if err != nil {
		return err
	}
	for len(data) > 0 {
		n := min(len(data), partBytes)
		part := &pb.ReplyPart{Data: data[:n], Last: n == len(data)}
		data = data[n:]
		msg := &pb.ForwardReply{Call: replies[0].Call, Body: &pb.ForwardReply_Part{Part: part}}
		if err := f.stream.Send(&pb.ForwardResponse{Replies: []*pb.ForwardReply{msg}}); err != nil {
			return err
		}
	}
	return nil
}

// answer serves one call. What it refuses has not happened.
func (s *Server) answer(ctx context.Context, call *pb.ForwardCall) *pb.ForwardReply {
	reply := &pb.ForwardReply{Call: call.Call}
	if call.V != channelVersion {
		reply.Body = refused(pb.Refusal_REFUSAL_UNKNOWN_COMMAND, "", fmt.Sprintf("channel version %d is not known here", call.V))
		return reply
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(call.TimeoutMs)*time.Millisecond)
	defer cancel()
	switch b := call.Body.(type) {
	case *pb.ForwardCall_Commands:
		if unknown(b.Commands.Commands) {
			reply.Body = refused(pb.Refusal_REFUSAL_UNKNOWN_COMMAND, "", "a command is not known here; upgrade this node")
			break
		}
		results, err := s.cfg.Local.Propose(ctx, b.Commands.Commands)
		if err != nil {
			s.fail(reply, err)
			break
		}
		reply.Body = &pb.ForwardReply_Results{Results: &pb.ResultBatch{Results: results}}
	case *pb.ForwardCall_Query:
		answer, err := s.cfg.Local.Query(ctx, b.Query)
		if err != nil {
			s.fail(reply, err)
			break
		}
		reply.Body = &pb.ForwardReply_Answer{Answer: answer}
	case *pb.ForwardCall_ReadIndex:
		index, err := s.cfg.Local.ReadIndex(ctx)
		if err != nil {
			s.fail(reply, err)
			break
		}
		reply.Body = &pb.ForwardReply_ReadIndex{ReadIndex: &pb.ReadIndexAnswer{Index: index}}
	default:
		reply.Body = refused(pb.Refusal_REFUSAL_UNKNOWN_COMMAND, "", "the call is not known here")
	}
	return reply
}

// unknown says that a newer node sent a command this version does not know.
func unknown(cmds []*pb.Command) bool {
	for _, c := range cmds {
		if c.Body == nil {
			return true
		}
	}
	return false
}

func refused(r pb.Refusal, leaderID, message string) *pb.ForwardReply_Refused {
	return &pb.ForwardReply_Refused{Refused: &pb.Refused{Refusal: r, LeaderId: leaderID, Message: message}}
}

// fail answers with what went wrong; an error without a code promises nothing.
func (s *Server) fail(reply *pb.ForwardReply, err error) {
	var e *schema.Error
	if !errors.As(err, &e) {
		e = &schema.Error{Code: schema.ResultUnknown, Message: err.Error()}
	}
	for refusal, code := range refusalCodes {
		if code == e.Code {
			reply.Body = refused(refusal, s.cfg.Local.LeaderID(), e.Message)
			return
		}
	}
	reply.Body = &pb.ForwardReply_Failure{Failure: &pb.Failure{Code: string(e.Code), Message: e.Message}}
}

// Deliver hands what the leader says to the sessions here. The answer says that
// it has arrived at this node, nothing more: the leader repeats what is not
// taken up.
func (s *Server) Deliver(stream grpc.BidiStreamingServer[pb.DeliverRequest, pb.DeliverResponse]) error {
	for {
		msg, err := stream.Recv()
		if err != nil {
			return endOfStream(err)
		}
		s.cfg.Inbox.Deliver(msg.Deliveries)
		if err := stream.Send(&pb.DeliverResponse{Batch: msg.Batch}); err != nil {
			return err
		}
	}
}

// Backup streams a copy of this node's state. One that fails on the way ends with
// an error instead of its end.
func (s *Server) Backup(_ *pb.BackupRequest, stream grpc.ServerStreamingServer[pb.BackupResponse]) error {
	out := bufio.NewWriterSize(backupWriter{stream}, backupChunk)
	err := s.cfg.Local.Backup(stream.Context(), out)
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		return toStatus(err)
	}
	return nil
}

type backupWriter struct {
	stream grpc.ServerStreamingServer[pb.BackupResponse]
}

func (b backupWriter) Write(p []byte) (int, error) {
	for sent := 0; sent < len(p); sent += backupChunk {
		if err := b.stream.Send(&pb.BackupResponse{Data: p[sent:min(sent+backupChunk, len(p))]}); err != nil {
			return sent, err
		}
	}
	return len(p), nil
}

// Describe tells what this node is.
func (s *Server) Describe(_ context.Context, req *pb.DescribeRequest) (*pb.DescribeResponse, error) {
	return s.cfg.Local.Describe(req.HashIndex), nil
}

// Remove takes a server out of the voters.
func (s *Server) Remove(ctx context.Context, req *pb.RemoveRequest) (*pb.RemoveResponse, error) {
	if err := s.cfg.Local.Remove(ctx, req.NodeId, req.Force); err != nil {
		return nil, toStatus(err)
	}
	return &pb.RemoveResponse{}, nil
}

// Transfer hands leadership over.
func (s *Server) Transfer(ctx context.Context, req *pb.TransferRequest) (*pb.TransferResponse, error) {
	id, err := s.cfg.Local.Transfer(ctx, req.NodeId)
	if err != nil {
		return nil, toStatus(err)
	}
	return &pb.TransferResponse{LeaderId: id}, nil
}

// toStatus and fromStatus carry a public code through a unary call: the code
// travels in front of the message.
func toStatus(err error) error {
	var e *schema.Error
	if !errors.As(err, &e) {
		return status.Error(codes.Internal, err.Error())
	}
	return status.Error(codes.FailedPrecondition, string(e.Code)+": "+e.Message)
}

func fromStatus(err error) error {
	if err == nil {
		return nil
	}
	st := status.Convert(err)
	if st.Code() == codes.FailedPrecondition {
		if code, message, ok := strings.Cut(st.Message(), ": "); ok {
			return &schema.Error{Code: schema.Code(code), Message: message}
		}
	}
	if st.Code() == codes.Unavailable {
		return &schema.Error{Code: schema.NotLeader, Message: st.Message()}
	}
	return err
}
