package sim

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"

	"pulse/cluster/clock"
	"pulse/fsm"
	"pulse/fsm/state"
)

// disk is what is left of a node when its process is gone. Term, vote and what
// the log has synced survive everything; the machine's store is never synced
// entry by entry, so a power loss takes it back to an image of earlier.
type disk struct {
	dir   string // of the machine
	image string // copy of its store as of some earlier index; "" before the first

	term uint64
	vote int // -1: none in this term

	base, baseTerm uint64 // entries up to here have left the log
	log            []*entry
	synced         uint64

	snaps []*snap // oldest first
}

// snap is a snapshot: a checkpoint made here, or a stream that was received.
type snap struct {
	fs          vfs.FS
	index, term uint64 // its place in the log
	header      state.Header
	dir         string
	stream      []byte
	digest      [32]byte // of the rows it was made from
}

func (p *snap) open() ([]byte, error) {
	if p.stream != nil {
		return p.stream, nil
	}
	var b bytes.Buffer
	h, err := state.WriteStreamIn(p.fs, p.dir, &b)
	if err != nil {
		return nil, err
	}
	if !h.SameState(p.header) {
		return nil, fmt.Errorf("the checkpoint is of %+v, it was made of %+v", h, p.header)
	}
	p.stream = b.Bytes()
	return p.stream, nil
}

const snapsKept = 2

// node is a voter: its process, its disk, and what it holds while it runs. Its
// gateway lives in the same process.
type node struct {
	s      *sim
	number int
	p      *proc
	d      *disk

	m        *fsm.Machine
	r        *raft
	clock    *clock.Leader
	told     told    // by the entries of this life
	office   *office // nil out of office
	inOffice bool    // effects are for this node's courier
	gw       *gateway

	replayTo    uint64 // entries up to here were in the log when the process started
	seen        uint64 // newest index that went through apply
	waits       []wait
	snapping    bool
	channelFree int64  // when the log takes the next entry out of its channel
	imaged      uint64 // applied index of the image
	following   bool   // a look at who leads is on the calendar
	abstains    int64  // until when it does not stand for election

	slowDisk, slowApply int64 // made slow on purpose
}

// wait is for an index to be applied.
type wait struct {
	index uint64
	done  func()
}

func (s *sim) newNode(number int, h *host) *node {
	n := &node{s: s, number: number, p: &proc{name: fmt.Sprintf("n%d", number), host: h}}
	n.d = &disk{dir: s.dir(n.p.name), vote: -1}
	return n
}

func (n *node) syncTime() int64  { return n.s.between(50, 3*millis) + n.slowDisk }
func (n *node) applyTime() int64 { return n.s.between(0, 2*millis) + n.slowApply }

// start is the start of the process on what its disk holds.
func (n *node) start() {
	s, d := n.s, n.d
	s.start(n.p)
	// Most of the time would go into files of a few rows each; one seed in four has
	// them as servers do.
	m, err := fsm.Open(fsm.Options{FS: s.fs, Dir: d.dir, NodeID: n.p.name, MemTableBytes: 256 << 10, FewFiles: s.seed%4 != 0})
	must(err)
	n.m = m
	last := d.base + uint64(len(d.log))
	if k := len(d.snaps); k > 0 {
		newest := d.snaps[k-1]
		if m.AppliedIndex() < newest.header.AppliedIndex {
			n.restore(newest)
		}
		last = max(last, newest.index)
		if newest.index > d.base {
			at := int(newest.index - d.base)
			if at > len(d.log) || d.log[at-1].term != newest.term {
				// The process died between the snapshot and the log.
				d.log, d.base, d.baseTerm, d.synced = nil, newest.index, newest.term, newest.index
			}
		}
	}
	if applied := m.AppliedIndex(); applied > last {
		s.fail("C6 no gap", "%s starts with a state at %d; its log and snapshots end at %d", n.p.name, applied, last)
	}
	s.say("%s starts: state %d, log %d to %d, term %d", n.p.name, m.AppliedIndex(), d.base, d.base+uint64(len(d.log)), d.term)
	s.judge.opened(n)
	n.clock, n.told = newClock(n, m.Clock()), told{}
	n.replayTo, n.seen = last, m.AppliedIndex()
	n.waits, n.snapping, n.following, n.inOffice, n.office = nil, false, false, false, nil
	n.abstains = 0
	n.r = newRaft(n)
	n.gw = s.openGateway(n.number, n.p, n)
}

// crash ends the process: killed, or its host lost power. Then what was not
// synced is gone, too.
func (n *node) crash(power bool) {
	if !n.p.up {
		return
	}
	how := "is killed"
	if power {
		how = "loses power"
	}
	n.s.say("%s %s at state %d", n.p.name, how, n.m.AppliedIndex())
	n.s.judge.count("node " + how)
	n.s.kill(n.p)
	n.s.hangUp(n.p, power)
	must(n.m.Close())
	ahead := n.r.ahead
	n.m, n.r, n.office, n.inOffice = nil, nil, nil, false
	switch {
	case power:
		n.losePower()
	case ahead > n.d.synced:
		n.loseMemory()
	}
	if n.s.chance(25) {
		n.leaveHalfARestore()
	}
}

// loseMemory cuts the log somewhere behind what is durable: entries that a leader had
// stored ahead of its disk are written when their turn comes.
func (n *node) loseMemory() {
	d := n.d
	end := d.base + uint64(len(d.log))
	if kept := uint64(n.s.between(int64(d.synced), int64(end))); kept < end {
		d.log = d.log[:kept-d.base]
		n.s.say("%s loses its log from %d to %d", n.p.name, kept+1, end)
		n.s.judge.count("entries lost ahead of a disk")
	}
}

// losePower takes the store back to its image and cuts the log where it was
// synced.
func (n *node) losePower() {
	d := n.d
	if cut := d.base + uint64(len(d.log)); cut > d.synced {
		d.log = d.log[:d.synced-d.base]
		n.s.say("%s loses its log from %d to %d", n.p.name, d.synced+1, cut)
	}
	must(n.s.fs.RemoveAll(d.dir))
	d.dir = n.s.dir(n.p.name)
	if d.image == "" {
		return // nothing was ever flushed
	}
	fs := n.s.fs
	must(fs.MkdirAll(d.dir, 0o700))
	_, err := vfs.Clone(fs, fs, d.image, fs.PathJoin(d.dir, "store-000001"))
	must(err)
	writeFile(fs, fs.PathJoin(d.dir, "CURRENT"), "1\n")
}

// leaveHalfARestore leaves what a restore had made when the process died in it.
func (n *node) leaveHalfARestore() {
	fs := n.s.fs
	current, err := fs.Open(fs.PathJoin(n.d.dir, "CURRENT"))
	if err != nil {
		return // an empty disk
	}
	var gen int
	_, err = fmt.Fscan(current, &gen)
	must(errors.Join(err, current.Close()))
	half := fs.PathJoin(n.d.dir, fmt.Sprintf("store-%06d", gen+1))
	must(fs.MkdirAll(half, 0o700))
	writeFile(fs, fs.PathJoin(half, "MANIFEST-000001"), "half")
	writeFile(fs, fs.PathJoin(n.d.dir, "CURRENT.tmp"), fmt.Sprint(gen+1))
}

func writeFile(fs vfs.FS, name, text string) {
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	must(err)
	_, err = f.Write([]byte(text))
	must(errors.Join(err, f.Close()))
}

// restart starts the process again after a while.
func (n *node) restart(after int64) {
	n.s.after(nil, after, func() {
		if !n.p.up {
			n.start()
		}
	})
}

// apply is what the log does with a committed entry. The answer is nil if the
// machine did nothing with it.
func (n *node) apply(e *entry) *fsm.Outcome {
	n.s.judge.committed(n, e)
	if e.kind != kindCommand {
		return nil
	}
	if e.index <= n.m.AppliedIndex() {
		if n.s.chance(20) { // the machine has to know it by itself, too
			if out := n.m.Apply(e.index, e.term, e.data); !out.Skipped {
				n.s.fail("C6 applied once", "%s applies entry %d again at state %d", n.p.name, e.index, n.m.AppliedIndex())
			}
		}
		n.advance(e.index)
		return nil
	}
	out := n.m.Apply(e.index, e.term, e.data)
	n.clock.Applied(out.Time, e.index > n.replayTo)
	if e.index > n.replayTo && out.Time > n.told.by(n.s.now) {
		n.told = told{out.Time, n.s.now}
	}
	n.s.judge.applied(n, e, &out)
	if n.inOffice && n.office != nil {
		n.office.courier.offer(out.Effects)
	}
	n.advance(e.index)
	n.mayImage()
	return &out
}

// advance lets those go on who wait for an index.
func (n *node) advance(index uint64) {
	n.seen = max(n.seen, index)
	for i := 0; i < len(n.waits); {
		if w := n.waits[i]; w.index <= n.seen {
			n.waits = append(n.waits[:i:i], n.waits[i+1:]...)
			w.done()
		} else {
			i++
		}
	}
}

func (n *node) awaitIndex(index uint64, done func()) {
	if index <= n.seen {
		done()
		return
	}
	n.waits = append(n.waits, wait{index, done})
}

// maySnapshot makes a snapshot when enough has been applied since the last.
func (n *node) maySnapshot(e *entry) {
	last := uint64(0)
	if k := len(n.d.snaps); k > 0 {
		last = n.d.snaps[k-1].index
	}
	if n.snapping || e.index < last+uint64(n.s.knobs.snapshotEvery) || n.m.AppliedIndex() == 0 {
		return
	}
	n.snapping = true
	made := &snap{fs: n.s.fs, index: e.index, term: e.term, dir: n.s.dir("snapshot"), digest: rowsDigest(n.m)}
	var err error
	made.header, err = n.m.Checkpoint(made.dir)
	must(err)
	n.s.after(n.p, n.s.between(millis, 150*millis), func() {
		n.snapping = false
		if k := len(n.d.snaps); k > 0 && n.d.snaps[k-1].index >= made.index {
			return // a newer one was received meanwhile
		}
		must(n.m.Flush())
		n.takeImage()
		n.keep(made)
		n.s.say("%s has a snapshot at %d", n.p.name, made.index)
		n.s.judge.count("snapshots")
		n.r.compact(made.index)
	})
}

func (n *node) keep(made *snap) {
	n.d.snaps = append(n.d.snaps, made)
	if extra := len(n.d.snaps) - snapsKept; extra > 0 {
		n.d.snaps = append([]*snap(nil), n.d.snaps[extra:]...)
	}
}

// mayImage lets the store write something back by itself, as it does when it
// likes.
func (n *node) mayImage() {
	if n.m.AppliedIndex() >= n.imaged+60 && n.s.chance(5) {
		n.takeImage()
	}
}

func (n *node) takeImage() {
	dir := n.s.dir("image")
	h, err := n.m.Checkpoint(dir)
	must(err)
	if n.d.image != "" {
		must(n.s.fs.RemoveAll(n.d.image))
	}
	n.d.image, n.imaged = dir, h.AppliedIndex
}

// receive takes a snapshot from the leader. It says no if the snapshot is
// damaged or the node dies in the middle of it.
func (n *node) receive(from *snap, stream []byte) bool {
	if _, err := state.VerifyStream(bytes.NewReader(stream)); err != nil {
		hash, applied := n.m.StateHash(), n.m.AppliedIndex()
		if n.m.Restore(bytes.NewReader(stream), from.index) == nil {
			n.s.fail("C2 snapshot", "%s restores a damaged snapshot (%v)", n.p.name, err)
		}
		if !bytes.Equal(hash, n.m.StateHash()) || applied != n.m.AppliedIndex() {
			n.s.fail("C2 snapshot", "%s refused a damaged snapshot and is at %d, before at %d", n.p.name, n.m.AppliedIndex(), applied)
		}
		n.s.say("%s refuses a damaged snapshot", n.p.name)
		n.s.judge.count("damaged snapshots")
		return false
	}
	got := &snap{index: from.index, term: from.term, header: from.header, stream: stream, digest: from.digest}
	n.keep(got)
	if n.s.chance(n.s.knobs.dieInstalling) && !n.s.healed {
		n.crash(n.s.chance(50))
		n.restart(n.s.between(100*millis, 4*second))
		return false
	}
	n.restore(got)
	n.clock.Applied(n.m.Clock(), false)
	n.advance(got.index)
	return true
}

// restore replaces the state by a snapshot's.
func (n *node) restore(from *snap) {
	stream, err := from.open()
	must(err)
	if err := n.m.Restore(bytes.NewReader(stream), from.index); err != nil {
		n.s.fail("C2 snapshot", "%s cannot restore the snapshot at %d: %v", n.p.name, from.index, err)
	}
	n.s.say("%s restores the snapshot at %d, state %x", n.p.name, from.index, n.m.StateHash()[:6])
	n.s.judge.count("restores")
	if n.m.AppliedIndex() != from.index {
		n.s.fail("C2 snapshot", "%s restored a snapshot at %d and is at %d", n.p.name, from.index, n.m.AppliedIndex())
	}
	if rowsDigest(n.m) != from.digest {
		n.s.fail("C2 snapshot", "%s restored the snapshot at %d; its rows are not those it was made from", n.p.name, from.index)
	}
	n.s.judge.opened(n)
	n.takeImage() // a restore is synced
}

// rowsDigest is a hash over all rows but the one that says where the state
// stands.
func rowsDigest(m *fsm.Machine) [32]byte {
	h := sha256.New()
	must(m.Rows(func(key, value []byte) bool {
		if key[0] != 'M' {
			_, _ = fmt.Fprintf(h, "%d %d ", len(key), len(value)) // a hash never fails
			_, _ = h.Write(key)
			_, _ = h.Write(value)
		}
		return true
	}))
	return [32]byte(h.Sum(nil))
}
