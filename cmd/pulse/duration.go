package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// span is a flag that is a length of time: 500ms, 30s, 5m, 2h, and also 3d, which
// package time leaves out because its days may have 23 hours; these have 24.
type span time.Duration

const day = 24 * time.Hour

func (s *span) Set(text string) error {
	d, err := parseSpan(text)
	if err == nil {
		*s = span(d)
	}
	return err
}

func (s *span) Type() string { return "duration" }

func (s *span) String() string {
	if *s == 0 {
		return ""
	}
	return spell(time.Duration(*s))
}

func (s span) millis() int64 { return time.Duration(s).Milliseconds() }

var errSpan = errors.New("give a length of time such as 500ms, 30s, 5m, 2h or 3d")

func parseSpan(text string) (time.Duration, error) {
	days, rest, found := strings.Cut(text, "d")
	if !found {
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 {
			return 0, errSpan
		}
		return d, nil
	}
	n, err := strconv.ParseUint(days, 10, 16)
	if err != nil {
		return 0, errSpan
	}
	d := time.Duration(n) * day
	if rest == "" {
		return d, nil
	}
	more, err := time.ParseDuration(rest)
	if err != nil || more < 0 {
		return 0, errSpan
	}
	return d + more, nil
}

// moment is a flag that is a point in time: a time in RFC 3339 form, or a span
// from now.
type moment struct{ at time.Time }

func (m *moment) Set(text string) error {
	if d, err := parseSpan(text); err == nil {
		m.at = time.Now().Add(d)
		return nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return errors.New("give a time such as 2026-03-01T15:04:05Z, or a length of time from now such as 30m or 3d")
	}
	m.at = at
	return nil
}

func (m *moment) Type() string { return "time" }

func (m *moment) String() string {
	if m.at.IsZero() {
		return ""
	}
	return m.at.UTC().Format(time.RFC3339)
}

// spell writes a length of time for people: two units at most.
func spell(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + spell(-d)
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Minute:
		return d.Round(time.Second).String()
	}
	type unit struct {
		size time.Duration
		name string
	}
	units := []unit{{day, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}}
	for i, u := range units[:len(units)-1] {
		if d < u.size {
			continue
		}
		next := units[i+1]
		d = d.Round(next.size)
		text := fmt.Sprintf("%d%s", d/u.size, u.name)
		if rest := d % u.size / next.size; rest > 0 {
			text += fmt.Sprintf("%d%s", rest, next.name)
		}
		return text
	}
	return d.String()
}

// spellMillis is spell for a setting in milliseconds.
func spellMillis(ms int64) string { return spell(time.Duration(ms) * time.Millisecond) }
