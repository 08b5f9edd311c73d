package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"

	pb "pulse/proto/pulse/v1"
)

// deliverTimeout bounds one batch to one gateway; what it does not take is told
// again later.
const deliverTimeout = 5 * time.Second

// Mailbox carries deliveries from the leader to the gateways that hold the
// sessions: over a stream to another node, or straight to the Inbox here.
type Mailbox struct {
	self  string
	inbox Inbox
	peers *Peers

	mu      sync.Mutex // guards streams
	streams map[string]*mailStream
}

// mailStream is the open stream to one gateway. Batches follow one another: the
// courier has one goroutine for each gateway.
type mailStream struct {
	mu     sync.Mutex // held while a batch is on its way
	stream grpc.BidiStreamingClient[pb.DeliverRequest, pb.DeliverResponse]
	cancel context.CancelFunc
	batch  uint64
}

// NewMailbox makes the mailbox of node self. peers may be nil for a lone node.
func NewMailbox(self string, inbox Inbox, peers *Peers) *Mailbox {
	return &Mailbox{self: self, inbox: inbox, peers: peers, streams: map[string]*mailStream{}}
}

// Carry brings a batch to a gateway. An error says that it may not have arrived.
func (m *Mailbox) Carry(ctx context.Context, gatewayID string, batch []*pb.Delivery) error {
	if gatewayID == m.self {
		m.inbox.Deliver(batch)
		return nil
	}
	if m.peers == nil {
		return fmt.Errorf("gateway %s is not this node, and there are no others", gatewayID)
	}
	m.mu.Lock()
	s := m.streams[gatewayID]
	if s == nil {
		s = &mailStream{}
		m.streams[gatewayID] = s
	}
	m.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	err := m.send(ctx, gatewayID, s, batch)
	if err != nil {
		if s.stream != nil {
			s.cancel()
			s.stream = nil
		}
		// The gateway may be gone for good, and others come under new names.
		m.mu.Lock()
		if m.streams[gatewayID] == s {
			delete(m.streams, gatewayID)
		}
		m.mu.Unlock()
	}
	return err
}

func (m *Mailbox) send(ctx context.Context, gatewayID string, s *mailStream, batch []*pb.Delivery) error {
	if s.stream == nil {
		_, conn, err := m.peers.conn(gatewayID)
		if err != nil {
			return err
		}
		streamCtx, cancel := context.WithCancel(m.peers.ctx)
		if s.stream, err = pb.NewNodeServiceClient(conn).Deliver(streamCtx); err != nil {
			cancel()
			s.stream = nil
			return fmt.Errorf("gateway %s: %w", gatewayID, err)
		}
		s.cancel = cancel
	}
	// A stream's calls know no deadline of their own: ending the stream is how
	// one that hangs is left.
	timer := time.AfterFunc(deliverTimeout, s.cancel)
	defer timer.Stop()
	stop := context.AfterFunc(ctx, s.cancel)
	defer stop()
	s.batch++
	if err := s.stream.Send(&pb.DeliverRequest{Batch: s.batch, Deliveries: batch}); err != nil {
		return fmt.Errorf("gateway %s: %w", gatewayID, err)
	}
	answer, err := s.stream.Recv()
	if err != nil {
		return fmt.Errorf("gateway %s: %w", gatewayID, err)
	}
	if answer.Batch != s.batch {
		return errors.New("gateway " + gatewayID + " answered another batch")
	}
	return nil
}
