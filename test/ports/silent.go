package ports

import (
	"errors"
	"net"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// Silent is a port on all of 127/8 from which nothing comes back, as from a machine
// that is switched off: its kernel takes no connection any more.
func Silent(t testing.TB) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrInet4{}), syscall.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	port := strconv.Itoa(name.(*syscall.SockaddrInet4).Port)
	for range 64 { // it is full after a few
		conn, err := net.DialTimeout("tcp", net.JoinHostPort("127.0.0.1", port), time.Second)
		if err != nil {
			return port
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	t.Fatal("a port that takes no connection still takes them")
	return ""
}
