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

// line is one line of a terminal that is drawn again and again, and nothing at all
// elsewhere.
type line struct {
	w       io.Writer // nil: not a terminal
	began   time.Time
	shown   time.Time
	written bool
}

func newLine(w io.Writer) line {
	l := line{began: time.Now()}
	if isTerminal(w) {
		l.w = w
	}
	return l
}

// draw draws what text says after the time that it has taken, unless that was done a
// moment ago and it is not the last time.
func (l *line) draw(last bool, text func(took time.Duration) string) {
	if l.w == nil || !last && time.Since(l.shown) < progressEvery {
		return
	}
	l.shown, l.written = time.Now(), true
	fmt.Fprintf(l.w, "\r\x1b[K%s", text(time.Since(l.began)))
}

// leave ends the drawing by what goes after the line, if there is one.
func (l *line) leave(by string) {
	if l.written {
		fmt.Fprint(l.w, by)
		l.written = false
	}
}

// progress is a bar.
type progress struct {
	line
	total int
}

func newProgress(w io.Writer, total int) *progress { return &progress{newLine(w), total} }

// show draws the bar; a full one at once.
func (p *progress) show(done int) {
	p.draw(done >= p.total, func(took time.Duration) string { return p.bar(done, took) })
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
func (p *progress) end() { p.leave("\n") }

// byteProgress counts what is written to it, and shows it: of a stream nobody knows the
// length before its end.
type byteProgress struct {
	line
	what  string
	bytes uint64
}

func newByteProgress(w io.Writer, what string) *byteProgress {
	return &byteProgress{line: newLine(w), what: what}
}

// Write implements io.Writer. It does not fail.
func (p *byteProgress) Write(b []byte) (int, error) {
	p.bytes += uint64(len(b))
	p.draw(false, p.text)
	return len(b), nil
}

func (p *byteProgress) text(took time.Duration) string {
	return fmt.Sprintf("%s %s  %s/s", p.what, size(p.bytes), size(uint64(float64(p.bytes)/max(took.Seconds(), 0.001))))
}

// end takes the line away: what comes next says how it ended.
func (p *byteProgress) end() { p.leave("\r\x1b[K") }
