package proc

import (
	"os"
	"testing"
	"time"
)

func TestUsageIsReadAfterTheName(t *testing.T) {
	t.Parallel()
	line := "42 (a) b (c) 1) S 1 42 42 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 9 0 5000 1000000 300 18446744073709551615 1 1 0"
	got, err := parseStat(line)
	if err != nil {
		t.Fatal(err)
	}
	if want := (Usage{CPU: 3 * time.Second, MemoryBytes: 300 * int64(os.Getpagesize())}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	for _, bad := range []string{"", "42 (a", "42 (a) S 1 2 3", "42 (a) S 1 42 42 0 -1 4194560 100 0 0 0 x 50 0 0 20 0 9 0 5000 1000000 300 1"} {
		if got, err := parseStat(bad); err == nil {
			t.Errorf("%q gives %+v", bad, got)
		}
	}
}
