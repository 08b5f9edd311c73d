package cluster

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"pulse/test/calm"
	"pulse/test/ports"
)

// binary is the built command, once for all tests of the package.
var binary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv(insideEnv); path != "" {
		return path, nil
	}
	dir, err := os.MkdirTemp("", "pulse-cluster-test-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "pulse")
	build := []string{"build", "-o", path}
	if os.Getenv(chaosEnv) != "" {
		build = append(build, "-tags", "faults") // with a wall clock that can be stepped
	}
	out, err := exec.Command("go", append(build, "pulse/cmd/pulse")...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the binary: %w\n%s", err, out)
	}
	return path, nil
})

// process is one node: a child process on a data directory that outlives it.
type process struct {
	t    *testing.T
	id   string
	dir  string // of its data
	log  string // where it logs
	addr string // of HTTP
	host *host  // nil: this process's own network
	args []string
	env  []string
	wrap []string // a command that runs it, such as one that injects faults

	mu    sync.Mutex
	cmd   *exec.Cmd
	done  chan struct{} // closed when the process has ended
	out   *os.File
	hangs int // ends by its watchdog after which it was started again
}

func newProcess(t *testing.T, id string) *process {
	t.Helper()
	return newProcessAt(t, id, t.TempDir(), ports.Free(t, "127.0.0.1"))
}

// newProcessAt is one with its data below dir and its HTTP at addr.
func newProcessAt(t *testing.T, id, dir, addr string) *process {
	t.Helper()
	p := &process{t: t, id: id, dir: filepath.Join(dir, id), log: filepath.Join(t.TempDir(), id+".log"), addr: addr}
	p.args = []string{"server", "--node-id", id, "--data", p.dir, "--http", p.addr}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			p.tail()
		}
	})
	return p
}

// start launches the node; it serves when ready returns.
func (p *process) start() {
	p.t.Helper()
	path, err := binary()
	if err != nil {
		p.t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.out == nil {
		if p.out, err = os.Create(p.log); err != nil {
			p.t.Fatal(err)
		}
	}
	command := append(append(append([]string(nil), p.wrap...), path), p.args...)
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = append(os.Environ(), p.env...)
	cmd.Stdout, cmd.Stderr = p.out, p.out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.host.inside(cmd.Start); err != nil {
		p.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait() // however it ended
		close(done)
	}()
	p.cmd, p.done = cmd, done
}

// pid is the process's; 0 while it does not run.
func (p *process) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// supervise starts a node again that its watchdog ended, as a supervisor does: the
// disk of a busy test machine may stand still for longer than a write may take.
func (p *process) supervise() {
	p.mu.Lock()
	gone := false
	if p.cmd != nil {
		select {
		case <-p.done:
			// One that ends for another reason later is not started again.
			data, err := os.ReadFile(p.log)
			if hangs := bytes.Count(data, []byte("a write hangs")); err == nil && hangs > p.hangs {
				gone, p.hangs = true, hangs
			}
		default:
		}
	}
	p.mu.Unlock()
	if gone {
		p.t.Logf("node %s was ended by its watchdog and is started again", p.id)
		p.start()
	}
}

// signal sends one to the running process.
func (p *process) signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil {
		_ = p.cmd.Process.Signal(s)
	}
}

// kill is kill -9, and returns when the process is gone.
func (p *process) kill() { p.end(syscall.SIGKILL) }

// stop is a polite end.
func (p *process) stop() { p.end(syscall.SIGTERM) }

func (p *process) end(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Signal(s)
	<-p.done
	p.cmd = nil
}

// ended waits for the process to end by itself.
func (p *process) ended(within time.Duration) time.Duration {
	p.t.Helper()
	within = patience(within)
	p.mu.Lock()
	done := p.done
	p.mu.Unlock()
	began := time.Now()
	select {
	case <-done:
	case <-time.After(within):
		p.t.Fatalf("node %s still runs after %s", p.id, within)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cmd = nil
	return time.Since(began)
}

// runs says whether the process has not ended by itself.
func (p *process) runs() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// ready waits until the node says that it serves.
func (p *process) ready(within time.Duration) time.Duration {
	p.t.Helper()
	within = patience(within)
	began := time.Now()
	client := &http.Client{Timeout: 5 * time.Second}
	for time.Since(began) < within {
		p.supervise()
		if res, err := client.Get("http://" + p.addr + "/readyz"); err == nil {
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return time.Since(began)
			}
		}
		pause(20 * time.Millisecond)
	}
	p.t.Fatalf("node %s is not ready after %s", p.id, within)
	return 0
}

// logged says whether the node has logged a text.
func (p *process) logged(text string) bool {
	data, err := os.ReadFile(p.log)
	return err == nil && bytes.Contains(data, []byte(text))
}

// tail prints the end of the node's log.
func (p *process) tail() {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return
	}
	if len(data) > 6000 {
		data = data[len(data)-6000:]
	}
	p.t.Logf("log of %s:\n%s", p.id, data)
}

// chaosEnv asks for all scenarios; without it those run that every change has to
// pass.
const chaosEnv = "PULSE_CHAOS"

// lanes is how many scenarios run at a time: much of one is waiting, and three
// clusters at work would leave none of them a processor.
var lanes = make(chan struct{}, 2)

// always marks a scenario that runs with every test run. Where all of them run one
// after the other, because their figures are wanted, this one does, too.
func always(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts real servers and takes a minute")
	}
	if os.Getenv(chaosEnv) != "" {
		return
	}
	t.Parallel()
	lanes <- struct{}{}
	t.Cleanup(func() { <-lanes })
}

// everyRun is how long a client of a scenario waits between submissions: what is
// submitted is looked at by the model afterwards, which takes longer than the
// scenario if clients are as fast as they can. With make chaos they are.
func everyRun() time.Duration {
	if os.Getenv(chaosEnv) != "" {
		return 0
	}
	return 25 * time.Millisecond
}

// onRequest marks a scenario that runs with `make chaos`.
func onRequest(t *testing.T) {
	t.Helper()
	if os.Getenv(chaosEnv) == "" {
		t.Skip("runs with make chaos, or " + chaosEnv + "=1")
	}
}

// needs skips a scenario where a tool is missing.
func needs(t *testing.T, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s", tool)
		}
	}
}

// proved prints what a scenario has shown, once it has.
func proved(t *testing.T, format string, args ...any) {
	t.Helper()
	if !t.Failed() {
		t.Logf("PROVED: "+format, args...)
	}
}

// pause waits between two looks at something outside this process.
func pause(d time.Duration) { <-time.After(d) }

// patience is what a wait is bounded by: with make chaos by what the scenario says,
// which is how long it takes at most on a machine of its own; else the machine may
// be slow and busy, and what counts is that it comes.
func patience(within time.Duration) time.Duration {
	if os.Getenv(chaosEnv) != "" {
		return within
	}
	return max(within, 2*calm.Patience)
}

// until waits for a condition of the world outside, or fails with its state.
func until(t *testing.T, within time.Duration, what string, ok func() (bool, string)) {
	t.Helper()
	within = patience(within)
	deadline := time.Now().Add(within)
	for {
		done, state := ok()
		if done {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s; last seen: %s", what, within, state)
		}
		pause(50 * time.Millisecond)
	}
}

// background runs f until the test stops it.
func background(t *testing.T, f func(ctx context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { f(ctx) })
	var once sync.Once
	stop = func() { once.Do(func() { cancel(); running.Wait() }) }
	t.Cleanup(stop)
	return stop
}
