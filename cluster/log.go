package cluster

import (
	"context"
	"io"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// raftLogger gives raft's messages to the node's logger, one level down: what
// raft calls information is for developers, and what it calls a warning, such
// as every election, is what an operator would want to know.
func raftLogger(logger *slog.Logger) hclog.Logger {
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: "raft", Output: io.Discard, Level: hclog.Off})
	l.RegisterSink(slogSink{logger})
	return l
}

type slogSink struct{ logger *slog.Logger }

var _ hclog.SinkAdapter = slogSink{}

func (s slogSink) Accept(name string, level hclog.Level, msg string, args ...any) {
	to := slog.LevelDebug
	switch level {
	case hclog.Warn:
		to = slog.LevelInfo
	case hclog.Error:
		to = slog.LevelWarn
	case hclog.Trace:
		return
	default: // what raft finds worth knowing is a developer's matter
	}
	s.logger.Log(context.Background(), to, name+": "+msg, args...)
}
