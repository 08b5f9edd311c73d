package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"pulse/cluster/pki"
)

func TestCertificatesAreLookedAfter(t *testing.T) {
	t.Parallel()
	s := shell{t: t}
	dir := filepath.Join(t.TempDir(), "certs")
	out := s.ok("cluster", "init-tls", dir, "--cluster", "prod", "--node", "n1=n1.example.org,10.0.0.1", "--node", "n2=n2.example.org", "--client", "admin", "--validity", "90d")
	for _, words := range []string{filepath.Join(dir, "n1", "node.pem"), filepath.Join(dir, "clients", "admin", "client.pem"), "Copy each node its directory"} {
		if !strings.Contains(out, words) {
			t.Errorf("%q is not in\n%s", words, out)
		}
	}
	s.fails(exitFailed, "is not empty", "cluster", "init-tls", dir, "--node", "n1=n1.example.org")
	if out := s.ok("cluster", "init-tls", dir, "--keep", "--node", "n1=n1.example.org", "-o", "json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("kept: %s", out)
	}
	s.fails(exitFailed, "not for n9.example.org", "cluster", "init-tls", dir, "--keep", "--node", "n1=n9.example.org")

	s.ok("cluster", "add-node", dir, "n3=n3.example.org")
	if out := s.ok("cluster", "add-client", dir, "billing"); !strings.Contains(out, "PULSE_CLIENT_KEY="+dir+"/clients/billing/client.key") {
		t.Error(out)
	}
	s.fails(exitFailed, "there already", "cluster", "add-node", dir, "n3=n3.example.org")
	s.fails(exitFailed, "no node \"n9\"", "cluster", "renew", dir, "--node", "n9")
	s.ok("cluster", "renew", dir, "--node", "n3", "--validity", "2h")

	for _, want := range []string{pki.Begun, pki.Switched, pki.Finished} {
		before := s.run("cluster", "certs", dir)
		if rotating := strings.Contains(before.err, "The http CA is being replaced."); rotating != (want != pki.Begun) || before.code != exitDone {
			t.Errorf("before %s: exit %d\n%s", want, before.code, before.err)
		}
		if step := object(t, s.ok("cluster", "rotate-ca", dir, "http", "-o", "json")); step["step"] != want || step["next"] == "" {
			t.Errorf("%v, want %s", step, want)
		}
	}
	s.ok("cluster", "revoke", dir, "--node", "n2")
	s.ok("cluster", "revoke", dir, "--client", "billing")
	s.fails(exitFailed, "no certificate was ever made", "cluster", "revoke", dir, "--client", "nobody")
	s.fails(exitFailed, "init-tls", "cluster", "certs", t.TempDir())

	var left []string
	for line := range strings.Lines(s.ok("cluster", "certs", dir, "-o", "jsonl")) {
		var c certificateRow
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			t.Fatal(err)
		}
		left = append(left, c.Use+" "+c.For)
	}
	if got := strings.Join(left, ", "); got != "node CA, http CA, client CA, node n1, http n1, node n3, http n3, client admin" {
		t.Error(got)
	}
}
