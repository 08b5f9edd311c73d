package node

import (
	"context"
	"fmt"
	"sync/atomic"

	"pulse/gateway/session"
	pb "pulse/proto/pulse/v1"
)

// carrier hands the courier's deliveries to the sessions of this process, which
// is the only gateway there is. The log is there before the hub: until then a
// hand-over fails and is repeated.
type carrier struct {
	gateway string
	hub     atomic.Pointer[session.Hub]
}

// Carry implements duty.Carrier.
func (c *carrier) Carry(_ context.Context, gatewayID string, batch []*pb.Delivery) error {
	hub := c.hub.Load()
	if hub == nil || gatewayID != c.gateway {
		return fmt.Errorf("gateway %q is not here", gatewayID)
	}
	hub.Deliver(batch)
	return nil
}
