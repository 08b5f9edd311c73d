// Package steady copies what is large beside others who wait for the same disk and
// the same processors.
//
// What a file system has been given it writes when it likes: hundreds of megabytes
// at a time, and whoever syncs a few bytes of a log meanwhile waits for them. So a
// Writer has what it is given written as it comes, a little behind, and takes no
// more than a bound of bytes a second. It promises nothing about what is durable:
// its user syncs the file at its end, as ever, and finds little left to do.
//
// A Writer and a Reader belong to one goroutine. None of this starts one.
package steady

import (
	"io"
	"os"
	"time"
)

const (
	// bytesPerSecond bounds a copy: three times of what a follower is promised,
	// which first receives a snapshot and then builds its store of it.
	bytesPerSecond = 150 << 20
	// windowBytes is how much is on its way to the disk while as much again is
	// gathered. A sync by others waits for a few milliseconds of it.
	windowBytes = 1 << 20
	// pieceBytes go between two rests: about a millisecond of work.
	pieceBytes = 256 << 10
	// lateMost is how much of the time that was lost is made up for: what a timer
	// is late. Whoever was slow because others were busy does not hurry afterwards.
	lateMost = 5 * time.Millisecond
)

// pace holds a copy to the bound.
type pace struct {
	due   time.Time // when the piece under way may be through, but for its bytes
	bytes int
}

// passed counts bytes, and rests after a piece for what is left of its time.
func (p *pace) passed(n int) {
	if p.bytes += n; p.bytes < pieceBytes {
		return
	}
	now := time.Now()
	if late := now.Add(-lateMost); p.due.Before(late) {
		p.due = late
	}
	p.due = p.due.Add(time.Duration(p.bytes) * time.Second / bytesPerSecond)
	p.bytes = 0
	time.Sleep(p.due.Sub(now))
}

// Writer writes to a file at its end.
type Writer struct {
	file   *os.File
	pace   pace
	at     int64 // end of the file
	behind int64 // up to here writing has begun
}

var _ io.Writer = (*Writer)(nil)

// NewWriter writes to an empty file.
func NewWriter(f *os.File) *Writer { return &Writer{file: f} }

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
		w.pace.passed(n)
	}
	return written, nil
}

// Reader reads no faster than the bound.
type Reader struct {
	R    io.Reader
	pace pace
}

// Read reads a piece.
func (r *Reader) Read(p []byte) (int, error) {
	n, err := r.R.Read(p[:min(len(p), pieceBytes)])
	r.pace.passed(n)
	return n, err
}
