// Package ports finds addresses for the servers of tests.
package ports

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

// reserved keeps what this process has taken until it ends.
var (
	mu       sync.Mutex
	reserved []net.Listener
)

// Free is Find for a test, which fails without one.
func Free(t testing.TB, ip string) string {
	t.Helper()
	addr, err := Find(ip)
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// Find finds an address of ip, over TCP and UDP, at which nobody listens. It lies
// below the ports that outgoing connections take at random, and no other test
// process is given it while this one lives, so that it stays free until it is
// listened at: packages are tested at the same time, and a server that is killed
// has to find its port again.
func Find(ip string) (addr string, err error) {
	mu.Lock()
	defer mu.Unlock()
	for range 1000 {
		n := 20000 + rand.IntN(12000)
		// A name that the kernel forgets with the process.
		hold, err := net.Listen("unix", fmt.Sprintf("@pulse-test-port-%d", n))
		if err != nil {
			continue
		}
		if addr = fmt.Sprintf("%s:%d", ip, n); unused(addr) {
			reserved = append(reserved, hold)
			return addr, nil
		}
		_ = hold.Close()
	}
	return "", fmt.Errorf("no port of %s is free", ip)
}

func unused(addr string) bool {
	stream, err := net.Listen("tcp", addr)
	if err != nil {
		return false
	}
	defer stream.Close()
	packets, err := net.ListenPacket("udp", addr)
	if err != nil {
		return false
	}
	return packets.Close() == nil
}
