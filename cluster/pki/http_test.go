package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// browser believes what is in a CA file and compares the host name.
func browser(t *testing.T, caFile, host string) *tls.Config {
	t.Helper()
	data, err := os.ReadFile(caFile)
	must(t, err)
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		t.Fatal("no CA in " + caFile)
	}
	return &tls.Config{RootCAs: pool, ServerName: host}
}

func openHTTP(t *testing.T, o HTTPOptions) *HTTPIdentity {
	t.Helper()
	h, err := OpenHTTP(o)
	must(t, err)
	return h
}

func TestTheHTTPPortIsBelievedByItsNamesAndItsOwnCAOnly(t *testing.T) {
	t.Parallel()
	dir := newCluster(t, "prod")
	h := openHTTP(t, HTTPOptions{Files: HTTPFiles(filepath.Join(dir, "n1"))})
	for host, good := range map[string]bool{"n1.example.org": true, "10.0.0.1": true, "localhost": true, "127.0.0.1": true, "n2.example.org": false} {
		if m := meet(h.ServerConfig(), browser(t, filepath.Join(dir, "n1", HTTPCAFile), host)); m.ok() != good {
			t.Errorf("%s: %+v", host, m)
		}
	}
	if m := meet(h.ServerConfig(), browser(t, filepath.Join(dir, "n1", NodeCAFile), "localhost")); m.ok() {
		t.Error("the node CA vouches for the HTTP port")
	}
	old := browser(t, filepath.Join(dir, "n1", HTTPCAFile), "localhost")
	old.MaxVersion = tls.VersionTLS12
	if m := meet(h.ServerConfig(), old); !m.ok() {
		t.Errorf("TLS 1.2: %+v", m)
	}
	old.MinVersion, old.MaxVersion = tls.VersionTLS11, tls.VersionTLS11
	if m := meet(h.ServerConfig(), old); m.ok() {
		t.Error("TLS 1.1 was spoken")
	}
}

func TestClientCertificatesAreJudgedWhenTheyAreShown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := newCluster(t, "prod")
		_, err := AddClient(dir, "reports", 0)
		must(t, err)
		own := filepath.Join(dir, "clients", "reports")
		files := HTTPFiles(filepath.Join(dir, "n1"))
		open := openHTTP(t, HTTPOptions{Files: files})
		strict := openHTTP(t, HTTPOptions{Files: files, RequireClient: true})
		without := files
		without.CA = ""
		none := openHTTP(t, HTTPOptions{Files: without})

		nobody := browser(t, filepath.Join(own, HTTPCAFile), "localhost")
		client := showing(t, filepath.Join(own, ClientCertFile), filepath.Join(own, ClientKeyFile))
		node := showing(t, filepath.Join(dir, "n2", NodeCertFile), filepath.Join(dir, "n2", NodeKeyFile))
		for _, c := range []struct {
			name   string
			server *HTTPIdentity
			client *tls.Config
			good   bool
		}{
			{"nobody at an open port", open, nobody, true},
			{"nobody at a strict port", strict, nobody, false},
			{"nobody at a port without CA", none, nobody, true},
			{"a client at an open port", open, client, true},
			{"a client at a strict port", strict, client, true},
			{"a node at an open port", open, node, false},
			{"a node at a strict port", strict, node, false},
		} {
			if m := meet(c.server.ServerConfig(), c.client); m.ok() != c.good {
				t.Errorf("%s: %+v", c.name, m)
			}
		}

		kept := t.TempDir()
		copyDir(t, own, kept)
		must(t, RevokeClient(dir, "reports"))
		time.Sleep(lookEvery)
		if m := meet(open.ServerConfig(), client); !errors.Is(m.server, ErrRevoked) {
			t.Errorf("a withdrawn client: %v", m.server)
		}
		if m := meet(open.ServerConfig(), nobody); !m.ok() {
			t.Errorf("nobody, then: %+v", m)
		}
	})
}

func TestTheHTTPCertificateFollowsItsFile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := newCluster(t, "prod")
		h := openHTTP(t, HTTPOptions{Files: HTTPFiles(filepath.Join(dir, "n1"))})
		for _, want := range []string{Begun, Switched, Finished} {
			before := h.NotAfter()
			// The client has the newest bundle, the port may not have anything.
			step, _, err := RotateCA(dir, "http", DefaultValidity-time.Hour)
			must(t, err)
			if step != want {
				t.Errorf("step %s, want %s", step, want)
			}
			time.Sleep(lookEvery)
			if m := meet(h.ServerConfig(), browser(t, filepath.Join(dir, "n2", HTTPCAFile), "n1.example.org")); !m.ok() {
				t.Errorf("%s: %+v", step, m)
			}
			if changed := !h.NotAfter().Equal(before); changed != (step == Switched) {
				t.Errorf("%s: the certificate has changed: %v", step, changed)
			}
		}
	})
}

func TestAnHTTPPortWithoutWhatItNeedsDoesNotOpen(t *testing.T) {
	t.Parallel()
	dir := newCluster(t, "prod")
	files := HTTPFiles(filepath.Join(dir, "n1"))
	for _, c := range []struct {
		name string
		o    HTTPOptions
		want string
	}{
		{"no certificate", HTTPOptions{Files: Files{Key: files.Key}}, "give both"},
		{"clients required, no CA", HTTPOptions{Files: Files{Cert: files.Cert, Key: files.Key}, RequireClient: true}, "client CA"},
		{"a CA file that is none", HTTPOptions{Files: Files{CA: files.Cert, Cert: files.Cert, Key: files.Key}}, "no authority"},
	} {
		if _, err := OpenHTTP(c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want something about %q", c.name, err, c.want)
		}
	}
}
