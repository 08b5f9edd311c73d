package pki

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestRenewedCertificatesAreTakenUpWithoutARestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := newCluster(t, "prod")
		here := filepath.Join(t.TempDir(), "n1")
		copyDir(t, filepath.Join(dir, "n1"), here)
		var news []Reload
		n1 := openAt(t, here, "n1", func(r Reload) { news = append(news, r) })
		was := n1.desk.papers().cert.Leaf

		issued, err := Renew(dir, RenewOptions{Nodes: []string{"n1"}, Validity: 1000 * time.Hour})
		must(t, err)
		if len(issued) != 2 || issued[0].For != "n1" || !issued[0].NotAfter.Equal(time.Now().Add(1000*time.Hour)) {
			t.Errorf("renewing says %+v", issued)
		}
		copyDir(t, filepath.Join(dir, "n1"), here)
		if n1.desk.papers().cert.Leaf != was {
			t.Error("the files were looked at twice within a second")
		}
		time.Sleep(lookEvery)
		got := n1.desk.papers().cert.Leaf
		if got.SerialNumber.Cmp(was.SerialNumber) == 0 || !slices.Equal(got.DNSNames, was.DNSNames) || got.IPAddresses[0].String() != "10.0.0.1" {
			t.Errorf("serial %x, names %v, addresses %v", got.SerialNumber, got.DNSNames, got.IPAddresses)
		}
		if len(news) != 1 || news[0].Err != nil || !news[0].NotAfter.Equal(got.NotAfter) {
			t.Errorf("was told %+v", news)
		}
	})
}

func TestOnlyWhatExistsIsRenewed(t *testing.T) {
	t.Parallel()
	dir := newCluster(t, "prod")
	if _, err := Renew(dir, RenewOptions{Nodes: []string{"n9"}}); err == nil || !strings.Contains(err.Error(), "n1 n2 n3") {
		t.Errorf("a node that is not there: %v", err)
	}
	if _, err := Renew(dir, RenewOptions{Clients: []string{"c"}}); err == nil {
		t.Error("a client that is not there was renewed")
	}
	copyDir(t, filepath.Join(dir, "n2"), filepath.Join(dir, "n1"))
	if _, err := Renew(dir, RenewOptions{Nodes: []string{"n1"}}); err == nil || !strings.Contains(err.Error(), "put back") {
		t.Errorf("n2's certificate in n1's directory: %v", err)
	}
}

func TestBrokenFilesAreReportedOnceAndTheLastGoodOnesStayInUse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := newCluster(t, "prod")
		other := newCluster(t, "prod")
		here := filepath.Join(t.TempDir(), "n1")
		good := func() { copyDir(t, filepath.Join(dir, "n1"), here) }
		good()
		var news []Reload
		n1 := openAt(t, here, "n1", func(r Reload) { news = append(news, r) })
		n2 := open(t, dir, "n2")
		_, was := n1.Validity()
		for _, c := range []struct {
			name  string
			spoil func()
			want  string
		}{
			{"half a file", func() {
				data, err := os.ReadFile(filepath.Join(here, NodeCAFile))
				must(t, err)
				must(t, os.WriteFile(filepath.Join(here, NodeCAFile), data[:len(data)/2], 0o600))
			}, "cut off"},
			{"no file", func() { must(t, os.Remove(filepath.Join(here, NodeKeyFile))) }, "no such file"},
			{"another key", func() { copyDir(t, filepath.Join(dir, "n1"), here); swap(t, here, NodeKeyFile, HTTPKeyFile) }, "own key"},
			{"another node's files", func() { copyDir(t, filepath.Join(dir, "n2"), here) }, "this node's own directory"},
			{"another cluster's files", func() {
				copyDir(t, filepath.Join(other, "n1"), here)
				copyFile(t, filepath.Join(dir, "n1", NodeCAFile), filepath.Join(here, NodeCAFile))
			}, "another authority"},
		} {
			news = nil
			c.spoil()
			for range 3 {
				time.Sleep(lookEvery)
				if m := meet(n1.ServerConfig(), calling(t, n2, "n1")); !m.ok() {
					t.Errorf("%s: %+v", c.name, m)
				}
			}
			if len(news) != 1 || news[0].Err == nil || !strings.Contains(news[0].Err.Error(), c.want) || !news[0].NotAfter.Equal(was) {
				t.Errorf("%s: was told %+v, want once about %q", c.name, news, c.want)
			}
			good()
			time.Sleep(lookEvery)
			n1.Validity()
			if len(news) != 1 {
				t.Errorf("%s: was told %+v when the old files were back", c.name, news[1:])
			}
		}
		// And new good ones are taken after all that.
		_, err := Renew(dir, RenewOptions{Nodes: []string{"n1"}, Validity: 100 * time.Hour})
		must(t, err)
		good()
		time.Sleep(lookEvery)
		if _, ends := n1.Validity(); time.Until(ends) > 100*time.Hour {
			t.Errorf("the certificate in use ends in %v", time.Until(ends))
		}
	})
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	must(t, err)
	must(t, os.WriteFile(to, data, 0o600))
}

func swap(t *testing.T, dir, a, b string) {
	t.Helper()
	aside := filepath.Join(t.TempDir(), "aside")
	copyFile(t, filepath.Join(dir, a), aside)
	copyFile(t, filepath.Join(dir, b), filepath.Join(dir, a))
	copyFile(t, aside, filepath.Join(dir, b))
}

func TestAWithdrawnNodeIsRefusedOnceTheListIsThere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := newCluster(t, "prod")
		if _, err := AddClient(dir, "n2", 0); err != nil { // a namesake that stays good
			t.Fatal(err)
		}
		stolen := [2]string{t.TempDir(), t.TempDir()}
		copyDir(t, filepath.Join(dir, "n2"), stolen[0])
		_, err := Renew(dir, RenewOptions{Nodes: []string{"n2"}})
		must(t, err)
		copyDir(t, filepath.Join(dir, "n2"), stolen[1])
		n1, n3 := open(t, dir, "n1"), open(t, dir, "n3")
		thieves := [2]*Identity{openAt(t, stolen[0], "n2", nil), openAt(t, stolen[1], "n2", nil)}

		must(t, Revoke(dir, "n2"))
		time.Sleep(lookEvery)
		for i, thief := range thieves {
			// The one of before the renewal too.
			if m := meet(n1.ServerConfig(), calling(t, thief, "n1")); !errors.Is(m.server, ErrRevoked) {
				t.Errorf("certificate %d calls: %v", i, m.server)
			}
			if m := meet(thief.ServerConfig(), calling(t, n1, "n2")); !errors.Is(m.client, ErrRevoked) {
				t.Errorf("certificate %d is called: %v", i, m.client)
			}
		}
		if m := meet(n1.ServerConfig(), calling(t, n3, "n1")); !m.ok() {
			t.Errorf("the others: %+v", m)
		}
		if _, err := os.Stat(filepath.Join(dir, "n2")); err == nil {
			t.Error("the directory is still there to be copied")
		}

		// The list does not go away by being lost.
		must(t, os.Remove(filepath.Join(dir, "n1", NodeCRLFile)))
		time.Sleep(lookEvery)
		if m := meet(n1.ServerConfig(), calling(t, thieves[1], "n1")); !errors.Is(m.server, ErrRevoked) {
			t.Errorf("the list is lost: %v", m.server)
		}

		// A new node of that id is another matter, and a second withdrawal keeps
		// the first.
		_, err = AddNode(dir, NodeSpec{"n2", []string{"n2"}}, 0)
		must(t, err)
		must(t, Revoke(dir, "n3"))
		time.Sleep(lookEvery)
		n2 := open(t, dir, "n2")
		if m := meet(n1.ServerConfig(), calling(t, n2, "n1")); !m.ok() {
			t.Errorf("its successor: %+v", m)
		}
		for name, gone := range map[string]*Identity{"n2": thieves[0], "n3": n3} {
			if m := meet(n1.ServerConfig(), calling(t, gone, "n1")); !errors.Is(m.server, ErrRevoked) {
				t.Errorf("%s after the second withdrawal: %v", name, m.server)
			}
		}
		if err := Revoke(dir, "n9"); err == nil {
			t.Error("a node that never was is withdrawn")
		}
		must(t, RevokeClient(dir, "n2"))
	})
}

func TestAListThatAnotherHasSignedIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := newCluster(t, "prod")
		var news []Reload
		n1 := openAt(t, filepath.Join(dir, "n1"), "n1", func(r Reload) { news = append(news, r) })
		v, err := openVault(dir)
		must(t, err)
		a, err := v.signer(nodeKind)
		must(t, err)
		_, forgedKey, err := newKey()
		must(t, err)
		key, err := parseKey(forgedKey)
		must(t, err)
		// The forger writes the true authority's name and key id on it.
		forged := *a.cert
		forged.PublicKey = key.Public()
		list, err := authority{&forged, key}.list(nil, []string{n1.desk.papers().cert.Leaf.SerialNumber.Text(16)}, time.Now())
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, "n1", NodeCRLFile), list, 0o600))
		time.Sleep(lookEvery)
		n1.Validity()
		if len(news) != 1 || news[0].Err == nil || !strings.Contains(news[0].Err.Error(), "signature") {
			t.Errorf("was told %+v", news)
		}
	})
}

// Nodes call each other all the time while their authority is replaced, and the
// copies reach them one after another.
func TestAnAuthorityIsReplacedUnderTraffic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := newCluster(t, "prod")
		ids := []string{"n1", "n2", "n3"}
		root := t.TempDir()
		nodes := map[string]*Identity{}
		copyTo := func(id string) { copyDir(t, filepath.Join(dir, id), filepath.Join(root, id)) }
		for _, id := range ids {
			copyTo(id)
			nodes[id] = openAt(t, filepath.Join(root, id), id, nil)
		}
		stolen := filepath.Join(t.TempDir(), "n1")
		copyDir(t, filepath.Join(dir, "n1"), stolen)

		var calls atomic.Int64
		done := make(chan struct{})
		var traffic sync.WaitGroup
		for _, from := range ids {
			for _, to := range ids {
				traffic.Go(func() {
					for {
						select {
						case <-done:
							return
						case <-time.After(293 * time.Millisecond):
						}
						config, err := nodes[from].ClientConfig(to)
						if err != nil {
							t.Error(err)
							return
						}
						if m := meet(nodes[to].ServerConfig(), config); !m.ok() || m.peer != from {
							t.Errorf("%s calls %s: %+v", from, to, m)
							return
						}
						calls.Add(1)
					}
				})
			}
		}
		for _, want := range []string{Begun, Switched, Finished} {
			step, issued, err := RotateCA(dir, "node", 0)
			must(t, err)
			if step != want || (len(issued) == 3) != (step == Switched) {
				t.Errorf("step %s, want %s; issued %d", step, want, len(issued))
			}
			for _, id := range ids {
				time.Sleep(3 * time.Second)
				before := calls.Load()
				copyTo(id)
				time.Sleep(3 * time.Second)
				if calls.Load()-before < 50 {
					t.Errorf("%s, %s: only %d calls in 3 s", step, id, calls.Load()-before)
				}
			}
		}
		close(done)
		traffic.Wait()
		// The old authority's word is worth nothing any more, and its key is gone.
		m := meet(nodes["n2"].ServerConfig(), showing(t, filepath.Join(stolen, NodeCertFile), filepath.Join(stolen, NodeKeyFile)))
		if !errors.Is(m.server, ErrWrongCA) {
			t.Errorf("a certificate of the old CA: %v", m.server)
		}
		left, err := filepath.Glob(filepath.Join(dir, "ca", "node-ca-*.key"))
		must(t, err)
		if len(left) != 1 || filepath.Base(left[0]) != "node-ca-2.key" {
			t.Errorf("keys left: %v", left)
		}
		// And what is made from here on is of the new one.
		_, err = AddNode(dir, NodeSpec{"n4", []string{"n4"}}, 0)
		must(t, err)
		n4 := open(t, dir, "n4")
		if m := meet(nodes["n1"].ServerConfig(), calling(t, n4, "n1")); !m.ok() {
			t.Errorf("n4: %+v", m)
		}
	})
}

// A certificate that was withdrawn stays so while its authority is replaced, and
// one of the new authority can be withdrawn beside it.
func TestWithdrawalsOutliveTheReplacementOfAnAuthority(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := newCluster(t, "prod")
		n1, n2 := open(t, dir, "n1"), t.TempDir()
		copyDir(t, filepath.Join(dir, "n2"), n2)
		thief := openAt(t, n2, "n2", nil)
		must(t, Revoke(dir, "n2"))
		for range 2 {
			_, _, err := RotateCA(dir, "node", 0)
			must(t, err)
		}
		// The thief keeps up with the bundle.
		copyFile(t, filepath.Join(dir, "n1", NodeCAFile), filepath.Join(n2, NodeCAFile))
		n3dir := t.TempDir()
		copyDir(t, filepath.Join(dir, "n3"), n3dir)
		time.Sleep(lookEvery)
		n3 := openAt(t, n3dir, "n3", nil)
		must(t, Revoke(dir, "n3"))
		time.Sleep(lookEvery)
		for name, gone := range map[string]*Identity{"of the old CA": thief, "of the new CA": n3} {
			if m := meet(n1.ServerConfig(), calling(t, gone, "n1")); !errors.Is(m.server, ErrRevoked) {
				t.Errorf("%s: %v", name, m.server)
			}
		}
		step, _, err := RotateCA(dir, "node", 0)
		must(t, err)
		time.Sleep(lookEvery)
		if m := meet(n1.ServerConfig(), calling(t, n3, "n1")); step != Finished || !errors.Is(m.server, ErrRevoked) {
			t.Errorf("after step %s: %v", step, m.server)
		}
		must(t, Revoke(dir, "n1"))
	})
}

func TestAStepThatWasInterruptedIsTakenAgain(t *testing.T) {
	t.Parallel()
	dir := newCluster(t, "prod")
	// A directory in the place of the manifest's new version stops each step
	// just before it would count as done.
	block := filepath.Join(dir, manifestFile+".new")
	for _, want := range []string{Begun, Switched, Finished} {
		must(t, os.MkdirAll(filepath.Join(block, "x"), 0o700))
		if _, _, err := RotateCA(dir, "node", 0); err == nil {
			t.Fatal("the step was not interrupted")
		}
		must(t, os.RemoveAll(block))
		step, _, err := RotateCA(dir, "node", 0)
		must(t, err)
		if step != want {
			t.Errorf("taken again, the step is %s, want %s", step, want)
		}
		n1, n2 := open(t, dir, "n1"), open(t, dir, "n2")
		if m := meet(n1.ServerConfig(), calling(t, n2, "n1")); !m.ok() {
			t.Errorf("%s: %+v", step, m)
		}
	}
	if _, _, err := RotateCA(dir, "raft", 0); err == nil {
		t.Error("there is a raft CA")
	}
}
