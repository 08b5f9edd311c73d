package node

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
)

const (
	// recentBytes bounds the log lines that are kept in memory for whoever looks
	// into a node's trouble later; lineBytesMax bounds each of them.
	recentBytes  = 512 << 10
	lineBytesMax = 4 << 10
)

// recent keeps the newest log lines. The process's own log may have gone where
// nobody can look any more.
type recent struct {
	mu    sync.Mutex
	lines [][]byte // oldest first
	bytes int
}

// Write takes one line, as slog's handlers write them.
func (r *recent) Write(line []byte) (int, error) {
	kept := bytes.Clone(line[:min(len(line), lineBytesMax)])
	if len(line) > lineBytesMax {
		kept = append(kept, '\n')
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, kept)
	r.bytes += len(kept)
	for r.bytes > recentBytes {
		r.bytes -= len(r.lines[0])
		r.lines[0] = nil
		r.lines = r.lines[1:]
	}
	return len(line), nil
}

// text is all that is kept, oldest first.
func (r *recent) text() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Join(r.lines, nil)
}

// tee is a logger that logs as before and, from information on, into memory.
func (r *recent) tee(logger *slog.Logger) *slog.Logger {
	return slog.New(teeHandler{logger.Handler(), slog.NewJSONHandler(r, &slog.HandlerOptions{Level: slog.LevelInfo})})
}

type teeHandler struct{ log, memory slog.Handler }

func (t teeHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return t.log.Enabled(ctx, level) || t.memory.Enabled(ctx, level)
}

func (t teeHandler) Handle(ctx context.Context, r slog.Record) error {
	if t.memory.Enabled(ctx, r.Level) {
		_ = t.memory.Handle(ctx, r.Clone()) // memory takes everything
	}
	if !t.log.Enabled(ctx, r.Level) {
		return nil
	}
	return t.log.Handle(ctx, r)
}

func (t teeHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return teeHandler{t.log.WithAttrs(attrs), t.memory.WithAttrs(attrs)}
}

func (t teeHandler) WithGroup(name string) slog.Handler {
	return teeHandler{t.log.WithGroup(name), t.memory.WithGroup(name)}
}
