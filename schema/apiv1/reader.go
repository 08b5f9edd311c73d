package apiv1

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"pulse/schema"
	"pulse/schema/internal/jsontext"
)

const (
	// violationsMax bounds the places one refusal names; what is wrong behind
	// them is found in the next attempt.
	violationsMax = 16
	// pathBytesMax bounds what is read again to name places beyond the first.
	pathBytesMax = 1 << 20
)

// reader walks a text that schema.CheckJSON has found sound. A fault is noted
// and the walk goes on behind the value, so that one refusal can name several.
type reader struct {
	data    []byte
	at      int    // of the next token
	name    []byte // of the current member, after unescaping
	scratch []byte
	code    schema.Code // of the refusal; empty = none
	faults  []schema.Violation
	more    int // faults that are not listed
	walked  int // bytes read again to name places

	// In a batch, a reader of one task finds paths from base, where the task
	// begins; place is that of the task, or -1 outside a batch.
	base  int
	place int
}

// open begins to read a body. A body that breaks the rules of JSON is refused
// here; an empty one reads as {} if that is allowed.
func open(body []byte, depthMax int, mayBeEmpty bool) (*reader, *schema.Error) {
	if len(body) == 0 && mayBeEmpty {
		body = []byte("{}")
	}
	if err := schema.CheckJSON(body, schema.Limits{Depth: depthMax}); err != nil {
		refusal, _ := err.(*schema.Error) //nolint:errorlint // CheckJSON promises the type
		return nil, refusal
	}
	return &reader{data: body, at: jsontext.SkipSpace(body, 0), place: -1}, nil
}

// fault notes what is wrong at an offset.
func (r *reader) fault(offset int, format string, args ...any) {
	r.faultAs(schema.InvalidArgument, offset, fmt.Sprintf(format, args...))
}

func (r *reader) faultAs(code schema.Code, offset int, message string) {
	if r.code == "" || code == schema.TooLarge {
		r.code = code
	}
	if len(r.faults) == violationsMax || r.walked > pathBytesMax {
		r.more++
		return
	}
	r.walked += offset - r.base
	path := jsontext.Pointer(r.data[r.base:], offset-r.base)
	if r.place >= 0 {
		path = "/tasks/" + strconv.Itoa(r.place) + path
	}
	r.faults = append(r.faults, schema.Violation{Path: path, Message: message})
}

// missing notes a member that the object that began at start should have.
func (r *reader) missing(start int, name string) {
	r.fault(start, "the member %s is missing", name)
}

// refusal is what was noted, or nil.
func (r *reader) refusal() *schema.Error {
	if r.code == "" {
		return nil
	}
	first := r.faults[0]
	message := first.Message
	if first.Path != "" {
		message = first.Path + " " + message
	}
	if more := len(r.faults) - 1 + r.more; more > 0 {
		message = fmt.Sprintf("%s, and %d more", message, more)
	}
	return &schema.Error{Code: r.code, Message: message, Violations: r.faults}
}

// enter steps into the object at hand, or notes that it is none and passes it.
func (r *reader) enter() bool {
	if r.data[r.at] != '{' {
		r.fault(r.at, "must be an object")
		r.skip()
		return false
	}
	r.at++
	return true
}

// member steps to the value of the next member of the innermost object, or out of
// the object when there is none.
func (r *reader) member() bool {
	r.at = jsontext.SkipSpace(r.data, r.at)
	switch r.data[r.at] {
	case '}':
		r.at++
		return false
	case ',':
		r.at = jsontext.SkipSpace(r.data, r.at+1)
	}
	r.readName()
	r.at = jsontext.SkipSpace(r.data, r.at) + 1 // the colon
	r.at = jsontext.SkipSpace(r.data, r.at)
	return true
}

// readName reads the name of a member. One too long to be known stays escaped.
func (r *reader) readName() {
	const nameBytesMax = 64
	end, escaped := jsontext.StringEnd(r.data, r.at)
	r.name = r.data[r.at+1 : end-1]
	if escaped && len(r.name) <= nameBytesMax*escapedBytesMax {
		r.scratch = jsontext.AppendUnescaped(r.scratch[:0], r.name)
		r.name = r.scratch
	}
	r.at = end
}

// escapedBytesMax is how many bytes one code point can take inside a string: two
// \u escapes.
const escapedBytesMax = 12

// enterArray and element are enter and member for arrays.
func (r *reader) enterArray() bool {
	if r.data[r.at] != '[' {
		r.fault(r.at, "must be an array")
		r.skip()
		return false
	}
	r.at++
	return true
}

func (r *reader) element() bool {
	r.at = jsontext.SkipSpace(r.data, r.at)
	switch r.data[r.at] {
	case ']':
		r.at++
		return false
	case ',':
		r.at = jsontext.SkipSpace(r.data, r.at+1)
	}
	return true
}

// rest passes the element at hand and all behind it in its array.
func (r *reader) rest() {
	r.skip()
	for r.element() {
		r.skip()
	}
}

func (r *reader) skip() { r.at = jsontext.ValueEnd(r.data, r.at) }

// unknown refuses the member at hand and passes its value.
func (r *reader) unknown() {
	r.fault(r.at, "is not a known member")
	r.skip()
}

// text reads a string of at most charsMax code points. Its bytes are valid until
// the next step.
func (r *reader) text(charsMax int) (text []byte, start int, ok bool) {
	start = r.at
	if r.data[start] != '"' {
		r.fault(start, "must be a string")
		r.skip()
		return nil, start, false
	}
	end, escaped := jsontext.StringEnd(r.data, start)
	r.at = end
	text = r.data[start+1 : end-1]
	if len(text) <= charsMax*escapedBytesMax {
		if escaped {
			r.scratch = jsontext.AppendUnescaped(r.scratch[:0], text)
			text = r.scratch
		}
		if len(text) <= charsMax || utf8.RuneCount(text) <= charsMax {
			return text, start, true
		}
	}
	r.fault(start, "must have at most %d characters", charsMax)
	return nil, start, false
}

// chars reads a string as a whole.
func (r *reader) chars(dst *string, charsMax int) {
	if text, _, ok := r.text(charsMax); ok {
		*dst = string(text)
	}
}

// named reads a handler, a version or an error code. A value equal to the one in
// dst keeps its memory: the tasks of a batch mostly share theirs.
func (r *reader) named(dst *string, charsMax int) {
	text, start, ok := r.text(charsMax)
	switch {
	case !ok:
	case !schema.ValidName(text, charsMax):
		r.fault(start, "must be 1 to %d letters, digits or _ . : - and begin with a letter or digit", charsMax)
	case string(text) != *dst:
		*dst = string(text)
	}
}

// key reads a business or concurrency key.
func (r *reader) key(dst *string, check func(string) string) {
	text, start, ok := r.text(schema.KeyCharsMax)
	if !ok {
		return
	}
	key := string(text)
	fault := check(key)
	if fault == "" && key == "" {
		fault = "must not be empty; leave it out for none"
	}
	if fault != "" {
		r.fault(start, "%s", fault)
		return
	}
	*dst = key
}

// id reads a 32-digit id.
func (r *reader) id(dst *schema.ID) {
	text, start, ok := r.text(32)
	if !ok {
		return
	}
	id, ok := schema.ParseID(text)
	if !ok {
		r.fault(start, "must be 32 lower-case hexadecimal digits")
	}
	*dst = id
}

// revision reads a 64-bit number in its textual form.
func (r *reader) revision(dst *uint64) {
	text, start, ok := r.text(20)
	if !ok {
		return
	}
	n, ok := schema.ParseUint64(text)
	if !ok {
		r.fault(start, "must be a decimal string from 1 to 18446744073709551615 without leading zero")
	}
	*dst = n
}

// Times are taken within these years: what lies beyond is a unit mistaken for
// another.
var (
	timeMin, _ = schema.ParseTime("2000-01-01T00:00:00Z")
	timeMax, _ = schema.ParseTime("2999-12-31T23:59:59.999999Z")
)

func (r *reader) time(dst *schema.Time) {
	text, start, ok := r.text(27)
	if !ok {
		return
	}
	t, ok := schema.ParseTime(text)
	switch {
	case !ok:
		r.fault(start, "must be a time in UTC as RFC 3339 with at most six digits of fraction, like 2030-01-31T12:00:00.5Z")
	case t < timeMin || t > timeMax:
		r.fault(start, "must be a time from the year 2000 to 2999")
	default:
		*dst = t
	}
}

func (r *reader) bool(dst *bool) {
	start := r.at
	r.skip()
	switch r.data[start] {
	case 't':
		*dst = true
	case 'f':
		*dst = false
	default:
		r.fault(start, "must be true or false")
	}
}

// integer reads a whole number, however it is spelled.
func (r *reader) integer(dst *int64, low, high int64) {
	start := r.at
	r.skip()
	n, whole := int64(0), false
	if c := r.data[start]; c == '-' || c-'0' <= 9 {
		n, whole = jsontext.Integer(r.data[start:r.at])
	}
	if !whole || n < low || n > high {
		r.fault(start, "must be a whole number from %d to %d", low, high)
		return
	}
	*dst = n
}

// json takes business JSON as it stands.
func (r *reader) json(dst *[]byte) {
	start := r.at
	r.skip()
	switch {
	case r.data[start] == 'n':
		r.fault(start, "must not be null")
	case r.at-start > schema.BusinessBytesMax:
		r.faultAs(schema.TooLarge, start, fmt.Sprintf("has %d bytes, at most %d are accepted", r.at-start, schema.BusinessBytesMax))
	default:
		*dst = r.data[start:r.at:r.at]
	}
}

// word reads one of a few words and keeps it.
func (r *reader) word(dst *string, words ...string) {
	text, start, ok := r.text(64)
	if !ok {
		return
	}
	for _, word := range words {
		if string(text) == word {
			*dst = word
			return
		}
	}
	r.fault(start, "must be one of %s", strings.Join(words, ", "))
}

// note reads a text for people.
func (r *reader) note(dst *string) { r.chars(dst, NoteCharsMax) }

// blank says whether a text says nothing.
func blank(text string) bool { return len(bytes.TrimSpace([]byte(text))) == 0 }

// AppendString appends s as a JSON string, escaping no more than JSON asks for.
// What is not valid UTF-8 becomes U+FFFD.
func AppendString(dst []byte, s string) []byte { return jsontext.AppendQuoted(dst, s) }
