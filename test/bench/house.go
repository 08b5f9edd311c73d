package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"pulse/cmd/pulse/proc"
	"pulse/sdk"
)

const (
	fillers     = 4    // requests under way while tasks are loaded
	fillBatch   = 1000 // tasks of one of them
	readyWithin = 5 * time.Minute
	closeWithin = 30 * time.Second
	handler     = "bench"
)

// house is servers as processes of their own and a client of them here.
type house struct {
	dir     string
	servers []*proc.Server
	client  *sdk.Client
	web     *http.Client
}

// open starts a cluster of n servers below the site's directory and makes its queues.
func (s *site) open(ctx context.Context, n int, queues ...string) (*house, error) {
	dir, err := os.MkdirTemp(s.dir, "servers-")
	if err != nil {
		return nil, err
	}
	servers, err := proc.Cluster(s.binary, dir, n)
	if err != nil {
		return nil, err
	}
	h := &house{dir: dir, servers: servers, web: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}}
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	if err := proc.StartAll(ctx, servers); err != nil {
		return nil, errors.Join(err, h.close(ctx))
	}
	h.client = sdk.NewClient(sdk.ClientOptions{Addrs: h.addrs(), HTTPClient: h.web, Logger: quiet()})
	for _, queue := range queues {
		if err := h.queue(ctx, queue); err != nil {
			return nil, errors.Join(err, h.close(ctx))
		}
	}
	return h, nil
}

// quiet drops what an SDK says while servers die on purpose.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func (h *house) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
	defer cancel()
	h.web.CloseIdleConnections()
	return errors.Join(proc.CloseAll(ctx, h.servers), os.RemoveAll(h.dir))
}

func (h *house) addrs() (out []string) {
	for _, s := range h.servers {
		out = append(out, s.URL())
	}
	return out
}

// usage is the processor time of all servers and the memory of the largest.
func (h *house) usage() (cpu time.Duration, largest int64, err error) {
	for _, s := range h.servers {
		u, uerr := s.Usage()
		err = errors.Join(err, uerr)
		cpu += u.CPU
		largest = max(largest, u.MemoryBytes)
	}
	return cpu, largest, err
}

// leader is the server in office.
func (h *house) leader(ctx context.Context) (*proc.Server, error) {
	for {
		for _, s := range h.servers {
			if v, err := h.metric(ctx, s, "pulse_leader"); err == nil && v == 1 {
				return s, nil
			}
		}
		if !sleep(ctx, 100*time.Millisecond) {
			return nil, fmt.Errorf("nobody leads: %w", context.Cause(ctx))
		}
	}
}

// metric is the sum of a node's series of that name.
func (h *house) metric(ctx context.Context, s *proc.Server, name string) (sum float64, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL()+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	answer, err := h.web.Do(req)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	found := false
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), name)
		if !ok || rest == "" || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err != nil {
			return 0, fmt.Errorf("metric %s: %w", name, err)
		}
		sum, found = sum+v, true
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	if !found {
		return 0, fmt.Errorf("%s has no metric %s", s.ID(), name)
	}
	_, _ = io.Copy(io.Discard, answer.Body) // so that the connection is kept
	return sum, nil
}

// queue makes one whose tasks stay for as long as a study can take.
func (h *house) queue(ctx context.Context, name string) error {
	_, err := h.client.PutQueue(ctx, name, sdk.QueueSettings{MaxWaiting: queueMax, RetentionMillis: (24 * time.Hour).Milliseconds()})
	return err
}

// payload is JSON of that many bytes.
func payload(bytes int) json.RawMessage {
	return json.RawMessage(`"` + strings.Repeat("x", max(bytes-2, 0)) + `"`)
}

// fill submits tasks by the thousand and says how fast. spec makes the i-th.
func (h *house) fill(ctx context.Context, queue string, n int, spec func(i int) sdk.TaskSpec) (perSecond float64, err error) {
	began := time.Now()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var next, done atomic.Int64
	var all sync.WaitGroup
	for range fillers {
		all.Go(func() {
			for ctx.Err() == nil {
				from := int(next.Add(fillBatch)) - fillBatch
				if from >= n {
					return
				}
				specs := make([]sdk.TaskSpec, min(fillBatch, n-from))
				for i := range specs {
					specs[i] = spec(from + i)
				}
				items, err := h.client.SubmitBatch(ctx, queue, specs)
				for _, item := range items {
					err = errors.Join(err, item.Err)
				}
				if err != nil {
					fail(err)
					return
				}
				if d := done.Add(int64(len(specs))); d/100_000 != (d-int64(len(specs)))/100_000 {
					progress("  %d tasks submitted, %.0f a second", d, float64(d)/time.Since(began).Seconds())
				}
			}
		})
	}
	all.Wait()
	return float64(n) / time.Since(began).Seconds(), context.Cause(ctx)
}

// plain makes tasks that differ in nothing.
func plain(payloadBytes int) func(int) sdk.TaskSpec {
	data := payload(payloadBytes)
	return func(int) sdk.TaskSpec { return sdk.TaskSpec{Handler: handler, Payload: data} }
}

// sleep waits unless ctx ends.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// percentile is the smallest value that a share of all do not exceed.
func percentile(all []time.Duration, share float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[min(int(share*float64(len(sorted))), len(sorted)-1)]
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// profile keeps a profile of a server, if profiles are wanted: heap, or cpu of the
// seconds that come.
func (s *site) profile(ctx context.Context, h *house, of *proc.Server, kind, name string, seconds int) error {
	if s.profiles == "" {
		return nil
	}
	if err := os.MkdirAll(s.profiles, 0o700); err != nil {
		return err
	}
	url := fmt.Sprintf("%s/debug/pprof/%s", of.URL(), kind)
	if seconds > 0 {
		url += fmt.Sprintf("?seconds=%d", seconds)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := h.web.Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, answer.Status)
	}
	f, err := os.Create(filepath.Join(s.profiles, name+"."+of.ID()+"."+kind+".pb.gz"))
	if err != nil {
		return err
	}
	_, err = io.Copy(f, answer.Body)
	return errors.Join(err, f.Close())
}
