package restore

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pulse/sdk"
)

// TestADamagedFileIsNeverBelieved damages one file of one server of three, and
// starts it. Either it says so and what to do, and does not serve, or what it
// serves is what the others have; and the others never notice. Here are the files
// whose damage their own readers miss, or end in a stack trace by; test/cluster
// and the tests of the packages have more.
func TestADamagedFileIsNeverBelieved(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	t.Parallel() // most of it is waiting
	secret := secretFile(t)
	servers := three(t, secret)
	start(t, servers...)
	c := client(servers...)
	var ids []string
	fill := func() {
		for i := range 40 {
			ids = append(ids, submit(t, c, sdk.TaskSpec{Handler: "nobody", Payload: map[string]string{"text": strings.Repeat(fmt.Sprint(i), 2000)}}))
		}
	}
	fill()
	victim := servers[2]
	// A backup takes a snapshot, so that there are tables, and a log after it.
	mustPulse(t, &struct{}{}, "cluster", "backup", filepath.Join(t.TempDir(), "backup"), "--addr", victim.URL())
	fill()
	caughtUp := func() {
		t.Helper()
		until(t, "the victim has it all", func() (bool, string) {
			code, body := get(victim.URL() + "/v1/namespaces/default/tasks/" + ids[len(ids)-1] + "?consistency=stale")
			return code == 200, body
		})
	}
	caughtUp()
	kill(t, victim)
	whole := filepath.Join(t.TempDir(), "whole")
	if err := os.CopyFS(whole, os.DirFS(victim.data())); err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))

	for _, tc := range []struct {
		name, glob string
		hurt       func(data []byte) []byte
		ends       end
	}{
		{"a bit of the last log entry", "raft/wal/*.wal", flipBack(60), startsEmpty},
		{"the log's list of segments", "raft/wal/wal-meta.db", flipAfter("BaseIndex"), startsEmpty},
		{"one head of the votes", "raft/stable.db", flipHeads(0), mayServe},
		{"the other head of the votes", "raft/stable.db", flipHeads(1), mayServe},
		{"a table of the state", "state/store-*/*.sst", flip(random, 0.1, 0.6), mayServe},
		{"the state's list of tables", "state/store-*/MANIFEST-??????", flip(random, 0.1, 0.9), statesAnew},
		{"the end of the state's list of tables", "state/store-*/MANIFEST-??????", flipBack(1), statesAnew},
	} {
		t.Run(tc.name, func(t *testing.T) {
			file := largest(t, filepath.Join(whole, tc.glob))
			within, err := filepath.Rel(whole, file)
			if err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			putBack(t, whole, victim)
			if err := os.WriteFile(filepath.Join(victim.data(), within), tc.hurt(data), 0o600); err != nil {
				t.Fatal(err)
			}
			defer kill(t, victim)
			said, served := starts(victim)
			if served {
				said = agree(t, servers[0], victim, ids)
			}
			if said == "" {
				if tc.ends != mayServe {
					t.Errorf("it serves with %s damaged", within)
				}
				return
			}
			t.Logf("it says: …%s", said[max(0, len(said)-500):])
			if !strings.Contains(said, victim.data()) || !strings.Contains(strings.ToLower(said), "put ") || !strings.Contains(said, "aside") || strings.Contains(said, "goroutine ") {
				t.Errorf("it does not say what to do, or ends in a stack trace")
			}
			if tc.ends == statesAnew {
				// What it says to do works: the state is made from snapshot and log.
				kill(t, victim)
				if err := os.RemoveAll(filepath.Join(victim.data(), "state")); err != nil {
					t.Fatal(err)
				}
				if said, served = starts(victim); !served {
					t.Fatalf("without its state it does not start: %s", said)
				}
				if said := agree(t, servers[0], victim, ids); said != "" {
					t.Errorf("with a new state it stops: %s", said)
				}
			}
		})
	}
	if _, err := c.Submit(t.Context(), sdk.TaskSpec{Handler: "nobody"}); err != nil {
		t.Errorf("the others take no work: %v", err)
	}
}

// end is what may come of a damaged file.
type end int

const (
	startsEmpty end = iota // it is refused, and the server starts empty
	statesAnew             // it is refused, and the state is made anew
	mayServe               // it may also lie where nobody looks, or be made good
)

// putBack makes the data of a server what it was.
func putBack(t *testing.T, whole string, victim *server) {
	t.Helper()
	if err := os.RemoveAll(victim.data()); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(victim.data(), os.DirFS(whole)); err != nil {
		t.Fatal(err)
	}
	protect(t, victim.data())
}

// starts starts a server, or returns what it has said on its way out.
func starts(s *server) (said string, served bool) {
	if err := s.try(); err != nil {
		return err.Error(), false
	}
	return "", true
}

// agree compares what two servers have, task by task. One that stops meanwhile
// has noticed, and what it said is returned.
func agree(t *testing.T, sound, victim *server, ids []string) (said string) {
	t.Helper()
	for _, id := range ids {
		path := "/v1/namespaces/default/tasks/" + id + "?consistency=stale"
		_, want := get(sound.URL() + path)
		until(t, "both show the same", func() (bool, string) {
			select {
			case <-victim.Dead():
				said = victim.LogTail()
				return true, said
			default:
			}
			code, got := get(victim.URL() + path)
			if code == 200 && got != want {
				t.Fatalf("the damaged server shows %s, the others %s", got, want)
			}
			return code == 200, got
		})
		if said != "" {
			break
		}
	}
	return said
}

// protect gives the files their modes back, which a copy does not keep.
func protect(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		return os.Chmod(path, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func largest(t *testing.T, glob string) (file string) {
	t.Helper()
	files, err := filepath.Glob(glob)
	if err != nil || len(files) == 0 {
		t.Fatalf("no file is %s: %v", glob, err)
	}
	size := -1
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if used := len(bytes.TrimRight(data, "\x00")); used > size {
			file, size = f, used
		}
	}
	return file
}

// flip turns one bit somewhere between two parts of what is used.
func flip(random *rand.Rand, from, to float64) func([]byte) []byte {
	return func(data []byte) []byte {
		used := float64(len(bytes.TrimRight(data, "\x00")))
		at := int(used*from) + random.IntN(max(int(used*(to-from)), 1))
		data[at] ^= 1 << random.IntN(8)
		return data
	}
}

// flipBack turns a bit so many bytes before the end of what is used.
func flipBack(back int) func([]byte) []byte {
	return func(data []byte) []byte {
		data[len(bytes.TrimRight(data, "\x00"))-back] ^= 16
		return data
	}
}

func flipHeads(heads ...int) func([]byte) []byte {
	const page, field = 4096, 40
	return func(data []byte) []byte {
		for _, head := range heads {
			data[head*page+field] ^= 4
		}
		return data
	}
}

// flipAfter turns a bit in the value that follows each occurrence of a key.
func flipAfter(key string) func([]byte) []byte {
	return func(data []byte) []byte {
		for at := 0; ; {
			i := bytes.Index(data[at:], []byte(key))
			if i < 0 {
				return data
			}
			at += i + len(key)
			data[at+6] ^= 2
		}
	}
}
