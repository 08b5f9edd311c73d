package cluster

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// disk is a file system of its own, on a file: it can be frozen, so that every
// write blocks, and copied while it is in use, which is what it would be after
// the power had failed at that moment: what was synced is there, what was only
// written is not.
type disk struct {
	t     *testing.T
	image string
	dir   string
}

const diskMB = 1024

// newDisk makes and mounts one, or skips the test where that is not possible.
func newDisk(t *testing.T) *disk {
	t.Helper()
	needs(t, "mkfs.ext4", "mount", "fsfreeze", "cp")
	d := &disk{t: t, image: filepath.Join(t.TempDir(), "image"), dir: t.TempDir()}
	f, err := os.Create(d.image)
	if err == nil {
		err = f.Truncate(diskMB << 20)
		_ = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", d.image).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v: %s", err, out)
	}
	if out, err := exec.Command("mount", "-o", "loop", d.image, d.dir).CombinedOutput(); err != nil {
		t.Skipf("needs loop mounts: %v: %s", err, out)
	}
	t.Cleanup(func() { d.thaw(); d.unmount() })
	return d
}

func (d *disk) run(command ...string) {
	d.t.Helper()
	if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
		d.t.Fatalf("%s: %v: %s", strings.Join(command, " "), err, out)
	}
}

func (d *disk) freeze() { d.t.Helper(); d.run("fsfreeze", "-f", d.dir) }

// thaw may be called for a disk that is not frozen.
func (d *disk) thaw() { _ = exec.Command("fsfreeze", "-u", d.dir).Run() }

func (d *disk) unmount() { _ = exec.Command("umount", d.dir).Run() }

// copied is an image of what a power cut would leave now.
func (d *disk) copied() string {
	d.t.Helper()
	d.run("cp", "--sparse=always", d.image, d.image+".cut")
	return d.image + ".cut"
}

// replace mounts another image instead. Nothing may use the disk.
func (d *disk) replace(image string) {
	d.t.Helper()
	d.run("umount", d.dir)
	if err := os.Rename(image, d.image); err != nil {
		d.t.Fatal(err)
	}
	d.run("mount", "-o", "loop", d.image, d.dir)
}

// startOnDisks founds a cluster whose nodes have a disk each.
func startOnDisks(t *testing.T, make func(t *testing.T) *disk) (*trio, map[string]*disk) {
	t.Helper()
	disks := map[string]*disk{}
	c := startTrioOn(t, layout{dir: func(id string) string {
		disks[id] = make(t)
		return disks[id].dir
	}})
	return c, disks
}

// powerCut is one for some nodes at once: they stop, and what is not on their
// disks is gone.
func powerCut(nodes []*process, disks map[string]*disk) {
	// Stopped first: after the copy none of them may acknowledge anything.
	for _, p := range nodes {
		p.signal(syscall.SIGSTOP)
	}
	images := map[string]string{}
	for _, p := range nodes {
		images[p.id] = disks[p.id].copied()
	}
	for _, p := range nodes {
		p.kill()
		disks[p.id].replace(images[p.id])
	}
}

// TestPowerLoss: the power of one, two and all three nodes fails under load,
// PULSE_CHAOS_CUTS times (7). What was acknowledged is there.
func TestPowerLoss(t *testing.T) {
	onRequest(t)
	c, disks := startOnDisks(t, newDisk)
	_, stop := c.load(6, 6)
	// The power fails while snapshots are taken and the log is cut, too: each backup
	// is one, of the server that is asked.
	var snapshots atomic.Int64
	var endings []func()
	for _, p := range c.nodes {
		endings = append(endings, background(t, func(ctx context.Context) {
			for ctx.Err() == nil {
				if code, _ := get(t, "http://"+p.addr+"/v1/cluster/backup"); code == 200 {
					snapshots.Add(1)
				}
				pause(200 * time.Millisecond)
			}
		}))
	}
	cuts := 0
	var slowest time.Duration
	pattern := []int{1, 3, 2, 3, 1, 3, 3}
	for i := range number("PULSE_CHAOS_CUTS", len(pattern)) {
		many := pattern[i%len(pattern)]
		pause(2 * time.Second)
		leader := c.leader(30 * time.Second)
		hit := append([]*process{leader}, c.others(leader)...)[:many]
		powerCut(hit, disks)
		cuts++
		began := time.Now()
		for _, p := range hit {
			p.start()
		}
		c.leader(30 * time.Second)
		slowest = max(slowest, time.Since(began))
		for _, p := range hit {
			p.ready(60 * time.Second)
		}
	}
	for _, end := range endings {
		end()
	}
	stop()
	proved(t, "%d power cuts of one, two and three nodes under load and %d snapshots, each with what was on the disk at that moment: nothing acknowledged was lost; service after at most %s",
		cuts, snapshots.Load(), slowest.Round(time.Millisecond))
}

// TestAHungDisk: every write of the leader's disk blocks. A leader that only
// went on sending heartbeats would stop the cluster for ever.
func TestAHungDisk(t *testing.T) {
	onRequest(t)
	c, disks := startOnDisks(t, newDisk)
	w, stop := c.load(4, 6)
	pause(2 * time.Second)
	w.calm()
	leader := c.leader(20 * time.Second)
	disks[leader.id].freeze()
	began := time.Now()
	until(t, 20*time.Second, "the node with the hung disk serves nobody", func() (bool, string) {
		code, body := get(t, "http://"+leader.addr+"/healthz")
		return code != 200, fmt.Sprintf("%d %.100s", code, body)
	})
	silent := time.Since(began)
	c.leader(20*time.Second, leader)
	took := time.Since(began)
	pause(3 * time.Second)
	gap := w.longestGap()
	disks[leader.id].thaw()
	leader.ended(20 * time.Second)
	leader.start()
	leader.ready(30 * time.Second)
	// A follower's hung disk is nobody else's matter.
	follower := c.others(c.leader(20 * time.Second))[0]
	w.calm()
	disks[follower.id].freeze()
	pause(8 * time.Second)
	followerGap := w.longestGap()
	disks[follower.id].thaw()
	follower.ended(20 * time.Second)
	follower.start()
	follower.ready(30 * time.Second)
	stop()
	if silent > 8*time.Second {
		t.Errorf("the node with the hung disk answered for %s", silent)
	}
	proved(t, "the leader's disk hung: it went silent after %s, another served after %s, longest gap %s; a follower's: longest gap %s; both came back",
		silent.Round(time.Millisecond), took.Round(time.Millisecond), gap.Round(time.Millisecond), followerGap.Round(time.Millisecond))
}

// trace injects faults into the system calls of a running process until stop.
func trace(t *testing.T, p *process, calls, inject string) (stop func()) {
	t.Helper()
	needs(t, "strace")
	cmd := exec.Command("strace", "-f", "-p", strconv.Itoa(p.pid()), "-e", "trace="+calls, "-e", "inject="+calls+":"+inject, "-o", "/dev/null")
	said := &lockedBuffer{}
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	until(t, 10*time.Second, "strace is attached", func() (bool, string) {
		s := said.String()
		return strings.Contains(s, "attached"), s
	})
	stop = func() {
		_ = cmd.Process.Signal(syscall.SIGINT)
		_ = cmd.Wait() // interrupted: that is its error
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			stop()
		}
	})
	return stop
}

const syncs = "fsync,fdatasync"

// TestSlowSyncs: every sync of a node takes long, or one of them very long: that
// costs time and nothing else.
func TestSlowSyncs(t *testing.T) {
	onRequest(t)
	needs(t, "strace")
	c := startTrio(t)
	w, stop := c.load(4, 6)
	pause(2 * time.Second)
	leader := c.leader(20 * time.Second)
	before, _ := leader.standing()
	var gaps []string
	for _, p := range []*process{c.others(leader)[0], leader} {
		w.calm()
		end := trace(t, p, syncs, "delay_enter=2000000:when=1")
		pause(8 * time.Second)
		end()
		gaps = append(gaps, fmt.Sprintf("stalls of 2 s at the %s: %s", c.role(p), w.longestGap().Round(time.Millisecond)))
	}
	var ends []func()
	w.calm()
	for _, p := range c.nodes {
		ends = append(ends, trace(t, p, syncs, "delay_enter=30000"))
	}
	pause(20 * time.Second)
	gaps = append(gaps, "30 ms for each sync everywhere: "+w.longestGap().Round(time.Millisecond).String())
	for _, end := range ends {
		end()
	}
	after, _ := c.leader(20 * time.Second).standing()
	stop()
	proved(t, "longest gaps: %s; %d elections", strings.Join(gaps, "; "), after.Term-before.Term)
}

func (c *trio) role(p *process) string {
	s, _ := p.standing()
	return s.Role
}

// TestFailedSyncs: a sync that fails may have written or not. The process ends
// at once, and whatever is in the file is consistent with the others.
func TestFailedSyncs(t *testing.T) {
	onRequest(t)
	needs(t, "strace")
	c := startTrio(t)
	_, stop := c.load(4, 6)
	var what []string
	for i, inject := range []string{"error=EIO:when=1", "error=ENOSPC:when=3"} {
		for _, leads := range []bool{false, true} {
			pause(2 * time.Second)
			p := c.leader(20 * time.Second)
			if !leads {
				p = c.others(p)[i]
			}
			end := trace(t, p, syncs, inject)
			took := p.ended(10 * time.Second)
			end()
			what = append(what, fmt.Sprintf("%s (leader: %t): ended after %s", inject, leads, took.Round(time.Millisecond)))
			if !p.logged("a store has failed") {
				t.Errorf("node %s ended without saying why", p.id)
			}
			p.start()
			p.ready(60 * time.Second)
		}
	}
	stop()
	proved(t, "a sync that fails ends the process, and it comes back: %s", strings.Join(what, "; "))
}

// fill takes all room but some bytes.
func (d *disk) fill(leave int64) {
	d.t.Helper()
	var fs unix.Statfs_t
	if err := unix.Statfs(d.dir, &fs); err != nil {
		d.t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(d.dir, "ballast"), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		d.t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if size := int64(fs.Bavail)*fs.Bsize - leave; size > 0 {
		_ = unix.Fallocate(int(f.Fd()), 0, 0, size) // less than that: it is full
	}
}

func (d *disk) free() { _ = os.Remove(filepath.Join(d.dir, "ballast")) }

// TestFullDisks: of a follower, of the leader, of all.
func TestFullDisks(t *testing.T) {
	onRequest(t)
	c, disks := startOnDisks(t, newDisk)
	_, stop := c.load(3, 4)
	pause(2 * time.Second)
	revive := func(p *process) {
		disks[p.id].free()
		if !p.runs() {
			p.ended(time.Second)
			p.start()
		}
		p.ready(60 * time.Second)
	}
	// Nearly full: new work is refused in words, what runs is finished.
	leader := c.leader(20 * time.Second)
	disks[leader.id].fill(110 << 20)
	until(t, 30*time.Second, "submissions are refused", func() (bool, string) {
		code, body := post(t, "http://"+leader.addr+"/v1/namespaces/default/queues/default/tasks", nobodysTask)
		return code == http503 && strings.Contains(body, "disk"), fmt.Sprintf("%d %.300s", code, body)
	})
	disks[leader.id].free()
	until(t, 30*time.Second, "submissions are taken again", func() (bool, string) {
		code, body := post(t, "http://"+leader.addr+"/v1/namespaces/default/queues/default/tasks", nobodysTask)
		return code == 201, fmt.Sprintf("%d %.300s", code, body)
	})
	// Quite full, one after the other and together.
	follower := c.others(c.leader(20 * time.Second))[0]
	disks[follower.id].fill(0)
	pause(5 * time.Second)
	// Started while there is no room, it serves or says why not; whatever it did not
	// find is still the others', and its own when there is room.
	follower.kill()
	mark := follower.logSize()
	follower.start()
	if !follower.servesOrEnds(60 * time.Second) {
		said := follower.lastWords(mark)
		t.Logf("started on a full disk it ends: %s", said)
		if !strings.Contains(said, follower.dir) {
			t.Errorf("it does not say where there is no room: %s", said)
		}
	}
	c.leader(20*time.Second, follower)
	revive(follower)
	leader = c.leader(20 * time.Second)
	disks[leader.id].fill(0)
	pause(5 * time.Second)
	c.leader(30 * time.Second)
	revive(leader)
	for _, p := range c.nodes {
		disks[p.id].fill(0)
	}
	pause(8 * time.Second)
	for _, p := range c.nodes {
		disks[p.id].free()
	}
	for _, p := range c.nodes {
		revive(p)
	}
	stop()
	proved(t, "a nearly full disk refuses new work and finishes the old; full disks of a follower, of the leader and of all lost nothing; room and a restart make them well")
}

const (
	http503 = 503
	// nobodysTask is a submission that no worker takes.
	nobodysTask = `{"handler":"nobody","handler_version":"1","payload_version":"1","payload":{}}`
)

func post(t *testing.T, url, body string) (int, string) {
	t.Helper()
	res, err := quick.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		return res.StatusCode, err.Error()
	}
	return res.StatusCode, string(answer)
}

// lockedBuffer takes the output of a process while it is looked at.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
