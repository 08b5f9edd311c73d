package proc

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const patience = 30 * time.Second

// The test binary plays two parts beside its own: the server that a Server starts,
// and the parent that dies.
const (
	roleName = "PULSE_PROC_TEST_ROLE"
	roleDir  = "PULSE_PROC_TEST_DIR"
)

func TestMain(m *testing.M) {
	switch role := os.Getenv(roleName); {
	case len(os.Args) > 1 && os.Args[1] == "server":
		playServer(role)
	case role == "parent":
		playParent()
	default:
		os.Exit(m.Run())
	}
}

// playServer is ready at once, and ends politely or not.
func playServer(role string) {
	if role == "broken" {
		fmt.Fprintln(os.Stderr, "this server is broken")
		os.Exit(3)
	}
	addr := os.Args[len(os.Args)-1]
	if addr == "127.0.0.1:0" {
		addr = "127.0.0.1:4711"
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	if role != "silent" {
		fmt.Printf("{\"url\":\"http://%s\"}\n", addr)
	}
	for range signals {
		if role != "stubborn" {
			fmt.Fprintln(os.Stderr, "ended politely")
			os.Exit(0)
		}
	}
}

// playParent starts a server, says which process it is, and waits to be killed.
func playParent() {
	s := New(Config{Binary: os.Args[0], NodeID: "child", Dir: os.Getenv(roleDir)})
	if err := s.Start(context.Background()); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(s.PID())
	<-s.Dead()
}

func newServer(t *testing.T, role string) (*Server, context.Context) {
	t.Helper()
	t.Setenv(roleName, role)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return New(Config{Binary: os.Args[0], NodeID: "node-1", Dir: t.TempDir()}), ctx
}

// Not parallel, as all below: the role is in the environment.
func TestAServerKeepsItsAddressOverItsDeaths(t *testing.T) {
	s, ctx := newServer(t, "server")
	pids := map[int]bool{}
	for range 3 {
		if err := s.Start(ctx); err != nil {
			t.Fatal(err)
		}
		pids[s.PID()] = true
		if s.URL() != "http://127.0.0.1:4711" {
			t.Errorf("it serves %s", s.URL())
		}
		if err := s.Kill(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-s.Dead():
		default:
			t.Error("killed and not dead")
		}
	}
	if len(pids) != 3 {
		t.Errorf("processes %v", pids)
	}
	if err := s.Kill(); err != nil {
		t.Errorf("killing the dead: %v", err)
	}
}

func TestCloseIsPoliteAndThenIsNot(t *testing.T) {
	s, ctx := newServer(t, "server")
	if err := s.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(ctx); err != nil || !strings.Contains(s.LogTail(), "ended politely") {
		t.Errorf("%v: %s", err, s.LogTail())
	}
	s, ctx = newServer(t, "stubborn")
	if err := s.Start(ctx); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if err := s.Close(short); err != nil {
		t.Error(err)
	}
	<-s.Dead()
}

func TestAServerThatDoesNotGetReadyIsSaidWhy(t *testing.T) {
	s, ctx := newServer(t, "broken")
	if err := s.Start(ctx); err == nil || !strings.Contains(err.Error(), "this server is broken") {
		t.Errorf("start: %v", err)
	}
	s, ctx = newServer(t, "silent")
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if err := s.Start(short); err == nil || !strings.Contains(err.Error(), "did not get ready") {
		t.Errorf("start: %v", err)
	}
	<-s.Dead()
	s = New(Config{Binary: "/nowhere/pulse", NodeID: "x", Dir: t.TempDir()})
	if err := s.Start(ctx); err == nil {
		t.Error("a program that is not there was started")
	}
	if err := s.Close(ctx); err != nil {
		t.Errorf("closing what never ran: %v", err)
	}
}

// A parent that is killed cleans nothing up; its children must end all the same.
func TestAChildEndsWithItsParent(t *testing.T) {
	if attributes() == nil {
		t.Skip("this system cannot be asked to")
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	parent := exec.CommandContext(ctx, os.Args[0])
	parent.Env = append(os.Environ(), roleName+"=parent", roleDir+"="+t.TempDir())
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	var line [64]byte
	n, err := out.Read(line[:])
	pid, bad := strconv.Atoi(strings.TrimSpace(string(line[:n])))
	if err != nil || bad != nil {
		t.Fatalf("the parent says %q, %v", line[:n], err)
	}
	if err := syscall.Kill(pid, 0); err != nil {
		t.Fatalf("the child is not there: %v", err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait() // killed
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for alive(pid) {
		select {
		case <-ctx.Done():
			t.Fatal("the child goes on without its parent")
		case <-tick.C:
		}
	}
}

// alive says whether a process is there and not merely waiting to be asked how it
// ended.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(after, "Z")
}
