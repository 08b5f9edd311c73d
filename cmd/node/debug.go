package node

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/protobuf/encoding/protojson"

	"pulse/fsm"
)

// A bundle is what somebody who is to find out what is wrong with a node wants to
// see of it, in one file. Nothing secret and nothing of what tasks carry is in it:
// each part is made of fields that are named here, or of what is public anyway.

// part of a bundle that could not be made says why in its place.
type bundlePart struct {
	name string
	make func(ctx context.Context, w io.Writer) error
}

func (n *Node) bundle() []bundlePart {
	parts := []bundlePart{
		{"version.json", asJSON(n.buildFacts)},
		{"config.json", asJSON(n.publicConfig)},
		{"status.json", asJSON(func(ctx context.Context) any { return clusterAPI{n}.Status(ctx) })},
		{"members.json", asJSON(func(ctx context.Context) any { return clusterAPI{n}.Members(ctx) })},
		{"metrics.txt", n.writeMetrics},
		{"log.jsonl", func(_ context.Context, w io.Writer) error {
			_, err := w.Write(n.recent.text())
			return err
		}},
		{"goroutines.txt", func(_ context.Context, w io.Writer) error { return pprof.Lookup("goroutine").WriteTo(w, 1) }},
		{"heap.pb.gz", func(_ context.Context, w io.Writer) error { return pprof.Lookup("heap").WriteTo(w, 0) }},
	}
	if n.machine != nil {
		parts = append(parts,
			bundlePart{"queues.json", func(_ context.Context, w io.Writer) error {
				data, err := protojson.MarshalOptions{Multiline: true}.Marshal(n.machine.Stats())
				if err == nil {
					_, err = w.Write(data)
				}
				return err
			}},
			bundlePart{"raft.json", asJSON(func(context.Context) any { return n.raft.RaftStats() })},
			bundlePart{"courier.json", asJSON(func(context.Context) any { return n.courier.Stats() })})
	}
	return parts
}

// Debug implements httpapi.Cluster.
func (c clusterAPI) Debug(ctx context.Context, w io.Writer) error {
	zipped := gzip.NewWriter(w)
	files := tar.NewWriter(zipped)
	now := time.Now()
	for _, part := range c.bundle() {
		var content bytes.Buffer
		name := part.name
		if err := part.make(ctx, &content); err != nil {
			name += ".error"
			content.Reset()
			fmt.Fprintln(&content, err)
		}
		err := files.WriteHeader(&tar.Header{Name: c.ID() + "/" + name, Mode: 0o600, Size: int64(content.Len()), ModTime: now})
		if err == nil {
			_, err = files.Write(content.Bytes())
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(files.Close(), zipped.Close())
}

func asJSON(of func(context.Context) any) func(context.Context, io.Writer) error {
	return func(ctx context.Context, w io.Writer) error {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(of(ctx))
	}
}

func (n *Node) buildFacts(context.Context) any {
	out := map[string]any{
		"version": n.cfg.Version, "format_level": fsm.FormatLevel, "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH,
		"cpus": runtime.NumCPU(), "gomaxprocs": runtime.GOMAXPROCS(0), "time": time.Now().UTC(),
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		modules := map[string]string{}
		for _, m := range info.Deps {
			modules[m.Path] = m.Version
		}
		out["modules"] = modules
	}
	return out
}

// publicConfig names each field that is shown. The secret is not among them, and
// neither is anything that is not known here.
func (n *Node) publicConfig(context.Context) any {
	c := n.cfg
	out := map[string]any{
		"node_id": n.ID(), "data": c.DataDir, "http": c.HTTPAddr, "raft": c.RaftAddr, "certs": c.Certs, "hosts": c.Hosts, "origins": c.Origins,
		"cluster_secret_given": len(c.ClusterSecret) > 0, "cluster_secret_file": c.ClusterSecretFile, "log_store": c.LogStore,
		"election_timeout": c.ElectionTimeout.String(), "write_limit": c.WriteLimit.String(), "snapshot_entries": c.SnapshotEntries, "close_timeout": c.CloseTimeout.String(),
		"limits": c.Limits,
	}
	if l := c.Cluster; l != nil {
		out["rpc"], out["gossip"], out["advertise"] = l.RPCAddr, l.GossipAddr, l.Advertise
		out["join"], out["bootstrap_expect"], out["gateway"] = l.Join, l.BootstrapExpect, l.Gateway
	}
	return out
}

func (n *Node) writeMetrics(ctx context.Context, w io.Writer) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "/metrics", http.NoBody)
	if err != nil {
		return err
	}
	answer := &plainAnswer{Writer: w, header: http.Header{}}
	promhttp.HandlerFor(n.registry, promhttp.HandlerOpts{DisableCompression: true}).ServeHTTP(answer, r)
	if answer.status != 0 && answer.status != http.StatusOK {
		return fmt.Errorf("the metrics answer %d", answer.status)
	}
	return nil
}

// plainAnswer takes the body of an answer that goes nowhere else.
type plainAnswer struct {
	io.Writer
	header http.Header
	status int
}

func (p *plainAnswer) Header() http.Header    { return p.header }
func (p *plainAnswer) WriteHeader(status int) { p.status = status }
