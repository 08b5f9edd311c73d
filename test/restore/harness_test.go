package restore

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"pulse/cmd/pulse/proc"
	"pulse/sdk"
	"pulse/test/ports"
)

// binaries is where the binaries are, for as long as the tests run.
var binaries string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "pulse-restore-test-")
	if err != nil {
		_, _ = io.WriteString(os.Stderr, err.Error()+"\n")
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binaries = dir
	return m.Run()
}

// build makes a binary with build tags, once for each.
func build(tags string) func() (string, error) {
	return sync.OnceValues(func() (string, error) {
		path := filepath.Join(binaries, "pulse"+tags)
		out, err := exec.Command("go", "build", "-tags", tags, "-o", path, "pulse/cmd/pulse").CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("build the binary: %w\n%s", err, out)
		}
		return path, nil
	})
}

var thisVersion = build("")

func binary(t *testing.T, which func() (string, error)) string {
	t.Helper()
	path, err := which()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// pulse runs a verb of the binary to its end.
func pulse(t *testing.T, args ...string) (output string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, binary(t, thisVersion), args...).CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("pulse %v does not end:\n%s", args, out)
	}
	return string(out), err
}

// mustPulse runs a verb that prints one JSON object.
func mustPulse(t *testing.T, into any, args ...string) {
	t.Helper()
	out, err := pulse(t, append(args, "-o", "json")...)
	if err != nil {
		t.Fatalf("pulse %v: %v\n%s", args, err, out)
	}
	if err := json.Unmarshal([]byte(out), into); err != nil {
		t.Fatalf("pulse %v printed %q: %v", args, out, err)
	}
}

func secretFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(strings.Repeat("r", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// server is one node: its flags, and the directory that holds its data.
type server struct {
	t    *testing.T
	id   string
	home string // its data is home/id, its log home/id.log
	args []string
	*proc.Server
}

func newServer(t *testing.T, id string, args ...string) *server {
	t.Helper()
	return (&server{t: t, id: id, home: t.TempDir(), args: args}).of(thisVersion)
}

// of makes it a server of a version, on the same data. It must not run.
func (s *server) of(version func() (string, error)) *server {
	s.t.Helper()
	next := &server{t: s.t, id: s.id, home: s.home, args: s.args}
	next.Server = proc.New(proc.Config{Binary: binary(s.t, version), NodeID: s.id, Dir: s.home, Args: s.args})
	s.t.Cleanup(func() {
		_ = next.Kill() // it may have ended
		if s.t.Failed() {
			s.t.Logf("log of %s:\n%s", s.id, next.LogTail())
		}
	})
	return next
}

// emptied is the same server with an empty data directory.
func (s *server) emptied() *server {
	s.t.Helper()
	return newServer(s.t, s.id, s.args...)
}

func (s *server) data() string { return filepath.Join(s.home, s.id) }

func (s *server) try() error {
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Minute)
	defer cancel()
	return s.Start(ctx)
}

// start starts servers together and waits until all of them serve.
func start(t *testing.T, servers ...*server) {
	t.Helper()
	var all sync.WaitGroup
	for _, s := range servers {
		all.Go(func() {
			if err := s.try(); err != nil {
				t.Errorf("%v", err)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

func kill(t *testing.T, servers ...*server) {
	t.Helper()
	for _, s := range servers {
		if err := s.Kill(); err != nil {
			t.Fatal(err)
		}
	}
}

// three are servers that know each other; they do not run yet.
func three(t *testing.T, secret string) []*server {
	t.Helper()
	join := ports.Free(t, "127.0.0.1")
	var out []*server
	for i, id := range []string{"a", "b", "c"} {
		gossip := join
		if i > 0 {
			gossip = ports.Free(t, "127.0.0.1")
		}
		out = append(out, newServer(t, id, "--rpc", ports.Free(t, "127.0.0.1"), "--raft", ports.Free(t, "127.0.0.1"), "--gossip", gossip,
			"--join", join, "--bootstrap-expect", "3", "--cluster-secret-file", secret))
	}
	return out
}

func client(servers ...*server) *sdk.Client {
	var urls []string
	for _, s := range servers {
		urls = append(urls, s.URL())
	}
	return sdk.NewClient(sdk.ClientOptions{Addrs: urls, Logger: slog.New(slog.DiscardHandler)})
}

func submit(t *testing.T, c *sdk.Client, spec sdk.TaskSpec) string {
	t.Helper()
	info, err := c.Submit(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return info.ID
}

var quick = &http.Client{Timeout: 10 * time.Second}

func get(url string) (int, string) {
	res, err := quick.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(body)
}

// until waits for a condition of the world outside, or fails with its state.
func until(t *testing.T, what string, ok func() (bool, string)) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		done, state := ok()
		if done {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: in vain; last seen: %s", what, state)
		}
		<-time.After(50 * time.Millisecond)
	}
}

func untilVoters(t *testing.T, s *server, n int) {
	t.Helper()
	until(t, "all servers vote", func() (bool, string) {
		_, body := get(s.URL() + "/v1/cluster")
		return strings.Count(body, `"voter":true`) == n, body
	})
}
