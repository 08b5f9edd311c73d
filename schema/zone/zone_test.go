package zone

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestRulesOfAZone(t *testing.T) {
	t.Parallel()
	at := func(text string) int64 {
		when, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		return when.Unix()
	}
	spans, ok := Rules("Europe/Berlin")
	if !ok || spans[0].OffsetSeconds != 3600 {
		t.Fatalf("spans %v", spans)
	}
	for _, want := range []Span{
		{at("2027-03-28T01:00:00Z"), 7200}, {at("2027-10-31T01:00:00Z"), 3600},
		{at("2099-03-29T01:00:00Z"), 7200}, {at("2099-10-25T01:00:00Z"), 3600},
	} {
		if !slices.Contains(spans, want) {
			t.Errorf("%v is missing", want)
		}
	}
	if utc, ok := Rules(UTC); !ok || len(utc) != 1 || utc[0].OffsetSeconds != 0 {
		t.Errorf("UTC is %v", utc)
	}
	for _, name := range []string{"", "Local", "Europe/", "Europe", "europe/berlin", "../etc/passwd", "Mars/Olympus"} {
		if _, ok := Rules(name); ok {
			t.Errorf("%q is a zone", name)
		}
	}
}

// Every zone there is has rules that a log entry can carry.
func TestAllZonesHaveRules(t *testing.T) {
	t.Parallel()
	for _, f := range archive().File {
		if strings.HasSuffix(f.Name, "/") {
			continue
		}
		spans, ok := Rules(f.Name)
		if !ok || len(spans) == 0 || len(spans) > 4*(LastYear-FirstYear+1) {
			t.Errorf("%s has %d spans", f.Name, len(spans))
		}
		if len(spans) < 2 {
			continue
		}
		if !slices.IsSortedFunc(spans, func(a, b Span) int { return int(a.FromSeconds - b.FromSeconds) }) {
			t.Errorf("%s is not in order", f.Name)
		}
	}
}

// The spans say what package time says, hour by hour.
func TestSpansAgreeWithPackageTime(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "America/Santiago", "Asia/Gaza"} {
		location, _ := load(name)
		spans, _ := Rules(name)
		at, place := time.Date(FirstYear, 1, 1, 0, 0, 0, 0, time.UTC), 0
		for ; at.Year() <= 2035; at = at.Add(time.Hour) {
			for place+1 < len(spans) && spans[place+1].FromSeconds <= at.Unix() {
				place++
			}
			if _, want := at.In(location).Zone(); int(spans[place].OffsetSeconds) != want {
				t.Fatalf("%s at %s: offset %d, want %d", name, at, spans[place].OffsetSeconds, want)
			}
		}
	}
}
