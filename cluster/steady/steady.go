// Package steady copies, and frees, what is large beside others who wait for the
// same disk and the same processors.
//
// What a file system has been given it writes when it likes: hundreds of megabytes
// at a time, and whoever syncs a few bytes of a log meanwhile waits for them. So a
// Writer has what it is given written as it comes, a little behind, and takes no
// more than a bound of bytes a second. It promises nothing about what is durable:
// its user syncs the file at its end, as ever, and finds little left to do.
//
// Freeing is no cheaper. The next sync by anybody waits until the file system has
// noted, and told the disk, what became free; a Remover frees a little at a time, in
// the background.
//
// A Pace, a Writer and a Reader belong to one goroutine.
package steady

import (
	"io"
	"os"
	"time"
)

const (
	// copiedPerSecond bounds, in bytes, what is read in one place to be written in
	// another: half as much again as a follower that is sent a snapshot is promised.
	copiedPerSecond = 84 << 20
	// readPerSecond bounds what is only read and summed. It costs the processors,
	// and hardly the disk: most of it has been written, or is read again, in the
	// same minute.
	readPerSecond = 300 << 20
	// windowBytes is how much is on its way to the disk while as much again is
	// gathered. A sync by others waits for a millisecond or two of it.
	windowBytes = 256 << 10
	// pieceBytes go between two rests: less than a millisecond of work.
	pieceBytes = 128 << 10
	// lateMost is how much of the time that was lost is made up for: what a timer
	// is late. Whoever was slow because others were busy does not hurry afterwards.
	lateMost = 5 * time.Millisecond
)

// Pace holds a pass over something large to a bound of bytes a second.
type Pace struct {
	perSecond int
	due       time.Time // when the piece under way may be through, but for its bytes
	bytes     int
}

// Copying is the pace of what is also written somewhere.
func Copying() Pace { return Pace{perSecond: copiedPerSecond} }

// Reading is the pace of what is only read.
func Reading() Pace { return Pace{perSecond: readPerSecond} }

// Passed counts bytes, and rests after a piece for what is left of its time.
func (p *Pace) Passed(bytes int) {
	if p.bytes += bytes; p.bytes < pieceBytes {
		return
	}
	now := time.Now()
	if late := now.Add(-lateMost); p.due.Before(late) {
		p.due = late
	}
	p.due = p.due.Add(time.Duration(p.bytes) * time.Second / time.Duration(p.perSecond))
	p.bytes = 0
	time.Sleep(p.due.Sub(now))
}

// Writer writes to a file at its end.
type Writer struct {
	file   *os.File
	pace   Pace
	at     int64 // end of the file
	behind int64 // up to here writing has begun
}

var _ io.Writer = (*Writer)(nil)

// NewWriter writes to an empty file.
func NewWriter(f *os.File) *Writer { return &Writer{file: f, pace: Copying()} }

// Write writes all of p, in pieces.
func (w *Writer) Write(p []byte) (written int, err error) {
	for len(p) > 0 {
		n, err := w.file.Write(p[:min(len(p), pieceBytes)])
		written += n
		w.at += int64(n)
		if err != nil {
			return written, err
		}
		if p = p[n:]; w.at-w.behind >= windowBytes {
			if err := flushBehind(w.file, w.behind, w.at); err != nil {
				return written, err
			}
			w.behind = w.at
		}
		w.pace.Passed(n)
	}
	return written, nil
}

// Reader reads at a pace.
type Reader struct {
	R    io.Reader
	Pace Pace
}

// Read reads a piece.
func (r *Reader) Read(p []byte) (int, error) {
	n, err := r.R.Read(p[:min(len(p), pieceBytes)])
	r.Pace.Passed(n)
	return n, err
}
