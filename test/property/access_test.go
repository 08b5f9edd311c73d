package property

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	pb "pulse/proto/pulse/v1"
	"pulse/test/model"
)

// compareAccess holds tokens and the newest of the record of changes against the
// model, as readers see them, in answers that must not show a secret's hash.
func (w *world) compareAccess(s *seen) string {
	if len(s.step.entry.GetCommands()) == 0 {
		return ""
	}
	tokens := w.m.Query(&pb.Query{Body: &pb.Query_ListTokens{ListTokens: &pb.ListTokens{Limit: 100}}}).GetTokens()
	if len(tokens.GetTokens()) != len(w.model.Tokens) {
		return fmt.Sprintf("%d tokens, the model has %d", len(tokens.GetTokens()), len(w.model.Tokens))
	}
	for _, t := range w.model.Tokens {
		i := slices.IndexFunc(tokens.Tokens, func(row *pb.TokenRow) bool { return toID(row.Id) == t.ID })
		if i < 0 {
			return fmt.Sprintf("token %x is missing", t.ID)
		}
		row := tokens.Tokens[i]
		var grants []string
		for _, g := range row.Grants {
			text := g.Role + "@" + g.Namespace
			if len(g.Queues) > 0 {
				text += "/" + strings.Join(g.Queues, ",")
			}
			grants = append(grants, text)
		}
		is := model.Token{
			ID: t.ID, Name: row.Name, Hash: t.Hash, By: row.CreatedBy, RevokedBy: row.RevokedBy, CreatedAt: row.CreatedAtUs,
			ExpiresAt: row.ExpiresAtUs, RevokedAt: row.RevokedAtUs, LastUsed: row.UsedAtUs,
		}
		want := *t
		want.Grants, want.Namespaces = nil, nil
		if fmt.Sprint(is) != fmt.Sprint(want) || !slices.Equal(grants, t.Grants) || len(row.SecretHash) != 0 {
			return fmt.Sprintf("token %x: %v, the model has %+v", t.ID, row, t)
		}
		whole := w.m.Query(&pb.Query{Body: &pb.Query_ReadTokens{ReadTokens: &pb.ReadTokens{TokenIds: [][]byte{t.ID[:]}}}}).GetTokens().GetTokens()
		if len(whole) != 1 || string(whole[0].SecretHash) != t.Hash {
			return fmt.Sprintf("token %x is read by a gateway as %v", t.ID, whole)
		}
	}
	for _, part := range []*pb.ListAudit{
		{All: true, Limit: 12},
		{Namespaces: []string{"default", "third"}, Limit: 3},
		{All: true, Action: "pulse.token.", Limit: 2},
		{All: true, Principal: "token/x", Limit: 2},
	} {
		if d := w.compareAudit(part); d != "" {
			return d
		}
	}
	return ""
}

func (w *world) compareAudit(b *pb.ListAudit) string {
	var want []string
	for _, c := range slices.Backward(w.model.Changes) {
		if (b.All || !slices.ContainsFunc(strings.Fields(c.Of), func(ns string) bool { return !slices.Contains(b.Namespaces, ns) })) &&
			strings.HasPrefix(c.Action, b.Action) && (b.Principal == "" || c.Principal == b.Principal) && len(want) < int(b.Limit) {
			want = append(want, fmt.Sprint(c.Time, c.Of, c.Principal, c.Token, c.Action, c.At(), c.Note))
		}
	}
	var got []string
	for _, row := range w.m.Query(&pb.Query{Body: &pb.Query_ListAudit{ListAudit: b}}).GetAudit().GetRows() {
		got = append(got, fmt.Sprint(row.TimeUs, strings.Join(row.Namespaces, " "), row.Principal, hex.EncodeToString(row.TokenId), row.Action, row.Target, row.Note))
	}
	if !slices.Equal(got, want) {
		return fmt.Sprintf("on record for %v:\n%s\nin the model:\n%s", b, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	return ""
}
