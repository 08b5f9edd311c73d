package main

import (
	"strings"
	"testing"
	"time"
)

func TestTheTableShowsMediansAndTheirRange(t *testing.T) {
	t.Parallel()
	rows := []*row{
		{name: "three", got: []sample{{Tasks: 30, CPU: 3}, {Tasks: 10, CPU: 1}, {Tasks: 20, CPU: 2}}},
		{name: "two", got: []sample{{Tasks: 10, ArrivalP50: 1, PickupP50: 4}, {Tasks: 20, ArrivalP50: 3, PickupP50: 4}}, fail: "no port"},
		{name: "peer", got: []sample{{Tasks: 9, PickupP50: 4, PickupP99: 8}}},
		{name: "none", fail: "not installed"},
	}
	var b strings.Builder
	if err := table(&b, rows, 3, time.Second); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Medians of 3 runs of 1s",
		"| three | 20 (10 to 30) | - | - | - | - | 2 (1 to 3) | - |",
		"| two | 15 (10 to 20) | 2.0 (1.0 to 3.0) | - | 4.0 (4.0 to 4.0) | - | - | - |",
		"| peer | 9 | 4.0 | 8.0 | 4.0 | 8.0 | - | - |",
		"| … | 1 of 3 runs failed: no port | | | | | | |",
		"| none | not measured: not installed | | | | | | |",
	} {
		if !strings.Contains(b.String(), want+"\n") && !strings.Contains(b.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, b.String())
		}
	}
}

func TestARowNeedsAFigure(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"sh", "-c", "echo not json"}, {"sh", "-c", "echo {}"}, {"sh", "-c", "echo why >&2; exit 3"}, {"/no/such/program"},
	} {
		if s, err := once(t.Context(), args); err == nil {
			t.Errorf("%q gives %+v", args, s)
		}
	}
	s, err := once(t.Context(), []string{"sh", "-c", `echo '{"tasks_per_s": 5, "pickup_p99_ms": 1.5}'`})
	if err != nil || s.Tasks != 5 || s.PickupP99 != 1.5 {
		t.Errorf("%+v, %v", s, err)
	}
}
