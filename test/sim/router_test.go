package sim

import (
	"google.golang.org/protobuf/proto"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// Times of the router; see rpc.
const (
	leaderWait    = 5 * second
	leaderPollMin = 5 * millis
	leaderPollMax = 100 * millis
	dialWithin    = 2 * second
	keepAlive     = 10 * second // after which a stream that gets nowhere is given up
)

// pacer spaces the attempts of one call to reach a leader.
type pacer struct {
	until, pause int64
}

// next says how long to wait before trying again; ok is false when enough was
// tried.
func (w *pacer) next(s *sim) (wait int64, ok bool) {
	if w.until == 0 {
		w.until, w.pause = s.now+leaderWait, leaderPollMin
	}
	if w.until-s.now < w.pause {
		return 0, false
	}
	wait = w.pause
	w.pause = min(2*w.pause, leaderPollMax)
	return wait, true
}

// submit hands commands to the leader and answers with their results in order,
// once applied. What is known not to have happened is tried again for a while.
func (g *gateway) submit(commands []*pb.Command, within int64, done answerFunc) {
	deadline := g.s.now + within
	var results []*pb.Result
	var wait pacer
	var try func()
	finish := func(refused *refusal) {
		if refused.code == schema.NotLeader {
			refused = refuse(schema.NoLeader)
		}
		if len(results) == 0 {
			done(nil, refused)
			return
		}
		for range commands {
			results = append(results, &pb.Result{Code: string(refused.code)})
		}
		done(results, nil)
	}
	again := func() bool {
		pause, ok := wait.next(g.s)
		if !ok || g.s.now+pause >= deadline {
			return false
		}
		g.s.after(g.p, pause, try)
		return true
	}
	try = func() {
		to := g.leader()
		g.proposeAt(to, commands, deadline-g.s.now, func(got []*pb.Result, refused *refusal) {
			if refused != nil {
				nothing := refused.code == schema.NotLeader || refused.code == schema.NoLeader
				if nothing {
					g.learn(to, refused)
				}
				if !nothing || !again() {
					finish(refused)
				}
				return
			}
			// What apply refused as of an old office had no effect; it is proposed
			// again as long as nothing behind it was accepted.
			accepted := len(got)
			for accepted > 0 && got[accepted-1].Code == string(schema.NotLeader) {
				accepted--
			}
			results = append(results, got[:accepted]...)
			tail := got[accepted:]
			commands = commands[accepted:]
			if len(tail) == 0 || !again() {
				done(append(results, tail...), nil)
			}
		})
	}
	try()
}

// leader is where a call goes: this node if it leads or knows of nobody, the
// node that is said to lead, or any voter.
func (g *gateway) leader() string {
	if g.n != nil {
		if l := g.n.r.leaderID; l >= 0 {
			return g.s.nodes[l].p.name
		}
		return g.name
	}
	if g.hint != "" {
		return g.hint
	}
	return g.someVoter()
}

func (g *gateway) someVoter() string {
	g.turn++
	return g.s.nodes[g.turn%len(g.s.nodes)].p.name
}

func (g *gateway) learn(asked string, refused *refusal) {
	g.hint = ""
	if refused.leader != asked {
		g.hint = refused.leader
	}
}

func (g *gateway) proposeAt(to string, commands []*pb.Command, within int64, done answerFunc) {
	if within <= 0 {
		done(nil, refuse(schema.DeadlineExpired))
		return
	}
	if g.n != nil && to == g.name {
		g.n.propose(commands, within, done)
		return
	}
	g.call(to, within, func(n *node, reply func(func())) {
		n.propose(commands, within, func(results []*pb.Result, refused *refusal) {
			reply(func() {
				for _, r := range results {
					g.heard = max(g.heard, r.Index)
				}
				done(results, refused)
			})
		})
	}, func(sent bool) {
		code := schema.NotLeader
		if sent {
			code = schema.ResultUnknown
		}
		done(nil, refuse(code))
	})
}

// link is a gateway's stream to a node.
type link struct {
	conn    *conn
	pending []*forward
}

type forward struct {
	over bool
	lost func(sent bool)
}

func (f *forward) end(run func()) {
	if !f.over {
		f.over = true
		run()
	}
}

// call runs something on a node and takes its reply. lost is told if there is
// none: then it may have run, if it was sent.
func (g *gateway) call(to string, within int64, run func(n *node, reply func(func())), lost func(sent bool)) {
	peer := g.s.nodeNamed(to)
	l := g.links[to]
	if l == nil || l.conn.known[0] {
		switch {
		case !g.s.reaches(g.p.host, peer.p.host), !g.s.reaches(peer.p.host, g.p.host):
			g.s.after(g.p, min(within, dialWithin), func() { lost(false) })
			return
		case !peer.p.up:
			g.s.after(g.p, g.s.delay(), func() { lost(false) })
			return
		}
		l = &link{}
		l.conn = g.s.connect(g.p, peer.p, keepAlive, func() {
			broken := l.pending
			l.pending = nil
			for _, f := range broken {
				f.end(func() { f.lost(true) })
			}
		}, nil)
		g.links[to] = l
	}
	f := &forward{lost: lost}
	live := l.pending[:0]
	for _, old := range l.pending {
		if !old.over {
			live = append(live, old)
		}
	}
	l.pending = append(live, f)
	g.s.after(g.p, within, func() { f.end(func() { lost(true) }) })
	c := l.conn
	c.send(1, func() {
		run(peer, func(answer func()) { c.send(0, func() { f.end(answer) }) })
	})
}

// read answers one query, as fresh as it asks.
func (g *gateway) read(q *pb.Query, within int64, done func(*pb.Answer, *refusal)) {
	deadline := g.s.now + within
	stale := q.Consistency == pb.Consistency_CONSISTENCY_STALE
	over := false
	end := func(a *pb.Answer, refused *refusal) {
		if !over {
			over = true
			if a != nil {
				a = proto.CloneOf(a)
				g.heard = max(g.heard, a.Index)
			}
			done(a, refused)
		}
	}
	g.s.after(g.p, within, func() { end(nil, refuse(schema.DeadlineExpired)) })
	var wait pacer
	var try func()
	failed := func(to string, refused *refusal) {
		if refused.code == schema.NotLeader {
			g.learn(to, refused)
			if pause, ok := wait.next(g.s); ok && g.s.now+pause < deadline && !over {
				g.s.after(g.p, pause, try)
				return
			}
		}
		end(nil, refused)
	}
	try = func() {
		left := deadline - g.s.now
		to := g.leader()
		switch {
		case over:
		case stale && g.n != nil:
			g.n.awaitIndex(q.MinIndex, func() { end(g.n.m.Query(q), nil) })
		case g.n != nil && to == g.name:
			g.n.query(q, left, func(a *pb.Answer, refused *refusal) {
				if refused != nil {
					failed(to, refused)
					return
				}
				end(a, nil)
			})
		case g.n != nil:
			g.call(to, left, func(n *node, reply func(func())) {
				n.readIndex(left, func(index uint64, refused *refusal) {
					reply(func() {
						if refused != nil {
							failed(to, refused)
							return
						}
						g.n.awaitIndex(index, func() { end(g.n.m.Query(q), nil) })
					})
				})
			}, func(bool) { failed(to, refuse(schema.NotLeader)) })
		default:
			if stale {
				to = g.someVoter()
			}
			g.call(to, left, func(n *node, reply func(func())) {
				n.query(q, left, func(a *pb.Answer, refused *refusal) {
					reply(func() {
						if refused != nil {
							failed(to, refused)
							return
						}
						end(a, nil)
					})
				})
			}, func(bool) { failed(to, refuse(schema.NotLeader)) })
		}
	}
	try()
}
