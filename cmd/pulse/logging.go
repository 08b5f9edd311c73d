package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/mattn/go-isatty"
)

// levelOf reads --log-level; empty is info.
func levelOf(name string) (slog.Level, error) {
	switch name {
	case "":
		return slog.LevelInfo, nil
	case "debug", "info", "warn", "error":
		var level slog.Level
		err := level.UnmarshalText([]byte(name))
		return level, err
	}
	return 0, fmt.Errorf("--log-level is %q: give debug, info, warn or error", name)
}

// newLogger logs in text to a terminal, where a person reads, and in JSON
// everywhere else, where a machine does.
func newLogger(w io.Writer, level slog.Leveler) *slog.Logger {
	if !isTerminal(w) {
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level}))
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: shortTime}))
}

// shortTime leaves the date away: whoever looks at the terminal knows it.
func shortTime(groups []string, attr slog.Attr) slog.Attr {
	if len(groups) == 0 && attr.Key == slog.TimeKey {
		attr.Value = slog.StringValue(attr.Value.Time().Format("15:04:05.000"))
	}
	return attr
}

func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}
