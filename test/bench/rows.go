package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

// row is one setting that is measured.
type row struct {
	name   string
	pickup bool     // of the row pickup, not of life
	args   []string // the program first
	got    []sample
	fail   string // why it was not measured, the last time
}

// sample is what one run printed; zero where it says nothing.
type sample struct {
	Tasks     float64 `json:"tasks_per_s"`
	SubmitP99 float64 `json:"submit_p99_ms"`
	// Others hand a task over without a second step on record: their pickup is their arrival.
	ArrivalP50 float64 `json:"arrival_p50_ms"`
	ArrivalP99 float64 `json:"arrival_p99_ms"`
	PickupP50  float64 `json:"pickup_p50_ms"`
	PickupP99  float64 `json:"pickup_p99_ms"`
	CPU        float64 `json:"cpu_us_per_task"`
	Memory     float64 `json:"server_mem_mib"`
	Errors     int64   `json:"errors"`
}

// arrival50 and arrival99 are in ms from the submission until a worker has the task.
func (s sample) arrival50() float64 { return cmp.Or(s.ArrivalP50, s.PickupP50) }
func (s sample) arrival99() float64 { return cmp.Or(s.ArrivalP99, s.PickupP99) }

// pulseRows are the settings of the goals: submissions one by one, by the
// thousand, and few enough that nothing waits for anything.
func pulseRows(binary string, length time.Duration) []*row {
	var out []*row
	for _, servers := range []string{"3", "1"} {
		for _, load := range []struct {
			name   string
			pickup bool
			args   []string
		}{
			{"64 producers, 64 slots", false, []string{"--producers", "64", "--workers", "4", "--slots", "16"}},
			{"1,000 x 4, 1,024 slots", false, []string{"--producers", "4", "--batch", "1000", "--workers", "16", "--slots", "64"}},
			{"100 a second", true, []string{"--rate", "100", "--workers", "4", "--slots", "4"}},
		} {
			args := append([]string{binary, "bench", "--servers", servers, "--duration", length.String()}, load.args...)
			out = append(out, &row{name: fmt.Sprintf("Pulse %s, %s", count(servers), load.name), pickup: load.pickup, args: args})
		}
	}
	return out
}

func count(servers string) string {
	if servers == "1" {
		return "1 server"
	}
	return servers + " servers"
}

const pickupPrefix = "Pickup: "

// peerRows are others on the same work, at the settings that suit each best, and
// the floor: three replicated commands a task and nothing else. Each begins with
// 100 tasks a second for five seconds, which is what the rows of pickup are for.
func peerRows(binary string, length time.Duration) []*row {
	var out []*row
	for _, peer := range []struct {
		name string
		args string
	}{
		{pickupPrefix + "NATS JetStream R3, sync always, 16 slots", "nats -workers 16"},
		{pickupPrefix + "River on one PostgreSQL, cooldown 2 ms, 16 slots", "river -workers 16 -producers 16 -cooldown 2ms"},
		{"Floor: raft alone, 128 in flight", "raft -store wal -clients 128 -life 3 -combine 512 -depth 1"},
		{"Floor: raft alone, 1,024 in flight", "raft -store wal -clients 1024 -life 3 -combine 512 -depth 2 -max-append 1024 -batch-apply"},
		{"NATS JetStream R3, sync always, 64 slots", "nats -workers 64"},
		{"NATS JetStream R3, sync always, async 128 x 8, 256 slots", "nats -workers 256 -batch 128 -producers 8"},
		{"River on one PostgreSQL, 64 slots", "river -workers 64 -producers 16"},
		{"River InsertManyFast 1,000 x 4, 1,000 slots", "river -workers 1000 -batch 1000 -producers 4"},
		{"Asynq, appendfsync always, 64 slots", "asynq -workers 64 -poll 10ms"},
		{"beanstalkd -f 0, 64 slots", "beanstalkd -workers 64"},
	} {
		args := append([]string{binary}, strings.Fields(peer.args)...)
		name, pickup := strings.CutPrefix(peer.name, pickupPrefix)
		d := length
		if pickup {
			d = time.Second // of the load after it, which is not asked about
		}
		out = append(out, &row{name: name, pickup: pickup, args: append(args, "-d", d.String())})
	}
	return out
}

// build compiles a program.
func build(ctx context.Context, dir, pkg, to string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-o", to, pkg)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s in %s: %w\n%s", pkg, dir, err, out)
	}
	return nil
}

// measure runs all rows in turn, as often as wanted: what the hour does to the
// machine is spread over all of them.
func measure(ctx context.Context, rows []*row, runs int) {
	for n := range runs {
		for _, r := range rows {
			if ctx.Err() != nil {
				return
			}
			fmt.Fprintf(os.Stderr, "%d/%d %s\n", n+1, runs, r.name) //nolint:forbidigo // progress
			s, err := once(ctx, r.args)
			if err != nil {
				r.fail = firstLine(err.Error())
				fmt.Fprintln(os.Stderr, "  "+err.Error()) //nolint:forbidigo // progress
				continue
			}
			r.got = append(r.got, s)
		}
	}
}

// onceWithin bounds one run; a program that hangs is killed with its children.
const onceWithin = 15 * time.Minute

func once(ctx context.Context, args []string) (s sample, err error) {
	ctx, cancel := context.WithTimeout(ctx, onceWithin)
	defer cancel()
	var out, log bytes.Buffer
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &log
	cmd.Env = append(os.Environ(), "PULSE_ADDR=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		return s, fmt.Errorf("%w: %s", err, lastLine(log.String()))
	}
	if err := json.Unmarshal(out.Bytes(), &s); err != nil {
		return s, fmt.Errorf("it printed no JSON: %w", err)
	}
	if s.Tasks == 0 {
		return s, fmt.Errorf("it finished no task")
	}
	return s, nil
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// spread is the median of some figures and their range.
type spread struct{ median, low, high float64 }

func spreadOf(got []sample, figure func(sample) float64) spread {
	var x []float64
	for _, s := range got {
		x = append(x, figure(s))
	}
	if len(x) == 0 {
		return spread{}
	}
	slices.Sort(x)
	middle := x[len(x)/2]
	if len(x)%2 == 0 {
		middle = (x[len(x)/2-1] + middle) / 2
	}
	return spread{middle, x[0], x[len(x)-1]}
}
