package state

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	pb "pulse/proto/pulse/v1"
)

// An Incarnation is a new cluster that begins with the state of a lost one.
type Incarnation struct {
	ClusterID []byte // of the new cluster
	// FenceBase is below every fencing number of the new cluster, and above
	// whatever the lost one can have issued.
	FenceBase uint64
	// Index is where the state stands in the new cluster's log, above the index
	// it had.
	Index uint64
	Term  uint64 // of that log
	// TrustWaiting says that the lost cluster has run nothing that the state
	// shows as not started.
	TrustWaiting bool
}

const (
	// fenceRoom is what a restore adds to the old fence base at the least: more
	// entries than a cluster can have written since the backup.
	fenceRoom = 1 << 40
	// fencePerMilli is how many numbers a millisecond is worth: many more than a
	// cluster can write entries in it, so that a later restore is above whatever
	// an earlier one has led to.
	fencePerMilli = 1 << 20
	// openingsBeyond is how far the count of term openings jumps: no lease of the
	// lost cluster is extended by an election in the new one.
	openingsBeyond = 1000
)

// FenceBaseAfter is the fence base for a restore of the state in h at a time by
// the wall clock. It is above max(old + 2^40, Unix milliseconds * 2^20), and of
// two restores of one backup the later one gets the larger: also soon after an
// earlier restore, where neither of the two terms alone would tell them apart.
// An error says that the wall clock cannot be right.
func FenceBaseAfter(h Header, wall time.Time) (uint64, error) {
	now, then := wall.UnixMilli(), h.ClockUs/1000
	const slack = fenceRoom / fencePerMilli // milliseconds
	if now < then-slack {
		return 0, fmt.Errorf("the wall clock says %s, but the backup is of %s: set the clock right, or give a fence base above everything the lost cluster and earlier restores of this backup can have issued",
			wall.UTC().Format(time.RFC3339), time.UnixMicro(h.ClockUs).UTC().Format(time.RFC3339))
	}
	since := uint64(now-then+slack) * fencePerMilli
	return max(h.FenceBase+fenceRoom+since, uint64(now)*fencePerMilli), nil
}

// BeginIncarnation makes the state in dir, which nobody has open, that of a new
// cluster. Only the meta row changes: what was handed out is told from what will
// be by its number.
func BeginIncarnation(dir string, in Incarnation) (_ Header, err error) {
	if err := checkManifest(dir, vfs.Default); err != nil {
		return Header{}, err
	}
	options := StoreOptions()
	options.ErrorIfNotExists = true
	options.FS = vfs.Default
	sealManifests(options, dir)
	db, err := pebble.Open(dir, options)
	if err != nil {
		return Header{}, fmt.Errorf("open state store %s: %w", dir, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	m := &pb.MetaRow{}
	found, err := getRow(db, MetaKey, m)
	switch {
	case err != nil:
		return Header{}, err
	case !found || len(m.ClusterId) == 0:
		return Header{}, errors.New("the state is empty: no cluster has begun with it")
	case in.FenceBase < m.FenceBase+fenceRoom:
		return Header{}, fmt.Errorf("the fence base %d is too small: the lost cluster began at %d, give at least %d", in.FenceBase, m.FenceBase, m.FenceBase+fenceRoom)
	case in.FenceBase > 1<<62:
		return Header{}, fmt.Errorf("the fence base %d leaves too little room above it: give at most %d", in.FenceBase, uint64(1)<<62)
	case in.Index <= m.AppliedIndex:
		return Header{}, fmt.Errorf("the state is at log index %d already, above %d", m.AppliedIndex, in.Index)
	case bytes.Equal(in.ClusterID, m.ClusterId):
		return Header{}, errors.New("a new cluster needs an id of its own")
	}
	begin(m, in)
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return Header{}, fmt.Errorf("encode meta row: %w", err)
	}
	if err := errors.Join(db.Set(MetaKey, data, pebble.NoSync), db.Flush()); err != nil {
		return Header{}, fmt.Errorf("write meta row: %w", err)
	}
	return headerOf(m)
}

func begin(m *pb.MetaRow, in Incarnation) {
	h := sha256.New()
	_, _ = h.Write(append([]byte("pulse incarnation v1"), m.StateHash...)) // a hash never fails
	_, _ = h.Write(in.ClusterID)
	_, _ = h.Write(binary.BigEndian.AppendUint64(nil, in.FenceBase))
	_, _ = h.Write(binary.BigEndian.AppendUint64(nil, in.Index))
	m.StateHash = h.Sum(nil)

	opening := uint64(openingsBeyond)
	if n := len(m.Openings); n > 0 {
		opening += m.Openings[n-1].Count
	}
	m.Openings = []*pb.Opening{{Count: opening, TimeUs: m.ClockUs, Term: in.Term}}
	m.ClusterId, m.FenceBase = in.ClusterID, in.FenceBase
	m.AppliedIndex, m.AppliedTerm = in.Index, in.Term
	if !in.TrustWaiting {
		m.RestoredClockUs = m.ClockUs
	}
	m.ClockUs++ // what changes from here on can be told from what has not
}
