package state

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/proto"

	pb "pulse/proto/pulse/v1"
)

// Access tokens are few and looked at for every command, so all are in memory. The
// record of changes (audit) is only read by people: it is rows alone.

// CopyToken returns a token row that may be changed.
func CopyToken(t *pb.TokenRow) *pb.TokenRow {
	return &pb.TokenRow{
		Format: t.Format, Id: t.Id, Name: t.Name, SecretHash: t.SecretHash, Grants: t.Grants, CreatedAtUs: t.CreatedAtUs,
		CreatedBy: t.CreatedBy, ExpiresAtUs: t.ExpiresAtUs, RevokedAtUs: t.RevokedAtUs, RevokedBy: t.RevokedBy, UsedAtUs: t.UsedAtUs,
	}
}

// TokenLives says that a token is neither revoked nor over at a time.
func TokenLives(t *pb.TokenRow, now int64) bool {
	return t.RevokedAtUs == 0 && (t.ExpiresAtUs == 0 || now < t.ExpiresAtUs)
}

func (s *State) loadTokens() error {
	return scan(s.db, []byte{tableAccess, accessToken}, func(_ []byte, row *pb.TokenRow) error {
		s.tokens[ID(row.Id)] = row
		return nil
	})
}

// Token finds an access token; nil if there is none.
func (s *State) Token(id ID) *pb.TokenRow { return s.tokens[id] }

// Tokens lists the tokens after an id, by id.
func (s *State) Tokens(after ID) []*pb.TokenRow {
	out := make([]*pb.TokenRow, 0, len(s.tokens))
	for id, t := range s.tokens { // order-free: sorted below
		if idCompare(id, after) > 0 || after == (ID{}) {
			out = append(out, t)
		}
	}
	slices.SortFunc(out, func(a, b *pb.TokenRow) int { return bytes.Compare(a.Id, b.Id) })
	return out
}

// PutToken adds or replaces a token.
func (tx *Tx) PutToken(row *pb.TokenRow) {
	row.Format = RowFormat
	tx.s.tokens[ID(row.Id)] = row
	tx.put(tokenKey(ID(row.Id)), row)
}

// DeleteToken forgets a token.
func (tx *Tx) DeleteToken(id ID) {
	delete(tx.s.tokens, id)
	tx.del(tokenKey(id))
}

// AppendAudit puts a change on record, and lets at most a few of the oldest rows
// leave it: those made before keptSince, and those beyond the newest most.
func (tx *Tx) AppendAudit(row *pb.AuditRow, keptSince int64, most uint64) {
	const leave = 4 // more than one, so that the record shrinks to its bounds
	m := tx.meta
	m.AuditLast++
	row.Format, row.Position, row.Index, row.TimeUs = RowFormat, m.AuditLast, tx.Number(), tx.Now()
	tx.put(auditKey(row.Position), row)
	for range leave {
		oldest := m.AuditLow + 1
		if oldest == m.AuditLast {
			return
		}
		if m.AuditLast-m.AuditLow <= most {
			r := read[pb.AuditRow](tx, auditKey(oldest))
			if r == nil {
				panic("state: the record of changes has a hole")
			}
			if r.TimeUs >= keptSince {
				return
			}
		}
		tx.del(auditKey(oldest))
		m.AuditLow = oldest
	}
}

// ScanAudit calls fn for the rows of the record below a position, newest first,
// until it returns false; before 0 is from the newest.
func ScanAudit(r Reader, before uint64, fn func(*pb.AuditRow) bool) error {
	prefix := []byte{tableAccess, accessAudit}
	upper := prefixEnd(prefix)
	if before != 0 {
		upper = auditKey(before)
	}
	iter, err := r.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: upper})
	if err != nil {
		return fmt.Errorf("read the record of changes: %w", err)
	}
	for ok := iter.Last(); ok; ok = iter.Prev() {
		row := &pb.AuditRow{}
		if err := proto.Unmarshal(iter.Value(), row); err != nil {
			_ = iter.Close()
			return fmt.Errorf("state row %x is damaged: %w", iter.Key(), err)
		}
		if !fn(row) {
			break
		}
	}
	if err := iter.Close(); err != nil {
		return fmt.Errorf("read the record of changes: %w", err)
	}
	return nil
}

func tokenKey(id ID) []byte { return append([]byte{tableAccess, accessToken}, id[:]...) }

func auditKey(position uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{tableAccess, accessAudit}, position)
}

// Use is what a namespace holds of what its quota bounds.
func (n *Namespace) Use() *pb.NamespaceUsage {
	return &pb.NamespaceUsage{TasksWaiting: n.waiting, PayloadBytes: n.payloadBytes, Workers: n.workers}
}
