//go:build faults

package node

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestAFileStepsTheWallClock(t *testing.T) {
	file := filepath.Join(t.TempDir(), "wall")
	t.Setenv(WallFileEnv, file)
	off := func() time.Duration { return wallClock().Sub(time.Now().Round(0)).Round(time.Minute) }
	if got := off(); got != 0 {
		t.Fatalf("without the file the clock is off by %s", got)
	}
	for text, want := range map[string]time.Duration{
		"+1h": time.Hour, "-1h\n": -time.Hour, "87600h": 87600 * time.Hour, "nonsense": 0,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the clock is stepped by "+text, func() bool { return off() == want })
	}
}
