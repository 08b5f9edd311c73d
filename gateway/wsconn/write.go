package wsconn

import (
	"context"
	"errors"
	"os"
	"runtime"
	"time"

	"github.com/coder/websocket"
)

// write is the writer's goroutine: it flushes the queue, pings a peer that was not
// heard of for PingEvery, judges its liveness, and at the end makes the close
// handshake.
func (c *Conn) write() {
	pingAt := c.born.Add(c.cfg.PingEvery)
	timer := time.NewTimer(c.cfg.PingEvery)
	defer timer.Stop()
	// Whatever ended it, nothing may wait for the library after this: a ping
	// under way would otherwise wait for its pong.
	defer func() {
		c.net.sever()
		_ = c.ws.CloseNow()
	}()
	for {
		select {
		case <-c.wake:
			runtime.Gosched() // whoever is about to send gets to; nobody is waited for
		case <-c.done:
		case <-timer.C:
			now := time.Now()
			if cause := c.silent(now); cause != nil {
				if c.Cut(cause) {
					c.cfg.Counters.SilentCuts.Add(1)
				}
				return
			}
			// A peer that was heard of, as one that pings by itself, is not asked.
			if heard := c.Heard().Add(c.cfg.PingEvery); heard.After(pingAt) {
				pingAt = heard
			}
			if !now.Before(pingAt) {
				pingAt = now.Add(c.cfg.PingEvery)
				c.group.Go(c.ping)
			}
			timer.Reset(min(pingAt.Sub(now), c.Heard().Add(c.cfg.LiveFor).Sub(now)))
		}
		e, err := c.drain()
		switch {
		case err != nil:
			if c.Cut(err) {
				c.cfg.Counters.WriteCuts.Add(1)
			}
			return
		case e == nil:
		case e.cut:
			return
		default:
			c.handshake(e)
			return
		}
	}
}

// ping asks the peer for a sign of life. The library waits for the pong, which
// is why this is a goroutine; it ends with the connection or the next ping.
func (c *Conn) ping() {
	ctx, cancel := context.WithTimeout(context.Background(), c.cfg.PingEvery)
	defer cancel()
	_ = c.ws.Ping(ctx) // hear has the pong, silent judges its absence
}

// silent says what is wrong with the peer's liveness, or nil.
func (c *Conn) silent(now time.Time) error {
	if now.Sub(c.Heard()) >= c.cfg.LiveFor {
		return ErrSilent
	}
	if begun := c.begun.Load(); begun != 0 && now.Sub(c.born)-time.Duration(begun) >= c.cfg.LiveFor {
		return ErrSlowFrame
	}
	return nil
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
