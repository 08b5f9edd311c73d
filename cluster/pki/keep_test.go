package pki

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestKeepMakesOnlyWhatIsMissing(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "pki")
	o := InitOptions{Cluster: "prod", Nodes: []NodeSpec{{"n1", []string{"n1.example.org", "10.0.0.1"}}}, Clients: []string{"admin"}, Keep: true}
	for i, want := range []int{3, 0} { // node, http and client; then nothing
		issued, err := Init(dir, o)
		if err != nil || len(issued) != want {
			t.Fatalf("time %d: %v, %v", i, issued, err)
		}
	}
	before := tree(t, dir)
	o.Nodes, o.Clients = append(o.Nodes, NodeSpec{"n2", []string{"n2.example.org"}}), append(o.Clients, "worker")
	issued, err := Init(dir, o)
	if err != nil || len(issued) != 3 || issued[0].For != "n2" || issued[2].For != "worker" {
		t.Fatalf("%v, %v", issued, err)
	}
	after := tree(t, dir)
	for path, text := range before {
		if after[path] != text && !strings.HasSuffix(path, ledgerFile) {
			t.Errorf("%s was changed", path)
		}
	}
	open(t, dir, "n2")

	for want, spoil := range map[string]func(*InitOptions){
		"is of cluster prod": func(o *InitOptions) { o.Cluster = "test" },
		"node n1 is not for elsewhere.example.org": func(o *InitOptions) {
			o.Nodes = []NodeSpec{{"n1", []string{"n1.example.org", "elsewhere.example.org"}}}
		},
		"not for 10.0.0.2": func(o *InitOptions) { o.Nodes = []NodeSpec{{"n1", []string{"10.0.0.2"}}} },
		"client name":      func(o *InitOptions) { o.Clients = []string{"../x"} },
		"is not empty":     func(o *InitOptions) { o.Keep = false },
	} {
		spoiled := o
		spoil(&spoiled)
		if _, err := Init(dir, spoiled); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if now := tree(t, dir); len(now) != len(after) {
		t.Error("what was refused has left something behind")
	}
	must(t, os.Remove(filepath.Join(dir, manifestFile)))
	if _, err := Init(dir, o); err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("half of a directory: %v", err)
	}
}

// Programs that look at lists refuse everybody by an authority that has none.
func TestThereIsAListOfTheWithdrawnByEachAuthority(t *testing.T) {
	t.Parallel()
	dir := newCluster(t, "prod")
	_, err := AddClient(dir, "a", 0)
	must(t, err)
	must(t, RevokeClient(dir, "a"))
	lists := func() (by [][]byte, withdrawn int) {
		data, err := os.ReadFile(filepath.Join(dir, "n1", ClientCRLFile))
		must(t, err)
		all, err := parseLists(data)
		must(t, err)
		for _, l := range all {
			by, withdrawn = append(by, l.AuthorityKeyId), withdrawn+len(l.RevokedCertificateEntries)
		}
		return by, withdrawn
	}
	for _, want := range []struct{ authorities, withdrawn int }{{1, 1}, {2, 1}, {2, 1}, {1, 0}} {
		bundle, err := os.ReadFile(filepath.Join(dir, "n1", ClientCAFile))
		must(t, err)
		authorities, err := parseAuthorities(bundle)
		must(t, err)
		by, withdrawn := lists()
		if len(authorities) != want.authorities || len(by) != want.authorities || withdrawn != want.withdrawn {
			t.Errorf("%d authorities have %d lists with %d entries, want %+v", len(authorities), len(by), withdrawn, want)
		}
		for _, a := range authorities {
			if !slices.ContainsFunc(by, func(id []byte) bool { return bytes.Equal(id, a.SubjectKeyId) }) {
				t.Errorf("%s has no list", a.Subject.CommonName)
			}
		}
		_, _, err = RotateCA(dir, "client", 0)
		must(t, err)
	}
}

func TestAListingHasEverythingAndSaysHowFarARotationIs(t *testing.T) {
	t.Parallel()
	dir := newCluster(t, "prod")
	_, err := AddClient(dir, "admin", 0)
	must(t, err)
	for _, want := range []string{"", Begun, Switched, ""} {
		l, err := List(dir)
		must(t, err)
		var names []string
		for _, c := range l.Certificates {
			names = append(names, c.Use+" "+c.For)
			if cert := certAt(t, c.Path); !cert.NotAfter.Equal(c.NotAfter) {
				t.Errorf("%s ends at %s", c.Path, cert.NotAfter)
			}
		}
		all := []string{"node CA", "http CA", "client CA", "node n1", "http n1", "node n2", "http n2", "node n3", "http n3", "client admin"}
		if want != "" {
			all = slices.Insert(all, 1, "node CA")
		}
		if l.Cluster != "prod" || !slices.Equal(names, all) || l.Rotations["node"] != want || l.Rotations["http"] != "" {
			t.Errorf("%s: %v, %v", l.Cluster, names, l.Rotations)
		}
		_, _, err = RotateCA(dir, "node", 0)
		must(t, err)
	}
	if _, err := List(t.TempDir()); err == nil || !strings.Contains(err.Error(), "init-tls") {
		t.Error(err)
	}
}
