package jsontext

import (
	"unicode/utf16"
	"unicode/utf8"
)

// endOfString is what unescapedRune yields at the closing quote.
const endOfString rune = -1

// unescapedRune reads one character of a string that str has accepted. Half a
// surrogate pair comes out as it stands, so that two of them still differ.
func unescapedRune(data []byte, i int) (r rune, behind int) {
	switch c := data[i]; {
	case c == '"':
		return endOfString, i
	case c == '\\':
		if data[i+1] != 'u' {
			return rune(simpleEscape(data[i+1])), i + 2
		}
		unit, _ := hexUnit(data, i+2)
		if unit&0xFC00 == 0xD800 && i+7 < len(data) && data[i+6] == '\\' && data[i+7] == 'u' {
			if low, ok := hexUnit(data, i+8); ok && low&0xFC00 == 0xDC00 {
				return utf16.DecodeRune(rune(unit), rune(low)), i + 12
			}
		}
		return rune(unit), i + 6
	case c < utf8.RuneSelf:
		return rune(c), i + 1
	}
	r, size := utf8.DecodeRune(data[i:])
	return r, i + size
}

func simpleEscape(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c
}

// hexUnit reads the four digits of a \u escape.
func hexUnit(data []byte, i int) (unit uint16, ok bool) {
	if i+4 > len(data) {
		return 0, false
	}
	for _, c := range data[i : i+4] {
		var digit byte
		switch {
		case c-'0' <= 9:
			digit = c - '0'
		case c|0x20-'a' <= 5:
			digit = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		unit = unit<<4 | uint16(digit)
	}
	return unit, true
}

// AppendUnescaped appends the value of a string, given the text between its
// quotes. Half a surrogate pair becomes U+FFFD. The value is never longer than
// the text.
func AppendUnescaped(dst, text []byte) []byte {
	for i := 0; i < len(text); {
		if c := text[i]; c != '\\' {
			dst = append(dst, c)
			i++
			continue
		}
		if i+1 == len(text) {
			break
		}
		r, behind := unescapedRune(text, i)
		if r >= utf8.RuneSelf {
			dst = utf8.AppendRune(dst, r)
		} else {
			dst = append(dst, byte(r))
		}
		i = behind
	}
	return dst
}

// AppendQuoted appends s as a JSON string. What is not valid UTF-8 becomes
// U+FFFD.
func AppendQuoted(dst []byte, s string) []byte {
	const digits = "0123456789abcdef"
	dst = append(dst, '"')
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			dst = utf8.AppendRune(dst, r)
			i += size
			continue
		}
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c == '\n':
			dst = append(dst, '\\', 'n')
		case c == '\r':
			dst = append(dst, '\\', 'r')
		case c == '\t':
			dst = append(dst, '\\', 't')
		case c < 0x20:
			dst = append(dst, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
		default:
			dst = append(dst, c)
		}
		i++
	}
	return append(dst, '"')
}
