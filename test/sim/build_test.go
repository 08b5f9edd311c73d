package sim

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	pb "pulse/proto/pulse/v1"
)

var queueNames = []string{"q0", "q1", "q2"}

// knobs are what a seed sets before the run begins: bounds are small at random,
// so that what they bound happens often.
type knobs struct {
	busyFor       int64 // virtual time until everything is healed
	snapshotEvery int   // entries
	trailing      int   // entries kept in the log behind a snapshot
	entryCommands int
	inFlight      int
	think         int64 // mean pause of a client
	lookEvery     int   // entries between two looks at all rows

	channelStall  int   // per mille: an entry waits long in the log's channel
	frameTwice    int   // per mille: a worker's frame is sent twice
	damage        int   // percent of snapshots that arrive damaged
	dieInstalling int   // percent of installs the node does not survive
	dropDelivery  int   // percent of deliveries lost on the last yards
	retention     int64 // how long events stay in the feed, milliseconds; 0: 3 days

	queues map[string]*pb.QueueSettings
	faults []fault
}

func (s *sim) setKnobs() {
	s.knobs = knobs{
		busyFor:       s.between(50*second, 100*second),
		snapshotEvery: int(s.between(25, 250)),
		trailing:      pick(s, []int{0, 5, 30, 100}),
		entryCommands: pick(s, []int{1, 3, 16, 512, 512}),
		inFlight:      int(s.between(1, 2)),
		think:         s.between(120*millis, 450*millis),
		lookEvery:     50,
		channelStall:  pick(s, []int{0, 5, 30}),
		frameTwice:    pick(s, []int{0, 20, 100}),
		damage:        pick(s, []int{0, 0, 20}),
		dieInstalling: pick(s, []int{0, 20, 50}),
		dropDelivery:  pick(s, []int{0, 0, 5, 20}),
		retention:     pick(s, []int64{0, 15_000}),
		queues:        map[string]*pb.QueueSettings{},
	}
	for _, name := range queueNames {
		s.knobs.queues[name] = &pb.QueueSettings{
			LeaseDurationMs: s.between(3_000, 20_000), OfferDurationMs: s.between(1_000, 10_000),
			MaxActive: pick(s, []uint32{0, 0, 3}), MaxWaiting: pick(s, []uint64{30, 1000, 1000}),
			RetentionMs: pick(s, []int64{5_000, 20_000, 3_600_000}), DefaultDeadlineMs: s.between(30_000, 300_000),
			AgeingMs: pick(s, []int64{0, 0, 1_500}),
			DefaultRetry: &pb.RetryPolicy{MaxAttempts: uint32(s.between(1, 5)), InitialDelayMs: s.between(0, 1_000),
				MaxDelayMs: s.between(1_000, 6_000), AttemptTimeoutMs: s.between(4_000, 60_000)},
		}
	}
	for _, f := range allFaults {
		if s.chance(60) {
			s.knobs.faults = append(s.knobs.faults, f)
		}
	}
}

func (s *sim) newHost() *host {
	h := &host{number: len(s.hosts), ppm: s.between(-200, 200)}
	s.hosts = append(s.hosts, h)
	return h
}

// build makes the world and sets it going.
func (s *sim) build() {
	s.setKnobs()
	s.judge = newJudge(s)
	s.resource.largest = map[string]uint64{}
	s.net.base, s.net.jitter = s.between(50, 400), s.between(100, 2*millis)
	for i := range 3 {
		s.nodes = append(s.nodes, s.newNode(i, s.newHost()))
	}
	s.gateways = make([]*gateway, 4)
	s.lone = &proc{name: "g3", host: s.newHost()}
	for i := range int(s.between(5, 8)) {
		w := s.newWorker(i, s.newHost(), queueNames[i%len(queueNames)], s.newTemper())
		if i > 2 && s.chance(10) { // two processes under one identity
			other := s.workers[i-3]
			w.instance, w.secret, w.handlers, w.keys, w.notify = other.instance, other.secret, other.handlers, other.keys, other.notify
		}
		s.workers = append(s.workers, w)
	}
	for i := range 4 {
		s.clients = append(s.clients, s.newClient(i, s.newHost()))
	}
	s.net.cut = make([][]bool, len(s.hosts))
	for i := range s.net.cut {
		s.net.cut[i] = make([]bool, len(s.hosts))
	}
	for _, n := range s.nodes {
		n.start()
	}
	s.startLone()
	for _, w := range s.workers {
		w.start()
	}
	for _, c := range s.clients {
		s.start(c.p)
	}
	s.found(s.clients[0], slices.Clone(queueNames), func() {
		for _, c := range s.clients {
			c.next()
		}
		s.newWatcher(s.clients[1].p).poll()
		s.nemesis.start(s)
		s.after(nil, s.knobs.busyFor, s.heal)
	})
}

// startLone starts the gateway that has no replica.
func (s *sim) startLone() {
	s.start(s.lone)
	s.openGateway(3, s.lone, nil)
}

func (s *sim) newTemper() (t temper) {
	t.slow, t.deaf, t.notes, t.twin = s.chance(25), s.chance(25), s.chance(50), s.chance(50)
	t.lazy = pick(s, []int{0, 0, 5, 30})
	t.mortal = pick(s, []int{0, 2, 10})
	t.rude = pick(s, []int{0, 10, 30})
	return t
}

// found makes the queues, or puts their settings back and lets them go on.
func (s *sim) found(c *client, names []string, then func()) {
	if len(names) == 0 {
		s.keepEvents(c, then)
		return
	}
	cmd := &pb.Command{Body: &pb.Command_PutQueue{PutQueue: &pb.PutQueue{Name: names[0], Settings: proto.CloneOf(s.knobs.queues[names[0]])}}}
	cmd.ContentHash = hashOf(cmd)
	r := &request{name: "found", commands: []*pb.Command{cmd}, key: fmt.Sprintf("found-%s-%d", names[0], s.rng.Uint64())}
	c.do(r, func(results []*pb.Result) {
		if results == nil || results[0].Code != "" {
			s.after(c.p, second, func() { s.found(c, names, then) })
			return
		}
		s.found(c, names[1:], then)
	})
}

// keepEvents sets how long events stay.
func (s *sim) keepEvents(c *client, then func()) {
	if s.knobs.retention == 0 {
		then()
		return
	}
	cmd := &pb.Command{Body: &pb.Command_SetCluster{SetCluster: &pb.SetCluster{EventRetentionMs: s.knobs.retention}}}
	c.do(&request{name: "keep events", commands: []*pb.Command{cmd}, wholeCluster: true}, func(results []*pb.Result) {
		if results == nil || results[0].Code != "" {
			s.after(c.p, second, func() { s.keepEvents(c, then) })
			return
		}
		then()
	})
}

// summary of a run that ended well.
func (s *sim) summary() *outcome {
	o := &outcome{steps: s.step, virtual: s.now, trace: fmt.Sprintf("%x", s.sum.Sum(nil)), counts: s.judge.counts,
		tasks: len(s.judge.state), openings: len(s.judge.model.Openings), restores: s.judge.counts["restores"], faults: s.nemesis.done}
	for _, c := range s.judge.log {
		if c.kind == kindCommand {
			o.entries++
		}
	}
	return o
}

func (o *outcome) String() string {
	var names []string
	for name := range o.counts { // order-free: sorted below
		names = append(names, name)
	}
	slices.Sort(names)
	var b strings.Builder
	fmt.Fprintf(&b, "%d steps, %d entries, %d tasks, %d terms, %d faults, %d s", o.steps, o.entries, o.tasks, o.openings, o.faults, o.virtual/second)
	for _, name := range names {
		fmt.Fprintf(&b, ", %s %d", name, o.counts[name])
	}
	return b.String()
}

func (s *sim) close() {
	for _, n := range s.nodes {
		if n.m != nil {
			must(n.m.Close())
		}
	}
}
