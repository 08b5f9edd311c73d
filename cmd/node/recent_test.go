package node

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

func TestTheNewestLogLinesAreKeptWithinABound(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	r := &recent{}
	logger := r.tee(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn}))).With("node", "a")
	logger.Debug("too small to be kept")
	logger.Info("kept, and not shown")
	logger.WithGroup("g").Warn("kept and shown", "k", "v")
	if text := string(r.text()); strings.Contains(text, "too small") || !strings.Contains(text, `"msg":"kept, and not shown","node":"a"`) ||
		!strings.Contains(text, `"g":{"k":"v"}`) {
		t.Errorf("kept is %s", text)
	}
	if shown := out.String(); strings.Contains(shown, "not shown") || !strings.Contains(shown, "node=a g.k=v") {
		t.Errorf("shown is %s", shown)
	}
	long := strings.Repeat("x", 2*lineBytesMax)
	for range 2 * recentBytes / lineBytesMax {
		logger.Info(long)
	}
	logger.Info("the newest")
	text := r.text()
	if len(text) > recentBytes || len(text) < recentBytes/2 || !bytes.Contains(text, []byte("the newest")) || bytes.Contains(text, []byte("kept and shown")) {
		t.Errorf("%d bytes are kept, ending in %.100s", len(text), text[len(text)-100:])
	}
	for line := range bytes.Lines(text) {
		if len(line) > lineBytesMax+1 {
			t.Errorf("a line of %d bytes", len(line))
		}
	}
}
