package restore

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pulse/schema/workerv1"
	"pulse/sdk"
)

// TestADebugBundleHasEverythingButSecrets: what is collected of a cluster at work
// has a part of every node, and nothing that anybody has to keep to himself.
func TestADebugBundleHasEverythingButSecrets(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a quarter of a minute")
	}
	file := secretFile(t)
	servers := three(t, file)
	start(t, servers...)
	untilVoters(t, servers[0], 3)
	c := client(servers...)
	const payload, result, note, key = "payload-that-is-nobodys-business", "result-that-is-nobodys-business", "note-that-is-nobodys-business", "idempotency-key-of-somebody"
	worker := newHand(t)
	worker.connect(servers[1].URL())
	submit(t, c, sdk.TaskSpec{Handler: "effect", Payload: map[string]string{"text": payload}})
	first := worker.assigned()
	if f := worker.ask(&workerv1.Start{Ref: ref(first)}); !active(f) {
		t.Fatalf("start: %s", describe(f))
	}
	worker.ask(&workerv1.Finish{Ref: ref(first), Outcome: workerv1.OutcomeSucceeded, Result: []byte(`{"text":"` + result + `"}`)})
	// A second one is still running, and a bad request has met the logs.
	running := submit(t, c, sdk.TaskSpec{Handler: "effect", Payload: map[string]string{"text": payload}})
	second := worker.assigned()
	worker.ask(&workerv1.Start{Ref: ref(second)})
	if _, err := c.Cancel(t.Context(), running, sdk.WithNote(note), sdk.WithIdempotencyKey(key)); err != nil {
		t.Fatal(err)
	}
	tokenFile := filepath.Join(t.TempDir(), "token")
	if out, err := pulse(t, "token", "create", "on-call", "--grant", "admin@*", "--file", tokenFile, "--addr", servers[0].URL()); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	token, err := os.ReadFile(tokenFile)
	if err != nil {
		t.Fatal(err)
	}
	token = bytes.TrimSpace(token)
	kill(t, servers[2])

	bundle := filepath.Join(t.TempDir(), "debug.tar.gz")
	t.Setenv("PULSE_TOKEN", string(token))
	var done struct {
		Nodes   []string          `json:"nodes"`
		Missing map[string]string `json:"missing"`
	}
	mustPulse(t, &done, "cluster", "debug", bundle, "--addr", servers[0].URL())
	if !slices.Contains(done.Nodes, "a") || !slices.Contains(done.Nodes, "b") || done.Missing["c"] == "" {
		t.Errorf("collected of %v, missing %v", done.Nodes, done.Missing)
	}
	files := unpack(t, bundle)
	for _, node := range []string{"a", "b"} {
		for _, name := range []string{"version.json", "config.json", "status.json", "members.json", "raft.json", "queues.json", "courier.json",
			"metrics.txt", "log.jsonl", "goroutines.txt", "heap.pb.gz"} {
			if len(files[path.Join(node, name)]) == 0 {
				t.Errorf("%s of %s is missing or empty", name, node)
			}
		}
	}
	for name, want := range map[string]string{
		"a/config.json": "cluster_secret_file", "a/log.jsonl": "node started", "a/metrics.txt": "pulse_", "a/goroutines.txt": "pulse/cmd/node",
		"a/raft.json": "last_log_index", "a/queues.json": "default", "c/missing.txt": "",
	} {
		if !bytes.Contains(files[name], []byte(want)) {
			t.Errorf("%s does not tell of %q: %.300s", name, want, files[name])
		}
	}
	secret, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for what, text := range map[string][]byte{
		"the cluster's secret": bytes.TrimSpace(secret), "the worker's secret": worker.secret[:],
		"a lease's secret": first.LeaseSecret[:], "another lease's secret": second.LeaseSecret[:],
		"a token": token, "a token's secret part": token[bytes.LastIndexByte(token, '_')+1:],
		"a payload": []byte(payload), "a result": []byte(result), "a note": []byte(note), "an idempotency key": []byte(key),
	} {
		for form, shown := range forms(text) {
			for name, content := range files {
				if bytes.Contains(content, []byte(shown)) {
					t.Errorf("%s shows %s in %s", name, what, form)
				}
			}
		}
	}
}

// forms are the ways in which a secret may be written down.
func forms(secret []byte) map[string]string {
	out := map[string]string{
		"plain": string(secret), "hex": hex.EncodeToString(secret), "large hex": strings.ToUpper(hex.EncodeToString(secret)),
	}
	// In the middle of something longer base64 has three looks; the ends depend on
	// what is beside.
	for shift := range 3 {
		for name, e := range map[string]*base64.Encoding{"base64": base64.RawStdEncoding, "url base64": base64.RawURLEncoding} {
			text := e.EncodeToString(append(make([]byte, shift), secret...))
			out[name+strings.Repeat("'", shift)] = text[2*min(shift, 1)+2*(shift/2) : len(text)-3]
		}
	}
	return out
}

// unpack reads a tar.gz; files of it that are packed again are unpacked, too.
func unpack(t *testing.T, file string) map[string][]byte {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	for files := tar.NewReader(unzipped); ; {
		head, err := files.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(files)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(head.Name, ".gz") {
			inner, err := gzip.NewReader(bytes.NewReader(data))
			if err == nil {
				data, err = io.ReadAll(inner)
			}
			if err != nil {
				t.Fatalf("%s: %v", head.Name, err)
			}
		}
		out[head.Name] = data
	}
}
