package node

import (
	"context"
	"slices"
	"time"

	pb "pulse/proto/pulse/v1"
	"pulse/schema/zone"
)

const (
	// zonesEvery is how often the leader looks at the rules that schedules compute
	// with: a schedule that is set through an older node brings older ones.
	zonesEvery = time.Minute
	// zonesAtOnce bounds the zones of one command: each has some hundred numbers.
	zonesAtOnce = 50
)

// renewZones is the duty that brings the rules of time zones of this version into a
// state that has older ones. The rules are in the log, so that all servers compute the
// same times whatever version they run; those of the newest server that has led hold.
func (n *Node) renewZones(ctx context.Context, _ uint64) error {
	tick := time.NewTicker(zonesEvery)
	defer tick.Stop()
	for {
		for names := range slices.Chunk(n.machine.ZonesBefore(zone.Release), zonesAtOnce) {
			n.putZones(ctx, names)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func (n *Node) putZones(ctx context.Context, names []string) {
	put := &pb.PutZones{}
	for _, name := range names {
		spans, ok := zone.Rules(name)
		if !ok { // zones are renamed with a link left behind, so this is not to be
			n.logger.Warn("a time zone of schedules is not in this version: its older rules stay", "zone", name, "release", zone.Release)
			continue
		}
		row := &pb.ZoneRow{Name: name, Release: zone.Release}
		for _, s := range spans {
			row.FromS, row.OffsetS = append(row.FromS, s.FromSeconds), append(row.OffsetS, s.OffsetSeconds)
		}
		put.Zones = append(put.Zones, row)
	}
	if len(put.Zones) == 0 {
		return
	}
	cmd := &pb.Command{Id: make([]byte, 16), Caller: &pb.Caller{Principal: "node/" + n.ID()}, Body: &pb.Command_PutZones{PutZones: put}}
	if _, err := n.raft.Propose(ctx, []*pb.Command{cmd}); err != nil {
		if ctx.Err() == nil {
			n.logger.Warn("newer rules of time zones were not brought, trying again", "zones", names, "error", err)
		}
		return
	}
	n.logger.Info("schedules compute with newer rules of time zones", "zones", names, "release", zone.Release)
}
