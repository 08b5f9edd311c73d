package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulse/cmd/pulse/demo"
)

const (
	demoTasks    = 5000
	demoTasksMax = 1_000_000
)

func (a *app) demoCommand() *cobra.Command {
	cfg := demo.Config{}
	var headless bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Watch thousands of tasks survive the kill of a server",
		Long: `Start three servers as child processes, spread a fleet of workers over them, give them
thousands of tasks, kill the leader with SIGKILL in the middle, let another one take over,
start the dead one again, and then ask the cluster about every task. A third of the tasks
must not run twice (RECONCILE_ONLY), a sixth share concurrency keys, and everything they do
goes to a resource that checks fencing tokens and keeps account of every effect.

At the end there is a summary. The exit code is 1 if a task was lost or an effect was
doubled. With --headless the last line is the summary as one JSON object.

--kill gateway kills a node that does not lead, with the workers it holds. --kill server
starts one server alone, kills it and starts it again.

The demo uses free ports and a temporary directory, and leaves nothing behind if all is
well.`,
		Example: `  pulse demo
  pulse demo --kill gateway
  pulse demo --headless --tasks 2000 --kill server
  pulse demo --kill none --seed 7`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			kills := []string{demo.KillLeader, demo.KillGateway, demo.KillServer, demo.KillNone}
			if cfg.Kill, err = oneOf("--kill", cfg.Kill, kills); err != nil {
				return err
			}
			if cfg.Tasks < 1 || cfg.Tasks > demoTasksMax {
				return usagef("--tasks is %d: give 1 to %d", cfg.Tasks, demoTasksMax)
			}
			if !cmd.Flags().Changed("seed") {
				cfg.Seed = rand.Uint64N(1_000_000)
			}
			if cfg.Binary, err = os.Executable(); err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			asJSON := headless || a.format != formatTable
			progress := out
			if asJSON {
				progress = cmd.ErrOrStderr()
			}
			var end func()
			if cfg.View, end = demoView(progress, headless); asJSON {
				fmt.Fprintf(progress, "Pulse demo: %s tasks, kill %s, seed %d\n", commas(cfg.Tasks), cfg.Kill, cfg.Seed)
			} else {
				fmt.Fprintf(progress, "Pulse demo: %s tasks, kill %s, seed %d\n\n", commas(cfg.Tasks), cfg.Kill, cfg.Seed)
			}
			sum, err := demo.Run(cmd.Context(), cfg)
			end()
			if err != nil {
				return err
			}
			if asJSON {
				err = printLine(out, sum)
			} else {
				err = tellDemo(out, sum)
			}
			if err == nil && !sum.OK {
				return errSilent
			}
			return err
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolVar(&headless, "headless", false, "plain lines on standard error, and the summary as one JSON object on standard output")
	flags.IntVar(&cfg.Tasks, "tasks", demoTasks, "how many tasks")
	flags.StringVar(&cfg.Kill, "kill", demo.KillLeader, "what to kill in the middle: leader, gateway, server or none")
	flags.Uint64Var(&cfg.Seed, "seed", 0, "what to draw the tasks from (default: another each time)")
	complete(cmd, "kill", demo.KillLeader, demo.KillGateway, demo.KillServer, demo.KillNone)
	return cmd
}

// demoView draws on a terminal and writes lines elsewhere.
func demoView(w io.Writer, headless bool) (v demo.View, end func()) {
	if headless || !isTerminal(w) {
		return &demo.Lines{W: w, Every: 2 * time.Second}, func() {}
	}
	screen := &demo.Screen{W: w, Color: os.Getenv("NO_COLOR") == ""}
	return screen, screen.End
}

// tellDemo is the summary for people.
func tellDemo(w io.Writer, s *demo.Summary) error {
	t := newTable(w)
	put := func(name, format string, args ...any) {
		fmt.Fprintf(t, "  %s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	put("submitted", "%s acknowledged", commas(s.Submitted))
	put("succeeded", "%s", commas(s.Succeeded))
	if s.Failed+s.Cancelled+s.Unanswered > 0 {
		put("otherwise", "%d failed, %d cancelled, %d submissions without an answer", s.Failed, s.Cancelled, s.Unanswered)
	}
	put("needs review", "%d", s.NeedsReview)
	put("lost", "%d", s.Lost)
	put("done twice", "%d effects that must not be, %d that may; %d came too late and were refused by their token", s.EffectsDoubled, s.EffectsRepeated, s.EffectsRefused)
	if s.EffectsMissing+s.ResultsAltered > 0 {
		put("WRONG", "%d succeeded without an effect, %d results altered", s.EffectsMissing, s.ResultsAltered)
	}
	if s.Kill != demo.KillNone {
		put("leases", "%d of %d under way at the kill were kept to the end", s.LeasesKept, s.LeasesAtKill)
		put("failover", "%d ms from the kill to the next acknowledged submission, %d ms without an assignment", s.FailoverMs, s.AssignmentGapMs)
	}
	put("time", "%.1f s, %.0f tasks/s (the load is spread on purpose; 'pulse bench' measures speed)", s.Seconds, s.TasksPerSecond)
	if err := t.Flush(); err != nil {
		return err
	}
	verdict := "Nothing was lost and nothing was done twice."
	if !s.OK {
		verdict = strings.ToUpper("This is wrong: please report it with the seed and the logs.")
	}
	_, err := fmt.Fprintf(w, "\n%s\n", verdict)
	return err
}
