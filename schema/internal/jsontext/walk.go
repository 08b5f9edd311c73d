package jsontext

import (
	"encoding/binary"
	"math"
	"math/bits"
	"strconv"
	"strings"
)

// SkipSpace returns the place of the next byte that is not white space.
func SkipSpace(data []byte, i int) int { return skipSpace(data, i) }

func skipSpace(data []byte, i int) int {
	for i < len(data) && data[i] <= ' ' && (data[i] == ' ' || data[i] == '\n' || data[i] == '\t' || data[i] == '\r') {
		i++
	}
	return i
}

func skipDigits(data []byte, i int) int {
	for i < len(data) && data[i]-'0' <= 9 {
		i++
	}
	return i
}

// StringEnd returns the place behind the string that begins at i.
func StringEnd(data []byte, i int) (end int, escaped bool) {
	for i++; i < len(data); {
		if i+8 <= len(data) {
			special := specialBytes(binary.LittleEndian.Uint64(data[i:]))
			if special == 0 {
				i += 8
				continue
			}
			i += bits.TrailingZeros64(special) >> 3
		}
		switch data[i] {
		case '"':
			return i + 1, escaped
		case '\\':
			escaped = true
			i++
		}
		i++
	}
	return len(data), escaped
}

// ValueEnd returns the place behind the value that begins at i.
func ValueEnd(data []byte, i int) int {
	for depth := 0; i < len(data); {
		switch data[i] {
		case '"':
			i, _ = StringEnd(data, i)
		case '{', '[':
			depth++
			i++
			continue
		case '}', ']':
			depth--
			i++
		default:
			if depth > 0 {
				i++
				continue
			}
			for i < len(data) && !isDelimiter(data[i]) {
				i++
			}
		}
		if depth <= 0 {
			return i
		}
	}
	return len(data)
}

func isDelimiter(c byte) bool {
	return c <= ' ' || c == ',' || c == '}' || c == ']'
}

// Integer reads the text of a number as a whole number, as JSON Schema means it:
// 16, 16.0, 1.6e1 and 160e-1 are the same. Beyond the range of int64 it yields
// the nearest bound; ok says whether the number is whole.
func Integer(text []byte) (n int64, ok bool) {
	negative := text[0] == '-'
	var digits [NumberCharsMax]byte // without leading zeros
	count, fraction, exponent := 0, 0, 0
	inFraction := false
	for i, c := range text {
		switch {
		case c-'0' <= 9:
			if inFraction {
				fraction++
			}
			if (count > 0 || c != '0') && count < len(digits) {
				digits[count] = c - '0'
				count++
			}
			continue
		case c == '.':
			inFraction = true
			continue
		case c|0x20 == 'e':
			exponent = clampedInt(text[i+1:])
		default: // the sign
			continue
		}
		break
	}
	for count > 0 && digits[count-1] == 0 {
		count--
		exponent++
	}
	if count == 0 {
		return 0, true
	}
	if exponent -= fraction; exponent < 0 {
		return 0, false
	}
	bound, sign := int64(math.MaxInt64), int64(1)
	if negative {
		bound, sign = math.MinInt64, -1
	}
	if count+exponent > 18 {
		return bound, true
	}
	for _, digit := range digits[:count] {
		n = n*10 + int64(digit)
	}
	for range exponent {
		n *= 10
	}
	return sign * n, true
}

// clampedInt reads an exponent; beyond a million it stays there, which is as good
// as any larger number.
func clampedInt(text []byte) int {
	n, negative := 0, false
	for _, c := range text {
		switch {
		case c == '-':
			negative = true
		case c-'0' <= 9:
			n = min(n*10+int(c-'0'), 1e6)
		}
	}
	if negative {
		return -n
	}
	return n
}

// pointerBytesMax bounds a pointer: in a text with longer names it names the
// nearest container that fits.
const pointerBytesMax = 256

// Pointer is the JSON Pointer (RFC 6901) of the value or member at or around an
// offset. The text must be sound up to there. It reads the text again from its
// beginning, which only refusals have to pay for.
func Pointer(data []byte, offset int) string {
	type container struct {
		key   int // offset of the current member's name, -1 = none yet
		index int // of the current element, -1 in an object
	}
	var open [depthFollowed]container
	depth := 0
walk:
	for i := 0; i < len(data) && i <= offset; {
		c := data[i]
		if i == offset && c != '"' {
			break
		}
		switch c {
		case '{', '[':
			if depth == len(open) {
				break walk
			}
			open[depth] = container{key: -1}
			if c == '{' {
				open[depth].index = -1
			}
			depth++
			i++
		case '}', ']':
			depth = max(depth-1, 0)
			i++
		case ',':
			if depth > 0 && open[depth-1].index >= 0 {
				open[depth-1].index++
			} else if depth > 0 {
				open[depth-1].key = -1
			}
			i++
		case '"':
			if depth > 0 && open[depth-1].index < 0 && open[depth-1].key < 0 {
				open[depth-1].key = i
			}
			i, _ = StringEnd(data, i)
		default:
			i++
		}
	}
	pointer := make([]byte, 0, 64)
	for _, c := range open[:depth] {
		end := len(pointer)
		switch {
		case c.index >= 0:
			pointer = strconv.AppendInt(append(pointer, '/'), int64(c.index), 10)
		case c.key < 0:
			return string(pointer)
		default:
			behind, _ := StringEnd(data, c.key)
			name := data[c.key+1 : max(behind-1, c.key+1)]
			if len(name) > 6*pointerBytesMax {
				return string(pointer)
			}
			text := string(AppendUnescaped(nil, name))
			text = pointerEscape.Replace(strings.ToValidUTF8(text, "\uFFFD"))
			pointer = append(append(pointer, '/'), text...)
		}
		if len(pointer) > pointerBytesMax {
			return string(pointer[:end])
		}
	}
	return string(pointer)
}

var pointerEscape = strings.NewReplacer("~", "~0", "/", "~1")
