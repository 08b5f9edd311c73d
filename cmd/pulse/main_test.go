package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"pulse/sdk"
	"pulse/sdk/pulsetest"
)

// asPulse makes the test binary behave as pulse itself, for verbs that start it
// again as a server.
const asPulse = "PULSE_TEST_RUNS_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asPulse) != "" {
		main()
	}
	if err := os.Setenv(asPulse, "yes"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// result is what a call of pulse leaves.
type result struct {
	code     int
	out, err string
}

// shell runs pulse in this process, with an environment of its own.
type shell struct {
	t   *testing.T
	env map[string]string
	in  string
}

func (s shell) run(args ...string) result {
	s.t.Helper()
	var out, errOut bytes.Buffer
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	code := run(ctx, args, strings.NewReader(s.in), &out, &errOut, func(name string) string { return s.env[name] })
	return result{code, out.String(), errOut.String()}
}

// ok runs pulse and expects it to be done.
func (s shell) ok(args ...string) string {
	s.t.Helper()
	r := s.run(args...)
	if r.code != exitDone {
		s.t.Fatalf("pulse %s: exit %d\n%s%s", strings.Join(args, " "), r.code, r.out, r.err)
	}
	return r.out
}

// fails runs pulse and expects it to fail with some words on standard error.
func (s shell) fails(code int, words string, args ...string) result {
	s.t.Helper()
	r := s.run(args...)
	if r.code != code || !strings.Contains(r.err, words) {
		s.t.Errorf("pulse %s: exit %d, want %d and %q:\n%s%s", strings.Join(args, " "), r.code, code, words, r.out, r.err)
	}
	return r
}

// object decodes one JSON object.
func object(t *testing.T, text string) map[string]any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var v map[string]any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	if _, err := d.Token(); err != io.EOF {
		t.Errorf("%q: more than one object", text)
	}
	return v
}

// startNode starts a server with the worker of pulse dev.
func startNode(t *testing.T) (shell, *pulsetest.Server) {
	t.Helper()
	server := pulsetest.Start(t)
	worker := server.Worker(sdk.WorkerOptions{})
	devHandlers(worker)
	server.Run(worker)
	return shell{t: t, env: map[string]string{"PULSE_ADDR": server.Addr()}}, server
}
