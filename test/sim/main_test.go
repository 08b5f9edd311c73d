package sim

import (
	"os"
	"runtime/debug"
	"testing"
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(400) // short-lived garbage, and little that stays
	os.Exit(m.Run())
}
