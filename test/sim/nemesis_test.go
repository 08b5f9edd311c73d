package sim

import "slices"

// nemesis makes things go wrong until the world is healed.
type nemesis struct {
	done int
	undo []func() // of what goes wrong now
}

// fault is one thing that goes wrong. What it returns puts it right again after
// a while; nil if it puts itself right.
type fault struct {
	name   string
	strike func(s *sim) (lasts int64, undo func())
}

func (n *nemesis) start(s *sim) {
	if len(s.knobs.faults) == 0 {
		return
	}
	s.every(nil, func() int64 { return s.between(300*millis, 7*second) }, func() bool {
		if s.healed {
			return false
		}
		f := pick(s, s.knobs.faults)
		n.done++
		s.say("fault: %s", f.name)
		s.judge.count("fault " + f.name)
		lasts, undo := f.strike(s)
		if undo == nil {
			return true
		}
		over := false
		once := func() {
			if !over {
				over = true
				s.say("over: %s", f.name)
				undo()
			}
		}
		n.undo = append(n.undo, once)
		s.after(nil, lasts, once)
		return true
	})
}

var allFaults = []fault{
	{"kill a node", func(s *sim) (int64, func()) { return downAndUp(s, pick(s, s.nodes), false) }},
	{"a node loses power", func(s *sim) (int64, func()) { return downAndUp(s, pick(s, s.nodes), true) }},
	{"kill the leader", func(s *sim) (int64, func()) {
		for _, n := range s.nodes {
			if n.p.up && n.r.role == leader {
				return downAndUp(s, n, s.chance(30))
			}
		}
		return 0, nil
	}},
	{"kill all nodes", func(s *sim) (int64, func()) { return allDown(s, false) }},
	{"all nodes lose power", func(s *sim) (int64, func()) { return allDown(s, true) }},
	{"stop the leader", func(s *sim) (int64, func()) {
		for _, n := range s.nodes {
			if n.p.up && n.r.role == leader {
				n.p.paused = true
				return s.between(300*millis, 8*second), func() { s.resume(n.p) }
			}
		}
		return 0, nil
	}},
	{"stop a node", func(s *sim) (int64, func()) {
		n := pick(s, s.nodes)
		n.p.paused = n.p.up
		return s.between(300*millis, 15*second), func() { s.resume(n.p) }
	}},
	{"cut a node off", func(s *sim) (int64, func()) {
		n := pick(s, s.nodes)
		return s.between(second, 25*second), cutting(s, n.p.host, s.hosts, true, true)
	}},
	{"a node hears nobody", func(s *sim) (int64, func()) {
		n := pick(s, s.nodes)
		return s.between(second, 10*second), cutting(s, n.p.host, s.hosts, true, false)
	}},
	{"nobody hears a node", func(s *sim) (int64, func()) {
		n := pick(s, s.nodes)
		return s.between(second, 10*second), cutting(s, n.p.host, s.hosts, false, true)
	}},
	{"cut two nodes apart", func(s *sim) (int64, func()) {
		a := s.rng.IntN(3)
		b := (a + 1) % 3
		return s.between(second, 15*second), cutting(s, s.nodes[a].p.host, []*host{s.nodes[b].p.host}, true, true)
	}},
	{"cut a gateway from a node", func(s *sim) (int64, func()) {
		return s.between(second, 15*second), cutting(s, s.lone.host, []*host{pick(s, s.nodes).p.host}, true, s.chance(50))
	}},
	{"cut a worker off", func(s *sim) (int64, func()) {
		w := pick(s, s.workers)
		return s.between(second, 80*second), cutting(s, w.p.host, s.hosts, true, s.chance(70))
	}},
	{"kill a worker", func(s *sim) (int64, func()) {
		w := pick(s, s.workers)
		w.die(s.chance(30))
		w.restart(s.between(100*millis, 15*second))
		return 0, nil
	}},
	{"stop a worker", func(s *sim) (int64, func()) {
		w := pick(s, s.workers)
		w.p.paused = w.p.up
		return s.between(second, 40*second), func() { s.resume(w.p) }
	}},
	{"all workers reconnect", func(s *sim) (int64, func()) {
		for _, w := range s.workers {
			if w.p.up && !w.p.paused {
				s.at(s.now, w.p, w.drop)
			}
		}
		return 0, nil
	}},
	{"reset connections", func(s *sim) (int64, func()) {
		for _, c := range slices.Clone(s.conns) {
			if s.chance(30) && c.ends[0].up && !c.known[0] && !c.known[1] {
				c.tell(0)
				c.tell(1)
			}
		}
		return 0, nil
	}},
	{"lose and repeat messages", func(s *sim) (int64, func()) {
		s.net.loss, s.net.twice = int(s.between(3, 30)), int(s.between(0, 20))
		return s.between(2*second, 15*second), func() { s.net.loss, s.net.twice = 0, 0 }
	}},
	{"slow network", func(s *sim) (int64, func()) {
		was := s.net.jitter
		s.net.jitter = s.between(20*millis, 400*millis)
		return s.between(2*second, 12*second), func() { s.net.jitter = min(was, 2*millis) }
	}},
	{"set a wall clock", func(s *sim) (int64, func()) {
		pick(s, s.nodes).p.host.wallStep = wallStep(s)
		return 0, nil
	}},
	{"set all wall clocks", func(s *sim) (int64, func()) {
		if !s.chance(25) {
			return 0, nil
		}
		step := wallStep(s)
		for _, n := range s.nodes {
			n.p.host.wallStep = step
		}
		return 0, nil
	}},
	{"slow disk", func(s *sim) (int64, func()) {
		n := pick(s, s.nodes)
		n.slowDisk = s.between(20*millis, 1500*millis)
		return s.between(2*second, 10*second), func() { n.slowDisk = 0 }
	}},
	{"slow application", func(s *sim) (int64, func()) {
		n := pick(s, s.nodes)
		n.slowApply = s.between(50*millis, second)
		return s.between(2*second, 10*second), func() { n.slowApply = 0 }
	}},
	{"hand leadership over", func(s *sim) (int64, func()) {
		for _, n := range s.nodes {
			if n.p.up && !n.p.paused && n.r.role == leader {
				n.r.transfer(pick(s, n.r.others()))
			}
		}
		return 0, nil
	}},
	{"a leader steps down and up", func(s *sim) (int64, func()) {
		for _, n := range s.nodes {
			if n.p.up && !n.p.paused && n.r.role == leader {
				n.channelFree = s.now + s.between(0, 2*second)
				n.r.abdicate("it was made to")
				s.after(n.p, s.between(0, 300*millis), func() {
					if n.r.role == follower && n.r.leaderID < 0 {
						n.r.stand(true)
					}
				})
			}
		}
		return 0, nil
	}},
	{"kill the lone gateway", func(s *sim) (int64, func()) {
		if !s.lone.up {
			return 0, nil
		}
		s.kill(s.lone)
		s.hangUp(s.lone, s.chance(30))
		return s.between(200*millis, 15*second), s.startLone
	}},
	{"stop the lone gateway", func(s *sim) (int64, func()) {
		s.lone.paused = s.lone.up
		return s.between(300*millis, 40*second), func() { s.resume(s.lone) }
	}},
	{"restart the lone gateway in order", func(s *sim) (int64, func()) {
		if s.lone.up && !s.lone.paused {
			goAway(s, s.gateways[3], func() {
				s.kill(s.lone)
				s.hangUp(s.lone, false)
			})
		}
		return s.between(3*second, 10*second), func() {
			if !s.lone.up {
				s.startLone()
			}
		}
	}},
	{"restart a node in order", func(s *sim) (int64, func()) {
		n := pick(s, s.nodes)
		if n.p.up && !n.p.paused {
			if n.r.role == leader {
				n.r.transfer(pick(s, n.r.others()))
			}
			goAway(s, n.gw, func() { n.crash(false) })
		}
		return s.between(3*second, 10*second), func() { upAgain(n) }
	}},
}

// goAway lets a gateway leave in order, in its own process, and ends that then.
func goAway(s *sim, g *gateway, end func()) {
	s.at(s.now, g.p, func() {
		g.goAway(func() {
			life := g.p.life
			s.at(s.now, nil, func() {
				if !s.healed && g.p.life == life {
					end()
				}
			})
		})
	})
}

func upAgain(n *node) {
	if !n.p.up {
		n.start()
	}
}

func downAndUp(s *sim, n *node, power bool) (int64, func()) {
	n.crash(power)
	return s.between(200*millis, 10*second), func() { upAgain(n) }
}

func allDown(s *sim, power bool) (int64, func()) {
	for _, n := range s.nodes {
		n.crash(power || s.chance(20))
	}
	left := s.rng.IntN(6) // one may stay down for longer
	for i, n := range s.nodes {
		if i != left {
			n.restart(s.between(100*millis, 5*second))
		}
	}
	return s.between(5*second, 20*second), func() {
		for _, n := range s.nodes {
			upAgain(n)
		}
	}
}

// cutting cuts a host from others, in one direction or both, and returns what
// heals it.
func cutting(s *sim, h *host, from []*host, in, out bool) func() {
	for _, o := range from {
		if o == h {
			continue
		}
		if in {
			s.net.cut[o.number][h.number] = true
		}
		if out {
			s.net.cut[h.number][o.number] = true
		}
	}
	return func() {
		for _, o := range from {
			s.net.cut[o.number][h.number], s.net.cut[h.number][o.number] = false, false
		}
	}
}

func wallStep(s *sim) int64 {
	return pick(s, []int64{0, hour, -hour, 10 * 365 * 24 * hour, s.between(-20*second, 20*second)})
}
