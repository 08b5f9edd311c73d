package proc

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Usage is what a process has taken so far.
type Usage struct {
	CPU         time.Duration // user and system
	MemoryBytes int64         // resident now
}

// ticksPerSecond is what Linux counts a process's time in on every platform that Go runs on.
const ticksPerSecond = 100

// Usage of the child, from /proc; an error where there is none.
func (s *Server) Usage() (Usage, error) { return usageOf(strconv.Itoa(s.PID())) }

// OwnUsage is that of this process.
func OwnUsage() (Usage, error) { return usageOf("self") }

func usageOf(pid string) (Usage, error) {
	data, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return Usage{}, err
	}
	return parseStat(string(data))
}

// parseStat reads the line of /proc/<pid>/stat. The name, the second field, may
// hold anything, so fields are counted from its end.
func parseStat(line string) (Usage, error) {
	at := strings.LastIndexByte(line, ')')
	fields := strings.Fields(line[at+1:])
	const utime, stime, rss = 14 - 3, 15 - 3, 24 - 3 // as proc(5) numbers them, less those before
	if at < 0 || len(fields) <= rss {
		return Usage{}, errors.New("/proc: a stat line has too few fields")
	}
	var n [3]int64
	for i, field := range []int{utime, stime, rss} {
		var err error
		if n[i], err = strconv.ParseInt(fields[field], 10, 64); err != nil {
			return Usage{}, fmt.Errorf("/proc: %w", err)
		}
	}
	return Usage{
		CPU:         time.Duration(n[0]+n[1]) * (time.Second / ticksPerSecond),
		MemoryBytes: n[2] * int64(os.Getpagesize()),
	}, nil
}
