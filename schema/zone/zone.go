// Package zone knows the rules of the IANA time zones as plain numbers: when
// which offset from UTC begins.
//
// The data is one fixed release that is part of the binary. What the machine has
// installed is not asked: two nodes with other data would answer differently, and
// a zone that is missing on one of them would work by chance. The numbers of a
// zone go into the log with the first schedule that needs them, so that every
// replica computes with the same ones, whatever version it runs.
//
// Everything here is safe from any goroutine.
package zone

import (
	"archive/zip"
	"bytes"
	_ "embed"
	"io"
	"sync"
	"time"
)

// Release is that of the data, as IANA names it. A later one is greater as a text.
const Release = "2025c"

// The years for which rules are made. What lies before the first begins with its
// first offset; behind the last one the last offset goes on.
const (
	FirstYear = 2020
	LastYear  = 2099
)

// UTC is the name of the zone that a schedule has if it names none.
const UTC = "UTC"

// zoneinfo.zip is lib/time/zoneinfo.zip of the Go distribution, made from the
// data of IANA, which is in the public domain. Release says which.
//
//go:embed zoneinfo.zip
var data []byte

// Span is a time during which a zone's offset from UTC stays the same. It ends
// where the next one begins.
type Span struct {
	FromSeconds   int64 // Unix time; of the first span it means nothing
	OffsetSeconds int32 // local time minus UTC
}

var archive = sync.OnceValue(func() *zip.Reader {
	r, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		panic("zone: the data in this binary is damaged: " + err.Error())
	}
	return r
})

// Rules are the spans of a zone from FirstYear to LastYear, the earliest first.
// ok is false if there is no zone of the name.
func Rules(name string) (spans []Span, ok bool) {
	location, ok := load(name)
	if !ok {
		return nil, false
	}
	at := time.Date(FirstYear, 1, 1, 0, 0, 0, 0, time.UTC)
	last := time.Date(LastYear+1, 1, 1, 0, 0, 0, 0, time.UTC)
	for at.Before(last) {
		local := at.In(location)
		_, offset := local.Zone()
		if n := len(spans); n == 0 || int(spans[n-1].OffsetSeconds) != offset {
			spans = append(spans, Span{FromSeconds: at.Unix(), OffsetSeconds: int32(offset)})
		}
		_, end := local.ZoneBounds()
		if end.IsZero() {
			break
		}
		if !end.After(at) {
			// The package ends a span a day early in leap years, at least once
			// so that it is over before it begins.
			end = at.Add(time.Hour)
		}
		at = end
	}
	return spans, true
}

// load reads a zone from the archive, whose names are exact.
func load(name string) (*time.Location, bool) {
	for _, f := range archive().File {
		if f.Name != name || f.FileInfo().IsDir() {
			continue
		}
		r, err := f.Open()
		if err != nil {
			return nil, false
		}
		rules, err := io.ReadAll(r)
		if cerr := r.Close(); err != nil || cerr != nil {
			return nil, false
		}
		location, err := time.LoadLocationFromTZData(name, rules)
		return location, err == nil
	}
	return nil, false
}
