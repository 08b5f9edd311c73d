package cluster

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulse/sdk"
)

// damage is done to one file of a stopped node.
type damage struct {
	name string
	file string // pattern below the data directory; the newest match
	do   func(data []byte) []byte
}

// used is how much of a file was ever written: logs are laid out in advance.
func used(data []byte) int {
	n := len(data)
	for n > 0 && data[n-1] == 0 {
		n--
	}
	return n
}

func flip(at func(used int) int) func([]byte) []byte {
	return func(data []byte) []byte {
		if n := used(data); n > 0 {
			data[min(max(at(n), 0), n-1)] ^= 1 << rand.IntN(8)
		}
		return data
	}
}

func middle(n int) int { return n/4 + rand.IntN(n/2+1) }

func zeroPage(at func(used int) int) func([]byte) []byte {
	return func(data []byte) []byte {
		from := min(at(used(data))&^4095, len(data))
		clear(data[from:min(from+4096, len(data))])
		return data
	}
}

var damages = []damage{
	{"a flipped bit in the log", "raft/wal/*.wal", flip(middle)},
	{"a flipped bit in the last entry of the log", "raft/wal/*.wal", flip(func(n int) int { return n - 40 })},
	{"a zeroed page in the log", "raft/wal/*.wal", zeroPage(middle)},
	{"a torn tail of the log", "raft/wal/*.wal", func(data []byte) []byte { clear(data[max(used(data)-60, 0):]); return data }},
	{"a log cut to half", "raft/wal/*.wal", func(data []byte) []byte { return data[:used(data)/2] }},
	{"a flipped bit in the list of segments", "raft/wal/wal-meta.db", flip(func(int) int { return 30 + rand.IntN(40) })},
	{"both meta pages of the list of segments zeroed", "raft/wal/wal-meta.db", func(data []byte) []byte { clear(data[:min(8192, len(data))]); return data }},
	{"both meta pages of the votes zeroed", "raft/stable.db", func(data []byte) []byte { clear(data[:min(8192, len(data))]); return data }},
	{"a flipped bit in the votes", "raft/stable.db", flip(middle)},
	{"a flipped bit in the state's manifest", "state/*/MANIFEST-*", flip(middle)},
	{"a flipped bit in a table of the state", "state/*/*.sst", flip(middle)},
	{"an empty node.json", "node.json", func([]byte) []byte { return nil }},
}

// TestBitFlipsAndTornTails: files of one node are damaged while it does not run.
// It finds out when it starts or when it reads, and says which file and what to
// do; or the damage was in what nobody needs. Never is it silent, and the
// others go on.
func TestBitFlipsAndTornTails(t *testing.T) {
	onRequest(t)
	c := startTrio(t)
	w, stop := c.loadPaced(3, 5, 20*time.Millisecond)
	pause(3 * time.Second)
	w.calm()
	var told, harmless []string
	for _, d := range damages {
		p := c.others(c.leader(30 * time.Second))[rand.IntN(2)]
		p.kill()
		file := newest(filepath.Join(p.dir, d.file))
		if file == "" {
			t.Logf("%s: no such file yet", d.name)
			p.start()
			p.ready(60 * time.Second)
			continue
		}
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, d.do(data), 0o600); err != nil {
			t.Fatal(err)
		}
		mark := p.logSize()
		p.start()
		if p.servesOrEnds(60 * time.Second) {
			harmless = append(harmless, d.name)
			pause(2 * time.Second)
		} else {
			said := p.lastWords(mark)
			t.Logf("%s (%s): %s", d.name, filepath.Base(file), said)
			if !strings.Contains(said, p.dir) {
				t.Errorf("%s: the node does not say which file: %s", d.name, said)
			}
			told = append(told, d.name)
		}
		if !p.runs() {
			p.kill() // it has ended; the way out: empty, it joins again
			if err := os.RemoveAll(p.dir); err != nil {
				t.Fatal(err)
			}
			p.start()
			p.votesAgain()
		}
	}
	gap := w.longestGap()
	stop()
	proved(t, "damage to the files of one node: noticed with a word: %s; harmless, with the same state afterwards: %s; longest gap for all %s",
		strings.Join(told, ", "), strings.Join(harmless, ", "), gap.Round(time.Millisecond))
}

func newest(pattern string) (newest string) {
	matches, err := filepath.Glob(pattern)
	if err != nil || len(matches) == 0 {
		return ""
	}
	var at time.Time
	for _, m := range matches {
		if info, err := os.Stat(m); err == nil && info.Size() > 0 && !info.ModTime().Before(at) {
			newest, at = m, info.ModTime()
		}
	}
	return newest
}

// votesAgain waits until a server that began empty has a vote: until then the
// cluster has one server less to lose.
func (p *process) votesAgain() {
	p.t.Helper()
	p.ready(90 * time.Second)
	until(p.t, 90*time.Second, "node "+p.id+" has a vote again", func() (bool, string) {
		_, err := os.Stat(filepath.Join(p.dir, "raft", "learner"))
		return os.IsNotExist(err), fmt.Sprint(err)
	})
}

// servesOrEnds waits until the node is ready or has ended by itself.
func (p *process) servesOrEnds(within time.Duration) bool {
	p.t.Helper()
	serves := false
	until(p.t, within, "node "+p.id+" serves or ends", func() (bool, string) {
		code, body := get(p.t, "http://"+p.addr+"/readyz")
		serves = code == 200
		return serves || !p.runs(), fmt.Sprintf("%d %.200s", code, body)
	})
	return serves
}

func (p *process) logSize() int64 {
	info, err := os.Stat(p.log)
	if err != nil {
		return 0
	}
	return info.Size()
}

// lastWords are what the node logged since, without stacks.
func (p *process) lastWords(since int64) string {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	var said []string
	for line := range strings.Lines(string(data[since:])) {
		if strings.Contains(line, `"level":"INFO"`) || strings.HasPrefix(line, "\t") || strings.HasPrefix(line, "goroutine") ||
			strings.Contains(line, `"msg":"gossip"`) {
			continue
		}
		said = append(said, strings.TrimSpace(line))
	}
	all := strings.Join(said, " | ")
	return all[:min(len(all), 1200)]
}

// TestAnEmptiedVoterElectsNobody: a voter whose disk was emptied does not know
// what it once helped to commit. While another is down it must not make a
// leader of the third.
func TestAnEmptiedVoterElectsNobody(t *testing.T) {
	onRequest(t)
	c := startTrio(t)
	_, stop := c.loadPaced(3, 5, 20*time.Millisecond)
	pause(2 * time.Second)
	leader := c.leader(20 * time.Second)
	down, emptied := c.others(leader)[0], c.others(leader)[1]
	emptied.kill()
	pause(time.Second)
	down.kill()
	if err := os.RemoveAll(emptied.dir); err != nil {
		t.Fatal(err)
	}
	emptied.start()
	for range 15 {
		pause(time.Second)
		for _, p := range []*process{leader, emptied} {
			if s, ok := p.standing(); ok && s.Role == "leader" && s.Ready {
				code, _ := post(t, "http://"+p.addr+"/v1/namespaces/default/queues/default/tasks", nobodysTask)
				if code == 201 {
					t.Fatalf("%s leads and takes tasks with the vote of a server whose disk was emptied", p.id)
				}
			}
		}
	}
	down.start()
	down.ready(60 * time.Second)
	emptied.votesAgain()
	stop()
	proved(t, "one voter emptied and another down: no leader for 15 s; the other back: all is there, and the emptied one has a vote again")
}

// TestStrangers: a node with another secret, a second node under a name that is
// taken, a node that was removed, and one with the data of another cluster.
func TestStrangers(t *testing.T) {
	onRequest(t)
	c := startTrio(t)
	w, stop := c.loadPaced(3, 5, 20*time.Millisecond)
	pause(2 * time.Second)
	before, _ := c.leader(20 * time.Second).standing()
	w.calm()
	refused := func(p *process, what string) {
		t.Helper()
		mark := p.logSize()
		p.start()
		pause(10 * time.Second)
		code, _ := get(t, "http://"+p.addr+"/readyz")
		t.Logf("%s: ready %d, runs %t: %s", what, code, p.runs(), p.lastWords(mark))
		if code == 200 {
			t.Errorf("%s serves", what)
		}
		p.kill()
	}
	secret := filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(secret, []byte(strings.Repeat("o", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	other := c.newServer("d")
	other.args = append(other.args, "--cluster-secret-file", secret)
	refused(other, "a node with another secret")
	refused(c.newServer("a"), "a second node named a")

	// The data of another cluster, with this one's secret.
	foreign := c.newServer("e")
	join := foreign.args
	foreign.args = append([]string{"server", "--node-id", "e", "--data", foreign.dir, "--http", foreign.addr}, "--cluster-secret-file", c.secret)
	foreign.start()
	foreign.ready(30 * time.Second)
	foreign.stop()
	foreign.args = join
	refused(foreign, "a node with the data of another cluster")

	// One more server comes, is removed, and comes again with its old data.
	more := c.newServer("f")
	more.start()
	more.ready(90 * time.Second)
	client := sdk.NewClient(sdk.ClientOptions{Addrs: w.urls(), Logger: slog.New(slog.DiscardHandler)})
	pause(3 * time.Second) // until gossip says that it is no longer new
	more.kill()
	if err := client.RemoveServer(t.Context(), "f", false); err != nil {
		t.Errorf("removing a dead server: %v", err)
	}
	mark := more.logSize()
	more.start()
	pause(15 * time.Second)
	code, body := get(t, "http://"+more.addr+"/readyz")
	t.Logf("a removed server with its old data: ready %d %.300s; runs %t: %s", code, body, more.runs(), more.lastWords(mark))
	_, members := get(t, "http://"+c.leader(20*time.Second).addr+"/v1/cluster")
	t.Logf("the cluster then: %.900s", members)
	more.kill()
	gap := w.longestGap()
	after, _ := c.leader(20 * time.Second).standing()
	if after.Term > before.Term+1 {
		t.Errorf("strangers moved the term from %d to %d", before.Term, after.Term)
	}
	_ = client.RemoveServer(t.Context(), "f", false) // if it had joined again
	stop()
	proved(t, "a node with another secret, one with a taken name and one of another cluster do not serve; they and a removed one cost %d elections, longest gap %s",
		after.Term-before.Term, gap.Round(time.Millisecond))
}
