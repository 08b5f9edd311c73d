package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestRowsAreChosenByName(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		names        string
		want         string
		life, pickup bool
	}{
		{"", "memory drain flat restart snapshot copies follower keys idle cancel", true, true},
		{"life", "", true, false},
		{"pickup,restart, idle", "restart idle", false, true},
	} {
		wanted, life, pickup, err := choose(tt.names)
		var got []string
		for _, st := range wanted {
			got = append(got, st.name)
		}
		if err != nil || strings.Join(got, " ") != tt.want || life != tt.life || pickup != tt.pickup {
			t.Errorf("%q chooses %v, life %v, pickup %v, %v", tt.names, got, life, pickup, err)
		}
	}
	for _, names := range []string{"speed", "life,", "idle,Idle"} {
		if _, _, _, err := choose(names); err == nil || !strings.Contains(err.Error(), "there is no row") || !strings.Contains(err.Error(), "life, pickup, memory") {
			t.Errorf("%q: %v", names, err)
		}
	}
}

func TestAStudyThatFailsSaysWhyAndTheNextGoesOn(t *testing.T) {
	t.Parallel()
	s := &site{dir: t.TempDir()}
	s.examine(t.Context(), []study{
		{"one", "", func(context.Context, *site) error { return errors.New("no room\non the disk") }},
		{"two", "", func(_ context.Context, s *site) error {
			s.say("two", "a figure", "below 5", false, "%d", 7)
			s.say("two", "another", "below 5", true, "%d", 3)
			s.tell("two", "a third", "%d", 1)
			return nil
		}},
	})
	var b strings.Builder
	if err := findings(&b, s.found); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"| one | not measured | no room | - |",
		"| two | a figure | 7 | missed: below 5 |",
		"| two | another | 3 | reached: below 5 |",
		"| two | a third | 1 | - |",
	} {
		if !strings.Contains(b.String(), line+"\n") {
			t.Errorf("the table lacks %q:\n%s", line, b.String())
		}
	}
}

func TestPercentiles(t *testing.T) {
	t.Parallel()
	var all []time.Duration
	for i := range 100 {
		all = append(all, time.Duration(100-i))
	}
	if p := percentile(all, 0.5); p != 51 {
		t.Errorf("p50 is %d", p)
	}
	if p := percentile(all, 0.99); p != 100 {
		t.Errorf("p99 is %d", p)
	}
	if p := percentile(nil, 0.99); p != 0 {
		t.Errorf("of none it is %d", p)
	}
	if n := len(payload(200)); n != 200 {
		t.Errorf("a payload of 200 bytes has %d", n)
	}
}
