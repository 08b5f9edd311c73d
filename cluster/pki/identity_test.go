package pki

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestNodesOfOneClusterMeet(t *testing.T) {
	t.Parallel()
	dir := newCluster(t, "prod")
	n1, n2 := open(t, dir, "n1"), open(t, dir, "n2")
	m := meet(n1.ServerConfig(), calling(t, n2, "n1"))
	if !m.ok() || m.peer != "n2" {
		t.Errorf("%+v", m)
	}
	if n1.Cluster() != "prod" {
		t.Errorf("the cluster is %q", n1.Cluster())
	}
}

func TestANodeThatIsAddedLaterMeetsTheOthers(t *testing.T) {
	t.Parallel()
	dir := newCluster(t, "prod")
	n1 := open(t, dir, "n1")
	if _, err := AddNode(dir, NodeSpec{"n4", []string{"10.0.0.4"}}, 0); err != nil {
		t.Fatal(err)
	}
	n4 := open(t, dir, "n4")
	if m := meet(n1.ServerConfig(), calling(t, n4, "n1")); !m.ok() || m.peer != "n4" {
		t.Errorf("called by it: %+v", m)
	}
	if m := meet(n4.ServerConfig(), calling(t, n1, "n4")); !m.ok() || m.peer != "n1" {
		t.Errorf("calling it: %+v", m)
	}
}

func TestOnlyTheNodeThatWasMeantIsBelieved(t *testing.T) {
	t.Parallel()
	dir := newCluster(t, "prod")
	n1, n2 := open(t, dir, "n1"), open(t, dir, "n2")
	m := meet(n1.ServerConfig(), calling(t, n2, "n3"))
	if !errors.Is(m.client, ErrWrongName) || !strings.Contains(m.client.Error(), "pulse://prod/node/n3") {
		t.Errorf("n1 in the place of n3: %v", m.client)
	}
	if _, err := n2.ClientConfig(""); err == nil {
		t.Error("a config that believes any node was made")
	}
}

// A gateway calls servers and is called by them, and among voters it is nobody:
// with its certificate nobody votes, and none of it is believed to be a server.
func TestAGatewayIsANodeAndNoVoter(t *testing.T) {
	t.Parallel()
	dir := newCluster(t, "prod")
	if _, err := AddGateway(dir, NodeSpec{"g1", []string{"g1.example.org"}}, 0); err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		n1, n2, g1 := open(t, dir, "n1"), open(t, dir, "n2"), open(t, dir, "g1")
		if !g1.Gateway() || n1.Gateway() {
			t.Errorf("a gateway: %t, a server: %t", g1.Gateway(), n1.Gateway())
		}
		if m := meet(n1.ServerConfig(), calling(t, g1, "n1")); !m.ok() || m.peer != "g1" {
			t.Errorf("a gateway calls a server: %+v", m)
		}
		if m := meet(g1.ServerConfig(), calling(t, n1, "g1")); !m.ok() || m.peer != "n1" {
			t.Errorf("a server calls a gateway: %+v", m)
		}
		if m := meet(n1.Voters().ServerConfig(), calling(t, n2.Voters(), "n1")); !m.ok() {
			t.Errorf("servers among themselves: %+v", m)
		}
		if m := meet(n1.Voters().ServerConfig(), calling(t, g1, "n1")); !errors.Is(m.server, ErrWrongName) {
			t.Errorf("a gateway among servers is told %v", m.server)
		}
		if m := meet(g1.ServerConfig(), calling(t, n1.Voters(), "g1")); !errors.Is(m.client, ErrWrongName) {
			t.Errorf("a gateway in a server's place is told %v", m.client)
		}
	}
	check()
	// It stays one when its certificate is made anew, and with Keep.
	_, err := Renew(dir, RenewOptions{})
	must(t, err)
	check()
	o := InitOptions{Nodes: []NodeSpec{{"n1", []string{"n1.example.org"}}}, Gateways: []NodeSpec{{"g1", []string{"g1.example.org"}}}, Keep: true}
	if issued, err := Init(dir, o); err != nil || len(issued) != 0 {
		t.Errorf("made again: %v, %v", issued, err)
	}
	o.Nodes, o.Gateways = append(o.Nodes, o.Gateways...), nil
	if _, err := Init(dir, o); err == nil || !strings.Contains(err.Error(), "certificate of a gateway") {
		t.Errorf("a gateway that is to be a server: %v", err)
	}
}

// Each stranger at the door of the nodes is turned away by the node, whatever
// else its certificate is good for.
func TestStrangersAreRefusedAtTheDoorOfTheNodes(t *testing.T) {
	t.Parallel()
	dir, other := newCluster(t, "prod"), newCluster(t, "prod")
	if _, err := AddClient(dir, "worker", 0); err != nil {
		t.Fatal(err)
	}
	n1 := open(t, dir, "n1")
	at := filepath.Join
	named := func(uris ...string) *tls.Config {
		holder := t.TempDir()
		v, err := openVault(dir)
		must(t, err)
		l := v.leafOf(nodeKind, "n2", nodeRole, []string{"n2"})
		if l.uri = nil; len(uris) > 0 {
			l.uri, err = url.Parse(uris[0])
			must(t, err)
		}
		issueAs(t, dir, nodeKind, holder, l, time.Hour)
		return showing(t, at(holder, NodeCertFile), at(holder, NodeKeyFile))
	}
	serverOnly := func() *tls.Config {
		holder := t.TempDir()
		v, err := openVault(dir)
		must(t, err)
		l := v.leafOf(nodeKind, "n2", nodeRole, []string{"n2"})
		l.usage = l.usage[:1]
		issueAs(t, dir, nodeKind, holder, l, time.Hour)
		return showing(t, at(holder, NodeCertFile), at(holder, NodeKeyFile))
	}
	twoNames := func() *tls.Config {
		v, err := openVault(dir)
		must(t, err)
		a, err := v.signer(nodeKind)
		must(t, err)
		key, _, err := newKey()
		must(t, err)
		der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
			SerialNumber: newSerial(), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
			URIs:        []*url.URL{nameOf("prod", nodeRole, "n2"), nameOf("prod", nodeRole, "n3")},
		}, a.cert, key.Public(), a.key)
		must(t, err)
		return &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	}
	old := showing(t, at(dir, "n2", NodeCertFile), at(dir, "n2", NodeKeyFile))
	old.MaxVersion = tls.VersionTLS12
	for _, c := range []struct {
		name   string
		client *tls.Config
		want   error // nil: any
	}{
		{"nobody", &tls.Config{InsecureSkipVerify: true}, nil},
		{"a client of this cluster", showing(t, at(dir, "clients/worker", ClientCertFile), at(dir, "clients/worker", ClientKeyFile)), ErrWrongCA},
		{"an HTTP port of this cluster", showing(t, at(dir, "n2", HTTPCertFile), at(dir, "n2", HTTPKeyFile)), ErrWrongCA},
		{"the same node of a cluster of the same name", showing(t, at(other, "n2", NodeCertFile), at(other, "n2", NodeKeyFile)), ErrWrongCA},
		{"another cluster's name", named("pulse://prod2/node/n2"), ErrWrongName},
		{"a client's name", named("pulse://prod/client/n2"), ErrWrongName},
		{"a longer name", named("pulse://prod/node/n2/x"), ErrWrongName},
		{"a name with a port", named("pulse://prod:1/node/n2"), ErrWrongName},
		{"a name with a user", named("pulse://x@prod/node/n2"), ErrWrongName},
		{"a name with a query", named("pulse://prod/node/n2?x"), ErrWrongName},
		{"a name with an escape", named("pulse://prod/node/n%32"), ErrWrongName},
		{"another scheme", named("https://prod/node/n2"), ErrWrongName},
		{"two names", twoNames(), ErrWrongName},
		{"host names only", named(), ErrWrongName},
		{"a certificate that may not call", serverOnly(), ErrWrongUse},
		{"TLS 1.2", old, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := meet(n1.ServerConfig(), c.client)
			if m.server == nil || c.want != nil && !errors.Is(m.server, c.want) {
				t.Errorf("the node says %v, want %v", m.server, c.want)
			}
			if m.client == nil {
				t.Error("the stranger was served")
			}
		})
	}
}

func TestANodeDoesNotCallAStranger(t *testing.T) {
	t.Parallel()
	dir, other := newCluster(t, "prod"), newCluster(t, "prod")
	n2 := open(t, dir, "n2")
	for name, server := range map[string]*tls.Config{
		"a node of a cluster of the same name": open(t, other, "n1").ServerConfig(),
		"an HTTP port":                         showing(t, filepath.Join(dir, "n1", HTTPCertFile), filepath.Join(dir, "n1", HTTPKeyFile)),
	} {
		if server.GetCertificate == nil {
			cert, err := server.GetClientCertificate(nil)
			must(t, err)
			server = &tls.Config{Certificates: []tls.Certificate{*cert}}
		}
		if m := meet(server, calling(t, n2, "n1")); !errors.Is(m.client, ErrWrongCA) {
			t.Errorf("%s: %v", name, m.client)
		}
	}
}

func TestCertificatesAreGoodForTheirTimeOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := newCluster(t, "prod")
		n1, n2 := open(t, dir, "n1"), open(t, dir, "n2")
		// n3 is made a year from now and looked at by those whose clocks are behind.
		future := filepath.Join(t.TempDir(), "n3")
		func() {
			v, err := openVault(dir)
			must(t, err)
			a, err := v.signer(nodeKind)
			must(t, err)
			then := time.Now().Add(24 * time.Hour)
			certPEM, keyPEM, err := a.issue(v.leafOf(nodeKind, "n3", nodeRole, []string{"n3"}), newSerial(), then, then.Add(time.Hour))
			must(t, err)
			copyDir(t, filepath.Join(dir, "n3"), future)
			must(t, os.WriteFile(filepath.Join(future, NodeCertFile), certPEM, 0o600))
			must(t, os.WriteFile(filepath.Join(future, NodeKeyFile), keyPEM, 0o600))
		}()
		m := meet(n1.ServerConfig(), showing(t, filepath.Join(future, NodeCertFile), filepath.Join(future, NodeKeyFile)))
		if !errors.Is(m.server, ErrNotYetValid) || !strings.Contains(m.server.Error(), "clocks") {
			t.Errorf("not yet: %v", m.server)
		}
		if _, err := Open(Options{Files: NodeFiles(future), NodeID: "n3"}); !errors.Is(err, ErrNotYetValid) {
			t.Errorf("a node starts with a certificate of the future: %v", err)
		}

		time.Sleep(DefaultValidity + time.Second)
		m = meet(n1.ServerConfig(), calling(t, n2, "n1"))
		if !errors.Is(m.client, ErrExpired) || !strings.Contains(m.client.Error(), "renew") {
			t.Errorf("afterwards the caller says %v", m.client)
		}
		m = meet(n1.ServerConfig(), showing(t, filepath.Join(dir, "n2", NodeCertFile), filepath.Join(dir, "n2", NodeKeyFile)))
		if !errors.Is(m.server, ErrExpired) {
			t.Errorf("afterwards the called says %v", m.server)
		}
		if _, err := Open(Options{Files: NodeFiles(filepath.Join(dir, "n1")), NodeID: "n1"}); !errors.Is(err, ErrExpired) {
			t.Errorf("a node starts with a certificate of the past: %v", err)
		}

		// And they are back as soon as they have been renewed.
		if _, err := Renew(dir, RenewOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(lookEvery)
		if m = meet(n1.ServerConfig(), calling(t, n2, "n1")); !m.ok() {
			t.Errorf("renewed: %+v", m)
		}
	})
}

func TestANodeStartsWithItsOwnFilesOnly(t *testing.T) {
	t.Parallel()
	dir, other := newCluster(t, "prod"), newCluster(t, "test")
	at := func(id string) Files { return NodeFiles(filepath.Join(dir, id)) }
	mixed := at("n1")
	mixed.Key = at("n2").Key
	foreign := at("n1")
	foreign.CA = NodeFiles(filepath.Join(other, "n1")).CA
	keyAsCA := at("n1")
	keyAsCA.CA = keyAsCA.Key
	leafAsCA := at("n1")
	leafAsCA.CA = leafAsCA.Cert
	missing := at("n1")
	missing.Key += ".gone"
	huge := at("n1")
	huge.CA = filepath.Join(t.TempDir(), "huge")
	must(t, os.WriteFile(huge.CA, bytes.Repeat([]byte("x"), fileBytesMax+1), 0o600))
	for _, c := range []struct {
		name  string
		files Files
		want  string
	}{
		{"the directory of another node", at("n2"), "copy this node's own directory"},
		{"another node's key", mixed, "own key"},
		{"another cluster's CA", foreign, "another authority"},
		{"a key in the place of the CA", keyAsCA, "right file"},
		{"a certificate in the place of the CA", leafAsCA, "authority"},
		{"a file that is not there", missing, "no such file"},
		{"a file that is far too long", huge, "right file"},
		{"nothing", Files{}, "give all three"},
	} {
		_, err := Open(Options{Files: c.files, NodeID: "n1"})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want something about %q", c.name, err, c.want)
		}
	}
}
