package httpapi

import (
	"encoding/base64"
	"fmt"
	"hash/fnv"
	"net/url"
	"slices"
	"strconv"
	"strings"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// query is the query of a request. Readers note what is wrong; whoever has read
// all asks for err.
type query struct {
	values url.Values
	faults []schema.Violation
}

// readQuery parses the query and refuses parameters the route does not have: a
// filter with a typing error would otherwise select everything.
func (e *exchange) readQuery() error {
	if e.r.URL.RawQuery == "" {
		return nil
	}
	values, err := url.ParseQuery(e.r.URL.RawQuery)
	if err != nil {
		return invalid([]schema.Violation{{Path: "/query", Message: "is not encoded as it should be"}})
	}
	e.query.values = values
	for name, given := range values {
		p := e.route.param(name)
		switch {
		case p == nil && !e.route.anyQuery:
			e.query.fault(name, "is not a known parameter here")
		case len(given) > 1 && !p.many:
			e.query.fault(name, "must be given once")
		}
	}
	slices.SortFunc(e.query.faults, func(a, b schema.Violation) int { return strings.Compare(a.Path, b.Path) })
	return e.query.err()
}

func (q *query) fault(name, format string, args ...any) {
	const bytesMax = 64
	if len(name) > bytesMax {
		name = name[:bytesMax]
	}
	name = strings.ToValidUTF8(strings.NewReplacer("~", "~0", "/", "~1").Replace(name), "?")
	q.faults = append(q.faults, schema.Violation{Path: "/query/" + name, Message: fmt.Sprintf(format, args...)})
}

func (q *query) err() error { return invalid(q.faults) }

// get is a parameter's value, empty if it was not given; given without a value
// it is a fault.
func (q *query) get(name string) string {
	given, ok := q.values[name]
	if !ok {
		return ""
	}
	if given[0] == "" {
		q.fault(name, "must not be empty; leave it out for none")
	}
	return given[0]
}

// integer reads a whole number.
func (q *query) integer(name string, absent, low, high int64) int64 {
	text := q.get(name)
	if text == "" {
		return absent
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < low || n > high || text != strconv.FormatInt(n, 10) {
		q.fault(name, "must be a whole number from %d to %d", low, high)
		return absent
	}
	return n
}

// revision reads a 64-bit number.
func (q *query) revision(name string) uint64 {
	text := q.get(name)
	if text == "" {
		return 0
	}
	n, ok := schema.ParseUint64(text)
	if !ok {
		q.fault(name, "must be a whole number from 1 to 18446744073709551615")
	}
	return n
}

// index reads an X-Pulse-Index, which is 0 where nothing is applied yet.
func (q *query) index(name string) uint64 {
	if q.get(name) == "0" {
		return 0
	}
	return q.revision(name)
}

// time reads an instant as the API writes it.
func (q *query) time(name string) schema.Time {
	text := q.get(name)
	if text == "" {
		return 0
	}
	at, ok := schema.ParseTime(text)
	if !ok {
		q.fault(name, "must be an instant in UTC like 2030-01-31T12:00:00Z")
	}
	return at
}

// word reads one of a few words and yields its place in the list, or -1.
func (q *query) word(name string, words ...string) int {
	text := q.get(name)
	if text == "" {
		return -1
	}
	place := slices.Index(words, text)
	if place < 0 {
		q.fault(name, "must be one of %s", strings.Join(words, ", "))
	}
	return place
}

// list reads the values of a parameter that may be repeated, or separated by
// commas.
func (q *query) list(name string) []string {
	var out []string
	for _, given := range q.values[name] {
		out = append(out, strings.Split(given, ",")...)
	}
	return out
}

// freshness reads what every read takes.
func (e *exchange) freshness(to *pb.Query) {
	if e.query.word("consistency", "linearizable", "stale") == 1 {
		to.Consistency = pb.Consistency_CONSISTENCY_STALE
	}
	to.MinIndex = e.query.index("min_index")
}

// limit reads the size of a page.
func (q *query) limit(most int64) int { return int(q.integer("limit", pageDefault, 1, most)) }

const (
	pageDefault = 100
	pageMax     = 1000
)

// A cursor is opaque to clients: version, kind of list, a hash of the filter it
// was made for, and the place behind which the next page begins.

const (
	cursorVersion  = 1
	cursorBytesMax = 2048 // a key may have 191 characters of four bytes
)

func newCursor(kind byte, filter string, place []byte) string {
	raw := append([]byte{cursorVersion, kind}, filterHash(filter)...)
	return base64.RawURLEncoding.EncodeToString(append(raw, place...))
}

// placeOf reads a cursor; fault says what is wrong with it.
func placeOf(cursor string, kind byte, filter string) (place []byte, fault string) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if len(cursor) > cursorBytesMax || err != nil || len(raw) < 2+filterHashBytes || raw[0] != cursorVersion || raw[1] != kind {
		return nil, "is not a cursor of this list"
	}
	if string(raw[2:2+filterHashBytes]) != string(filterHash(filter)) {
		return nil, "was made for another filter; begin again without it"
	}
	return raw[2+filterHashBytes:], ""
}

const filterHashBytes = 8

func filterHash(filter string) []byte {
	h := fnv.New64a()
	_, _ = h.Write([]byte(filter)) // never fails
	return h.Sum(nil)
}

// cursor reads the cursor parameter.
func (q *query) cursor(kind byte, filter string) []byte {
	text := q.get("cursor")
	if text == "" {
		return nil
	}
	place, fault := placeOf(text, kind, filter)
	if fault != "" {
		q.fault("cursor", "%s", fault)
	}
	return place
}

// Kinds of cursors.
const (
	cursorTasks     = 't'
	cursorEvents    = 'e'
	cursorWorkers   = 'w'
	cursorKeys      = 'k'
	cursorBulk      = 'b'
	cursorTokens    = 'K'
	cursorAudit     = 'a'
	cursorSchedules = 's'
)

func joined(methods []string) string {
	slices.Sort(methods)
	return strings.Join(slices.Compact(methods), ", ")
}
