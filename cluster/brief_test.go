package cluster

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"
)

// briefPair is the two ends of a connection on loopback.
func briefPair(t *testing.T) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if b, err = (briefListener{l}).Accept(); err != nil {
		t.Fatal(err)
	}
	a = brief(a)
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	return a, b
}

// What does not fit the buffers of the kernel waits for the other end, both ways at once.
func TestABriefConnectionCarriesEverything(t *testing.T) {
	t.Parallel()
	for _, piece := range []int{1000, briefWriteMax, briefWriteMax + 1, 8 << 20} {
		a, b := briefPair(t)
		sent := make([]byte, 8<<20)
		if _, err := rand.Read(sent); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
			all.Go(func() {
				for rest := sent; len(rest) > 0; {
					n, err := way[0].Write(rest[:min(piece, len(rest))])
					if err != nil || n != min(piece, len(rest)) {
						t.Errorf("%d bytes written: %v", n, err)
						return
					}
					rest = rest[n:]
				}
			})
			all.Go(func() {
				got := make([]byte, len(sent))
				if _, err := io.ReadFull(way[1], got); err != nil || !bytes.Equal(got, sent) {
					t.Errorf("something else arrived: %v", err)
				}
			})
		}
		all.Wait()
	}
}

func TestABriefConnectionEndsAsOthersDo(t *testing.T) {
	t.Parallel()
	a, b := briefPair(t)
	if err := a.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 8)
	if _, err := a.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after its deadline a read says %v", err)
	}
	if err := a.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if n, err := a.Read(nil); n != 0 || err != nil {
		t.Errorf("a read of nothing says %d, %v", n, err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := a.Read(buf); n != 0 || err != io.EOF {
		t.Errorf("at the end a read says %d, %v", n, err)
	}
	for { // the first may still be taken by the kernel
		if _, err := a.Write(buf); err != nil {
			if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("a write to nobody says %v", err)
			}
			break
		}
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Read(buf); !errors.Is(err, net.ErrClosed) {
		t.Errorf("on a closed connection a read says %v", err)
	}
	if _, err := a.Write(buf); !errors.Is(err, net.ErrClosed) {
		t.Errorf("on a closed connection a write says %v", err)
	}
}

// A reader that waits is woken by the end of its connection.
func TestABriefReadEndsWithItsConnection(t *testing.T) {
	t.Parallel()
	a, _ := briefPair(t)
	ended := make(chan error, 1)
	go func() {
		_, err := a.Read(make([]byte, 8))
		ended <- err
	}()
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("a read says %v", err)
	}
}
