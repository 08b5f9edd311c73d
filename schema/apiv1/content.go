package apiv1

import (
	"crypto/sha256"
	"strconv"

	"pulse/schema"
)

// Content is the SHA-256 of a request's canonical text; see the package comment.
type Content [sha256.Size]byte

// contentBytes is the room for the canonical text of an ordinary request.
const contentBytes = 1024

// canon writes a canonical text.
type canon struct {
	buf []byte
}

func begin(operation string) canon {
	c := canon{buf: make([]byte, 0, contentBytes)}
	c.buf = append(c.buf, operation...)
	c.buf = append(c.buf, '\n')
	return c
}

func (c *canon) member(name string, length int) {
	c.buf = append(append(c.buf, name...), ':')
	c.buf = append(strconv.AppendInt(c.buf, int64(length), 10), ':')
}

func (c *canon) text(name, value string) {
	c.member(name, len(value))
	c.buf = append(append(c.buf, value...), '\n')
}

func (c *canon) bytes(name string, value []byte) {
	c.member(name, len(value))
	c.buf = append(append(c.buf, value...), '\n')
}

func (c *canon) optText(name, value string) {
	if value != "" {
		c.text(name, value)
	}
}

func (c *canon) number(name string, n int64) {
	var digits [20]byte
	c.bytes(name, strconv.AppendInt(digits[:0], n, 10))
}

func (c *canon) optNumber(name string, n int64) {
	if n != Absent {
		c.number(name, n)
	}
}

func (c *canon) optRevision(n uint64) {
	if n != 0 {
		var digits [20]byte
		c.bytes("expected_revision", strconv.AppendUint(digits[:0], n, 10))
	}
}

func (c *canon) optTime(name string, t schema.Time) {
	if t != 0 {
		var text [27]byte
		value, _ := t.AppendText(text[:0])
		c.bytes(name, value)
	}
}

func (c *canon) bool(name string, b bool) { c.text(name, strconv.FormatBool(b)) }

func (c *canon) sum() Content { return sha256.Sum256(c.buf) }
