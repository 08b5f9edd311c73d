//go:build faults

package node

import (
	"os"
	"strings"
	"sync"
	"time"
)

// WallFileEnv names a file whose content, a signed duration such as "+1h30m" or
// "-87600h", is added to the wall clock of this process. It is read again while
// the process runs, so that a test can step the clock of one node. Without the
// variable, the file, or sense in it, the clock is right.
const WallFileEnv = "PULSE_FAULT_WALL_FILE"

// wallLook is how often the file is read: a stepped clock shows this late.
const wallLook = 20 * time.Millisecond

var stepped struct {
	sync.Mutex
	looked time.Time // by the monotonic clock
	by     time.Duration
}

// wallClock is the wall clock of this process, moved by what the file says. Its
// result has no monotonic reading: differences are those of the moved clock.
func wallClock() time.Time {
	now := time.Now()
	stepped.Lock()
	defer stepped.Unlock()
	if stepped.looked.IsZero() || now.Sub(stepped.looked) >= wallLook {
		stepped.looked, stepped.by = now, wallStep()
	}
	return now.Round(0).Add(stepped.by)
}

func wallStep() time.Duration {
	path := os.Getenv(WallFileEnv)
	if path == "" {
		return 0
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	by, err := time.ParseDuration(strings.TrimSpace(string(text)))
	if err != nil {
		return 0
	}
	return by
}
