package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pulse/sdk"
	"pulse/test/ports"
)

// secured is a trio whose certificates an operator keeps in a directory, with the
// verbs that the binary has for it.
type secured struct {
	*trio
	vault string            // the operator's directory
	own   map[string]string // each node's copy of its part
	mine  string            // the client's copy of its part
	http  *http.Client
}

// operate runs a verb on the operator's directory.
func (c *secured) operate(verb string, args ...string) string {
	c.t.Helper()
	path, err := binary()
	if err != nil {
		c.t.Fatal(err)
	}
	out, err := exec.CommandContext(c.t.Context(), path, append([]string{"cluster", verb, c.vault}, args...)...).CombinedOutput()
	if err != nil {
		c.t.Fatalf("pulse cluster %s %v: %v\n%s", verb, args, err, out)
	}
	return string(out)
}

// handOut copies everybody's part to its place, file by file, and gives running
// processes the second after which they look again.
func (c *secured) handOut() {
	c.t.Helper()
	for id, place := range c.own {
		copyFiles(c.t, filepath.Join(c.vault, id), place)
	}
	copyFiles(c.t, filepath.Join(c.vault, "clients", "load"), c.mine)
	pause(1200 * time.Millisecond)
}

// copyFiles is what an operator does; a directory that is not there any more was
// withdrawn, and its copy stays.
func copyFiles(t *testing.T, from, to string) {
	t.Helper()
	if err := os.MkdirAll(to, 0o700); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(from)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(from, e.Name()))
		if err == nil {
			err = os.WriteFile(filepath.Join(to, e.Name()), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func startSecured(t *testing.T) *secured {
	t.Helper()
	dir := t.TempDir()
	c := &secured{trio: &trio{t: t}, vault: filepath.Join(dir, "vault"), own: map[string]string{}, mine: filepath.Join(dir, "client")}
	c.operate("init-tls", "--cluster", "prod", "--client", "load", "--node", "a=localhost", "--node", "b=localhost", "--node", "c=localhost")
	join := ports.Free(t, "127.0.0.1")
	for i, id := range []string{"a", "b", "c"} {
		p := newProcess(t, id)
		gossip := join
		if i > 0 {
			gossip = ports.Free(t, "127.0.0.1")
		}
		c.own[id] = filepath.Join(dir, "certs-"+id)
		p.args = append(p.args, "--certs", c.own[id], "--rpc", ports.Free(t, "127.0.0.1"), "--raft", ports.Free(t, "127.0.0.1"), "--gossip", gossip,
			"--join", join, "--bootstrap-expect", "3")
		c.nodes = append(c.nodes, p)
	}
	c.handOut()
	client, err := c.files().HTTPClient(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	client.Timeout = 2 * time.Second
	c.http = client
	for _, p := range c.nodes {
		p.start()
	}
	for _, p := range c.nodes {
		c.serves(p)
	}
	return c
}

func (c *secured) files() sdk.TLSFiles {
	return sdk.TLSFiles{
		CACert: filepath.Join(c.mine, "http-ca.pem"), ClientCert: filepath.Join(c.mine, "client.pem"), ClientKey: filepath.Join(c.mine, "client.key"),
	}
}

// serves waits until a node says that it does.
func (c *secured) serves(p *process) {
	c.t.Helper()
	until(c.t, time.Minute, p.id+" serves", func() (bool, string) {
		res, err := c.http.Get("https://" + p.addr + "/readyz")
		if err != nil {
			return false, err.Error()
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		return err == nil && res.StatusCode == http.StatusOK, fmt.Sprint(res.Status, " ", string(body))
	})
}

// again kills a node and starts it, so that all its connections are made anew.
func (c *secured) again(p *process) {
	c.t.Helper()
	p.kill()
	p.start()
	c.serves(p)
}

// says waits until the log of one of some nodes has words that it had not before.
func says(t *testing.T, words string, nodes ...*process) {
	t.Helper()
	until(t, time.Minute, fmt.Sprintf("a log says %q", words), func() (bool, string) {
		for _, p := range nodes {
			if p.logged(words) {
				return true, ""
			}
		}
		return false, "none does"
	})
}

// flow submits tasks and works on them until it is ended, which waits for all.
func (c *secured) flow() (end func()) {
	t := c.t
	t.Helper()
	var addrs []string
	for _, p := range c.nodes {
		addrs = append(addrs, "https://"+p.addr)
	}
	quiet := slog.New(slog.DiscardHandler)
	client := sdk.NewClient(sdk.ClientOptions{Addrs: addrs, TLS: c.files(), Logger: quiet})
	if _, err := client.PutQueue(t.Context(), "default", sdk.QueueSettings{LeaseDurationMillis: 5000, OfferDurationMillis: 2000}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		w := sdk.NewWorker(sdk.WorkerOptions{Addrs: addrs, TLS: c.files(), Capacity: 4, Logger: quiet, DrainTimeout: time.Second})
		w.Handle("work", "1", "1", func(context.Context, *sdk.Task) (any, error) { return nil, nil })
		background(t, func(ctx context.Context) {
			if err := w.Run(ctx); err != nil {
				t.Errorf("a worker has ended: %v", err)
			}
		})
	}
	load, enough := context.WithCancel(t.Context())
	t.Cleanup(enough)
	var submitting sync.WaitGroup
	var mu sync.Mutex
	var tasks []string
	var failed atomic.Int64
	for range 3 {
		submitting.Go(func() {
			for load.Err() == nil {
				// Each submission has its own time: what load ends is the next one.
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				task, err := client.Submit(ctx, sdk.TaskSpec{Handler: "work", Payload: map[string]int{"n": 1}})
				cancel()
				if err != nil {
					failed.Add(1)
					t.Errorf("a submission: %v", err)
					return
				}
				mu.Lock()
				tasks = append(tasks, task.ID)
				mu.Unlock()
				pause(20 * time.Millisecond)
			}
		})
	}
	return func() {
		t.Helper()
		enough()
		submitting.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		for _, id := range tasks {
			task, err := client.Wait(ctx, id)
			if err != nil || task.State != sdk.StateSucceeded {
				t.Fatalf("task %s: %+v, %v", id, task, err)
			}
		}
		t.Logf("%d tasks were submitted, and all were done", len(tasks))
		if len(tasks) < 100 {
			t.Errorf("only %d tasks: that shows nothing", len(tasks))
		}
	}
}

// TestAuthoritiesAreReplacedWhileTasksFlow: no restart is needed, no task is lost,
// and what was good before is good no more.
func TestAuthoritiesAreReplacedWhileTasksFlow(t *testing.T) {
	onRequest(t)
	t.Parallel()
	c := startSecured(t)
	before := t.TempDir()
	copyFiles(t, c.own["a"], before)
	end := c.flow()
	for i, ca := range []string{"http", "client", "node"} {
		for step := 1; step <= 3; step++ {
			if out := c.operate("rotate-ca", ca); !strings.Contains(out, fmt.Sprintf("Step %d of 3", step)) {
				t.Fatalf("step %d of %s: %s", step, ca, out)
			}
			c.handOut()
			if ca == "node" || step == 2 {
				c.again(c.nodes[(i+step)%3])
			}
		}
	}
	for _, p := range c.nodes {
		c.again(p)
	}
	says(t, "certificates taken up", c.nodes...)
	end()

	// With what it had before, a node is refused, and does not let others in.
	a, others := c.nodes[0], c.nodes[1:]
	a.kill()
	copyFiles(t, before, c.own["a"])
	a.start()
	says(t, "the certificate is of another authority", others...)
	says(t, "the certificate is of another authority", a)
	a.kill()
	c.handOut()
	a.start()
	c.serves(a)

	// A node that was withdrawn is refused; the others go on.
	c.operate("revoke", "--node", "c")
	c.handOut()
	gone := c.nodes[2]
	gone.kill()
	gone.start()
	says(t, "the certificate was withdrawn", c.nodes[0], c.nodes[1])
	says(t, "does not believe this one, its log says why", gone, c.nodes[0], c.nodes[1])
	for _, p := range c.nodes[:2] {
		c.serves(p)
	}
}
