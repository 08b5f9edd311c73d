package cluster

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pulse/fsm"
	"pulse/fsm/state"
	"pulse/sdk"
)

// TestSoak hurts one cluster at random for PULSE_SOAK_SECONDS, and checks all
// that was seen after every minute or two. PULSE_SOAK_SEED repeats the same
// faults, as far as a machine repeats anything.
func TestSoak(t *testing.T) {
	seconds := number("PULSE_SOAK_SECONDS", 0)
	if seconds == 0 {
		t.Skip("runs with make soak, or PULSE_SOAK_SECONDS=1800")
	}
	seed := uint64(number("PULSE_SOAK_SEED", int(time.Now().UnixNano()>>20&0xffffff)))
	t.Logf("PULSE_SOAK_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	c, n := startApart(t, layout{})
	deadline := time.Now().Add(time.Duration(seconds) * time.Second)
	var faults int
	var first, last float64
	for round := 1; time.Now().Before(deadline); round++ {
		w, stop := c.loadOnly(4, 6, 20*time.Millisecond)
		for range 4 {
			pause(2*time.Second + time.Duration(random.Int64N(int64(8*time.Second))))
			what := c.hurt(n, random)
			faults++
			t.Logf("round %d: %s", round, what)
			c.heal(n)
		}
		stop()
		c.same(60 * time.Second)
		w.check()
		c.restoreBeside(w)
		last = 0
		for _, p := range c.nodes {
			last += float64(p.resident())
		}
		if first == 0 {
			first = last
		}
		t.Logf("round %d: all is well; %.0f MiB resident in all", round, last)
	}
	proved(t, "%d random faults in %d s with seed %d: all checks green after each round; %.0f MiB resident after the first, %.0f after the last", faults, seconds, seed, first, last)
}

// restoreBeside takes a backup and makes a state of it: it has to be the one that its
// header tells, and give the same backup again, byte for byte.
func (c *trio) restoreBeside(w *world) {
	t := c.t
	t.Helper()
	client := sdk.NewClient(sdk.ClientOptions{Addrs: w.urls(), Logger: slog.New(slog.DiscardHandler)})
	stream, err := client.Backup(t.Context())
	if err != nil {
		t.Errorf("no backup: %v", err)
		return
	}
	backup, err := io.ReadAll(stream)
	if err = errors.Join(err, stream.Close()); err != nil {
		t.Errorf("the backup breaks off after %d bytes: %v", len(backup), err)
		return
	}
	header, err := state.VerifyStream(bytes.NewReader(backup))
	if err != nil {
		t.Errorf("a backup of %d bytes is refused: %v", len(backup), err)
		return
	}
	dir, err := os.MkdirTemp(t.TempDir(), "beside") //nolint:usetesting // one for each round, and gone after it
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	}()
	m, err := fsm.Open(fsm.Options{Dir: filepath.Join(dir, "state")})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.Restore(bytes.NewReader(backup), header.AppliedIndex); err != nil {
		t.Errorf("the backup at %d cannot be restored: %v", header.AppliedIndex, err)
		return
	}
	if hash := m.StateHash(); !bytes.Equal(hash, header.StateHash[:]) || m.AppliedIndex() != header.AppliedIndex {
		t.Errorf("restored it is at %d with state %x; its header tells %d and %x", m.AppliedIndex(), hash, header.AppliedIndex, header.StateHash)
	}
	var again bytes.Buffer
	if _, err = m.Checkpoint(filepath.Join(dir, "again")); err == nil {
		_, err = state.WriteStream(filepath.Join(dir, "again"), &again)
	}
	if err != nil || !bytes.Equal(again.Bytes(), backup) {
		t.Errorf("a backup of what was restored has %d bytes and is another one of %d: %v", again.Len(), len(backup), err)
	}
	// And it is what the servers have, if they stand where it was taken.
	for _, p := range c.nodes {
		if s, ok := p.standing(); ok && s.At == strconv.FormatUint(header.AppliedIndex, 10) && s.Hash != hex.EncodeToString(header.StateHash[:]) {
			t.Errorf("%s has state %s at index %s, the backup %x", p.id, s.Hash, s.At, header.StateHash)
		}
	}
	t.Logf("a backup of %d rows at %d was restored", header.Rows, header.AppliedIndex)
}

// hurt does one random thing to the cluster and says what.
func (c *trio) hurt(n *network, random *rand.Rand) string {
	p := c.leader(30 * time.Second)
	who := "the leader"
	if random.IntN(2) == 0 {
		p, who = c.others(p)[random.IntN(2)], "a follower"
	}
	long := time.Duration(random.Int64N(int64(6 * time.Second)))
	switch random.IntN(7) {
	case 0:
		p.kill()
		pause(long)
		return "kill " + who
	case 1:
		p.signal(syscall.SIGSTOP)
		pause(long)
		return "pause " + who + " for " + long.String()
	case 2:
		c.cutOff(p)
		pause(long)
		return "cut " + who + " off for " + long.String()
	case 3:
		for _, o := range c.others(p) {
			n.set(o.host, p.host, link{cut: true})
		}
		pause(long)
		return who + " hears nobody for " + long.String()
	case 4:
		n.all(link{loss: 0.1, jitter: 50 * time.Millisecond}, c.nodes[0].host, c.nodes[1].host, c.nodes[2].host, n.clients)
		pause(long)
		return "a tenth of all packets lost for " + long.String()
	case 5:
		for _, p := range c.nodes {
			p.kill()
		}
		return "kill all"
	}
	// The pair that finds most: it believes that it leads, and then it is gone.
	p.signal(syscall.SIGSTOP)
	pause(long)
	p.kill()
	return "pause and kill " + who
}

// heal makes everything well again.
func (c *trio) heal(n *network) {
	n.heal()
	for _, p := range c.nodes {
		p.signal(syscall.SIGCONT)
		if !p.runs() {
			p.start()
		}
	}
	for _, p := range c.nodes {
		p.ready(60 * time.Second)
	}
}

// resident is the memory of the process in MiB.
func (p *process) resident() int {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(p.pid()) + "/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(data))
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.Atoi(fields[1])
	if err != nil {
		return 0
	}
	return pages * os.Getpagesize() >> 20
}
