package pki

import (
	"bytes"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestInitMakesAllThatANodeNeeds(t *testing.T) {
	t.Parallel()
	dir := newCluster(t, "prod")
	entries, err := os.ReadDir(filepath.Join(dir, "n1"))
	must(t, err)
	var got []string
	for _, e := range entries {
		info, err := e.Info()
		must(t, err)
		got = append(got, e.Name()+" "+info.Mode().String())
	}
	want := []string{
		"client-ca.pem -rw-r--r--", "client.crl -rw-r--r--", "cluster.secret -rw-------",
		"http-ca.pem -rw-r--r--", "http.key -rw-------", "http.pem -rw-r--r--",
		"node-ca.pem -rw-r--r--", "node.crl -rw-r--r--", "node.key -rw-------", "node.pem -rw-r--r--",
	}
	if !slices.Equal(got, want) {
		t.Errorf("n1 holds\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, path := range []string{".", "ca", "n1", "clients"} {
		info, err := os.Stat(filepath.Join(dir, path))
		must(t, err)
		if info.Mode().Perm() != 0o700 {
			t.Errorf("%s has mode %v, want it for its owner alone", path, info.Mode())
		}
	}
}

func TestAllNodesShareOneSecretOf32Bytes(t *testing.T) {
	t.Parallel()
	dir := newCluster(t, "prod")
	first, err := os.ReadFile(filepath.Join(dir, "cluster.secret"))
	must(t, err)
	raw, err := base64.RawURLEncoding.DecodeString(strings.TrimSuffix(string(first), "\n"))
	if err != nil || len(raw) != 32 {
		t.Errorf("the secret is %d bytes (%v), want 32", len(raw), err)
	}
	for _, id := range []string{"n1", "n2", "n3"} {
		data, err := os.ReadFile(filepath.Join(dir, id, "cluster.secret"))
		must(t, err)
		if !bytes.Equal(data, first) {
			t.Errorf("%s has another secret", id)
		}
	}
	other, err := os.ReadFile(filepath.Join(newCluster(t, "prod"), "cluster.secret"))
	must(t, err)
	if bytes.Equal(other, first) {
		t.Error("two clusters have one secret")
	}
}

func certAt(t *testing.T, path string) *x509.Certificate {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	certs, err := parseCerts(data)
	must(t, err)
	return certs[0]
}

func TestCertificatesSayWhoAndWhatFor(t *testing.T) {
	t.Parallel()
	dir := newCluster(t, "prod")
	if _, err := AddClient(dir, "reports", 0); err != nil {
		t.Fatal(err)
	}
	both := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	for _, c := range []struct {
		path  string
		uri   string
		usage []x509.ExtKeyUsage
		dns   []string
		ips   int
	}{
		{"n1/node.pem", "pulse://prod/node/n1", both, []string{"n1.example.org"}, 1},
		{"n1/http.pem", "", both[:1], []string{"n1.example.org", "localhost"}, 3},
		{"clients/reports/client.pem", "pulse://prod/client/reports", both[1:], nil, 0},
	} {
		cert := certAt(t, filepath.Join(dir, c.path))
		uri := ""
		for _, u := range cert.URIs {
			uri += u.String()
		}
		if uri != c.uri || !slices.Equal(cert.ExtKeyUsage, c.usage) || !slices.Equal(cert.DNSNames, c.dns) || len(cert.IPAddresses) != c.ips || cert.IsCA {
			t.Errorf("%s: uri %q, usage %v, names %v, addresses %v, CA %v", c.path, uri, cert.ExtKeyUsage, cert.DNSNames, cert.IPAddresses, cert.IsCA)
		}
		if left := time.Until(cert.NotAfter); left < DefaultValidity-time.Hour || left > DefaultValidity {
			t.Errorf("%s ends in %v", c.path, left)
		}
	}
}

func TestNothingIsOverwritten(t *testing.T) {
	t.Parallel()
	dir := newCluster(t, "prod")
	before := tree(t, dir)
	_, err := Init(dir, InitOptions{Nodes: []NodeSpec{{"n9", []string{"n9"}}}})
	if err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("a second Init says %v", err)
	}
	if _, err = AddNode(dir, NodeSpec{"n1", []string{"n1"}}, 0); !errors.Is(err, fs.ErrExist) {
		t.Errorf("adding n1 again says %v", err)
	}
	if _, err = AddClient(dir, "a", 0); err != nil {
		t.Fatal(err)
	}
	with := tree(t, dir)
	if _, err = AddClient(dir, "a", 0); !errors.Is(err, fs.ErrExist) {
		t.Errorf("adding client a again says %v", err)
	}
	after := tree(t, dir)
	for path, data := range before {
		if !strings.HasSuffix(path, ledgerFile) && after[path] != data {
			t.Errorf("%s has changed", path)
		}
	}
	if len(with) != len(after) {
		t.Errorf("a refused client left something: %d files, then %d", len(with), len(after))
	}
}

// tree reads all files below a directory.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		files[path] = string(data)
		return err
	}))
	return files
}

func TestWhatCannotBeMadeIsRefusedBeforeAnythingIsWritten(t *testing.T) {
	t.Parallel()
	ok := []string{"host"}
	for _, c := range []struct {
		name string
		o    InitOptions
		want string
	}{
		{"no node", InitOptions{}, "0 nodes"},
		{"a cluster's name with a slash", InitOptions{Cluster: "a/node/n1", Nodes: []NodeSpec{{"n1", ok}}}, "cluster name"},
		{"a cluster's name in capitals", InitOptions{Cluster: "Prod", Nodes: []NodeSpec{{"n1", ok}}}, "cluster name"},
		{"an id with a slash", InitOptions{Nodes: []NodeSpec{{"../n1", ok}}}, "node id"},
		{"no id", InitOptions{Nodes: []NodeSpec{{"", ok}}}, "node id"},
		{"an id that is ours", InitOptions{Nodes: []NodeSpec{{"CA", ok}}}, "ours"},
		{"an id twice", InitOptions{Nodes: []NodeSpec{{"n1", ok}, {"N1", ok}}}, "one name"},
		{"no host", InitOptions{Nodes: []NodeSpec{{"n1", nil}}}, "no host"},
		{"a host with a port", InitOptions{Nodes: []NodeSpec{{"n1", []string{"host:7400"}}}}, "without scheme and port"},
		{"a URL", InitOptions{Nodes: []NodeSpec{{"n1", []string{"https://host"}}}}, "without scheme and port"},
		{"a minute's validity", InitOptions{Nodes: []NodeSpec{{"n1", ok}}, Validity: time.Minute}, "validity"},
		{"an age's validity", InitOptions{Nodes: []NodeSpec{{"n1", ok}}, Validity: 200_000 * time.Hour}, "validity"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "pki")
			if _, err := Init(dir, c.o); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("says %v, want something about %q", err, c.want)
			}
			if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("left something behind: %v", err)
			}
		})
	}
}

func TestADirectoryThatIsNotOursIsRefused(t *testing.T) {
	t.Parallel()
	dir := newCluster(t, "prod")
	for name, text := range map[string]string{
		"not there": "", "damaged": "{", "of another version": `{"format": 2}`, "without a CA": `{"format": 1, "cluster": "prod"}`,
	} {
		path := filepath.Join(dir, "cluster.json")
		must(t, os.RemoveAll(path))
		if text != "" {
			must(t, os.WriteFile(path, []byte(text), 0o600))
		}
		before := tree(t, dir)
		if _, err := AddNode(dir, NodeSpec{"n4", []string{"n4"}}, 0); err == nil {
			t.Errorf("%s: a node was added", name)
		}
		if _, err := Renew(dir, RenewOptions{}); err == nil {
			t.Errorf("%s: certificates were renewed", name)
		}
		if len(tree(t, dir)) != len(before) {
			t.Errorf("%s: something was left behind", name)
		}
	}
}

func TestKeysForDifferentPurposesDiffer(t *testing.T) {
	t.Parallel()
	secret := []byte(strings.Repeat("s", 43))
	a, err := DeriveKey(secret, "pulse gossip key v1", 32)
	must(t, err)
	again, err := DeriveKey(secret, "pulse gossip key v1", 32)
	must(t, err)
	b, err := DeriveKey(secret, "pulse lease key v1", 32)
	must(t, err)
	if !bytes.Equal(a, again) || bytes.Equal(a, b) || len(a) != 32 {
		t.Errorf("%x, %x, %x", a, again, b)
	}
	// Written down, because nodes of two versions have to derive the same.
	const known = "584986e6c200502e2610d2ae13bd185599beb97e36362baec92e7f604766b9fe"
	if got := hex.EncodeToString(a); got != known {
		t.Errorf("the key is %s, want %s", got, known)
	}
	for _, c := range []struct {
		secret, info string
		n            int
	}{{"short", "x", 32}, {string(secret), "", 32}, {string(secret), "x", 0}, {string(secret), "x", 255*32 + 1}} {
		if key, err := DeriveKey([]byte(c.secret), c.info, c.n); err == nil {
			t.Errorf("%+v gives %x", c, key)
		}
	}
}
