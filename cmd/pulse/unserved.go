package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"pulse/schema"
	"pulse/sdk"
)

// A call that no node served is explained by what each node says when it is asked,
// not by what happened to come last: the last try of a call goes to one address of
// several, and a node without a leader lets a call wait until its time is over.

const (
	// lookWithin bounds the look at the nodes after a call that was not served.
	lookWithin = 2 * time.Second
	// readyBytesMax is far more than /readyz has to say.
	readyBytesMax = 64 << 10
)

// unserved says that no node has dealt with a call at all.
func unserved(err error, refusal *sdk.Error) bool {
	if refusal != nil {
		return refusal.Code == schema.NoLeader || refusal.Code == schema.NotLeader ||
			refusal.Code == schema.ResultUnknown && errors.Is(err, context.DeadlineExceeded)
	}
	return unreachable(err) != nil || errors.Is(err, context.DeadlineExceeded)
}

// sight is what a node says of itself, or why it says nothing.
type sight struct {
	addr    string
	says    string
	answers bool
	ready   bool
	members []*sdk.Member // as it sees them; nil if it does not tell
}

func (s sight) leaderless() bool { return strings.Contains(s.says, "no leader") }

func (a *app) explainUnserved(ctx context.Context, err error, refusal *sdk.Error) string {
	var b strings.Builder
	sights := a.look(ctx)
	answered := slices.ContainsFunc(sights, func(s sight) bool { return s.answers })
	ready := slices.ContainsFunc(sights, func(s sight) bool { return s.ready })
	late := errors.Is(err, context.DeadlineExceeded)
	if _, called := errors.AsType[*url.Error](err); late && !called && ready {
		return fmt.Sprintf("pulse: given up after %s, as --timeout says\n", spell(timeout(a))) // it was served, and waited
	}
	switch {
	case answered && !ready && slices.ContainsFunc(sights, sight.leaderless):
		fmt.Fprintf(&b, "pulse: the cluster has no leader, so nothing is read or changed (%s)\n", schema.NoLeader)
	case refusal != nil:
		fmt.Fprintf(&b, "pulse: %s (%s)\n", refusal.Message, refusal.Code)
	case unreachable(err) != nil && !answered:
		fmt.Fprintf(&b, "pulse: no answer: %v\n", unreachable(err))
	case answered && !ready:
		fmt.Fprintf(&b, "pulse: no node is ready to serve (%s)\n", schema.Unavailable)
	case late:
		fmt.Fprintf(&b, "pulse: no answer within %s; --timeout waits longer\n", spell(timeout(a)))
	default:
		fmt.Fprintf(&b, "pulse: no answer: %v\n", unreachable(err))
	}
	if len(sights) > 1 || answered {
		width := 0
		for _, s := range sights {
			width = max(width, len(s.addr))
		}
		for _, s := range sights {
			fmt.Fprintf(&b, "  %-*s  %s\n", width, s.addr, s.says)
		}
	}
	switch {
	case !answered && errors.Is(err, syscall.ECONNREFUSED):
		fmt.Fprintf(&b, "  %s\n", a.nobodyListens())
	case answered && !ready && slices.ContainsFunc(sights, sight.leaderless):
		fmt.Fprintf(&b, "  %s\n", leaderless(sights))
	case ready && len(sights) > 1:
		fmt.Fprintf(&b, "  One that is ready serves: --addr asks it alone.\n")
	}
	if late && (cutShort(err, answered) || errors.Is(err, schema.ResultUnknown)) {
		fmt.Fprintf(&b, "  %s\n", maybeDone)
	}
	return b.String()
}

// look asks each address what stands there, all at once.
func (a *app) look(ctx context.Context) []sight {
	logger := a.patience(io.Discard)
	client, err := a.conn.httpClient(logger)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	sights := make([]sight, len(a.conn.addrs()))
	var asked sync.WaitGroup
	for i, addr := range a.conn.addrs() {
		asked.Go(func() {
			sights[i] = lookAt(ctx, client, addr)
			if sights[i].answers {
				c := sdk.NewClient(sdk.ClientOptions{Addr: addr, Token: a.conn.token, HTTPClient: client, Logger: logger})
				// Who may not see them is told the rest.
				sights[i].members, _ = c.Members(ctx)
			}
		})
	}
	asked.Wait()
	return sights
}

func lookAt(ctx context.Context, client *http.Client, addr string) sight {
	s := sight{addr: addr}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(addr, "/")+"/readyz", nil)
	if err != nil {
		s.says = err.Error()
		return s
	}
	answer, err := client.Do(req)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		s.says = "nobody listens"
		return s
	case errors.Is(err, context.DeadlineExceeded):
		s.says = "no answer within " + spell(lookWithin)
		return s
	case err != nil:
		s.says = err.Error()
		if fault := unreachable(err); fault != nil {
			s.says = fault.Error()
		}
		return s
	}
	defer answer.Body.Close()
	var body struct {
		Status  string   `json:"status"`
		Reasons []string `json:"reasons"`
	}
	err = json.NewDecoder(io.LimitReader(answer.Body, readyBytesMax)).Decode(&body)
	switch {
	case err != nil || body.Status == "":
		s.says = "answers, but not as a node of Pulse: HTTP status " + answer.Status
	case body.Status == "ready":
		s.answers, s.ready, s.says = true, true, "ready"
	default:
		s.answers, s.says = true, "answers, and is not ready: "+strings.Join(body.Reasons, "; ")
	}
	return s
}

// leaderless says what a cluster without a leader lacks.
func leaderless(sights []sight) string {
	voters, alive, silent := 0, 0, []string{}
	for _, s := range sights {
		if len(s.members) == 0 {
			continue
		}
		n, up, down := votes(s.members)
		if voters == 0 || up > alive { // they may see different halves of it
			voters, alive, silent = n, up, down
		}
	}
	switch need := voters/2 + 1; {
	case voters == 0:
		return "It has one again when more than half of its servers run and reach each other: 'pulse cluster members' shows who is silent."
	case alive < need:
		return fmt.Sprintf("%s: start %s again, as %s. What was acknowledged is kept, and workers go on with what they run.\n"+
			"  'pulse cluster members' shows who is back. If the disks are lost for ever: 'pulse cluster restore --help'.",
			quorum(voters, alive), strings.Join(silent, " and "), map[bool]string{true: "it was", false: "they were"}[len(silent) == 1])
	default:
		return quorum(voters, alive) + ": they should elect one within seconds. If they do not, they do not reach each other, or their disks hang: see 'pulse cluster status' and the log of each."
	}
}

// votes counts the voters, and those that answer, and names the others.
func votes(members []*sdk.Member) (voters, alive int, silent []string) {
	for _, m := range members {
		switch {
		case !m.Voter:
			continue
		case memberState(m) == "alive":
			alive++
		default:
			name := m.ID
			if m.Raft != "" && m.Raft != m.ID {
				name += " (" + m.Raft + ")"
			}
			silent = append(silent, name)
		}
		voters++
	}
	return voters, alive, silent
}

// quorum says how many voters answer, and how many it takes.
func quorum(voters, alive int) string {
	verb := "answer"
	if alive == 1 {
		verb = "answers"
	}
	return fmt.Sprintf("%d of %s %s, and a leader needs %d", alive, plural(voters, "voter"), verb, voters/2+1)
}
