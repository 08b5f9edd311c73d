package cluster

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	diskLookEvery = 5 * time.Second
	// The low-water mark is the smaller of these: a tenth of a large disk is
	// more than anybody wants to keep free, and a gigabyte of a small one too.
	diskMinPart  = 10 // a tenth
	diskMinBytes = 1 << 30
	// Stores take room in large pieces, a segment of the log and a write-ahead
	// log of the state being 100 MiB together, so the mark of a small disk is
	// above that, if the disk is not very small.
	diskFloorBytes = 128 << 20
	diskFloorPart  = 4 // a quarter
)

// diskGauge looks at the room on the disk of the log. Below the mark admissions
// are refused, early enough that what finishes work still fits: an append that
// finds the disk full ends the process.
type diskGauge struct {
	dir    string
	min    int64 // Config.FreeDiskMin
	usage  func(dir string) (free, total uint64, err error)
	logger *slog.Logger

	mu          sync.Mutex
	free, total uint64
	low         bool
}

func diskUsage(dir string) (free, total uint64, err error) {
	u, err := vfs.Default.GetDiskUsage(dir)
	return u.AvailBytes, u.TotalBytes, err
}

func (g *diskGauge) run(ctx context.Context) {
	for sleep(ctx, diskLookEvery) {
		g.look()
	}
}

func (g *diskGauge) look() {
	free, total, err := g.usage(g.dir)
	if err != nil {
		g.logger.Warn("free room on the disk is not known", "dir", g.dir, "error", err)
		return
	}
	mark := g.mark(total)
	g.mu.Lock()
	was := g.low
	g.free, g.total, g.low = free, total, free < mark
	is := g.low
	g.mu.Unlock()
	switch {
	case is && !was:
		g.logger.Warn("the disk is nearly full: new work is refused, running work goes on", "dir", g.dir, "free", free, "mark", mark)
	case was && !is:
		g.logger.Info("the disk has room again: new work is accepted", "dir", g.dir, "free", free)
	}
}

func (g *diskGauge) mark(total uint64) uint64 {
	switch {
	case g.min < 0:
		return 0
	case g.min > 0:
		return uint64(g.min)
	}
	return max(min(total/diskMinPart, diskMinBytes), min(diskFloorBytes, total/diskFloorPart))
}

func (g *diskGauge) read() (free, total uint64, low bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.free, g.total, g.low
}
