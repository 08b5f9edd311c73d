package wsconn

import (
	"context"
	"errors"
	"os"
	"runtime"

	"github.com/coder/websocket"
)

// What a connection's writer does. There is none on an idle connection: thousands of
// them would cost a stack each.
const (
	writerAway    int32 = iota // no goroutine
	writerBusy                 // it flushes
	writerWanted               // likewise, and looks again before it rests
	writerResting              // it waits for wake
	writerLeaving              // likewise, and goes if nothing comes between
)

// signal sees to it that a writer looks at the queue. It never waits.
func (c *Conn) signal() {
	for {
		switch does := c.writer.Load(); does {
		case writerAway:
			if c.writer.CompareAndSwap(does, writerBusy) {
				go c.write() // Serve waits for over
				return
			}
		case writerBusy:
			if c.writer.CompareAndSwap(does, writerWanted) {
				return
			}
		case writerResting:
			if c.writer.CompareAndSwap(does, writerBusy) {
				c.wake <- struct{}{} // one for each rest: there is room
				return
			}
		case writerLeaving:
			if c.writer.CompareAndSwap(does, writerBusy) {
				return // it has been woken
			}
		default:
			return
		}
	}
}

// retire ends a writer that rests.
func (c *Conn) retire() {
	if c.writer.CompareAndSwap(writerResting, writerLeaving) {
		c.wake <- struct{}{}
	}
}

// write is the writer's goroutine: it flushes the queue, and at the end of the
// connection makes the close handshake. One that has carried frames rests until
// retire, because more will follow; one that has carried control frames alone leaves.
func (c *Conn) write() {
	began := c.flushes.Load()
	for {
		runtime.Gosched() // whoever is about to send gets to; nobody is waited for
		e, err := c.drain()
		if err != nil && c.Cut(err) {
			c.cfg.Counters.WriteCuts.Add(1)
		}
		if err != nil || e != nil {
			if err == nil && !e.cut {
				c.handshake(e)
			}
			// Whatever ended it, nothing may wait for the library after this.
			c.net.sever()
			_ = c.ws.CloseNow()
			close(c.over) // and stays busy, so that no other begins
			return
		}
		switch {
		case began == c.flushes.Load() && c.writer.CompareAndSwap(writerBusy, writerAway):
			return
		case began != c.flushes.Load() && c.writer.CompareAndSwap(writerBusy, writerResting):
			<-c.wake
			if c.writer.CompareAndSwap(writerLeaving, writerAway) {
				return
			}
		default:
			c.writer.Store(writerBusy)
		}
	}
}

// drain flushes until the queue and the buffer of control frames are empty. It
// returns the end if one is decided; the queue takes nothing after that.
func (c *Conn) drain() (*end, error) {
	for {
		batch, e := c.take()
		if e != nil && e.cut {
			return e, nil
		}
		n, err := c.flush(batch)
		if err != nil {
			return nil, err
		}
		if len(batch) == 0 && n == 0 {
			return e, nil
		}
	}
}

// take removes what one flush carries from the queue.
func (c *Conn) take() ([][]byte, *end) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, size := 0, 0
	for n < len(c.queue) && (n == 0 || size+len(c.queue[n]) <= flushBytesMax) {
		size += len(c.queue[n])
		n++
	}
	batch := c.queue[:n:n]
	if c.queue = c.queue[n:]; len(c.queue) == 0 {
		c.queue = nil // let go of the array; frames are often far between
	}
	return batch, c.end
}

// flush writes a batch, and with it the control frames that collected.
func (c *Conn) flush(batch [][]byte) (int, error) {
	c.net.compose(true)
	size := 0
	var err error
	for _, frame := range batch {
		// After a close frame of the library's own making this fails; the
		// rest of the queue is then nobody's.
		if err = c.ws.Write(context.Background(), websocket.MessageText, frame); err != nil {
			break
		}
	}
	for _, frame := range batch {
		size += len(frame)
	}
	c.net.compose(false)
	n, flushErr := c.net.flush(c.cfg.WriteWithin)
	if flushErr != nil {
		if errors.Is(flushErr, os.ErrDeadlineExceeded) {
			flushErr = ErrSlow
		}
		return n, flushErr
	}
	if n > 0 {
		c.cfg.Counters.Flushes.Add(1)
		c.cfg.Counters.BytesOut.Add(uint64(n))
	}
	if err == nil {
		c.cfg.Counters.FramesOut.Add(uint64(len(batch)))
	}
	if len(batch) > 0 {
		c.flushes.Add(1)
	}
	c.flushed(len(batch), size)
	return n, nil
}

// flushed gives the room of a batch back.
func (c *Conn) flushed(frames, size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frames -= frames
	c.bytes -= size
	if c.full() {
		return
	}
	if c.fullTimer != nil {
		c.fullTimer.Stop()
		c.fullTimer = nil
	}
	select {
	case c.room <- struct{}{}:
	default:
	}
}

// handshake sends the close frame and gives the peer time to answer it: closing
// the socket while something unread is in it could take the close frame, and
// the error before it, from a peer that is still reading.
func (c *Conn) handshake(e *end) {
	if err := c.net.release(c.cfg.CloseWithin); err == nil {
		_ = c.ws.Close(websocket.StatusCode(e.code), e.reason) // whatever it says, it is over
	}
}
