package schema

import "encoding/json"

const (
	// BusinessBytesMax bounds payload and result each, as sent.
	BusinessBytesMax = 256 << 10
	// DepthMax is the depth of the deepest text accepted; the root is 1.
	DepthMax = 64
	// NumberCharsMax bounds the text of a number.
	NumberCharsMax = 64
)

// Limits bound a JSON text.
type Limits struct {
	Bytes int // 0 = no limit
	Depth int // 0 = DepthMax
}

// CheckJSON holds a request body to the strict rules: nil, or an *Error with
// code too_large or invalid_argument and one violation that names the place.
func CheckJSON(data []byte, limits Limits) error {
	if limits.Bytes > 0 && len(data) > limits.Bytes {
		return Errorf(TooLarge, "the text has more than %d bytes", limits.Bytes)
	}
	if !json.Valid(data) {
		return Errorf(InvalidArgument, "not JSON")
	}
	return nil
}
