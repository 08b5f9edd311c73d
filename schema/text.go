package schema

import (
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"
)

// The textual forms that frames and HTTP bodies share. Each has one canonical
// spelling; anything else is refused rather than understood.

const (
	// HandlerCharsMax, HandlerVersionCharsMax and PayloadVersionCharsMax bound
	// the three names of a capability.
	HandlerCharsMax        = 128
	HandlerVersionCharsMax = 64
	PayloadVersionCharsMax = 32

	// ErrorCodeCharsMax bounds the error code of an attempt and of an error
	// frame, ErrorMessageCharsMax the text beside the latter.
	ErrorCodeCharsMax    = 64
	ErrorMessageCharsMax = 1024

	// KeyCharsMax bounds a business key and a concurrency key, in code points.
	KeyCharsMax = 191
)

// ID is the identity of a resource or of an operation: 16 bytes, written as 32
// lower-case hexadecimal digits.
type ID [16]byte

// ParseID reads the one canonical spelling of an id.
func ParseID[T string | []byte](text T) (id ID, ok bool) {
	if len(text) != 32 {
		return ID{}, false
	}
	for i := range id {
		hi, lo := hexDigit[text[2*i]], hexDigit[text[2*i+1]]
		if hi|lo > 15 {
			return ID{}, false
		}
		id[i] = hi<<4 | lo
	}
	return id, true
}

// AppendText appends the canonical spelling.
func (id ID) AppendText(dst []byte) ([]byte, error) {
	const digits = "0123456789abcdef"
	for _, b := range id {
		dst = append(dst, digits[b>>4], digits[b&15])
	}
	return dst, nil
}

// MarshalText makes encoding/json and log handlers print the digits.
func (id ID) MarshalText() ([]byte, error) { return id.AppendText(make([]byte, 0, 32)) }

// UnmarshalText reads what MarshalText wrote and nothing else.
func (id *ID) UnmarshalText(text []byte) error {
	parsed, ok := ParseID(text)
	if !ok {
		return fmt.Errorf("an id is 32 lower-case hexadecimal digits")
	}
	*id = parsed
	return nil
}

func (id ID) String() string {
	text, _ := id.AppendText(make([]byte, 0, 32))
	return string(text)
}

// hexDigit is the value of a lower-case hexadecimal digit, 255 for any other byte.
var hexDigit = func() (table [256]byte) {
	for i := range table {
		table[i] = 255
	}
	for i := range 10 {
		table['0'+i] = byte(i)
	}
	for i := range 6 {
		table['a'+i] = byte(10 + i)
	}
	return table
}()

// Secret is a 32-byte secret, written as 43 characters of unpadded base64url.
// However it is printed, formatted, marshalled or logged, it reads [redacted];
// only AppendBase64 gives it away.
type Secret [32]byte

const (
	secretChars = 43
	redacted    = "[redacted]"
)

var strictBase64 = base64.RawURLEncoding.Strict()

// ParseSecret reads the one canonical spelling of a secret: the two unused bits
// of the last character must be zero.
func ParseSecret[T string | []byte](text T) (s Secret, ok bool) {
	if len(text) != secretChars {
		return Secret{}, false
	}
	// The decoder skips line breaks, so a text with one yields too few bytes.
	var in [secretChars]byte
	copy(in[:], text)
	var out [33]byte
	n, err := strictBase64.Decode(out[:], in[:])
	if err != nil || n != len(s) {
		return Secret{}, false
	}
	return Secret(out[:32]), true
}

// AppendBase64 appends the secret itself; the only callers are encoders of
// frames and requests.
func (s Secret) AppendBase64(dst []byte) []byte { return strictBase64.AppendEncode(dst, s[:]) }

// Equal compares in constant time.
func (s Secret) Equal(other Secret) bool { return subtle.ConstantTimeCompare(s[:], other[:]) == 1 }

func (Secret) String() string   { return redacted }
func (Secret) GoString() string { return redacted }

// Format covers every verb, %x and %d included.
func (Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// MarshalJSON prints [redacted]: frames are encoded by schema/workerv1, never
// through encoding/json.
func (Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// MarshalText is MarshalJSON for other encoders.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// LogValue keeps the secret out of every log handler.
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

var (
	_ fmt.Formatter  = Secret{}
	_ slog.LogValuer = Secret{}
)

// Time is an instant in microseconds since 1970-01-01 UTC, written as RFC 3339
// in UTC with at most six digits of fraction. Its clock has no leap seconds.
type Time int64

// TimeOf drops what is finer than a microsecond.
func TimeOf(t time.Time) Time { return Time(t.UnixMicro()) }

// Time is the same instant as a time.Time in UTC.
func (t Time) Time() time.Time { return time.UnixMicro(int64(t)).UTC() }

const (
	// TimeMin and TimeMax are the bounds of what the textual form can say.
	TimeMin Time = -62167219200_000_000 // 0000-01-01T00:00:00Z
	TimeMax Time = 253402300799_999_999 // 9999-12-31T23:59:59.999999Z
)

// ParseTime reads yyyy-mm-ddThh:mm:ss[.f]Z with a real calendar date, a second
// below 60 and one to six digits of fraction.
func ParseTime[T string | []byte](text T) (t Time, ok bool) {
	const whole = len("2006-01-02T15:04:05")
	if len(text) < whole+1 || len(text) > whole+8 || text[len(text)-1] != 'Z' ||
		text[4] != '-' || text[7] != '-' || text[10] != 'T' || text[13] != ':' || text[16] != ':' {
		return 0, false
	}
	valid := true
	digits := func(from, to int) (n int) {
		for _, c := range []byte(text[from:to]) {
			valid = valid && c-'0' <= 9
			n = 10*n + int(c-'0')
		}
		return n
	}
	year, month, day := digits(0, 4), digits(5, 7), digits(8, 10)
	hour, minute, second := digits(11, 13), digits(14, 16), digits(17, 19)
	micros := 0
	if fraction := len(text) - whole - 2; fraction >= 0 {
		if text[whole] != '.' || fraction == 0 {
			return 0, false
		}
		micros = digits(whole+1, len(text)-1)
		for range 6 - fraction {
			micros *= 10
		}
	}
	if !valid || month < 1 || month > 12 || day < 1 || day > daysIn(year, month) ||
		hour > 23 || minute > 59 || second > 59 {
		return 0, false
	}
	seconds := int64(daysSinceEpoch(year, month, day))*86400 + int64(hour*3600+minute*60+second)
	return Time(seconds*1e6 + int64(micros)), true
}

// AppendText appends the shortest canonical spelling; an instant outside
// TimeMin..TimeMax is written as the bound.
func (t Time) AppendText(dst []byte) ([]byte, error) {
	t = min(max(t, TimeMin), TimeMax)
	seconds, micros := floorDiv(int64(t), 1e6)
	days, rest := floorDiv(seconds, 86400)
	year, month, day := dateOf(int(days))
	dst = appendDigits(dst, year, 4)
	dst = appendDigits(append(dst, '-'), month, 2)
	dst = appendDigits(append(dst, '-'), day, 2)
	dst = appendDigits(append(dst, 'T'), int(rest/3600), 2)
	dst = appendDigits(append(dst, ':'), int(rest/60%60), 2)
	dst = appendDigits(append(dst, ':'), int(rest%60), 2)
	if micros != 0 {
		dst = appendDigits(append(dst, '.'), int(micros), 6)
		for dst[len(dst)-1] == '0' {
			dst = dst[:len(dst)-1]
		}
	}
	return append(dst, 'Z'), nil
}

// MarshalText makes encoding/json and log handlers print the instant.
func (t Time) MarshalText() ([]byte, error) { return t.AppendText(make([]byte, 0, 27)) }

// UnmarshalText reads what ParseTime reads.
func (t *Time) UnmarshalText(text []byte) error {
	parsed, ok := ParseTime(text)
	if !ok {
		return fmt.Errorf("a time is RFC 3339 in UTC with at most six digits of fraction")
	}
	*t = parsed
	return nil
}

func (t Time) String() string {
	text, _ := t.AppendText(make([]byte, 0, 27))
	return string(text)
}

func appendDigits(dst []byte, n, width int) []byte {
	var buf [6]byte
	for i := width - 1; i >= 0; i-- {
		buf[i] = '0' + byte(n%10)
		n /= 10
	}
	return append(dst, buf[:width]...)
}

func floorDiv(n, by int64) (quotient, rest int64) {
	quotient, rest = n/by, n%by
	if rest < 0 {
		quotient, rest = quotient-1, rest+by
	}
	return quotient, rest
}

func daysIn(year, month int) int {
	switch {
	case month == 2 && (year%4 == 0 && year%100 != 0 || year%400 == 0):
		return 29
	case month == 2:
		return 28
	case month == 4 || month == 6 || month == 9 || month == 11:
		return 30
	}
	return 31
}

// daysSinceEpoch and dateOf count with a year that begins in March, so that the
// leap day is its last, in eras of 400 years.
func daysSinceEpoch(year, month, day int) int {
	year += 400 // keep January and February of year 0 above zero
	if month <= 2 {
		year, month = year-1, month+12
	}
	return 365*year + year/4 - year/100 + year/400 + (153*(month-3)+2)/5 + day - 1 - 719468 - 146097
}

func dateOf(days int) (year, month, day int) {
	days += 719468 + 146097
	era, rest := days/146097, days%146097
	yearOfEra := (rest - rest/1460 + rest/36524 - rest/146096) / 365
	dayOfYear := rest - (365*yearOfEra + yearOfEra/4 - yearOfEra/100)
	shifted := (5*dayOfYear + 2) / 153
	year, month, day = era*400+yearOfEra-400, shifted+3, dayOfYear-(153*shifted+2)/5+1
	if month > 12 {
		year, month = year+1, month-12
	}
	return year, month, day
}

// ParseUint64 reads a canonical decimal string from 1 to 18446744073709551615.
func ParseUint64[T string | []byte](text T) (n uint64, ok bool) {
	if len(text) == 0 || len(text) > 20 || text[0] == '0' {
		return 0, false
	}
	for i := range len(text) {
		digit := uint64(text[i] - '0')
		if digit > 9 || n > (1<<64-1)/10 || n*10 > 1<<64-1-digit {
			return 0, false
		}
		n = n*10 + digit
	}
	return n, true
}

// AppendUint64 appends the decimal digits.
func AppendUint64(dst []byte, n uint64) []byte { return strconv.AppendUint(dst, n, 10) }

// ValidName says whether text is a handler, a version or an error code: a
// letter or digit, then letters, digits, and _ . : - up to charsMax in all.
func ValidName[T string | []byte](text T, charsMax int) bool {
	if len(text) == 0 || len(text) > charsMax || nameChar[text[0]] != nameFirst {
		return false
	}
	for i := 1; i < len(text); i++ {
		if nameChar[text[i]] == 0 {
			return false
		}
	}
	return true
}

const (
	nameFirst = 1
	nameLater = 2
)

var nameChar = func() (table [256]byte) {
	for c := range table {
		switch {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z':
			table[c] = nameFirst
		case c == '_', c == '.', c == ':', c == '-':
			table[c] = nameLater
		}
	}
	return table
}()

// CheckConcurrencyKey says what is wrong with a concurrency key, or "". A blank
// is what Unicode calls white space, a control character its category Cc.
func CheckConcurrencyKey(key string) (fault string) {
	if key == "" {
		return "must not be empty"
	}
	if fault := CheckBusinessKey(key); fault != "" {
		return fault
	}
	for _, r := range key {
		if unicode.IsControl(r) {
			return "must not contain control characters"
		}
	}
	first, _ := utf8.DecodeRuneInString(key)
	last, _ := utf8.DecodeLastRuneInString(key)
	if unicode.IsSpace(first) || unicode.IsSpace(last) {
		return "must not begin or end with a blank"
	}
	return ""
}

// CheckBusinessKey says what is wrong with a business key, or "".
func CheckBusinessKey(key string) (fault string) {
	if len(key) > KeyCharsMax && utf8.RuneCountInString(key) > KeyCharsMax {
		return "must have at most 191 characters"
	}
	if !utf8.ValidString(key) {
		return "must be valid UTF-8"
	}
	return ""
}
