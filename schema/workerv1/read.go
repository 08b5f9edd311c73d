package workerv1

import (
	"fmt"
	"strings"

	"pulse/schema"
	"pulse/schema/internal/jsontext"
)

// reader walks a text that jsontext.Scan has found sound. The first fault sticks:
// after it every step does nothing, so that callers check once, at the end.
type reader struct {
	data    []byte
	at      int    // of the next token
	name    []byte // of the current member, after unescaping
	scratch []byte
	traced  bool // SubprotocolTraced is spoken
	fault   fault
}

type fault struct {
	code    schema.Code // empty = none
	offset  int         // of the token at fault
	message string
	sound   bool // the text as a whole can be walked
	notUTF8 bool
}

// escapedCharsMax is how many bytes one code point can take inside a string: two
// \u escapes.
const escapedCharsMax = 12

func (r *reader) failed() bool { return r.fault.code != "" }

func (r *reader) fail(offset int, message string) {
	r.failAs(schema.InvalidFrame, offset, message)
}

func (r *reader) failAs(code schema.Code, offset int, message string) {
	if !r.failed() {
		r.fault = fault{code: code, offset: offset, message: message, sound: true}
	}
}

// enter steps into the object at hand.
func (r *reader) enter() {
	if r.failed() {
		return
	}
	if r.data[r.at] != '{' {
		r.fail(r.at, "must be an object")
		return
	}
	r.at++
}

// member steps to the value of the next member of the innermost object, or out of
// the object when there is none.
func (r *reader) member() bool {
	if r.failed() {
		return false
	}
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
	if escaped && len(r.name) <= nameBytesMax*escapedCharsMax {
		r.scratch = jsontext.AppendUnescaped(r.scratch[:0], r.name)
		r.name = r.scratch
	}
	r.at = end
}

// element steps to the next element of the innermost array, or out of it.
func (r *reader) element() bool {
	if r.failed() {
		return false
	}
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

func (r *reader) skip() { r.at = jsontext.ValueEnd(r.data, r.at) }

// unknown refuses the member at hand.
func (r *reader) unknown() { r.fail(r.at, "is not a known member") }

// require refuses the object that began at start if a required member was not
// seen. The bits of seen are in the order of names.
func (r *reader) require(start int, seen, required uint32, names []string) {
	if r.failed() || seen&required == required {
		return
	}
	for i, name := range names {
		if required&^seen&(1<<i) != 0 {
			r.fail(start, "the member "+name+" is missing")
			return
		}
	}
}

func (r *reader) isString() bool { return r.data[r.at] == '"' }

// text reads a string of at most charsMax bytes, or code points where the caller
// counts them. The bytes are valid until the next step.
func (r *reader) text(charsMax int) []byte {
	if r.failed() {
		return nil
	}
	if !r.isString() {
		r.fail(r.at, "must be a string")
		return nil
	}
	start := r.at
	end, escaped := jsontext.StringEnd(r.data, start)
	text := r.data[start+1 : end-1]
	if len(text) > charsMax*escapedCharsMax {
		r.fail(start, fmt.Sprintf("must have at most %d characters", charsMax))
		return nil
	}
	if escaped {
		r.scratch = jsontext.AppendUnescaped(r.scratch[:0], text)
		text = r.scratch
	}
	r.at = end
	return text
}

func (r *reader) id(dst *ID) {
	start := r.at
	id, ok := schema.ParseID(r.text(32))
	if !ok {
		r.fail(start, "must be 32 lower-case hexadecimal digits")
	}
	*dst = id
}

func (r *reader) secret(dst *Secret) {
	start := r.at
	secret, ok := schema.ParseSecret(r.text(43))
	if !ok {
		r.fail(start, "must be 32 bytes as 43 characters of unpadded base64url")
	}
	*dst = secret
}

func (r *reader) uint64(dst *uint64) {
	start := r.at
	n, ok := schema.ParseUint64(r.text(20))
	if !ok {
		r.fail(start, "must be a decimal string from 1 to 18446744073709551615 without leading zero")
	}
	*dst = n
}

func (r *reader) time(dst *Time) {
	start := r.at
	t, ok := schema.ParseTime(r.text(27))
	if !ok {
		r.fail(start, "must be a time in UTC as RFC 3339 with at most six digits of fraction")
	}
	*dst = t
}

func (r *reader) optTime(dst *Opt[Time]) {
	dst.Set = true
	r.time(&dst.V)
}

// named reads a handler, a version or a code.
func (r *reader) named(dst *string, charsMax int) {
	start := r.at
	text := r.text(charsMax)
	if r.failed() {
		return
	}
	if !schema.ValidName(text, charsMax) {
		r.fail(start, fmt.Sprintf("must be 1 to %d letters, digits or _ . : - and begin with a letter or digit", charsMax))
		return
	}
	*dst = string(text)
}

// chars reads a string of at most charsMax code points.
func (r *reader) chars(dst *string, charsMax int) {
	start := r.at
	text := r.text(charsMax)
	if len(text) > charsMax && runeCount(text) > charsMax {
		r.fail(start, fmt.Sprintf("must have at most %d characters", charsMax))
		return
	}
	*dst = string(text)
}

func (r *reader) bool(dst *bool) {
	if r.failed() {
		return
	}
	switch r.data[r.at] {
	case 't':
		*dst = true
	case 'f':
		*dst = false
	default:
		r.fail(r.at, "must be true or false")
		return
	}
	r.skip()
}

// integer reads a whole number, however it is spelled.
func (r *reader) integer(low, high int64) int64 {
	if r.failed() {
		return 0
	}
	start := r.at
	r.skip()
	n, whole := int64(0), false
	if c := r.data[start]; c == '-' || c-'0' <= 9 {
		n, whole = jsontext.Integer(r.data[start:r.at])
	}
	if !whole || n < low || n > high {
		r.fail(start, fmt.Sprintf("must be a whole number from %d to %d", low, high))
		return 0
	}
	return n
}

// json takes business JSON as it stands.
func (r *reader) json(dst *[]byte) {
	if r.failed() {
		return
	}
	start := r.at
	r.skip()
	switch {
	case r.data[start] == 'n':
		r.fail(start, "must not be null")
	case r.at-start > BusinessBytesMax:
		r.failAs(schema.TooLarge, start, fmt.Sprintf("business JSON has at most %d bytes", BusinessBytesMax))
	default:
		*dst = r.data[start:r.at:r.at]
	}
}

// oneOf reads one of a few words.
func oneOf[T ~string](r *reader, dst *T, words []T) {
	start := r.at
	text := r.text(32)
	for _, word := range words {
		if string(text) == string(word) {
			*dst = word
			return
		}
	}
	if !r.failed() {
		r.fail(start, "must be one of "+list(words))
	}
}

func list[T ~string](words []T) string {
	var b strings.Builder
	for i, word := range words {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(string(word))
	}
	return b.String()
}
