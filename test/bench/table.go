package main

import (
	"fmt"
	"io"
	"runtime"
	"time"
)

// table writes Markdown: medians, and in brackets the lowest and the highest run. A
// task has arrived when a worker has it, and is picked up when its handler begins.
func table(w io.Writer, rows []*row, runs int, length time.Duration) error {
	lines := []string{
		fmt.Sprintf("Medians of %d runs of %s (lowest to highest), %d processors, %s.", runs, length, runtime.NumCPU(), runtime.Version()),
		"",
		"| what | tasks/s | arrival p50 ms | arrival p99 ms | pickup p50 ms | pickup p99 ms | CPU us/task | memory MiB |",
		"|---|---|---|---|---|---|---|---|",
	}
	for _, r := range rows {
		if len(r.got) == 0 {
			lines = append(lines, fmt.Sprintf("| %s | not measured: %s | | | | | | |", r.name, r.fail))
			continue
		}
		lines = append(lines, fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s | %s |", r.name,
			cell(r.got, "%.0f", func(s sample) float64 { return s.Tasks }),
			cell(r.got, "%.1f", sample.arrival50),
			cell(r.got, "%.1f", sample.arrival99),
			cell(r.got, "%.1f", func(s sample) float64 { return s.PickupP50 }),
			cell(r.got, "%.1f", func(s sample) float64 { return s.PickupP99 }),
			cell(r.got, "%.0f", func(s sample) float64 { return s.CPU }),
			cell(r.got, "%.0f", func(s sample) float64 { return s.Memory })))
		if len(r.got) < runs {
			lines = append(lines, fmt.Sprintf("| … | %d of %d runs failed: %s | | | | | | |", runs-len(r.got), runs, r.fail))
		}
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

func cell(got []sample, format string, figure func(sample) float64) string {
	s := spreadOf(got, figure)
	if s.high == 0 {
		return "-"
	}
	if len(got) == 1 {
		return fmt.Sprintf(format, s.median)
	}
	return fmt.Sprintf(format+" ("+format+" to "+format+")", s.median, s.low, s.high)
}
