// Package pb is what nodes say to each other and write down: commands and their
// results, entries of the log, events, rows of the state, and the services between
// nodes. All of it but this file is made of the .proto files beside it; here is what
// both sides of a message have to compute alike.
package pb

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
)

// SessionsDigest is made of the sessions that a report in short stands for, by the
// gateway and by the state, each of those it knows. Two that are equal are of the same
// sessions in the same order.
type SessionsDigest struct {
	hash hash.Hash
	room [24]byte
}

// NewSessionsDigest is that of no sessions.
func NewSessionsDigest() *SessionsDigest { return &SessionsDigest{hash: sha256.New()} }

// Add adds the next session.
func (d *SessionsDigest) Add(id [16]byte, epoch uint64) {
	copy(d.room[:], id[:])
	binary.BigEndian.PutUint64(d.room[16:], epoch)
	d.hash.Write(d.room[:]) // it never fails
}

// Sum is what the report carries.
func (d *SessionsDigest) Sum() []byte { return d.hash.Sum(nil) }
