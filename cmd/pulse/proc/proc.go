// Package proc runs servers of this binary as child processes, for programs that
// kill them on purpose. A Server is made once and started as often as it has died;
// its data directory and, after the first start, its port stay the same.
//
// A child never outlives its parent: it is killed by the kernel where that can be
// asked for (Linux), and by Close everywhere. It is in a process group of its own,
// so that Ctrl-C reaches the parent alone.
//
// A Server belongs to one goroutine.
package proc

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Config of a Server. Args may be empty; all else is required.
type Config struct {
	Binary string // this program
	NodeID string
	Dir    string   // its data and its log go below it
	Args   []string // more flags of 'pulse server'
}

// Server is one node as a process.
type Server struct {
	cfg  Config
	addr string // host:port it serves, once known
	url  string

	child *exec.Cmd
	dead  chan struct{} // closed when child has been waited for
	start time.Time
}

// New makes a Server that does not run yet.
func New(cfg Config) *Server { return &Server{cfg: cfg, addr: "127.0.0.1:0"} }

// ID is the node's name.
func (s *Server) ID() string { return s.cfg.NodeID }

// URL is where it serves; empty before the first start.
func (s *Server) URL() string { return s.url }

// PID is that of the child started last.
func (s *Server) PID() int { return s.child.Process.Pid }

// Uptime is how long the child has been running.
func (s *Server) Uptime() time.Duration { return time.Since(s.start) }

// LogFile is where the child's log goes, of all its lives.
func (s *Server) LogFile() string { return filepath.Join(s.cfg.Dir, s.cfg.NodeID+".log") }

// Start starts the child and returns when it serves. ctx bounds the start, not
// the child.
func (s *Server) Start(ctx context.Context) error {
	log, err := os.OpenFile(s.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer read.Close()

	args := append([]string{
		"server", "-o", "jsonl", "--node-id", s.cfg.NodeID,
		"--data", filepath.Join(s.cfg.Dir, s.cfg.NodeID), "--http", s.addr,
	}, s.cfg.Args...)
	s.child = exec.Command(s.cfg.Binary, args...)
	s.child.Stdout, s.child.Stderr = write, log
	s.child.SysProcAttr = attributes()
	s.dead = make(chan struct{})
	started := make(chan error, 1)
	go s.live(s.child, s.dead, started)
	err = <-started
	_ = write.Close() // the child has its own; now its end ends the reading
	if err != nil {
		return fmt.Errorf("starting %s: %w", s.cfg.NodeID, err)
	}
	s.start = time.Now()
	return s.greeted(ctx, read)
}

// live holds the thread that the child's life hangs on: where the kernel kills a
// child with its parent, it means the thread that made it.
func (s *Server) live(child *exec.Cmd, dead chan<- struct{}, started chan<- error) {
	runtime.LockOSThread() // and never unlocks: the thread ends with the goroutine
	err := child.Start()
	started <- err
	if err == nil {
		_ = child.Wait() // how it ended is its parent's doing, or in its log
	}
	close(dead)
}

// greeted reads the line that a server prints when it is ready.
func (s *Server) greeted(ctx context.Context, stdout *os.File) error {
	line := make(chan string, 1)
	go func() {
		text, _ := bufio.NewReader(io.LimitReader(stdout, 4096)).ReadString('\n')
		line <- text
	}()
	var text string
	select {
	case <-ctx.Done():
		_ = stdout.SetReadDeadline(time.Now())
		return errors.Join(fmt.Errorf("%s did not get ready: %w", s.cfg.NodeID, ctx.Err()), s.Kill())
	case text = <-line:
	}
	var ready struct {
		URL string `json:"url"`
	}
	if err := json.Unmarshal([]byte(text), &ready); err != nil || ready.URL == "" {
		return errors.Join(fmt.Errorf("%s ended before it was ready:\n%s", s.cfg.NodeID, s.LogTail()), s.Kill())
	}
	u, err := url.Parse(ready.URL)
	if err != nil {
		return err
	}
	s.url, s.addr = ready.URL, u.Host
	return nil
}

// Dead is closed when the child has ended.
func (s *Server) Dead() <-chan struct{} { return s.dead }

// Kill ends the child as a power cut would, and returns when it is gone.
func (s *Server) Kill() error {
	if s.child == nil || s.child.Process == nil {
		return nil
	}
	if err := s.child.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("killing %s: %w", s.cfg.NodeID, err)
	}
	<-s.dead
	return nil
}

// Close asks the child to end and, when ctx ends, makes it.
func (s *Server) Close(ctx context.Context) error {
	if s.child == nil || s.child.Process == nil {
		return nil
	}
	if err := s.child.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return errors.Join(err, s.Kill())
	}
	select {
	case <-s.dead:
		return nil
	case <-ctx.Done():
		return s.Kill()
	}
}

const tailBytes = 4 << 10

// LogTail is the end of the child's log.
func (s *Server) LogTail() string {
	text, err := os.ReadFile(s.LogFile())
	if err != nil {
		return err.Error()
	}
	if len(text) > tailBytes {
		text = text[len(text)-tailBytes:]
		if i := strings.IndexByte(string(text), '\n'); i >= 0 {
			text = text[i+1:]
		}
	}
	return strings.TrimSpace(string(text))
}
