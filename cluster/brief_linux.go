package cluster

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"unsafe"
)

// briefWriteMax bounds what is written in one call that the runtime is not told of.
const briefWriteMax = 16 << 10

// briefConn reads and writes a TCP socket without telling the runtime. Before a system
// call that may block, the runtime wakes its monitor, if that rests, so that others get to
// run in the meantime. On an idle server it always rests, and is woken by each
// heartbeat to find nothing to do: that was a fifth of all the processor time that
// such a server took. A call on a socket of Go's never blocks, so nobody has to watch it.
type briefConn struct {
	net.Conn
	raw syscall.RawConn

	reading sync.Mutex // guards in
	in      crossing
	writing sync.Mutex // guards out
	out     crossing
}

// crossing is a read or a write under way.
type crossing struct {
	data []byte
	n    int
	err  syscall.Errno
	try  func(fd uintptr) (done bool) // made once, so that a crossing allocates nothing
}

// brief makes the calls of a TCP connection brief; others it gives back.
func brief(c net.Conn) net.Conn {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return c
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return c
	}
	b := &briefConn{Conn: c, raw: raw}
	b.in.try, b.out.try = b.in.read, b.out.write
	return b
}

func (t *crossing) read(fd uintptr) bool {
	for {
		n, _, err := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(unsafe.SliceData(t.data))), uintptr(len(t.data)))
		if t.err = err; err == 0 {
			t.n = int(n)
		}
		if err != syscall.EINTR {
			return err != syscall.EAGAIN
		}
	}
}

func (t *crossing) write(fd uintptr) bool {
	for t.n < len(t.data) {
		rest := t.data[t.n:]
		n, _, err := syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(unsafe.SliceData(rest))), uintptr(len(rest)))
		switch t.err = err; err {
		case 0:
			t.n += int(n)
		case syscall.EINTR:
		default:
			return err != syscall.EAGAIN
		}
	}
	return true
}

// end is what has become of a crossing; err is why it had to stop, if it had.
func (t *crossing) end(what string, err error) (int, error) {
	n, errno := t.n, t.err
	t.data, t.n, t.err = nil, 0, 0
	if err == nil && errno != 0 {
		err = os.NewSyscallError(what, errno)
	}
	return n, err
}

func (b *briefConn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	b.reading.Lock()
	defer b.reading.Unlock()
	b.in.data = p
	n, err := b.in.end("read", b.raw.Read(b.in.try))
	if n == 0 && err == nil {
		err = io.EOF
	}
	return n, err
}

func (b *briefConn) Write(p []byte) (int, error) {
	if len(p) > briefWriteMax {
		return b.Conn.Write(p) // what takes longer is watched
	}
	b.writing.Lock()
	defer b.writing.Unlock()
	b.out.data = p
	return b.out.end("write", b.raw.Write(b.out.try))
}
