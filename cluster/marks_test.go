package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"pulse/test/calm"
)

// disk is the directory of one log and its votes, opened and closed as a server
// does it.
type disk struct {
	t        *testing.T
	cfg      Config
	snapshot uint64 // where the newest one ends
}

func newDisk(t *testing.T, kind LogStore) *disk {
	t.Helper()
	cfg := testConfig(t, t.TempDir())
	cfg.LogStore = kind
	return &disk{t: t, cfg: cfg.withDefaults()}
}

// with opens the stores, does something and closes them. What check finds is
// returned.
func (d *disk) with(do func(*stores)) (found error) {
	d.t.Helper()
	w := NewWatchdog(WatchdogConfig{Limit: calm.Patience, Logger: d.cfg.Logger, Exit: func(code int) { d.t.Errorf("the watchdog ended the process with %d", code) }})
	defer w.Stop()
	s, err := openStores(&d.cfg, w, &Counters{}, raftLogger(d.cfg.Logger))
	if err != nil {
		return err
	}
	defer func() {
		if err := s.close(); err != nil {
			d.t.Error(err)
		}
	}()
	first, e1 := s.logs.FirstIndex()
	last, e2 := s.logs.LastIndex()
	if err := errors.Join(e1, e2); err != nil {
		return err
	}
	s.over.Store(true)
	err = errors.Join(s.verify(first, last, d.snapshot), s.checkStable(last > 0), s.marks.check(d.cfg.Dir, last, d.snapshot, s.sealed.change))
	s.over.Store(false)
	if err == nil {
		do(s)
	}
	return err
}

func (d *disk) append(s *stores, from, to uint64) {
	d.t.Helper()
	var batch []*raft.Log
	for i := from; i <= to; i++ {
		batch = append(batch, &raft.Log{Type: raft.LogNoop, Index: i, Term: 3, Data: fmt.Append(nil, "entry ", i)})
	}
	if err := s.logs.StoreLogs(batch); err != nil {
		d.t.Fatal(err)
	}
}

// newest is the file of the log that was written last.
func (d *disk) newest() string {
	d.t.Helper()
	if d.cfg.LogStore == LogStoreBolt {
		return filepath.Join(d.cfg.Dir, boltFile)
	}
	files, err := filepath.Glob(filepath.Join(d.cfg.Dir, walDir, "*.wal"))
	if err != nil || len(files) == 0 {
		d.t.Fatal(files, err)
	}
	return files[len(files)-1]
}

func (d *disk) change(path string, how func([]byte)) {
	d.t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		d.t.Fatal(err)
	}
	how(data)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		d.t.Fatal(err)
	}
}

func term(t *testing.T, s *stores, n uint64) {
	t.Helper()
	if err := s.stable.SetUint64(currentTermKey, n); err != nil {
		t.Fatal(err)
	}
}

// A log opens without a last batch that is damaged, as if it had never been
// written. This server has said that it was.
func TestALogThatForgotItsLastEntriesIsNotBelieved(t *testing.T) {
	t.Parallel()
	d := newDisk(t, LogStoreWAL)
	write := func(s *stores) {
		term(t, s, 3)
		d.append(s, 1, 5)
		d.append(s, 6, 7)
	}
	if err := d.with(write); err != nil {
		t.Fatal(err)
	}
	d.change(d.newest(), func(b []byte) { b[strings.Index(string(b), "entry 7")] ^= 1 })
	err := d.with(func(*stores) {})
	if err == nil || !strings.Contains(err.Error(), "ends at entry 5") || !strings.Contains(err.Error(), startEmpty) {
		t.Fatalf("error %v", err)
	}
}

// The same with the head that a B+tree falls back from.
func TestVotesOfOneChangeAgoAreNotBelieved(t *testing.T) {
	t.Parallel()
	refused := 0
	for head := range 2 {
		d := newDisk(t, LogStoreWAL)
		vote := func(s *stores) {
			term(t, s, 3)
			if err := errors.Join(s.stable.SetUint64([]byte("LastVoteTerm"), 3), s.stable.Set([]byte("LastVoteCand"), []byte("10.0.0.1:7402"))); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.with(vote); err != nil {
			t.Fatal(err)
		}
		const page, field = 4096, 40
		d.change(filepath.Join(d.cfg.Dir, stableFile), func(b []byte) { b[head*page+field] ^= 4 })
		err := d.with(func(s *stores) {
			if cand, err := s.stable.Get([]byte("LastVoteCand")); err != nil || string(cand) != "10.0.0.1:7402" {
				t.Errorf("with head %d damaged the vote is for %q, %v", head, cand, err)
			}
		})
		if err != nil {
			refused++
			if !strings.Contains(err.Error(), stableFile) || !strings.Contains(err.Error(), startEmpty) {
				t.Errorf("head %d: %v", head, err)
			}
		}
	}
	if refused != 1 {
		t.Errorf("%d of two damaged heads were refused; the other is a change behind anyway", refused)
	}
}

// And with the heads of a log that is kept in one: without the newer it opens as it
// was one append ago.
func TestALogOfOneAppendAgoIsNotBelieved(t *testing.T) {
	t.Parallel()
	const page, used = 4096, 80 // a head with what stands before it
	for name, hurt := range map[string]func(head []byte){
		"zeroed":                  func(head []byte) { clear(head) },
		"with a bit flipped":      func(head []byte) { head[40] ^= 4 },
		"with another sum":        func(head []byte) { head[used-1] ^= 1 },
		"with the other's number": func(head []byte) { head[64] ^= 1 }, // of its change
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, appends := range []uint64{4, 5} { // so that each is the newer once
				refused := 0
				for heads := range 3 {
					d := newDisk(t, LogStoreBolt)
					if err := d.with(func(s *stores) {
						term(t, s, 3)
						for i := range appends {
							d.append(s, 10*i+1, 10*i+10)
						}
					}); err != nil {
						t.Fatal(err)
					}
					d.change(d.newest(), func(b []byte) {
						for head := range 2 {
							if heads == head || heads == 2 { // one, the other, both
								hurt(b[head*page : head*page+used])
							}
						}
					})
					err := d.with(func(s *stores) {
						var log raft.Log
						if last, e := s.logs.LastIndex(); e != nil || last != 10*appends || s.logs.GetLog(last, &log) != nil || string(log.Data) != fmt.Sprint("entry ", last) {
							t.Errorf("of %d entries it shows %d: %v", 10*appends, last, e)
						}
					})
					switch {
					case err != nil && (!strings.Contains(err.Error(), d.cfg.Dir) || !strings.Contains(err.Error(), "start it empty")):
						t.Errorf("head %d: %v", heads, err)
					case err != nil:
						refused++
					case heads == 2:
						t.Error("it opens without any head")
					}
				}
				if refused != 2 {
					t.Errorf("after %d appends %d of three were refused: the older head is behind anyway", appends, refused)
				}
			}
		})
	}
}

// What raft takes back from a log is not missed afterwards, and neither is what a
// snapshot stands for.
func TestWhatIsTakenBackIsNotMissed(t *testing.T) {
	t.Parallel()
	for _, kind := range []LogStore{LogStoreWAL, LogStoreBolt} {
		d := newDisk(t, kind)
		steps := []func(*stores){
			func(s *stores) { term(t, s, 3); d.append(s, 1, 9) },
			func(s *stores) { // a new leader cuts the tail
				if err := s.logs.DeleteRange(6, 9); err != nil {
					t.Fatal(err)
				}
			},
			func(s *stores) { d.append(s, 6, 7) },
			func(s *stores) { // a snapshot takes the place of the head
				d.snapshot = 3
				if err := s.logs.DeleteRange(1, 3); err != nil {
					t.Fatal(err)
				}
			},
			func(s *stores) { // and of everything
				d.snapshot = 19
				if err := s.logs.DeleteRange(4, 7); err != nil {
					t.Fatal(err)
				}
			},
			func(s *stores) { d.append(s, 20, 21) },
			func(*stores) {},
		}
		for i, step := range steps {
			if err := d.with(step); err != nil {
				t.Fatalf("%s: step %d: %v", kind, i, err)
			}
		}
	}
}

// No byte of an entry may change, in either kind of log, its term and kind
// included.
func TestNoBitOfAnEntryIsBelieved(t *testing.T) {
	t.Parallel()
	under := raft.NewInmemStore()
	m := &marks{at: marked{sealed: 1}}
	var err error
	if m.file, err = os.Create(filepath.Join(t.TempDir(), marksFile)); err != nil {
		t.Fatal(err)
	}
	defer m.file.Close()
	s := &sealedLog{under, m}
	in := &raft.Log{Type: raft.LogConfiguration, Index: 4, Term: 3, Data: []byte("servers"), Extensions: []byte("more")}
	if err := s.StoreLog(in); err != nil {
		t.Fatal(err)
	}
	var out raft.Log
	if err := s.GetLog(4, &out); err != nil || string(out.Extensions) != "more" || string(in.Extensions) != "more" {
		t.Fatalf("%+v, %v", out, err)
	}
	var stored raft.Log
	if err := under.GetLog(4, &stored); err != nil {
		t.Fatal(err)
	}
	for name, hurt := range map[string]func(*raft.Log){
		"term":      func(l *raft.Log) { l.Term ^= 1 },
		"kind":      func(l *raft.Log) { l.Type = raft.LogNoop },
		"data":      func(l *raft.Log) { l.Data = []byte("serverz") },
		"extension": func(l *raft.Log) { l.Extensions = append([]byte("mure"), l.Extensions[4:]...) },
		"seal":      func(l *raft.Log) { l.Extensions = l.Extensions[:4] },
	} {
		bad := stored
		hurt(&bad)
		if err := under.StoreLog(&bad); err != nil {
			t.Fatal(err)
		}
		if err := s.GetLog(4, &out); !errors.Is(err, errSeal) {
			t.Errorf("with another %s: %v", name, err)
		}
	}
}

// The marks themselves are checked, and made where there are none.
func TestDamagedMarksAreRefused(t *testing.T) {
	t.Parallel()
	d := newDisk(t, LogStoreWAL)
	if err := d.with(func(s *stores) { term(t, s, 3); d.append(s, 1, 5) }); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(d.cfg.Dir, marksFile)
	d.change(path, func(b []byte) { b[len(marksMagic)+7] ^= 1 })
	if err := d.with(func(*stores) {}); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), startEmpty) {
		t.Fatalf("damaged marks: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := d.with(func(*stores) {}); err != nil {
		t.Fatalf("a directory of a version without marks: %v", err)
	}
}

// Files whose pages lead nowhere are an error with a way out, and no stack trace.
func TestADamagedTreeIsAnError(t *testing.T) {
	t.Parallel()
	for seed := range 12 {
		d := newDisk(t, LogStoreBolt)
		if err := d.with(func(s *stores) { term(t, s, 3); d.append(s, 1, 50) }); err != nil {
			t.Fatal(err)
		}
		d.change(filepath.Join(d.cfg.Dir, boltFile), func(b []byte) {
			for i := 2 * 4096; i < len(b); i++ {
				if b[i] != 0 && (i*7+seed)%5 == 0 {
					b[i] ^= byte(1 << (seed % 8))
				}
			}
		})
		if err := d.with(func(*stores) {}); err == nil || !strings.Contains(err.Error(), "start it empty") {
			t.Errorf("seed %d: %v", seed, err)
		}
	}
}
