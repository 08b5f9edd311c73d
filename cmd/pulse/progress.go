package main

import (
	"fmt"
	"io"
	"strings"
	"time"
)

const (
	progressWidth = 30
	progressEvery = 100 * time.Millisecond
)

// progress is a bar on a terminal, and nothing at all elsewhere.
type progress struct {
	w       io.Writer // nil: not a terminal
	total   int
	began   time.Time
	shown   time.Time
	written bool
}

func newProgress(w io.Writer, total int) *progress {
	p := &progress{total: total, began: time.Now()}
	if isTerminal(w) {
		p.w = w
	}
	return p
}

// show draws the bar, unless it was drawn a moment ago and is not full.
func (p *progress) show(done int) {
	if p.w == nil || done < p.total && time.Since(p.shown) < progressEvery {
		return
	}
	p.shown, p.written = time.Now(), true
	fmt.Fprintf(p.w, "\r\x1b[K%s", p.bar(done, time.Since(p.began)))
}

func (p *progress) bar(done int, took time.Duration) string {
	full := progressWidth * done / max(p.total, 1)
	text := fmt.Sprintf("[%s%s] %s of %s", strings.Repeat("=", full), strings.Repeat(" ", progressWidth-full), commas(done), commas(p.total))
	rate := float64(done) / max(took.Seconds(), 0.001)
	text += fmt.Sprintf("  %s/s", commas(int(rate)))
	if left := p.total - done; left > 0 && rate > 0 {
		text += "  " + spell(time.Duration(float64(left)/rate*float64(time.Second))) + " left"
	}
	return text
}

// end leaves the bar where it is and goes on below it.
func (p *progress) end() {
	if p.written {
		fmt.Fprintln(p.w)
		p.written = false
	}
}

// byteProgress counts what is written to it, and shows it on a terminal: of a stream
// nobody knows the length before its end.
type byteProgress struct {
	w       io.Writer // nil: not a terminal
	what    string
	bytes   uint64
	began   time.Time
	shown   time.Time
	written bool
}

func newByteProgress(w io.Writer, what string) *byteProgress {
	p := &byteProgress{what: what, began: time.Now()}
	if isTerminal(w) {
		p.w = w
	}
	return p
}

// Write implements io.Writer. It does not fail.
func (p *byteProgress) Write(b []byte) (int, error) {
	p.bytes += uint64(len(b))
	if p.w != nil && time.Since(p.shown) >= progressEvery {
		p.shown, p.written = time.Now(), true
		fmt.Fprintf(p.w, "\r\x1b[K%s", p.text(time.Since(p.began)))
	}
	return len(b), nil
}

func (p *byteProgress) text(took time.Duration) string {
	return fmt.Sprintf("%s %s  %s/s", p.what, size(p.bytes), size(uint64(float64(p.bytes)/max(took.Seconds(), 0.001))))
}

// end takes the line away: what comes next says how it ended.
func (p *byteProgress) end() {
	if p.written {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.written = false
	}
}
