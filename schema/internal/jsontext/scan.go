// Package jsontext reads JSON as text: it decides whether bytes are a JSON text
// that all readers in the world understand alike, and finds its way in one that
// is. It never builds values.
//
// Scan is the gate. Behind it, texts are known to be sound, and the functions in
// walk.go and string.go rely on that instead of checking again. They are exact
// on sound texts and merely do not panic on others.
//
// Memory: Scan allocates nothing for ordinary texts. An object with very many
// keys, or with escaped ones, costs at most 4 bytes for each byte of the text in
// all. Nothing grows with depth.
//
// Only package schema and its dialects use it.
package jsontext

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"math"
	"math/bits"
	"strconv"
	"sync"
	"unicode/utf8"
)

const (
	// DepthMax is the depth of the deepest text accepted; the root is 1.
	DepthMax = 64
	// NumberCharsMax bounds the text of a number.
	NumberCharsMax = 64

	// depthFollowed is where Scan gives up on a text that is too deep: beyond
	// it the rest is not looked at and the fault is not sound.
	depthFollowed = 1024
	// bytesMax keeps offsets in 31 bits.
	bytesMax = math.MaxInt32
)

// Kind says which rule a text broke.
type Kind uint8

// The kinds of faults. The first three end the scan: the text cannot be
// followed to its end. After the others it goes on, to see whether the rest is
// sound.
const (
	Size Kind = iota + 1
	UTF8
	Syntax
	Depth
	Number
	Surrogate
	DuplicateKey
)

// Fault is why a text was refused.
type Fault struct {
	Kind    Kind
	Offset  int // of the token at fault
	Message string
	// Sound says that the text follows the grammar of JSON to its end and is
	// valid UTF-8: only its content is refused.
	Sound bool
}

// Member is the place of one member of the root object.
type Member struct {
	Key, Value, End int32 // offsets of the key's quote, of the value, behind the value
}

// Members notes the first members of a root object in their order.
type Members struct {
	At    [8]Member
	Count int // of all members, also those not noted; -1 if the root is no object
}

// Scan checks a whole text. It returns nil for a sound text that keeps all rules,
// and fills root, if it is given, in that case.
func Scan(data []byte, depthMax int, root *Members) *Fault {
	if len(data) > bytesMax {
		return &Fault{Kind: Size, Message: "the text is larger than 2 GiB"}
	}
	s := scanners.Get().(*scanner)
	s.data, s.depthMax = data, min(depthMax, depthFollowed)
	sound := s.text(root)
	var fault *Fault
	if s.fault.Kind != 0 {
		s.fault.Sound = sound
		if !sound && !utf8.Valid(data) {
			// Whatever the first fault was, these bytes are no text at all.
			s.fault = Fault{Kind: UTF8, Offset: firstInvalid(data), Message: "must be valid UTF-8"}
		}
		copied := s.fault
		fault = &copied
	}
	s.release()
	return fault
}

func firstInvalid(data []byte) int {
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return len(data)
}

// scanner is the working memory of one Scan.
type scanner struct {
	data     []byte
	depthMax int
	fault    Fault // the one to report; Kind 0 = none

	// open has an entry for each open container: the place in keys where its
	// own keys begin, or -1 for an array.
	open [depthFollowed]int32
	// keys holds the keys of the open objects as hash<<32 | offset of the quote.
	keys []uint64
	// table finds equal keys in an object with many; scratch is for unescaping one.
	table   []uint32
	scratch []byte
}

const (
	keysKept   = 1 << 10 // working memory beyond these is not kept for the next text
	bytesKept  = 1 << 12
	pairwise   = 16 // up to so many keys are compared with each other
	keyBytes   = 5  // of the shortest member, `"":0,`
	tableShare = 2  // the table has n + n/2 places for n keys
)

var (
	scanners = sync.Pool{New: func() any { return &scanner{keys: make([]uint64, 0, 128)} }}
	// The seed is drawn per process, so nobody can prepare keys that collide.
	hashSeed = maphash.MakeSeed()
)

func (s *scanner) release() {
	s.data, s.fault, s.keys = nil, Fault{}, s.keys[:0]
	if cap(s.keys) > keysKept || cap(s.table) > 2*keysKept || cap(s.scratch) > bytesKept {
		return
	}
	scanners.Put(s)
}

// stop notes a fault that ends the scan.
func (s *scanner) stop(kind Kind, offset int, message string) bool {
	s.fault = Fault{Kind: kind, Offset: offset, Message: message}
	return false
}

// note keeps the earliest of the faults after which the scan goes on.
func (s *scanner) note(kind Kind, offset int, message string) {
	if s.fault.Kind == 0 || offset < s.fault.Offset {
		s.fault = Fault{Kind: kind, Offset: offset, Message: message}
	}
}

// text scans one value and what surrounds it. False means that the text could
// not be followed to its end.
func (s *scanner) text(root *Members) bool {
	data := s.data
	i, depth := 0, 0
	member := Member{}
	inRoot := false // the innermost open container is the root object
	if root != nil {
		root.Count = -1
	}

value:
	i = skipSpace(data, i)
	if i == len(data) {
		return s.stop(Syntax, i, "a value is missing")
	}
	if inRoot {
		member.Value = int32(i)
	}
	switch c := data[i]; {
	case c == '{':
		if depth++; depth > s.depthMax {
			if depth > depthFollowed {
				return s.stop(Depth, i, "is nested too deeply")
			}
			s.note(Depth, i, "is nested too deeply")
		}
		s.open[depth-1] = int32(len(s.keys))
		if inRoot = depth == 1 && root != nil; inRoot {
			root.Count = 0
		}
		i = skipSpace(data, i+1)
		if i < len(data) && data[i] == '}' {
			goto closing
		}
		goto key
	case c == '[':
		if depth++; depth > s.depthMax {
			if depth > depthFollowed {
				return s.stop(Depth, i, "is nested too deeply")
			}
			s.note(Depth, i, "is nested too deeply")
		}
		s.open[depth-1] = -1
		inRoot = false
		i = skipSpace(data, i+1)
		if i < len(data) && data[i] == ']' {
			goto closing
		}
		goto value
	case c == '"':
		end, _ := s.str(i)
		if end < 0 {
			return false
		}
		i = end
	case c == '-' || c-'0' <= 9:
		end := s.number(i)
		if end < 0 {
			return false
		}
		i = end
	case c == 't' && bytes.HasPrefix(data[i:], literalTrue),
		c == 'n' && bytes.HasPrefix(data[i:], literalNull):
		i += 4
	case c == 'f' && bytes.HasPrefix(data[i:], literalFalse):
		i += 5
	case c == 0xEF && i == 0 && bytes.HasPrefix(data, byteOrderMark):
		return s.stop(Syntax, i, "must not begin with a byte order mark")
	default:
		return s.stop(Syntax, i, "must be a JSON value")
	}

after:
	if depth == 0 {
		if i = skipSpace(data, i); i < len(data) {
			return s.stop(Syntax, i, "must end after one value")
		}
		return true
	}
	if inRoot {
		member.End = int32(i)
		if root.Count < len(root.At) {
			root.At[root.Count] = member
		}
		root.Count++
	}
	i = skipSpace(data, i)
	if i == len(data) {
		return s.stop(Syntax, i, "ends too early")
	}
	switch data[i] {
	case ',':
		i++
		if s.open[depth-1] < 0 {
			goto value
		}
		i = skipSpace(data, i)
		goto key
	case '}', ']':
		goto closing
	}
	return s.stop(Syntax, i, "must be followed by a comma or the end of its container")

key:
	if i == len(data) || data[i] != '"' {
		return s.stop(Syntax, i, "a member must begin with its name in quotes")
	}
	{
		end, escaped := s.str(i)
		if end < 0 {
			return false
		}
		s.push(i, end, escaped)
		if inRoot {
			member.Key = int32(i)
		}
		if i = skipSpace(data, end); i == len(data) || data[i] != ':' {
			return s.stop(Syntax, i, "a member's name must be followed by a colon")
		}
		i++
	}
	goto value

closing:
	{
		first := s.open[depth-1]
		if (first >= 0) != (data[i] == '}') {
			return s.stop(Syntax, i, "is closed by the wrong bracket")
		}
		if first >= 0 {
			s.unique(s.keys[first:])
			s.keys = s.keys[:first]
		}
		depth--
		inRoot = depth == 1 && root != nil && s.open[0] >= 0
		i++
	}
	goto after
}

var (
	literalTrue   = []byte("true")
	literalFalse  = []byte("false")
	literalNull   = []byte("null")
	byteOrderMark = []byte("\xEF\xBB\xBF")
)

// str scans the string whose opening quote is at i and returns the place behind
// its closing quote, or -1.
func (s *scanner) str(i int) (end int, escaped bool) {
	data, start := s.data, i
	i++
	for {
		for i+8 <= len(data) {
			if special := specialBytes(binary.LittleEndian.Uint64(data[i:])); special != 0 {
				i += bits.TrailingZeros64(special) >> 3
				break
			}
			i += 8
		}
		if i >= len(data) {
			s.stop(Syntax, start, "ends inside a string")
			return -1, false
		}
		switch c := data[i]; {
		case c == '"':
			return i + 1, escaped
		case c == '\\':
			escaped = true
			if i = s.escape(i); i < 0 {
				return -1, false
			}
		case c < 0x20:
			s.stop(Syntax, i, "a control character in a string must be escaped")
			return -1, false
		case c < utf8.RuneSelf:
			i++
		default:
			r, size := utf8.DecodeRune(data[i:])
			if r == utf8.RuneError && size == 1 {
				s.stop(UTF8, i, "must be valid UTF-8")
				return -1, false
			}
			i += size
		}
	}
}

// specialBytes has the high bit of each byte of the word that ends a run of plain
// ASCII inside a string; bits above the lowest one set may be wrong.
func specialBytes(word uint64) uint64 {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	quotes, slashes := word^('"'*ones), word^('\\'*ones)
	return (word | (word-0x20*ones)&^word | (quotes-ones)&^quotes | (slashes-ones)&^slashes) & highs
}

// escape checks the escape sequence at i and returns the place behind it, or -1.
func (s *scanner) escape(i int) int {
	data := s.data
	if i+1 < len(data) {
		switch data[i+1] {
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			return i + 2
		case 'u':
			unit, ok := hexUnit(data, i+2)
			if !ok {
				break
			}
			if unit&0xF800 != 0xD800 {
				return i + 6
			}
			if unit < 0xDC00 && i+7 < len(data) && data[i+6] == '\\' && data[i+7] == 'u' {
				if low, ok := hexUnit(data, i+8); ok && low&0xFC00 == 0xDC00 {
					return i + 12
				}
			}
			s.note(Surrogate, i, "contains half of a surrogate pair")
			return i + 6
		}
	}
	s.stop(Syntax, i, "contains an unknown escape sequence")
	return -1
}

// number scans the number at i and returns the place behind it, or -1.
func (s *scanner) number(i int) int {
	data, start := s.data, i
	if data[i] == '-' {
		i++
	}
	switch first := i; {
	case i < len(data) && data[i] == '0':
		i++
	default:
		if i = skipDigits(data, i); i == first {
			s.stop(Syntax, start, "must be a JSON number")
			return -1
		}
	}
	if i < len(data) && data[i] == '.' {
		first := i + 1
		if i = skipDigits(data, first); i == first {
			s.stop(Syntax, start, "must be a JSON number")
			return -1
		}
	}
	exponent := 0 // its digits
	if i < len(data) && data[i]|0x20 == 'e' {
		first := i + 1
		if first < len(data) && (data[first] == '+' || data[first] == '-') {
			first++
		}
		if i = skipDigits(data, first); i == first {
			s.stop(Syntax, start, "must be a JSON number")
			return -1
		}
		exponent = i - first
	}
	switch {
	case i-start > NumberCharsMax:
		s.note(Number, start, "a number must have at most 64 characters")
	case exponent > 2 && s.fault.Kind == 0:
		// With two digits of exponent and 64 characters the value stays far
		// below 1e308. Once a fault is noted the answer no longer matters.
		if _, err := strconv.ParseFloat(string(data[start:i]), 64); err != nil {
			s.note(Number, start, "a number must be in the range of an IEEE 754 double")
		}
	}
	return i
}

// push remembers a key of the innermost object.
func (s *scanner) push(start, end int, escaped bool) {
	if len(s.keys) == cap(s.keys) {
		s.growKeys(start)
	}
	text := s.data[start+1 : end-1]
	if escaped {
		if cap(s.scratch) < len(text) {
			s.scratch = make([]byte, 0, len(text))
		}
		text = AppendUnescaped(s.scratch[:0], text)
	}
	s.keys = append(s.keys, maphash.Bytes(hashSeed, text)&^math.MaxUint32|uint64(start))
}

// growKeys makes room for all keys that can still come, once for the whole text,
// so that doubling does not leave its own garbage behind.
func (s *scanner) growKeys(at int) {
	rest := s.data[at:]
	room := len(s.keys) + min(bytes.Count(rest, []byte{':'}), len(rest)/keyBytes) + 1
	s.keys = append(make([]uint64, 0, room), s.keys...)
}

// unique notes a fault if two keys of an object that ends are equal.
func (s *scanner) unique(keys []uint64) {
	if len(keys) <= pairwise {
		for i := 1; i < len(keys); i++ {
			for j := range i {
				if keys[i]>>32 == keys[j]>>32 && s.sameKey(keys[i], keys[j]) {
					s.duplicate(keys[i])
					return
				}
			}
		}
		return
	}
	places := len(keys) + len(keys)/tableShare
	if cap(s.table) < places {
		s.table = make([]uint32, places)
	}
	table := s.table[:places]
	clear(table)
	for i, key := range keys {
		place := int(key >> 32 * uint64(places) >> 32)
		for ; table[place] != 0; place++ {
			if other := keys[table[place]-1]; key>>32 == other>>32 && s.sameKey(key, other) {
				s.duplicate(key)
				return
			}
			if place == places-1 {
				place = -1
			}
		}
		table[place] = uint32(i + 1)
	}
}

func (s *scanner) duplicate(key uint64) {
	s.note(DuplicateKey, int(uint32(key)), "appears more than once in its object")
}

// sameKey compares two keys as strings. Equal hashes make it rare.
func (s *scanner) sameKey(a, b uint64) bool {
	i, j := int(uint32(a))+1, int(uint32(b))+1
	for {
		x, behindX := unescapedRune(s.data, i)
		y, behindY := unescapedRune(s.data, j)
		if x != y {
			return false
		}
		if x == endOfString {
			return true
		}
		i, j = behindX, behindY
	}
}
