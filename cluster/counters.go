package cluster

import (
	"sync/atomic"
	"time"
)

// Counters count since the start of the process. Reading them is safe at any
// time; the numbers of one reading may be a moment apart.
type Counters struct {
	Entries         atomic.Uint64 // proposed by this node
	EmptyEntries    atomic.Uint64 // of these, without a command
	Commands        atomic.Uint64
	CommandBytes    atomic.Uint64
	QueueRefused    atomic.Uint64 // commands that found the queue full
	DiskRefused     atomic.Uint64 // admissions refused because the disk is low
	Unknown         atomic.Uint64 // commands whose outcome was not learned
	Offices         atomic.Uint64 // terms opened by this node
	DutyRestarts    atomic.Uint64
	EntriesApplied  atomic.Uint64
	EntriesSkipped  atomic.Uint64 // already in the state after a restart
	ReadsVerified   atomic.Uint64 // linearizable
	Verifications   atomic.Uint64 // rounds of asking the others, shared by reads
	ReadsStale      atomic.Uint64
	LogBytes        atomic.Uint64 // appended to the log
	Snapshots       atomic.Uint64
	SnapshotsStream atomic.Uint64 // sent to a follower or a backup
	Restores        atomic.Uint64

	BatchCommands Histogram // commands in an entry
	Commit        Histogram // from hand-over to the applied result, seconds
	Apply         Histogram // one entry, seconds
	LogWrite      Histogram // one append to the log, synced, seconds
	StableWrite   Histogram // one vote or term, synced, seconds
	SnapshotTime  Histogram // checkpoint inside the apply goroutine, seconds
}

func (c *Counters) entry(commands, bytes int) {
	c.Entries.Add(1)
	if commands == 0 {
		c.EmptyEntries.Add(1)
	}
	c.Commands.Add(uint64(commands))
	c.CommandBytes.Add(uint64(bytes))
	c.BatchCommands.add(float64(commands))
}

// histogramBuckets doubles from 2^-14 (61 µs as seconds) to 2^12: the same row
// serves durations and batch sizes.
const (
	histogramLeast   = -14
	histogramBuckets = 27
)

// Histogram counts values in buckets whose bounds double.
type Histogram struct {
	buckets [histogramBuckets + 1]atomic.Uint64 // the last one has no bound
	sum     atomic.Uint64                       // in millionths
}

func (h *Histogram) observe(d time.Duration) { h.add(d.Seconds()) }

func (h *Histogram) add(v float64) {
	i, bound := 0, bucketBound(0)
	for i < histogramBuckets && v > bound {
		i++
		bound *= 2
	}
	h.buckets[i].Add(1)
	h.sum.Add(uint64(v * 1e6))
}

func bucketBound(i int) float64 {
	bound := 1.0 / float64(int(1)<<-histogramLeast)
	return bound * float64(int(1)<<i)
}

// Read returns the number of values, their sum, and how many were at or below
// each bound.
func (h *Histogram) Read() (count uint64, sum float64, cumulative map[float64]uint64) {
	cumulative = make(map[float64]uint64, histogramBuckets)
	for i := range histogramBuckets {
		count += h.buckets[i].Load()
		cumulative[bucketBound(i)] = count
	}
	return count + h.buckets[histogramBuckets].Load(), float64(h.sum.Load()) / 1e6, cumulative
}
