package sim

import (
	"slices"
	"strings"

	pb "pulse/proto/pulse/v1"
)

const (
	settleMost = 240 * second // virtual time for everything to come to rest
	calmAfter  = 25 * second  // after which what is promised in calm has to hold
	calmLate   = second       // how late a due item may be in calm
)

// settling says that nobody begins anything new.
func (s *sim) settling() bool { return s.healed }

// heal ends everything that goes wrong, replaces the workers by good ones that
// can do everything, and waits until all is done.
func (s *sim) heal() {
	s.healed, s.healedAt = true, s.now
	s.say("everything is healed")
	for _, undo := range s.nemesis.undo {
		undo()
	}
	for i := range s.net.cut {
		clear(s.net.cut[i])
	}
	s.net.loss, s.net.twice, s.net.jitter = 0, 0, min(s.net.jitter, 2*millis)
	for _, n := range s.nodes {
		n.slowDisk, n.slowApply, n.p.host.wallStep = 0, 0, 0
		upAgain(n)
		s.resume(n.p)
	}
	if !s.lone.up {
		s.startLone()
	}
	s.resume(s.lone)
	for i, w := range s.workers {
		w.die(false)
		w.temper, w.notes = temper{}, nil
		w.newIdentity()
		w.handlers, w.keys, w.capacity, w.queue, w.queueID = handlerNames, true, 4, queueNames[i%len(queueNames)], nil
		w.start()
	}
	c := s.clients[len(s.clients)-1]
	rest := func() {
		s.every(nil, fixed(second), func() bool {
			if s.now-s.healedAt >= calmAfter {
				s.calm()
			}
			left := s.unsettled()
			switch {
			case len(left) == 0 && s.now-s.healedAt >= calmAfter+10*second:
				s.rest()
				s.over = true
			case s.now-s.healedAt > settleMost:
				s.fail("liveness", "%d s after everything was healed:\n%s", settleMost/second, strings.Join(left, "\n"))
			}
			return !s.over
		})
	}
	s.found(c, slices.Clone(queueNames), func() { s.restSchedules(c, slices.Clone(scheduleNames), rest) })
	s.after(nil, settleMost, func() {
		if !s.over && len(s.unsettled()) > 0 {
			s.fail("liveness", "queues could not be put right, or tasks do not end:\n%s", strings.Join(s.unsettled(), "\n"))
		}
	})
}

// unsettled lists the tasks that are neither over, nor in review, nor waiting
// for a reason that ends by itself, or never.
func (s *sim) unsettled() (left []string) {
	j := s.judge
	for _, t := range j.model.Tasks {
		reason := pb.WaitingReason_WAITING_REASON_UNSPECIFIED
		ok := t.Terminal() || t.State == pb.TaskState_TASK_STATE_NEEDS_REVIEW
		if t.State == pb.TaskState_TASK_STATE_WAITING {
			r, until, holder := j.model.Waiting(t)
			reason = r
			switch r {
			case pb.WaitingReason_WAITING_REASON_NO_CAPABLE_WORKER:
				ok = t.Handler == "nobody"
			case pb.WaitingReason_WAITING_REASON_KEY_HELD:
				ok = holder != nil && holder.State == pb.TaskState_TASK_STATE_NEEDS_REVIEW
			case pb.WaitingReason_WAITING_REASON_DELAYED, pb.WaitingReason_WAITING_REASON_RETRY_BACKOFF:
				ok = until > j.model.Clock && t.Handler == "nobody"
			default:
			}
		}
		if !ok {
			left = append(left, "task "+short(t.ID[:])+" of "+t.Queue.Name+" is "+t.State.String()+" "+reason.String())
		}
	}
	return left
}

// calm is what holds when nothing has gone wrong for a while.
func (s *sim) calm() {
	var serving *office
	for _, n := range s.nodes {
		if n.office != nil && n.office.serving {
			if serving != nil {
				s.fail("liveness", "%s and %s both serve", serving.n.p.name, n.p.name)
			}
			serving = n.office
		}
	}
	if serving == nil {
		s.fail("liveness", "nobody serves %d s after everything was healed", (s.now-s.healedAt)/second)
	}
	for _, n := range s.nodes {
		if behind := s.judge.tip - n.m.AppliedIndex(); behind > 50 && behind < 1<<60 {
			s.fail("liveness", "%s is %d entries behind", n.p.name, behind)
		}
	}
	now := serving.n.clock.Now()
	if due, ok := serving.n.m.NextDue(); ok && due < now-calmLate {
		s.fail("T2 on time", "an item was due %d us ago", now-due)
	}
	for _, t := range s.judge.model.Tasks {
		a := t.Live
		if a == nil || t.State != pb.TaskState_TASK_STATE_LEASED || now-a.LeasedAt < 5*second {
			continue
		}
		for _, i := range s.judge.model.Instances {
			if i.ID == a.Instance && i.Connected && i.Namespace == t.Namespace && s.judge.pushes[a.ID] == 0 {
				s.fail("P2 pushed within 5 s", "attempt %s was leased %d us ago and nobody was told", short(a.ID[:]), now-a.LeasedAt)
			}
		}
	}
	for i, g := range s.gateways {
		if !g.ready {
			s.fail("liveness", "gateway %d has not been heard", i)
		}
	}
}

// rest is looked at when everything has come to rest: nothing that anybody was
// told is lost, and every reason that readers are given is the true one.
func (s *sim) rest() {
	j := s.judge
	for _, task := range sortedIDs(j.tasks) {
		if j.purged[task] {
			continue
		}
		if j.model.Task(task) == nil {
			s.fail("S1 nothing is lost", "a caller was told of task %s at %d; it is gone", short(task[:]), j.tasks[task])
		}
	}
	for _, n := range s.nodes {
		if n.m.AppliedIndex() != j.tip {
			continue
		}
		j.compareRows(n)
		for _, t := range j.model.Tasks {
			a := n.m.Query(&pb.Query{NamespaceId: t.Namespace.ID[:], Body: &pb.Query_GetTask{GetTask: &pb.GetTask{TaskId: t.ID[:]}}})
			v := a.GetTask()
			if v == nil {
				s.fail("S1 nothing is lost", "%s cannot read task %s: %s", n.p.name, short(t.ID[:]), a.Code)
			}
			if t.State != pb.TaskState_TASK_STATE_WAITING {
				continue
			}
			reason, until, _ := j.model.Waiting(t)
			if v.Waiting.GetReason() != reason || v.Waiting.GetUntilUs() != until {
				s.fail("liveness", "task %s waits for %v on %s; true is %s", short(t.ID[:]), v.Waiting, n.p.name, reason)
			}
		}
	}
}
