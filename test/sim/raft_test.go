package sim

import (
	"slices"

	"pulse/fsm"
)

// Times of the log, as the cluster sets them by default.
const (
	heartbeatEvery  = 150 * millis
	leaderLease     = 500 * millis
	electionTimeout = 1 * second // up to twice as long
	installTimeout  = 2 * second
	transferTimeout = 1 * second
	appendMost      = 64
	applyMost       = 16
)

// Kinds of log entries. Only commands reach the machine.
const (
	kindNoop byte = iota
	kindBarrier
	kindCommand
)

// entry is one of the log. origin is the simulator's knowledge of who proposed
// it and when; no node looks at it.
type entry struct {
	index, term uint64
	kind        byte
	data        []byte
	origin      *origin
}

type origin struct {
	office *office
	at     int64 // virtual time at which the office read its clock
}

// future is what a leader owes whoever proposed an entry. code is empty for
// success, else not_leader (nothing happened) or result_unknown.
type future struct {
	index, term uint64
	done        func(out *fsm.Outcome, code string)
}

type role uint8

const (
	follower role = iota
	candidate
	leader
)

func (r role) String() string { return [...]string{"follower", "candidate", "leader"}[r] }

// raft is the log of one node while its process lives. What survives is in disk.
type raft struct {
	s *sim
	n *node
	d *disk

	role     role
	leaderID int   // -1: not known
	heard    int64 // when the leader was heard last, or an election begun
	patience int64 // how long to wait for the next word
	round    int   // of elections, to tell late answers
	votes    int

	commit, applied uint64
	applying        bool
	ahead           uint64   // the last entry that this node has stored ahead of its disk as a leader
	calls           []func() // of other servers, to be looked at once that is durable

	// of a leader
	next, match  [3]uint64
	contact      [3]int64
	busy         [3]bool
	installing   [3]int64 // until when a snapshot is on its way
	verified     [3]uint64
	verifying    uint64
	checks       []check
	futures      []future
	transferring bool
}

// check is a wish to know that this node still leads.
type check struct {
	round uint64
	done  func(ok bool)
}

func newRaft(n *node) *raft {
	r := &raft{s: n.s, n: n, d: n.d, leaderID: -1, heard: n.s.now}
	r.patience = r.s.between(electionTimeout, 2*electionTimeout)
	if k := len(r.d.snaps); k > 0 {
		r.applied = r.d.snaps[k-1].index
	}
	r.commit = r.applied
	r.s.every(n.p, func() int64 { return r.s.between(50*millis, 150*millis) }, func() bool { r.look(); return true })
	r.s.every(n.p, fixed(heartbeatEvery), func() bool {
		if r.s.now >= n.p.dozes {
			r.beat()
		}
		return true
	})
	return r
}

func (r *raft) lastIndex() uint64 { return r.d.base + uint64(len(r.d.log)) }

func (r *raft) at(index uint64) *entry { return r.d.log[index-r.d.base-1] }

// termAt is the term of an entry; ok is false if it has left the log or is not
// in it yet.
func (r *raft) termAt(index uint64) (term uint64, ok bool) {
	switch {
	case index == r.d.base:
		return r.d.baseTerm, true
	case index < r.d.base || index > r.lastIndex():
		return 0, false
	}
	return r.at(index).term, true
}

func (r *raft) lastTerm() uint64 {
	t, _ := r.termAt(r.lastIndex())
	return t
}

func (r *raft) others() []int { return [...][]int{{1, 2}, {0, 2}, {0, 1}}[r.n.number] }

// call is tell for what another server asks, which is looked at once all that the
// node has stored ahead of its disk is durable (guard in the cluster).
func (r *raft) call(to int, handle func(*raft)) {
	r.tell(to, func(peer *raft) {
		if len(peer.calls) == 0 && peer.settled() {
			handle(peer)
			return
		}
		peer.calls = append(peer.calls, func() { handle(peer) })
	})
}

// settled says that nothing is stored ahead of the disk.
func (r *raft) settled() bool { return r.ahead <= r.d.synced }

// answerCalls looks at what had to wait.
func (r *raft) answerCalls() {
	for len(r.calls) > 0 && r.settled() && r.n.p.up {
		handle := r.calls[0]
		r.calls = r.calls[1:]
		handle()
	}
}

// tell sends a message to another node, to be handled by whatever life it is in.
func (r *raft) tell(to int, handle func(*raft)) {
	peer := r.s.nodes[to]
	deliver := func() {
		if peer.r != nil {
			handle(peer.r)
		}
	}
	r.s.datagram(r.n.p, peer.p, func() {
		if r.s.now < peer.p.dozes {
			r.s.at(peer.p.dozes, peer.p, deliver)
			return
		}
		deliver()
	})
}

// --- elections

// look begins an election when no leader has been heard of for too long. The
// others are asked first whether they would vote, so that a node that was cut
// off moves nobody's term.
func (r *raft) look() {
	if r.role == leader || r.s.now-r.heard < r.patience {
		return
	}
	r.heard = r.s.now
	r.patience = r.s.between(electionTimeout, 2*electionTimeout)
	r.leaderID = -1
	if r.n.abstains > r.s.now {
		return
	}
	r.round++
	round, votes, term := r.round, 1, r.d.term+1
	me, last, lastTerm := r.n.number, r.lastIndex(), r.lastTerm()
	for _, i := range r.others() {
		r.call(i, func(peer *raft) {
			yes := peer.role != leader && r.s.now-peer.heard >= electionTimeout && peer.leaderID < 0 && term > peer.d.term && !peer.newer(last, lastTerm)
			known := peer.d.term
			peer.tell(me, func(r *raft) {
				r.seenTerm(known)
				if r.round != round || !yes || r.role == leader || r.d.term+1 != term {
					return
				}
				if votes++; votes == 2 {
					r.stand(false)
				}
			})
		})
	}
}

// newer says that this log has more in it than one that ends as given.
func (r *raft) newer(last, lastTerm uint64) bool {
	mine := r.lastTerm()
	return mine > lastTerm || mine == lastTerm && r.lastIndex() > last
}

// stand asks for votes in a new term. A transfer of leadership asks nodes that
// still hear the old leader, too.
func (r *raft) stand(transfer bool) {
	r.becomeFollower(r.d.term + 1)
	r.role = candidate
	r.d.vote = r.n.number
	r.heard = r.s.now
	r.round++
	r.votes = 1
	term, me, last, lastTerm := r.d.term, r.n.number, r.lastIndex(), r.lastTerm()
	r.s.say("%s stands in term %d", r.n.p.name, term)
	for _, i := range r.others() {
		r.call(i, func(peer *raft) {
			if peer.leaderID >= 0 && peer.s.now-peer.heard < electionTimeout && !transfer {
				return
			}
			peer.seenTerm(term)
			yes := term == peer.d.term && (peer.d.vote < 0 || peer.d.vote == me) && !peer.newer(last, lastTerm)
			if yes {
				peer.d.vote = me
				peer.heard = peer.s.now
			}
			known := peer.d.term
			peer.tell(me, func(r *raft) {
				r.seenTerm(known)
				if r.role != candidate || r.d.term != term || !yes {
					return
				}
				if r.votes++; r.votes == 2 {
					r.lead()
				}
			})
		})
	}
}

// seenTerm steps back before a newer term.
func (r *raft) seenTerm(term uint64) {
	if term > r.d.term {
		r.becomeFollower(term)
		r.leaderID = -1
	}
}

func (r *raft) becomeFollower(term uint64) {
	if term > r.d.term {
		r.d.term, r.d.vote = term, -1
	}
	if r.role == leader {
		r.abdicate("a newer term")
	}
	r.role = follower
}

func (r *raft) lead() {
	r.role, r.leaderID = leader, r.n.number
	r.s.say("%s leads term %d, log to %d", r.n.p.name, r.d.term, r.lastIndex())
	r.s.judge.elected(r.n, r.d.term)
	for i := range r.next {
		r.next[i], r.match[i] = r.lastIndex()+1, 0
		r.contact[i], r.busy[i], r.installing[i], r.verified[i] = r.s.now, false, 0, 0
	}
	r.match[r.n.number] = r.d.synced
	r.verifying, r.checks, r.transferring = 0, nil, false
	r.append(kindNoop, nil, nil, nil)
	r.n.leadershipChanged()
}

// abdicate ends leadership. What was handed over and is not committed has an
// unknown outcome.
func (r *raft) abdicate(why string) {
	r.s.say("%s leads no more: %s", r.n.p.name, why)
	r.role, r.leaderID = follower, -1
	r.heard = r.s.now
	lost := r.futures
	r.futures = nil
	for _, f := range lost {
		if f.index <= r.commit {
			r.futures = append(r.futures, f)
		} else {
			f.done(nil, "result_unknown")
		}
	}
	checks := r.checks
	r.checks = nil
	for _, c := range checks {
		c.done(false)
	}
	r.n.leadershipChanged()
}

// --- replication

// append puts an entry into the leader's log. The term it gets is the log's,
// whatever its proposer thought.
func (r *raft) append(kind byte, data []byte, o *origin, done func(*fsm.Outcome, string)) {
	e := &entry{index: r.lastIndex() + 1, term: r.d.term, kind: kind, data: data, origin: o}
	r.d.log = append(r.d.log, e)
	if done != nil {
		r.futures = append(r.futures, future{e.index, e.term, done})
	}
	stored := func() {
		if r.role != leader || r.d.term != e.term {
			return
		}
		r.ahead = max(r.ahead, r.stored())
		r.match[r.n.number] = max(r.match[r.n.number], r.stored())
		r.advance()
		for _, i := range r.others() {
			if !r.busy[i] {
				r.replicate(i)
			}
		}
	}
	// A leader sends its commands while it writes them, and counts itself (aheadLog
	// in the cluster). Everything else it writes first.
	stored()
	r.sync(e, stored)
}

// stored is the last entry that a leader has on its disk, or ahead of it.
func (r *raft) stored() uint64 {
	to := r.d.synced
	for to < r.lastIndex() && r.at(to+1).kind == kindCommand && r.at(to+1).term == r.d.term {
		to++
	}
	return to
}

// sync makes the log durable up to an entry, and then goes on.
func (r *raft) sync(e *entry, then func()) {
	r.s.after(r.n.p, r.n.syncTime(), func() {
		if t, ok := r.termAt(e.index); ok && t == e.term {
			r.d.synced = max(r.d.synced, e.index)
		}
		then()
		r.applySoon()
		r.answerCalls()
	})
}

// beat is the leader's heartbeat, and where it notices that nobody answers.
func (r *raft) beat() {
	if r.role != leader {
		return
	}
	near := 1
	for _, i := range r.others() {
		if r.s.now-r.contact[i] <= leaderLease {
			near++
		}
	}
	if near < 2 {
		r.abdicate("no majority answers")
		return
	}
	for _, i := range r.others() {
		r.busy[i] = false
		r.replicate(i)
	}
}

// replicate sends a follower what it has not got, or a snapshot if that has left
// the log.
func (r *raft) replicate(i int) {
	prev := r.next[i] - 1
	prevTerm, ok := r.termAt(prev)
	if !ok {
		r.install(i)
		return
	}
	entries := r.d.log[prev-r.d.base : max(prev, r.stored())-r.d.base]
	entries = slices.Clone(entries[:min(len(entries), appendMost)])
	r.busy[i] = len(entries) > 0
	// What is not durable here is committed for nobody yet.
	me, term, commit, round := r.n.number, r.d.term, min(r.commit, r.d.synced), r.verifying
	r.call(i, func(peer *raft) { peer.appended(me, term, prev, prevTerm, entries, commit, round) })
}

// appended is a follower's side of replicate.
func (r *raft) appended(from int, term, prev, prevTerm uint64, entries []*entry, commit, round uint64) {
	reply := func(ok bool, match uint64) {
		known := r.d.term
		r.tell(from, func(l *raft) { l.answered(r.n.number, term, known, ok, match, round) })
	}
	if term < r.d.term {
		reply(false, 0)
		return
	}
	if r.role == leader && term == r.d.term {
		r.s.fail("C5 one leader per term", "%s and %s both lead term %d", r.n.p.name, r.s.nodes[from].p.name, term)
	}
	r.becomeFollower(term)
	r.leaderID, r.heard = from, r.s.now
	if prev < r.d.base { // what left the log was committed, so it is the same
		skip := min(r.d.base-prev, uint64(len(entries)))
		prev += skip
		entries = entries[skip:]
		if prev < r.d.base {
			reply(true, r.d.base)
			return
		}
		prevTerm = r.d.baseTerm
	}
	if t, ok := r.termAt(prev); !ok || t != prevTerm {
		reply(false, min(r.lastIndex(), prev-1))
		return
	}
	last := prev
	for _, e := range entries {
		last = e.index
		if t, ok := r.termAt(e.index); ok {
			if t == e.term {
				continue
			}
			r.truncate(e.index)
		}
		r.d.log = append(r.d.log, e)
	}
	settle := func() {
		if to := min(commit, last); to > r.commit {
			r.commit = to
			r.applySoon()
		}
		reply(true, last)
	}
	if last <= max(r.d.synced, r.ahead) { // nothing to write; see call
		settle()
		return
	}
	r.sync(r.at(last), func() {
		// Another leader may have taken the tail away meanwhile.
		if r.d.term == term && last <= r.lastIndex() && last > r.d.base && r.at(last).term == lastTermOf(entries, prevTerm) {
			settle()
		}
	})
}

func lastTermOf(entries []*entry, prevTerm uint64) uint64 {
	if len(entries) == 0 {
		return prevTerm
	}
	return entries[len(entries)-1].term
}

// truncate drops an uncommitted tail.
func (r *raft) truncate(from uint64) {
	if from <= r.commit {
		r.s.fail("C4 committed stays", "%s drops entry %d; %d is committed", r.n.p.name, from, r.commit)
	}
	r.s.say("%s drops its log from %d to %d", r.n.p.name, from, r.lastIndex())
	r.s.judge.count("tails lost")
	r.d.log = slices.Clone(r.d.log[:from-r.d.base-1])
	r.d.synced, r.ahead = min(r.d.synced, from-1), min(r.ahead, from-1)
}

// answered is the leader's side of a follower's answer.
func (r *raft) answered(from int, term, known uint64, ok bool, match, round uint64) {
	r.seenTerm(known)
	if r.role != leader || r.d.term != term {
		return
	}
	r.contact[from] = r.s.now
	r.busy[from] = false
	if r.verified[from] < round {
		r.verified[from] = round
		r.checkVerified()
	}
	if !ok {
		if back := max(min(match+1, r.next[from]), r.match[from]+1); back < r.next[from] {
			r.next[from] = back
			r.replicate(from)
		}
		return
	}
	r.match[from] = max(r.match[from], match)
	r.next[from] = max(r.next[from], r.match[from]+1)
	r.advance()
	if r.next[from] <= r.stored() && !r.busy[from] {
		r.replicate(from)
	}
}

// advance commits what a majority has, of the leader itself what it may yet have to
// write.
func (r *raft) advance() {
	m := r.match
	slices.Sort(m[:])
	to := m[1]
	if to <= r.commit {
		return
	}
	if t, ok := r.termAt(to); !ok || t != r.d.term {
		return
	}
	r.commit = to
	r.applySoon()
}

// verify asks whether this node still leads, beginning now.
func (r *raft) verify(done func(ok bool)) {
	if r.role != leader {
		done(false)
		return
	}
	r.verifying++
	r.checks = append(r.checks, check{r.verifying, done})
	for _, i := range r.others() {
		r.replicate(i)
	}
}

func (r *raft) checkVerified() {
	best := max(r.verified[r.others()[0]], r.verified[r.others()[1]])
	for len(r.checks) > 0 && r.checks[0].round <= best {
		done := r.checks[0].done
		r.checks = r.checks[1:]
		done(true)
	}
}

// transfer hands leadership to a follower that has everything.
func (r *raft) transfer(to int) {
	if r.role != leader || r.transferring || r.match[to] != r.lastIndex() {
		return
	}
	r.transferring = true
	term := r.d.term
	r.s.say("%s hands leadership to n%d", r.n.p.name, to)
	r.call(to, func(peer *raft) {
		if peer.d.term == term && peer.role == follower {
			peer.stand(true)
		}
	})
	r.s.after(r.n.p, transferTimeout, func() { r.transferring = false })
}

// --- application

// mayApply is the last entry that is committed and durable here.
func (r *raft) mayApply() uint64 { return min(r.commit, r.d.synced) }

func (r *raft) applySoon() {
	if r.applying || r.applied >= r.mayApply() {
		return
	}
	r.applying = true
	r.s.after(r.n.p, r.n.applyTime(), func() {
		r.applying = false
		for n := 0; r.applied < r.mayApply() && n < applyMost; n++ {
			r.applied++
			r.applyOne(r.at(r.applied))
			if !r.n.p.up {
				return
			}
		}
		r.applySoon()
	})
}

func (r *raft) applyOne(e *entry) {
	out := r.n.apply(e)
	for len(r.futures) > 0 && r.futures[0].index <= e.index {
		f := r.futures[0]
		r.futures = r.futures[1:]
		if f.index == e.index && f.term == e.term {
			f.done(out, "")
		} else {
			f.done(nil, "result_unknown")
		}
	}
	r.n.maySnapshot(e)
}

// compact drops the front of the log behind a snapshot, but for a trail.
func (r *raft) compact(index uint64) {
	to := index - min(index, uint64(r.s.knobs.trailing))
	if to <= r.d.base {
		return
	}
	t, _ := r.termAt(to)
	r.d.log = slices.Clone(r.d.log[to-r.d.base:])
	r.d.base, r.d.baseTerm = to, t
}

// --- snapshots

func (r *raft) install(i int) {
	if r.s.now < r.installing[i] {
		// Heartbeats go on meanwhile.
		r.ping(i)
		return
	}
	if len(r.d.snaps) == 0 {
		r.s.fail("simulator", "the log of %s begins at %d and there is no snapshot", r.n.p.name, r.d.base+1)
	}
	snap := r.d.snaps[len(r.d.snaps)-1]
	stream, err := snap.open()
	if err != nil {
		r.s.fail("C2 snapshot", "%s cannot read its snapshot at %d: %v", r.n.p.name, snap.index, err)
	}
	if r.s.chance(r.s.knobs.damage) {
		stream = slices.Clone(stream)
		stream[r.s.rng.IntN(len(stream))] ^= 1 << r.s.rng.IntN(8)
	}
	r.installing[i] = r.s.now + installTimeout
	r.s.say("%s sends n%d its snapshot at %d", r.n.p.name, i, snap.index)
	me, term := r.n.number, r.d.term
	r.s.after(r.n.p, r.s.between(20*millis, 400*millis), func() {
		r.call(i, func(peer *raft) { peer.installed(me, term, snap, stream) })
	})
}

// ping keeps a follower quiet that cannot be given entries.
func (r *raft) ping(i int) {
	me, term, round := r.n.number, r.d.term, r.verifying
	r.tell(i, func(peer *raft) {
		if term < peer.d.term {
			return
		}
		peer.becomeFollower(term)
		peer.leaderID, peer.heard = me, peer.s.now
		peer.tell(me, func(l *raft) {
			if l.role == leader && l.d.term == term {
				l.contact[peer.n.number] = l.s.now
				if l.verified[peer.n.number] < round {
					l.verified[peer.n.number] = round
					l.checkVerified()
				}
			}
		})
	})
}

// installed is a follower's side of install.
func (r *raft) installed(from int, term uint64, snap *snap, stream []byte) {
	if term < r.d.term {
		return
	}
	r.becomeFollower(term)
	r.leaderID, r.heard = from, r.s.now
	if snap.index <= r.applied {
		r.tell(from, func(l *raft) { l.answered(r.n.number, term, term, true, min(snap.index, l.commit), 0) })
		return
	}
	if !r.n.receive(snap, stream) {
		return // refused, or the node died of it
	}
	// Entries behind the snapshot stay only if they belong to it.
	if t, ok := r.termAt(snap.index); ok && t == snap.term {
		r.d.log = slices.Clone(r.d.log[snap.index-r.d.base:])
	} else {
		r.d.log = nil
	}
	r.d.base, r.d.baseTerm = snap.index, snap.term
	r.d.synced = max(min(r.d.synced, r.lastIndex()), snap.index)
	r.ahead = min(r.ahead, r.d.synced)
	r.applied, r.commit = snap.index, max(r.commit, snap.index)
	if r.commit > r.lastIndex() {
		r.commit = snap.index
	}
	r.tell(from, func(l *raft) { l.answered(r.n.number, term, term, true, snap.index, 0) })
}
