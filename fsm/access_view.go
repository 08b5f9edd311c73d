package fsm

import (
	"slices"
	"strings"

	"pulse/fsm/state"
	pb "pulse/proto/pulse/v1"
)

// readTokens answers gateways, which check what callers show.
func (v *view) readTokens(b *pb.ReadTokens) {
	list := &pb.TokenList{}
	for _, id := range b.TokenIds {
		if len(id) != 16 {
			continue
		}
		if t := v.s.Token(ID(id)); t != nil {
			list.Tokens = append(list.Tokens, t)
		}
	}
	v.ans.Body = &pb.Answer_Tokens{Tokens: list}
}

func (v *view) listTokens(b *pb.ListTokens) {
	var after ID
	if len(b.After) == 16 {
		after = ID(b.After)
	}
	list := &pb.TokenList{}
	limit := page(b.Limit)
	for _, t := range v.s.Tokens(after) {
		if len(list.Tokens) == limit {
			list.NextAfter = list.Tokens[limit-1].Id
			break
		}
		list.Tokens = append(list.Tokens, viewToken(t))
	}
	v.ans.Body = &pb.Answer_Tokens{Tokens: list}
}

// listAudit reads the record of changes, newest first. Who asks for single
// namespaces gets the rows that concern these and no other.
func (v *view) listAudit(b *pb.ListAudit) error {
	list := &pb.AuditList{}
	limit, seen, last := page(b.Limit), 0, uint64(0)
	err := state.ScanAudit(v.s, b.Before, func(row *pb.AuditRow) bool {
		if seen++; seen > scanMax || b.FromUs != 0 && row.TimeUs < b.FromUs {
			if seen > scanMax {
				list.NextBefore = last
			}
			return false
		}
		if auditMatches(b, row) {
			if len(list.Rows) == limit {
				list.NextBefore = last
				return false
			}
			list.Rows = append(list.Rows, row)
		}
		last = row.Position
		return true
	})
	v.ans.Body = &pb.Answer_Audit{Audit: list}
	return err
}

func auditMatches(b *pb.ListAudit, row *pb.AuditRow) bool {
	if !b.All {
		for _, name := range row.Namespaces {
			if !slices.Contains(b.Namespaces, name) {
				return false
			}
		}
	}
	action := b.Action == "" || row.Action == b.Action || strings.HasSuffix(b.Action, ".") && strings.HasPrefix(row.Action, b.Action)
	return action && (b.Principal == "" || row.Principal == b.Principal) && (b.Target == "" || row.Target == b.Target) &&
		(b.UntilUs == 0 || row.TimeUs < b.UntilUs)
}
