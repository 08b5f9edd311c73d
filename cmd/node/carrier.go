package node

import (
	"context"
	"fmt"
	"sync/atomic"

	"pulse/gateway/session"
	pb "pulse/proto/pulse/v1"
	"pulse/rpc"
)

// inbox takes deliveries for the sessions of this process. The log and the rpc
// port are there before the hub: what arrives until then is told again.
type inbox struct {
	hub atomic.Pointer[session.Hub]
}

// Deliver implements rpc.Inbox.
func (b *inbox) Deliver(batch []*pb.Delivery) {
	if hub := b.hub.Load(); hub != nil {
		hub.Deliver(batch)
	}
}

// carrier hands the courier's deliveries to the gateway that holds the session,
// this one or another.
type carrier struct {
	self    string
	inbox   *inbox
	mailbox *rpc.Mailbox
}

func newCarrier(self string, links *links) *carrier {
	c := &carrier{self: self, inbox: &inbox{}}
	var peers *rpc.Peers
	if links != nil {
		peers = links.peers
	}
	c.mailbox = rpc.NewMailbox(self, c.inbox, peers)
	return c
}

// Carry implements duty.Carrier.
func (c *carrier) Carry(ctx context.Context, gatewayID string, batch []*pb.Delivery) error {
	if gatewayID == c.self && c.inbox.hub.Load() == nil {
		return fmt.Errorf("gateway %q is not open yet", gatewayID)
	}
	return c.mailbox.Carry(ctx, gatewayID, batch)
}
