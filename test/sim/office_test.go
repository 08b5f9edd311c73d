package sim

import (
	"bytes"

	"google.golang.org/protobuf/proto"

	"pulse/fsm"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// Bounds and times of an office; see cluster/office.go and proposer.go. How
// many commands go into one entry and how many entries are in flight are knobs.
const (
	pauseFirst   = 100 * millis
	pauseLast    = 30 * second
	tickLook     = 10 * second
	tickRest     = 100 * millis
	nudgeAfter   = 50 * millis
	compareEvery = 10 * second
)

// refusal is why there are no results. not_leader and no_leader promise that
// nothing happened.
type refusal struct {
	code   schema.Code
	leader string // who leads, with not_leader, if that is known
}

func refuse(code schema.Code) *refusal { return &refusal{code: code} }

type answerFunc func([]*pb.Result, *refusal)

// office is one term of leadership, from the moment it is reported until the
// loss is.
type office struct {
	s        *sim
	n        *node
	term     uint64
	proposer *proposer
	courier  *courier
	serving  bool // the opening entry is applied
	since    int64
	closed   bool
	fresh    bool  // began with a wall clock
	limit    int64 // latest time that wall clock may give it
	told     told  // what its node knew of the time when it began
	lastDue  int64
	look     int // number of the tick's timer that counts
}

// leadershipChanged is told by the log. Reports coalesce: what counts is what
// is so when somebody looks.
func (n *node) leadershipChanged() {
	if n.following {
		return
	}
	n.following = true
	wait := n.s.between(0, 20*millis)
	if n.s.chance(5) {
		wait = n.s.between(0, 2*second)
	}
	n.s.after(n.p, wait, func() {
		n.following = false
		if n.office != nil {
			n.office.leave()
		}
		if n.r.role == leader {
			n.inOffice = true
			n.hold(pauseFirst)
		}
	})
}

// hold opens the term, trying until it succeeds or leadership ends.
func (n *node) hold(pause int64) {
	o := &office{s: n.s, n: n, term: n.r.d.term}
	o.proposer = &proposer{o: o}
	o.courier = &courier{o: o, routes: map[string]*route{}}
	n.office = o
	again := func() {
		n.clock.Close()
		o.proposer.close()
		n.s.after(n.p, pause, func() {
			if n.office == o && !o.closed {
				n.hold(min(2*pause, pauseLast))
			}
		})
	}
	o.barrier(func(code string) {
		switch {
		case o.closed:
			return
		case code != "":
			again()
			return
		case !n.mayOpen():
			n.s.say("%s gives up leadership: its wall clock differs from the others'", n.p.name)
			n.s.judge.count("clock alarms")
			n.abstains = n.s.now + 5*second
			if n.r.role == leader {
				n.r.abdicate("its wall clock")
			}
			return
		}
		n.clock.Open()
		o.told = n.told
		o.fresh, o.limit = !n.clock.Anchored(), n.medianWall()+wallApart
		opening := &pb.Command{Id: bytesOf(n.s.newID()), Caller: &pb.Caller{Principal: "node/" + n.p.name},
			Body: &pb.Command_OpenTerm{OpenTerm: &pb.OpenTerm{NodeId: n.p.name, ClusterId: clusterID}}}
		o.proposer.propose([]*pb.Command{opening}, 0, func(results []*pb.Result, refused *refusal) {
			switch {
			case o.closed:
			case refused != nil || results[0].Code != "":
				again()
			default:
				o.serve()
			}
		})
	})
}

var clusterID = bytes.Repeat([]byte{0x5a}, 32)

func bytesOf(x id) []byte { return x[:] }

// barrier waits until all of earlier terms is applied.
func (o *office) barrier(done func(code string)) {
	if o.n.r.role != leader {
		done(string(schema.NotLeader))
		return
	}
	o.n.r.append(kindBarrier, nil, nil, func(_ *fsm.Outcome, code string) { done(code) })
}

func (o *office) serve() {
	o.serving, o.since = true, o.s.now
	o.s.say("%s serves term %d", o.n.p.name, o.term)
	o.courier.run()
	o.tick()
	o.s.every(o.n.p, fixed(compareEvery), func() bool {
		if !o.closed {
			o.compareStates()
		}
		return !o.closed
	})
}

func (o *office) leave() {
	n := o.n
	o.closed, o.serving = true, false
	n.inOffice = false
	o.courier.close()
	o.proposer.close()
	n.clock.Close()
	if n.office == o {
		n.office = nil
	}
}

// returned is called when an entry has come back.
func (o *office) returned() {
	if o.serving && !o.closed {
		o.tick()
	}
}

// tick lets time pass: it asks for an empty entry when something is due and
// nothing else flows. At most one is on its way.
func (o *office) tick() {
	if o.closed || o.proposer.busy() {
		return // what is on its way will do, and is followed by another look
	}
	wait, due := tickLook, int64(0)
	if o.n.m.Pending() {
		wait = 0
	} else if at, ok := o.n.m.NextDue(); ok {
		due = at
		wait = min(max(at-o.n.clock.Now(), 0), tickLook)
	}
	o.look++
	mine := o.look
	if wait == 0 {
		if due == 0 || due != o.lastDue {
			o.lastDue = due
			o.proposer.wantEntry()
			return
		}
		wait = tickRest
		o.s.after(o.n.p, wait, func() {
			if o.look == mine && !o.closed {
				o.proposer.wantEntry()
			}
		})
		return
	}
	o.s.after(o.n.p, wait, func() {
		if o.look == mine {
			o.tick()
		}
	})
}

// compareStates puts the state hashes of all voters into the log.
func (o *office) compareStates() {
	mark := o.n.m.LatestMark()
	if mark == 0 {
		return
	}
	reports := []*pb.StateReport{{NodeId: o.n.p.name, StateHash: o.n.m.HashAt(mark)}}
	for _, i := range o.n.r.others() {
		o.n.r.tell(i, func(peer *raft) {
			hash := peer.n.m.HashAt(mark)
			if len(hash) == 0 {
				return
			}
			peer.tell(o.n.number, func(*raft) {
				reports = append(reports, &pb.StateReport{NodeId: peer.n.p.name, StateHash: hash})
			})
		})
	}
	o.s.after(o.n.p, second, func() {
		if o.closed || len(reports) < 2 {
			return
		}
		o.proposer.propose([]*pb.Command{{Id: bytesOf(o.s.newID()), Caller: &pb.Caller{Principal: "node/" + o.n.p.name},
			Body: &pb.Command_CompareStates{CompareStates: &pb.CompareStates{Index: mark, Voters: 3, Reports: reports}},
		}}, 5*second, func([]*pb.Result, *refusal) {})
	})
}

// --- the node's own surface

// propose hands commands to the office, if this node has one that serves.
func (n *node) propose(commands []*pb.Command, within int64, done answerFunc) {
	if n.office == nil || !n.office.serving {
		done(nil, n.notLeader())
		return
	}
	n.office.proposer.propose(commands, within, done)
}

func (n *node) notLeader() *refusal {
	r := refuse(schema.NotLeader)
	if n.r.leaderID >= 0 && n.r.leaderID != n.number {
		r.leader = n.s.nodes[n.r.leaderID].p.name
	}
	return r
}

// readIndex answers with the index another state has to reach for a
// linearizable read there.
func (n *node) readIndex(within int64, done func(uint64, *refusal)) {
	o := n.office
	if o == nil || !o.serving {
		done(0, n.notLeader())
		return
	}
	over := false
	end := func(index uint64, refused *refusal) {
		if !over {
			over = true
			done(index, refused)
		}
	}
	n.s.after(n.p, within, func() { end(0, refuse(schema.DeadlineExpired)) })
	index := n.r.commit
	n.r.verify(func(ok bool) {
		if !ok || n.office != o || n.r.d.term != o.term {
			end(0, n.notLeader())
			return
		}
		n.s.after(n.p, nudgeAfter, func() {
			if !over && !o.closed {
				o.proposer.wantEntry()
			}
		})
		n.awaitIndex(index, func() { end(n.m.AppliedIndex(), nil) })
	})
}

// query answers from this node's state.
func (n *node) query(q *pb.Query, within int64, done func(*pb.Answer, *refusal)) {
	if q.Consistency == pb.Consistency_CONSISTENCY_STALE {
		n.awaitIndex(q.MinIndex, func() { done(n.m.Query(q), nil) })
		return
	}
	n.readIndex(within, func(_ uint64, refused *refusal) {
		if refused != nil {
			done(nil, refused)
			return
		}
		done(n.m.Query(q), nil)
	})
}

// --- proposer

// proposer joins the commands that arrived while the entry before was on its
// way into the next one; see cluster/proposer.go.
type proposer struct {
	o        *office
	queue    []*proposal
	tick     bool
	inFlight int
	closed   bool
	woken    bool
}

// proposal is one caller's commands.
type proposal struct {
	commands []*pb.Command
	results  []*pb.Result
	next     int // first command not handed over
	open     int // commands without result
	failed   int
	gone     bool // nobody waits any more
	queued   bool
	done     answerFunc
}

type part struct {
	call    *proposal
	from, n int
}

func (p *proposer) propose(commands []*pb.Command, within int64, done answerFunc) {
	if p.closed {
		done(nil, refuse(schema.NotLeader))
		return
	}
	c := &proposal{commands: commands, results: make([]*pb.Result, len(commands)), open: len(commands), queued: true, done: done}
	p.queue = append(p.queue, c)
	p.wake()
	if within > 0 {
		p.o.s.after(p.o.n.p, within, func() { p.abandon(c) })
	}
}

func (c *proposal) settle(from, to int, code schema.Code) {
	for i := from; i < to; i++ {
		if c.results[i] == nil {
			c.results[i] = &pb.Result{Code: string(code)}
			c.open--
			c.failed++
		}
	}
}

func (c *proposal) answer() {
	c.gone = true
	if c.failed == len(c.results) {
		same := true
		for _, r := range c.results {
			same = same && r.Code == c.results[0].Code
		}
		if same {
			c.done(nil, refuse(schema.Code(c.results[0].Code)))
			return
		}
	}
	c.done(c.results, nil)
}

// abandon settles what the caller will not wait for: commands not handed over
// never will be, the others are in the log's hands.
func (p *proposer) abandon(c *proposal) {
	if c.gone {
		return
	}
	p.drop(c, schema.DeadlineExpired)
	c.settle(0, c.next, schema.ResultUnknown)
	c.answer()
}

// drop takes what is left of a call out of the queue.
func (p *proposer) drop(c *proposal, code schema.Code) {
	if !c.queued {
		return
	}
	for i, x := range p.queue {
		if x == c {
			p.queue = append(p.queue[:i:i], p.queue[i+1:]...)
			break
		}
	}
	c.queued = false
	c.settle(c.next, len(c.commands), code)
}

func (p *proposer) wantEntry() {
	if !p.closed {
		p.tick = true
		p.wake()
	}
}

func (p *proposer) busy() bool { return len(p.queue) > 0 || p.tick || p.inFlight > 0 }

func (p *proposer) wake() {
	if p.woken {
		return
	}
	p.woken = true
	p.o.s.after(p.o.n.p, p.o.s.between(0, 300), func() {
		p.woken = false
		for p.take() {
		}
	})
}

// take forms the next entry and sends it, if one is wanted and allowed now.
func (p *proposer) take() bool {
	knobs := &p.o.s.knobs
	if p.inFlight >= knobs.inFlight || len(p.queue) == 0 && !p.tick || p.closed && len(p.queue) == 0 {
		return false
	}
	var commands []*pb.Command
	var parts []part
	registered := map[string]bool{}
	for len(p.queue) > 0 && len(commands) < knobs.entryCommands {
		c := p.queue[0]
		from := c.next
		for c.next < len(c.commands) && len(commands) < knobs.entryCommands {
			cmd := c.commands[c.next]
			if r := cmd.GetRegisterSession(); r != nil {
				if registered[string(r.InstanceId)] {
					break
				}
				registered[string(r.InstanceId)] = true
			}
			commands = append(commands, cmd)
			c.next++
		}
		if n := c.next - from; n > 0 {
			parts = append(parts, part{c, from, n})
		}
		if c.next < len(c.commands) {
			break
		}
		p.queue = p.queue[1:]
		c.queued = false
	}
	p.tick = false
	p.inFlight++
	p.send(commands, parts)
	return true
}

func (p *proposer) send(commands []*pb.Command, parts []part) {
	o := p.o
	from := &origin{office: o, at: o.s.now}
	data, err := fsm.EncodeEntry(&pb.Entry{Format: fsm.EntryFormat, Term: o.term, TimeUs: o.n.clock.Now(), Commands: commands})
	must(err)
	o.n.handOver(data, from, func(out *fsm.Outcome, code string) {
		switch {
		case code != "":
			p.complete(parts, nil, schema.Code(code))
		case out == nil || out.Skipped || len(out.Results) != len(commands):
			p.complete(parts, nil, schema.ResultUnknown)
		default:
			p.complete(parts, out.Results, "")
		}
	})
}

// handOver gives an entry to the log's channel. The log takes it out as the
// leader it is then, which may be of another term than its proposer's.
func (n *node) handOver(data []byte, from *origin, done func(*fsm.Outcome, string)) {
	wait := n.s.between(0, 500)
	if n.s.chance1000(n.s.knobs.channelStall) && !n.s.healed {
		wait = n.s.between(500*millis, 4*second)
	}
	n.channelFree = max(n.channelFree, n.s.now+wait)
	n.s.at(n.channelFree, n.p, func() {
		if n.r.role != leader || n.r.transferring {
			done(nil, string(schema.NotLeader))
			return
		}
		n.r.append(kindCommand, data, from, done)
	})
}

// complete hands results, or the same failure, to all callers of an entry.
func (p *proposer) complete(parts []part, results []*pb.Result, code schema.Code) {
	p.inFlight--
	for _, part := range parts {
		c := part.call
		if code == "" {
			if !c.gone {
				for i, r := range results[:part.n] {
					c.results[part.from+i] = proto.CloneOf(r)
				}
				c.open -= part.n
			}
			results = results[part.n:]
		} else {
			p.drop(c, schema.NotLeader)
			if !c.gone {
				c.settle(part.from, part.from+part.n, code)
			}
		}
		if c.open == 0 && !c.gone {
			c.answer()
		}
	}
	p.wake()
	p.o.returned()
}

// close refuses newcomers and what is queued. Entries on their way keep their
// outcome.
func (p *proposer) close() {
	if p.closed {
		return
	}
	p.closed, p.tick = true, false
	for len(p.queue) > 0 {
		c := p.queue[0]
		p.drop(c, schema.NotLeader)
		if c.open == 0 && !c.gone {
			c.answer()
		}
	}
}
