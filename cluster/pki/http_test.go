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

func TestClientCertificatesAreJudgedAtEachRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := newCluster(t, "prod")
		_, err := AddClient(dir, "reports", 2*time.Hour)
		must(t, err)
		other := newCluster(t, "test")
		_, err = AddClient(other, "reports", 0)
		must(t, err)
		own := filepath.Join(dir, "clients", "reports")
		files := HTTPFiles(filepath.Join(dir, "n1"))
		h := openHTTP(t, HTTPOptions{Files: files, Cluster: "prod"})
		// A true client certificate, of another name: one CA may serve two clusters.
		issueAs(t, dir, clientKind, own, leaf{"reports", nameOf("test", clientRole, "reports"), nil, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, time.Hour)
		elsewhere := showing(t, filepath.Join(own, ClientCertFile), filepath.Join(own, ClientKeyFile))
		issueAs(t, dir, clientKind, own, leaf{"reports", nameOf("prod", nodeRole, "reports"), nil, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, time.Hour)
		asNode := showing(t, filepath.Join(own, ClientCertFile), filepath.Join(own, ClientKeyFile))
		issueAs(t, dir, clientKind, own, leaf{"reports", nameOf("prod", clientRole, "reports"), nil, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, 2*time.Hour)

		client := showing(t, filepath.Join(own, ClientCertFile), filepath.Join(own, ClientKeyFile))
		for _, c := range []struct {
			name   string
			client *tls.Config
			want   error // nil: it is let in
		}{
			{"a client", client, nil},
			{"nobody", browser(t, filepath.Join(own, HTTPCAFile), "localhost"), ErrWrongCA},
			{"a node", showing(t, filepath.Join(dir, "n2", NodeCertFile), filepath.Join(dir, "n2", NodeKeyFile)), ErrWrongCA},
			{"a server's certificate", showing(t, filepath.Join(dir, "n2", HTTPCertFile), filepath.Join(dir, "n2", HTTPKeyFile)), ErrWrongCA},
			{"a client of another CA", showing(t, filepath.Join(other, "clients", "reports", ClientCertFile), filepath.Join(other, "clients", "reports", ClientKeyFile)), ErrWrongCA},
			{"a client of another cluster", elsewhere, ErrWrongName},
			{"a node's name from the client CA", asNode, ErrWrongName},
		} {
			m := meet(h.ServerConfig(), c.client)
			if !m.ok() {
				t.Errorf("%s: %+v", c.name, m)
				continue
			}
			switch id, err := h.Client(&m.seen); {
			case c.want == nil && (err != nil || id != "reports"):
				t.Errorf("%s is %q: %v", c.name, id, err)
			case c.want != nil && (!errors.Is(err, c.want) || id != ""):
				t.Errorf("%s is %q: %v, want %v", c.name, id, err, c.want)
			}
		}

		// The connection stays; the certificate ends.
		m := meet(h.ServerConfig(), client)
		time.Sleep(2*time.Hour + judgedFor)
		if _, err := h.Client(&m.seen); !errors.Is(err, ErrExpired) {
			t.Errorf("after its end: %v", err)
		}
		_, err = Renew(dir, RenewOptions{Clients: []string{"reports"}})
		must(t, err)
		m = meet(h.ServerConfig(), showing(t, filepath.Join(own, ClientCertFile), filepath.Join(own, ClientKeyFile)))
		if id, err := h.Client(&m.seen); id != "reports" {
			t.Errorf("renewed: %v", err)
		}
		must(t, RevokeClient(dir, "reports"))
		time.Sleep(lookEvery)
		if _, err := h.Client(&m.seen); !errors.Is(err, ErrRevoked) {
			t.Errorf("withdrawn: %v", err)
		}
	})
}

func TestWhoWasLetInIsRememberedWithinBounds(t *testing.T) {
	t.Parallel()
	dir := newCluster(t, "prod")
	h := openHTTP(t, HTTPOptions{Files: HTTPFiles(filepath.Join(dir, "n1"))})
	for i := range judgedMax {
		h.judged[sum([]*x509.Certificate{{Raw: []byte{byte(i), byte(i >> 8)}}})] = judgement{}
	}
	_, err := AddClient(dir, "one-more", 0)
	must(t, err)
	own := filepath.Join(dir, "clients", "one-more")
	m := meet(h.ServerConfig(), showing(t, filepath.Join(own, ClientCertFile), filepath.Join(own, ClientKeyFile)))
	if id, err := h.Client(&m.seen); id != "one-more" {
		t.Fatal(err)
	}
	if len(h.judged) != 1 {
		t.Errorf("%d are remembered", len(h.judged))
	}
}

func TestTheHTTPCertificateFollowsItsFile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := newCluster(t, "prod")
		h := openHTTP(t, HTTPOptions{Files: HTTPFiles(filepath.Join(dir, "n1"))})
		for _, want := range []string{Begun, Switched, Finished} {
			_, before := h.Validity()
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
			if _, now := h.Validity(); now.Equal(before) == (step == Switched) {
				t.Errorf("%s: the certificate ended at %s, now at %s", step, before, now)
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
		{"a CA file that is none", HTTPOptions{Files: Files{CA: files.Cert, Cert: files.Cert, Key: files.Key}}, "no authority"},
	} {
		if _, err := OpenHTTP(c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want something about %q", c.name, err, c.want)
		}
	}
}
