package console

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"
)

// overviewPage answers one question at a glance: is it healthy?
type overviewPage struct {
	Activity activity
	Cluster  cluster
	Members  []member
	Verdict  verdict
	Chart    chart
	Reasons  []share
	Queues   []queueStanding
	Observed time.Duration // how long the node has counted, if less than all of it
	Leader   string
}

// verdict is the health in a word, and what speaks against it.
type verdict struct {
	Tone  string // good, warn, bad
	Text  string
	Signs []sign
}

// sign is one thing somebody should know, and where to look.
type sign struct {
	Tone string
	Text string
	More string // beside it
	Link string
	Name string // of the link
}

// share is a part of the backlog.
type share struct {
	Reason      string
	Tasks       uint64
	Link        string
	From, Width uint64 // in thousandths of the whole
}

// chart is what the script draws: columns of equal length, times in seconds.
type chart struct {
	At        []int64    `json:"at"`
	Submitted []float64  `json:"submitted"`
	Succeeded []float64  `json:"succeeded"`
	Failed    []float64  `json:"failed"`
	Waiting   []uint64   `json:"waiting"`
	Active    []uint64   `json:"active"`
	P50       []*float64 `json:"p50"`
	P99       []*float64 `json:"p99"`
}

func (v *visit) overview() error {
	p := overviewPage{}
	if err := v.read(v.in("activity"), nil, &p.Activity); err != nil {
		return err
	}
	if err := v.read("/v1/cluster", nil, &p.Cluster); err != nil {
		return err
	}
	var members struct{ Members []member }
	if err := v.call(http.MethodGet, "/v1/cluster/members", nil, nil, &members); err != nil {
		return err
	}
	p.Members, p.Leader = members.Members, p.Cluster.Node.LeaderID
	p.Verdict = v.judge(&p)
	p.Chart = chartOf(&p.Activity)
	p.Reasons = v.shares(&p.Activity.Total)
	p.Queues = p.Activity.Queues
	slices.SortStableFunc(p.Queues, func(a, b queueStanding) int { return cmp.Compare(b.Waiting, a.Waiting) })
	if counted := p.Activity.At.Sub(p.Activity.Since); counted < historyFull {
		p.Observed = counted
	}
	v.frame.Here, v.frame.Live, v.frame.Review = "overview", true, p.Activity.Total.NeedsReview
	v.frame.Node = p.Cluster.Node.ID
	return v.render(http.StatusOK, "overview", "Overview", p)
}

const historyFull = 15 * time.Minute

// chartOf makes rates of counts. The last step is still running and would always
// look like a fall, so it is left out.
func chartOf(a *activity) chart {
	c := chart{At: []int64{}}
	if len(a.Steps) < 2 || a.StepMillis <= 0 {
		return c
	}
	rate := func(n uint64) float64 { return float64(n) * 1000 / float64(a.StepMillis) }
	for _, s := range a.Steps[:len(a.Steps)-1] {
		c.At = append(c.At, s.At.Unix())
		c.Submitted = append(c.Submitted, rate(s.Submitted))
		c.Succeeded = append(c.Succeeded, rate(s.Succeeded))
		c.Failed = append(c.Failed, rate(s.AttemptsFailed))
		c.Waiting = append(c.Waiting, s.Waiting)
		c.Active = append(c.Active, s.Active)
		c.P50 = append(c.P50, s.PickupP50Millis)
		c.P99 = append(c.P99, s.PickupP99Millis)
	}
	return c
}

func (v *visit) shares(s *standing) []share {
	var out []share
	for _, r := range s.Reasons {
		out = append(out, share{
			Reason: r.Reason, Tasks: r.Tasks,
			Link: v.path("tasks") + "?" + url.Values{"state": {stateWaiting}, "waiting_reason": {r.Reason}}.Encode(),
		})
	}
	slices.SortStableFunc(out, func(a, b share) int { return cmp.Compare(b.Tasks, a.Tasks) })
	at := uint64(0)
	for i := range out {
		out[i].From = 1000 * at / max(s.Waiting, 1)
		at += out[i].Tasks
		out[i].Width = 1000*at/max(s.Waiting, 1) - out[i].From
	}
	return out
}

const (
	// oldSlow and oldBad are when waiting is worth a word, and when it is wrong,
	// while workers could take the task.
	oldSlow = 30 * time.Second
	oldBad  = 5 * time.Minute
	// failingShare is the part of attempts, in percent, that makes failing the
	// rule.
	failingShare = 20
	staleWorry   = 5 * time.Second
)

// judge says what is wrong, the worst first.
func (v *visit) judge(p *overviewPage) verdict {
	j := &judgement{visit: v, page: p}
	j.cluster()
	j.backlog()
	j.failures()
	j.review()
	out := verdict{Tone: "good", Text: "Healthy", Signs: j.signs}
	rank := map[string]int{"bad": 0, "warn": 1, "info": 2}
	slices.SortStableFunc(out.Signs, func(a, b sign) int { return rank[a.Tone] - rank[b.Tone] })
	for _, s := range out.Signs {
		switch {
		case s.Tone == "bad":
			out.Tone, out.Text = "bad", "Something is wrong"
		case s.Tone == "warn" && out.Tone == "good":
			out.Tone, out.Text = "warn", "Needs a look"
		}
	}
	return out
}

type judgement struct {
	*visit
	page  *overviewPage
	signs []sign
}

func (j *judgement) say(tone, text, more, link, name string) {
	j.signs = append(j.signs, sign{Tone: tone, Text: text, More: more, Link: link, Name: name})
}

func (j *judgement) cluster() {
	n := j.page.Cluster.Node
	link := root + "cluster?ns=" + url.QueryEscape(j.ns)
	if n.LeaderID == "" {
		j.say("bad", "No leader.", "Nothing is accepted and nothing is assigned until most of the voters see each other. Running tasks go on.", link, "Cluster")
	} else if !n.Ready {
		more := "It may show things as they were."
		if len(n.NotReady) > 0 {
			more = n.NotReady[0]
		}
		j.say("warn", "This node is not ready.", more, link, "Cluster")
	}
	if j.frame.Stale > staleWorry && n.LeaderID != "" {
		j.say("warn", "What you see is "+span(j.frame.Stale)+" old.", "This node has not heard from the leader since.", link, "Cluster")
	}
	voters, alive := 0, 0
	for _, m := range j.page.Members {
		if m.Voter {
			voters++
			if m.Alive {
				alive++
			}
		}
	}
	for _, m := range j.page.Members {
		if m.Voter && !m.Alive {
			left := alive - (voters/2 + 1)
			tone, more := "warn", fmt.Sprintf("%d of %d voters are alive; %d more may be lost.", alive, voters, max(left, 0))
			if left <= 0 {
				tone, more = "bad", fmt.Sprintf("%d of %d voters are alive; the loss of another one stops the cluster.", alive, voters)
			}
			j.say(tone, "Server "+m.ID+" is not alive.", more, link, "Cluster")
		}
	}
	if n.DiskLow {
		j.say("bad", "The disk of this node is nearly full.", byteCount(n.DiskFree)+" are left. New tasks are refused; running ones can finish.", link, "Cluster")
	}
}

// backlog says why tasks wait that should not.
func (j *judgement) backlog() {
	for _, q := range j.page.Activity.Queues {
		link := func(reason string) string {
			return j.path("tasks") + "?" + url.Values{"queue": {q.Queue}, "state": {stateWaiting}, "waiting_reason": {reason}}.Encode()
		}
		if n := q.because("no_capable_worker"); n > 0 {
			more := "No worker is connected to the queue."
			if q.WorkersConnected > 0 {
				more = "None of its " + plural(q.WorkersConnected, "worker") + " offers their handler in their version."
			}
			j.say("bad", fmt.Sprintf("%s in queue %s that no worker can run.", tasks(n), q.Queue), more, link("no_capable_worker"), "Show them")
		}
		if n := q.because("queue_paused"); q.Paused {
			more := "Nothing waits in it."
			if n > 0 {
				more = tasks(n) + " there until somebody resumes it."
			}
			j.say("warn", "Queue "+q.Queue+" is paused.", more, j.path("queues", q.Queue), "Queue")
		}
		if n := q.because("queue_limit"); n > 0 {
			j.say("warn", fmt.Sprintf("Queue %s is at its limit.", q.Queue), tasks(n)+" though workers may be free.", j.path("queues", q.Queue), "Queue")
		}
		old := j.page.Activity.At.Sub(q.OldestWaitingSince)
		busy := q.because("workers_busy")
		if busy > 0 && !q.OldestWaitingSince.IsZero() && old > oldSlow {
			tone := "warn"
			if old > oldBad {
				tone = "bad"
			}
			j.say(tone, fmt.Sprintf("Queue %s is behind.", q.Queue),
				fmt.Sprintf("%s for a free slot, the oldest task of the queue since %s. All %s are used: start more workers.", tasks(busy), span(old), plural(int(q.Slots), "slot")),
				j.path("workers")+"?queue="+url.QueryEscape(q.Queue), "Workers")
		}
		if q.WorkersLost > 0 {
			j.say("warn", fmt.Sprintf("%s of queue %s lost the connection.", plural(q.WorkersLost, "worker"), q.Queue),
				"What they hold goes to others when its lease runs out, or waits for a review.", j.path("workers")+"?queue="+url.QueryEscape(q.Queue), "Workers")
		}
	}
}

// failures says when failing is the rule rather than the exception.
func (j *judgement) failures() {
	l := j.page.Activity.Total.Lately
	ended := l.Succeeded + l.AttemptsFailed
	if l.AttemptsFailed == 0 {
		return
	}
	share := percent(l.AttemptsFailed, ended)
	more := ""
	if codes := j.page.Activity.Total.Errors; len(codes) > 0 {
		more = fmt.Sprintf("Most often in the last 15 minutes: %s (%s).", words(codes[0].Code), number(codes[0].Attempts))
	}
	link := j.path("tasks") + "?state=" + stateFailed
	text := fmt.Sprintf("%s failed in the last minute, %d %% of those that ended.", plural(int(l.AttemptsFailed), "attempt"), share)
	switch {
	case share >= failingShare && ended >= 5:
		j.say("bad", text, more, link, "Failed tasks")
	default:
		j.say("info", text, more, link, "Failed tasks")
	}
}

func (j *judgement) review() {
	if n := j.page.Activity.Total.NeedsReview; n > 0 {
		verb := "need"
		if n == 1 {
			verb = "needs"
		}
		j.say("warn", fmt.Sprintf("%s %s a decision.", plural(int(n), "task"), verb), "Nobody can know how they ended; they keep their keys until somebody finds out.", j.path("review"), "Review inbox")
	}
}

// tasks is "1 task waits" or "3 tasks wait".
func tasks(n uint64) string {
	if n == 1 {
		return "1 task waits"
	}
	return number(n) + " tasks wait"
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return number(n) + " " + noun + "s"
}
