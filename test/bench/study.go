package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// study is a group of goals that one load does not show: it starts servers, does
// something to them and says what came of it.
type study struct {
	name, about string
	run         func(context.Context, *site) error
}

// studies are in the order of the goals in docs/performance.md.
var studies = []study{
	{"memory", "a node with tasks waiting, with small and with larger payloads", studyMemory},
	{"drain", "a node is loaded with tasks, and workers do them all", studyDrain},
	{"flat", "throughput with tasks waiting, and with tasks that are over kept, against none", studyFlat},
	{"restart", "kill -9 with tasks waiting, until ready", studyRestart},
	{"snapshot", "latency of submissions while a snapshot is taken and streamed", studySnapshot},
	{"copies", "latency of submissions while hundreds of megabytes are backed up, or sent to a server that joins", studyCopies},
	{"follower", "a follower that was away catches up under load", studyFollower},
	{"keys", "throughput with 10,000 concurrency keys against none, and a chain on one", studyKeys},
	{"idle", "3,000 idle workers, and a third of them reconnecting at once", studyIdle},
	{"cancel", "from the request to cancel until the handler knows", studyCancel},
}

// site is where a study works.
type site struct {
	binary string
	dir    string // for this study alone
	tasks  int    // how many are waiting, kept and so on
	// megabytes of state, in the row that copies it.
	megabytes int
	length    time.Duration
	runs      int
	// profiles is where profiles of servers go; empty: none are taken.
	profiles string
	found    []finding
}

// finding is a goal and what was measured. reached says whether it was, for the
// number of tasks that was asked for.
type finding struct {
	study, what, goal, got string
	reached                bool
}

// say records a figure that has a goal.
func (s *site) say(study, what, goal string, reached bool, format string, args ...any) {
	f := finding{study: study, what: what, goal: goal, got: fmt.Sprintf(format, args...), reached: reached}
	s.found = append(s.found, f)
	progress("  %s: %s (%s)", f.what, f.got, f.verdict())
}

// tell records a figure without one.
func (s *site) tell(study, what, format string, args ...any) {
	s.say(study, what, "", true, format, args...)
}

func (f finding) verdict() string {
	switch {
	case f.goal == "" || f.goal == "-":
		return "-"
	case f.reached:
		return "reached: " + f.goal
	}
	return "missed: " + f.goal
}

// progress tells whoever waits.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().UTC().Format("15:04:05 ")+format+"\n", args...) //nolint:forbidigo // progress
}

// examine runs studies one after the other, each in a directory of its own. One
// that fails says so in the table, and the next goes on.
func (s *site) examine(ctx context.Context, wanted []study) {
	root := s.dir
	for _, st := range wanted {
		if ctx.Err() != nil {
			return
		}
		progress("%s: %s", st.name, st.about)
		s.dir = filepath.Join(root, st.name)
		err := os.MkdirAll(s.dir, 0o700)
		if err == nil {
			err = st.run(ctx, s)
		}
		if err != nil {
			s.say(st.name, "not measured", "-", false, "%s", firstLine(err.Error()))
		}
		_ = os.RemoveAll(s.dir) // what is left there goes with the whole directory
	}
}

// findings writes Markdown.
func findings(w io.Writer, found []finding) error {
	if len(found) == 0 {
		return nil
	}
	lines := []string{"", "| row | what | measured | goal |", "|---|---|---|---|"}
	for _, f := range found {
		lines = append(lines, fmt.Sprintf("| %s | %s | %s | %s |", f.study, f.what, f.got, f.verdict()))
	}
	_, err := fmt.Fprintln(w, strings.Join(lines, "\n"))
	return err
}

// choose finds the studies that are named, and says whether the rows of the
// life of a task, and those of its pickup, are among them. Empty is everything.
func choose(names string) (wanted []study, life, pickup bool, err error) {
	if names == "" {
		return studies, true, true, nil
	}
	known := []string{"life", "pickup"}
	for _, st := range studies {
		known = append(known, st.name)
	}
	for name := range strings.SplitSeq(names, ",") {
		switch name = strings.TrimSpace(name); name {
		case "life":
			life = true
			continue
		case "pickup":
			pickup = true
			continue
		}
		before := len(wanted)
		for _, st := range studies {
			if st.name == name {
				wanted = append(wanted, st)
			}
		}
		if len(wanted) == before {
			return nil, false, false, fmt.Errorf("-rows: there is no row %q, only %s", name, strings.Join(known, ", "))
		}
	}
	return wanted, life, pickup, nil
}
