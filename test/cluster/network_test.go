package cluster

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A network is a small internet in this process. Every node has a network
// namespace of its own whose only way out is a TUN device, and this process
// carries the packets from one to the other: or does not, or later, or only in
// one direction. So a cut is a cut (no reset, no error, just silence), for TCP
// and for gossip, for connections that exist and for new ones. The clients and
// workers are a host like the others.
//
// The test binary runs itself in a namespace of its own (see TestMain), and the
// others are held open by file descriptors alone: whatever way a test ends, the
// kernel takes everything back. Addresses lie in 127/8, which these namespaces
// route like any other, because a server without TLS binds to nothing else.
type network struct {
	t       *testing.T
	number  int
	clients *host
	hosts   map[netip.Addr]*host
	links   atomic.Pointer[map[[2]*host]link] // replaced as a whole
	mu      sync.Mutex                        // one change of links at a time
	dropped atomic.Int64
	running sync.WaitGroup
}

// link is the way from one host to another; the zero value is a good one.
type link struct {
	cut           bool
	loss          float64 // share of packets
	delay, jitter time.Duration
}

type host struct {
	net  *network
	addr netip.Addr
	ns   *os.File // nil: the namespace of this process
	tun  *os.File
}

const (
	// insideEnv says that this process has a network namespace of its own, and
	// where the binary is.
	insideEnv   = "PULSE_CLUSTER_TEST_BINARY"
	packetBytes = 1 << 16
)

var networks atomic.Int32

// newNetwork makes a network with the clients on it, or skips the test where
// that is not possible.
func newNetwork(t *testing.T) *network {
	t.Helper()
	if os.Getenv(insideEnv) == "" {
		t.Skip("needs network namespaces and TUN devices: run it as root with iproute2 installed")
	}
	n := &network{t: t, number: int(networks.Add(1)), hosts: map[netip.Addr]*host{}}
	n.links.Store(&map[[2]*host]link{})
	t.Cleanup(n.close)
	n.clients = n.add(200, false)
	return n
}

// host adds a host with a namespace of its own.
func (n *network) host() *host { return n.add(len(n.hosts), true) }

func (n *network) add(number int, own bool) *host {
	n.t.Helper()
	h := &host{net: n, addr: netip.AddrFrom4([4]byte{127, 1, byte(n.number), byte(number)})}
	var err error
	if own {
		if h.ns, err = newNamespace(); err != nil {
			n.t.Fatalf("network namespace: %v", err)
		}
	}
	device := fmt.Sprintf("pulse%d", n.number)
	err = h.inside(func() error {
		if h.tun, err = openTUN(device); err != nil {
			return err
		}
		return configure(device, h.addr, own)
	})
	if err != nil {
		n.t.Fatalf("host %s: %v", h.addr, err)
	}
	n.mu.Lock()
	hosts := map[netip.Addr]*host{h.addr: h}
	for a, o := range n.hosts {
		hosts[a] = o
	}
	n.hosts = hosts
	n.mu.Unlock()
	n.running.Go(func() { n.carry(h) })
	return h
}

func (n *network) close() {
	for _, h := range n.hosts {
		_ = h.tun.Close()
		if h.ns != nil {
			_ = h.ns.Close()
		}
	}
	n.running.Wait()
}

// carry takes what one host sends to where it goes.
func (n *network) carry(from *host) {
	buf := make([]byte, packetBytes)
	for {
		size, err := from.tun.Read(buf)
		if err != nil {
			return // closed
		}
		if size < 20 || buf[0]>>4 != 4 {
			continue // not IPv4
		}
		n.mu.Lock()
		to := n.hosts[netip.AddrFrom4([4]byte(buf[16:20]))]
		n.mu.Unlock()
		if to == nil {
			continue
		}
		l := (*n.links.Load())[[2]*host{from, to}]
		switch {
		case l.cut, l.loss > 0 && rand.Float64() < l.loss:
			n.dropped.Add(1)
		case l.delay > 0 || l.jitter > 0:
			packet := append([]byte(nil), buf[:size]...)
			wait := l.delay
			if l.jitter > 0 {
				wait += rand.N(l.jitter)
			}
			time.AfterFunc(wait, func() { _, _ = to.tun.Write(packet) }) // a closed one: the test is over
		default:
			_, _ = to.tun.Write(buf[:size]) // a full queue drops, as networks do
		}
	}
}

// set changes the way from one host to another, in this direction.
func (n *network) set(from, to *host, l link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	links := map[[2]*host]link{}
	for k, v := range *n.links.Load() {
		links[k] = v
	}
	links[[2]*host{from, to}] = l
	n.links.Store(&links)
}

// both changes the way between two hosts.
func (n *network) both(a, b *host, l link) { n.set(a, b, l); n.set(b, a, l) }

// all changes every way between hosts, the clients' too if they are named.
func (n *network) all(l link, hosts ...*host) {
	for _, a := range hosts {
		for _, b := range hosts {
			if a != b {
				n.set(a, b, l)
			}
		}
	}
}

// heal makes every way good again.
func (n *network) heal() { n.links.Store(&map[[2]*host]link{}) }

// inside runs f on a thread that is in the host's namespace. What f opens or
// starts stays there.
func (h *host) inside(f func() error) error {
	if h == nil || h.ns == nil {
		return f()
	}
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer func() { _ = home.Close() }()
	if err := unix.Setns(int(h.ns.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	err = f()
	if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
		return errors.Join(err, back) // the thread is spoilt and ends with its goroutine
	}
	runtime.UnlockOSThread()
	return err
}

func newNamespace() (ns *os.File, err error) {
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	defer func() { _ = home.Close() }()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	ns, err = os.Open("/proc/thread-self/ns/net")
	if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
		return nil, errors.Join(err, back)
	}
	runtime.UnlockOSThread()
	return ns, err
}

func openTUN(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), name), nil
}

// configure gives a namespace its address and the way to the others.
func configure(device string, addr netip.Addr, own bool) error {
	if own {
		if err := loopbackOnly(); err != nil {
			return err
		}
	}
	for _, dir := range []string{"all", device} {
		if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+dir+"/route_localnet", []byte("1"), 0o644); err != nil {
			return err
		}
	}
	subnet := netip.PrefixFrom(addr, 24).Masked()
	return ip(
		fmt.Sprintf("addr add %s/32 dev %s", addr, device),
		fmt.Sprintf("link set %s up", device),
		fmt.Sprintf("route add %s dev %s src %s", subnet, device, addr),
	)
}

// loopbackOnly leaves 127.0.0.1, and 127.0.2.0/24 for clients that come from many
// addresses, to the loopback device and the rest of 127/8 to be routed.
func loopbackOnly() error {
	return ip("link set lo up", "addr del 127.0.0.1/8 dev lo", "addr add 127.0.0.1/32 dev lo", "addr add 127.0.2.1/24 dev lo")
}

func ip(commands ...string) error {
	for _, c := range commands {
		if out, err := exec.Command("ip", strings.Fields(c)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", c, err, out)
		}
	}
	return nil
}

// rerun runs this test binary again in a network namespace of its own and
// returns its exit code. It answers false where there are none to be had; then
// the tests run here and those that need a network are skipped.
func rerun(binary string) (code int, ok bool) {
	if _, err := exec.LookPath("ip"); err != nil {
		return 0, false
	}
	if ns, err := newNamespace(); err != nil {
		return 0, false
	} else {
		_ = ns.Close()
	}
	if tun, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0); err != nil {
		return 0, false
	} else {
		_ = tun.Close()
	}
	self, err := os.Executable()
	if err != nil {
		return 0, false
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideEnv+"="+binary)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // the death signal is that of the thread
	defer runtime.UnlockOSThread()
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			return 0, false
		}
		return max(exit.ExitCode(), 1), true
	}
	return 0, true
}

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if os.Getenv(workerEnv) != "" {
		return m.Run() // a worker process of one of the tests
	}
	if os.Getenv(insideEnv) != "" {
		if err := loopbackOnly(); err != nil {
			_, _ = io.WriteString(os.Stderr, err.Error()+"\n")
			return 1
		}
		return m.Run()
	}
	if path, err := binary(); err == nil {
		defer func() { _ = os.RemoveAll(filepath.Dir(path)) }()
		if code, ok := rerun(path); ok {
			return code
		}
	}
	return m.Run()
}

// The network does what the scenarios believe of it: it carries, and it cuts in
// the direction that is asked for.
func TestTheNetworkCutsInOneDirection(t *testing.T) {
	n := newNetwork(t)
	a, b := n.host(), n.host()
	for _, h := range []*host{a, b, n.clients} {
		if err := h.inside(func() error {
			l, err := net.Listen("tcp", h.addr.String()+":7400")
			if err == nil {
				t.Cleanup(func() { _ = l.Close() })
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	reaches := func(from, to *host) bool {
		return from.inside(func() error {
			c, err := net.DialTimeout("tcp", to.addr.String()+":7400", 500*time.Millisecond)
			if err == nil {
				_ = c.Close()
			}
			return err
		}) == nil
	}
	if !reaches(a, b) || !reaches(b, n.clients) {
		t.Fatal("hosts do not reach each other")
	}
	n.set(a, b, link{cut: true})
	if reaches(a, b) || !reaches(a, n.clients) || !reaches(n.clients, b) {
		t.Error("a cut from a to b does not cut that, or more than that")
	}
	n.heal()
	if !reaches(a, b) {
		t.Error("healing does not heal")
	}
}
