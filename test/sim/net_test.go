package sim

// network is what lies between the hosts.
type network struct {
	cut    [][]bool // [from][to]: nothing gets through in this direction
	loss   int      // percent of datagrams that are lost
	twice  int      // percent that arrive twice
	base   int64    // least delay
	jitter int64    // and what may come on top of it
}

// reaches says whether anything gets from one host to another.
func (s *sim) reaches(from, to *host) bool { return !s.net.cut[from.number][to.number] }

func (s *sim) delay() int64 { return s.net.base + s.between(0, s.net.jitter) }

// datagram carries a message that may be lost, late, twice or out of order.
func (s *sim) datagram(from, to *proc, run func()) {
	times := 1
	if s.chance(s.net.twice) {
		times = 2
	}
	for range times {
		if !to.up || !s.reaches(from.host, to.host) || s.chance(s.net.loss) {
			continue
		}
		s.after(nil, s.delay(), func() {
			if to.up {
				s.at(s.now, to, run)
			}
		})
	}
}

// conn is a connection between two processes. What one end sends arrives at the
// other in the order it was sent, or the connection breaks. An end that closes
// it knows at once; the other is told when the network lets it, or finds out
// because what it sends gets nowhere.
type conn struct {
	s        *sim
	ends     [2]*proc
	lives    [2]int
	queue    [2][]func() // on the way to that end
	pumping  [2]bool
	stuck    [2]int64  // since when the head of the queue gets nowhere; 0: it does not
	known    [2]bool   // this end knows that the connection is over
	broken   [2]func() // how an end is told
	patience int64     // how long what was sent may get nowhere
	handle   *handle   // of a worker's connection, at its end 1
}

// connect ties two processes. told is called in the end's own process, once.
func (s *sim) connect(a, b *proc, patience int64, toldA, toldB func()) *conn {
	c := &conn{s: s, ends: [2]*proc{a, b}, lives: [2]int{a.life, b.life}, broken: [2]func(){toldA, toldB}, patience: patience}
	s.conns = append(s.conns, c)
	return c
}

// send puts something on the way to an end.
func (c *conn) send(to int, run func()) {
	if c.known[1-to] {
		return
	}
	c.queue[to] = append(c.queue[to], run)
	c.pump(to, c.s.delay())
}

func (c *conn) pump(to int, wait int64) {
	if c.pumping[to] {
		return
	}
	c.pumping[to] = true
	c.s.after(nil, wait, func() {
		c.pumping[to] = false
		c.deliver(to)
	})
}

func (c *conn) deliver(to int) {
	s, from := c.s, 1-to
	if len(c.queue[to]) == 0 || c.known[from] {
		return // what an end that is gone had sent is lost
	}
	p := c.ends[to]
	same := p.up && p.life == c.lives[to]
	switch {
	case !s.reaches(c.ends[from].host, p.host) || !p.up:
		if c.stuck[to] == 0 {
			c.stuck[to] = s.now
		}
		if s.now-c.stuck[to] >= c.patience {
			c.tell(from)
			return
		}
		c.pump(to, 200*millis)
		return
	case !same || c.known[to]:
		c.tell(from) // nobody there knows this connection
		return
	}
	c.stuck[to] = 0
	// All that has arrived is read in one go.
	for _, run := range c.queue[to] {
		s.at(s.now, p, run)
	}
	c.queue[to] = nil
}

// close ends the connection by the will, or the death, of one end.
func (c *conn) close(by int) {
	if c.known[by] {
		return
	}
	c.known[by] = true
	c.goodbye(1 - by)
}

// goodbye tells an end as soon as the network lets it.
func (c *conn) goodbye(to int) {
	c.s.after(nil, c.s.delay(), func() {
		switch {
		case c.known[to]:
		case c.s.reaches(c.ends[1-to].host, c.ends[to].host):
			// What was on its way arrives before the end.
			if p := c.ends[to]; p.up && p.life == c.lives[to] {
				for _, run := range c.queue[to] {
					c.s.at(c.s.now, p, run)
				}
			}
			c.queue[to] = nil
			c.tell(to)
		default:
			c.s.after(nil, 500*millis, func() { c.goodbye(to) })
		}
	})
}

// tell lets an end know that the connection is over.
func (c *conn) tell(end int) {
	if c.known[end] {
		return
	}
	c.known[end] = true
	if p := c.ends[end]; p.up && p.life == c.lives[end] && c.broken[end] != nil {
		c.s.at(c.s.now, p, c.broken[end])
	}
}

// hangUp closes the connections of a process that died. A host that lost its
// power says no goodbye.
func (s *sim) hangUp(p *proc, silent bool) {
	kept := s.conns[:0]
	for _, c := range s.conns {
		for end := range c.ends {
			if c.ends[end] != p || c.known[end] {
				continue
			}
			if silent {
				c.known[end] = true
			} else {
				c.close(end)
			}
		}
		if !c.known[0] || !c.known[1] {
			kept = append(kept, c)
		}
	}
	clear(s.conns[len(kept):])
	s.conns = kept
}
