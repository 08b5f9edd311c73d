package schema

import (
	"bytes"

	"pulse/schema/internal/jsontext"
)

// The rules that every JSON text from outside is held to, frames and HTTP bodies
// alike: valid UTF-8 without a byte order mark, the grammar of JSON and nothing
// behind the value, no name twice in an object (as strings, after unescaping), no
// half of a surrogate pair, numbers of at most 64 characters in the range of an
// IEEE 754 double, and at most DepthMax containers inside each other.
//
// They are checked before any decoder sees the text, by one pass that builds
// nothing: its memory is a small part of the 4 bytes per byte of the text that
// it may cost at worst.

const (
	// BusinessBytesMax bounds payload and result each, as sent.
	BusinessBytesMax = 256 << 10
	// DepthMax is the depth of the deepest text accepted; the root is 1.
	DepthMax = jsontext.DepthMax
	// NumberCharsMax bounds the text of a number.
	NumberCharsMax = jsontext.NumberCharsMax

	// subjectBytesMax bounds the path that a message repeats.
	subjectBytesMax = 128

	// resultDepthMax is what a finish frame leaves for the result in it.
	resultDepthMax = DepthMax - 2
)

// Limits bound a JSON text. The zero value bounds the depth alone.
type Limits struct {
	Bytes int // 0 = no limit
	Depth int // 0 = DepthMax
}

// CheckJSON holds a request body to the strict rules. It returns nil or an
// *Error: too_large, or invalid_argument with one violation that names the place
// of the fault. It never keeps or changes data.
func CheckJSON(data []byte, limits Limits) error {
	if limits.Bytes > 0 && len(data) > limits.Bytes {
		return Errorf(TooLarge, "the JSON text has %d bytes, at most %d are accepted", len(data), limits.Bytes)
	}
	depth := limits.Depth
	if depth == 0 {
		depth = DepthMax
	}
	fault := jsontext.Scan(data, depth, nil)
	switch {
	case fault == nil:
		return nil
	case fault.Kind == jsontext.Size:
		return Errorf(TooLarge, "%s", fault.Message)
	}
	path, subject := jsontext.Pointer(data, fault.Offset), ""
	if fault.Kind == jsontext.DuplicateKey && len(path) <= subjectBytesMax {
		subject = path + " " // of which member it is true, for who sees the message alone
	}
	refusal := Errorf(InvalidArgument, "the JSON text breaks a rule at byte %d: %s%s", fault.Offset, subject, fault.Message)
	refusal.Violations = []Violation{{Path: path, Message: fault.Message}}
	return refusal
}

// CheckResult holds the result of an attempt to the rules for business JSON: any
// JSON value but null, at most BusinessBytesMax as sent, flat enough for the
// frame it travels in. It returns nil or an *Error like CheckJSON.
func CheckResult(value []byte) error {
	if err := CheckJSON(value, Limits{Bytes: BusinessBytesMax, Depth: resultDepthMax}); err != nil {
		return err
	}
	if bytes.Equal(bytes.TrimSpace(value), []byte("null")) {
		refusal := Errorf(InvalidArgument, "business JSON must not be null")
		refusal.Violations = []Violation{{Message: "must not be null"}}
		return refusal
	}
	return nil
}
