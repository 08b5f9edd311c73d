package deploy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pulse/test/ports"
)

// patience bounds every wait for something that has to happen. It is not how
// long things take.
const patience = 60 * time.Second

// node is a server as a child process on a loopback address of its own.
type node struct {
	id, ip, addr string // addr is of HTTP
	args         []string
	binary, log  string
	url          string       // of HTTP
	client       *http.Client // that the node lets in

	mu  sync.Mutex
	cmd *exec.Cmd // nil: it does not run
}

type nodeConfig struct {
	id, ip string
	args   []string // beside --node-id, --data and --http
	client *http.Client
}

func newNode(t *testing.T, c nodeConfig) *node {
	t.Helper()
	dir := t.TempDir()
	n := &node{id: c.id, ip: c.ip, addr: ports.Free(t, c.ip), binary: binary(t, "pulse"), log: filepath.Join(dir, c.id+".log"), client: c.client}
	n.url = "https://" + n.addr
	if n.client == nil {
		n.url, n.client = "http://"+n.addr, direct
	}
	n.args = append([]string{"server", "--node-id", c.id, "--data", filepath.Join(dir, "data"), "--http", n.addr, "--log-level", "warn"}, c.args...)
	t.Cleanup(func() {
		n.kill()
		if t.Failed() {
			t.Logf("log of %s:%s", c.id, indent(tail(n.log)))
		}
	})
	return n
}

func tail(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	if len(text) > 4000 {
		text = text[len(text)-4000:]
	}
	return string(text)
}

// startNode is a node that is ready.
func startNode(t *testing.T, c nodeConfig) *node {
	t.Helper()
	n := newNode(t, c)
	n.start(t)
	n.ready(t)
	return n
}

func (n *node) start(t *testing.T) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	log, err := os.OpenFile(n.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	n.cmd = exec.Command(n.binary, n.args...)
	n.cmd.Stdout, n.cmd.Stderr = log, log
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
}

func (n *node) ready(t *testing.T) {
	t.Helper()
	until(t, n.id+" is ready", func() (bool, string) {
		code, body := n.get("/readyz")
		return code == http.StatusOK, fmt.Sprint(code, " ", body)
	})
}

// kill is kill -9, and returns when the process is gone.
func (n *node) kill() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cmd == nil {
		return
	}
	_ = n.cmd.Process.Kill()
	_ = n.cmd.Wait() // it was killed: that is its error
	n.cmd = nil
}

var direct = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// get asks a node once; an error is code 0.
func (n *node) get(path string) (code int, body string) {
	res, err := n.client.Get(n.url + path)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, strings.TrimSpace(string(text))
}

// pause waits between two looks at something outside this process.
func pause(d time.Duration) { <-time.After(d) }

// until waits for a condition of the world outside, or fails with its state.
func until(t *testing.T, what string, ok func() (bool, string)) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		done, state := ok()
		if done {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s; last seen: %s", what, patience, state)
		}
		pause(50 * time.Millisecond)
	}
}

// program is another server that runs beside the nodes.
type program struct {
	name string
	cmd  *exec.Cmd
	done chan struct{}

	mu  sync.Mutex
	out bytes.Buffer
}

func (p *program) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

func (p *program) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// launch starts a program in the foreground and ends it with the test.
func launch(t *testing.T, name string, args ...string) *program {
	t.Helper()
	p := &program{name: name, done: make(chan struct{})}
	p.cmd = exec.Command(name, args...)
	p.cmd.Stdout, p.cmd.Stderr = p, p
	// A group of its own: its children end with it.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // how it ended is in its output
		close(p.done)
	}()
	t.Cleanup(func() {
		if err := syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Errorf("end %s: %v", name, err)
		}
		<-p.done
		if t.Failed() {
			t.Logf("%s says:%s", filepath.Base(name), indent(p.output()))
		}
	})
	return p
}
