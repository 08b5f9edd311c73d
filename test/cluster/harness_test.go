package cluster

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// binary is the built command, once for all tests of the package.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "pulse-cluster-test-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "pulse")
	out, err := exec.Command("go", "build", "-o", path, "pulse/cmd/pulse").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the binary: %w\n%s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := binary(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// process is one node: a child process on a data directory that outlives it.
type process struct {
	t    *testing.T
	id   string
	dir  string
	addr string // of HTTP
	args []string

	mu  sync.Mutex
	cmd *exec.Cmd
	log *os.File
}

// freePort is free, and below those that outgoing connections take at random,
// so that it stays free until the process listens at it.
func freePort(t *testing.T) string {
	t.Helper()
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", 20000+rand.IntN(12000))
		if l, err := net.Listen("tcp", addr); err == nil {
			_ = l.Close()
			return addr
		}
	}
	t.Fatal("no port is free")
	return ""
}

func newProcess(t *testing.T, id string) *process {
	t.Helper()
	p := &process{t: t, id: id, dir: filepath.Join(t.TempDir(), id), addr: freePort(t)}
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
	if p.log == nil {
		if p.log, err = os.Create(p.dir + ".log"); err != nil {
			p.t.Fatal(err)
		}
	}
	p.cmd = exec.Command(path, p.args...)
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
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
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // it was killed: that is its error
	p.cmd = nil
}

// ready waits until the node says that it serves.
func (p *process) ready(within time.Duration) time.Duration {
	p.t.Helper()
	began := time.Now()
	client := &http.Client{Timeout: time.Second}
	for time.Since(began) < within {
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

// tail prints the end of the node's log.
func (p *process) tail() {
	data, err := os.ReadFile(p.dir + ".log")
	if err != nil {
		return
	}
	if len(data) > 4000 {
		data = data[len(data)-4000:]
	}
	p.t.Logf("log of %s:\n%s", p.id, data)
}

// pause waits between two looks at something outside this process.
func pause(d time.Duration) { <-time.After(d) }

// until waits for a condition of the world outside, or fails with its state.
func until(t *testing.T, within time.Duration, what string, ok func() (bool, string)) {
	t.Helper()
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
