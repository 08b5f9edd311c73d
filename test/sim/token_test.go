package sim

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	pb "pulse/proto/pulse/v1"
	"pulse/test/model"
)

// access is something that a client does with access tokens: everybody may show
// everybody's, as if they had been handed round.
func (c *client) access() {
	s := c.s
	switch n := s.rng.IntN(100); {
	case n < 40 || len(s.tokens) == 0:
		c.createToken()
	case n < 65:
		c.whole("revoke token", &pb.Command{Body: &pb.Command_RevokeToken{RevokeToken: &pb.RevokeToken{TokenId: bytesOf(pick(s, s.tokens))}}}, c.done)
	case n < 75:
		b := &pb.TouchTokens{}
		for range s.between(1, 3) {
			b.Uses = append(b.Uses, &pb.TokenUse{TokenId: bytesOf(pick(s, s.tokens)), UsedAtUs: s.judge.clock() - s.between(0, 20*minute)})
		}
		c.do(&request{name: "touch tokens", commands: []*pb.Command{{Body: &pb.Command_TouchTokens{TouchTokens: b}}}, wholeCluster: true}, c.done)
	default:
		c.token = bytesOf(pick(s, s.tokens))
		c.next()
	}
}

func (c *client) createToken() {
	s := c.s
	token := s.newID()
	hash := digestOf(fmt.Sprint("secret", token))
	b := &pb.CreateToken{TokenId: bytesOf(token), SecretHash: hash[:], Name: c.p.name, First: s.chance(10),
		Grants: []*pb.TokenGrant{{Role: "operator", Namespace: pick(s, []string{"default", "*"})}}}
	if s.chance(50) {
		b.ExpiresAtUs = s.judge.clock() + s.between(-second, 40*second)
	}
	c.whole("create token", &pb.Command{Body: &pb.Command_CreateToken{CreateToken: b}}, func(results []*pb.Result) {
		if results != nil && results[0].Code == "" {
			s.tokens = append(s.tokens, token)
			c.token = b.TokenId
		}
		c.done(results)
	})
}

// whole is a change of the cluster, not of a namespace.
func (c *client) whole(name string, cmd *pb.Command, then func([]*pb.Result)) {
	cmd.ContentHash = hashOf(cmd)
	c.do(&request{name: name, commands: []*pb.Command{cmd}, key: c.key(60), wholeCluster: true}, then)
}

// tokenPast is what the log has said of a token.
type tokenPast struct {
	expires int64 // 0: never
	revoked bool
}

// lookToken: what was revoked, or is over, gives no right to anything from that
// entry on, whichever node took the command.
func (j *judge) lookToken(c *pb.Command, r *pb.Result, now int64) {
	if shown := c.Caller.GetTokenId(); len(shown) > 0 && r.Code == "" {
		p := j.access[toID(shown)]
		if p == nil || p.revoked || p.expires != 0 && now >= p.expires {
			j.s.fail("A4 revoked tokens", "%T was accepted at %d with token %s: %+v", c.Body, now, short(shown), p)
		}
		j.count("commands with a token")
	}
	if r.Code != "" {
		return
	}
	switch b := c.Body.(type) {
	case *pb.Command_CreateToken:
		if x := toID(b.CreateToken.TokenId); j.access[x] == nil { // not a repeat
			j.access[x] = &tokenPast{expires: b.CreateToken.ExpiresAtUs}
		}
	case *pb.Command_RevokeToken:
		j.access[toID(b.RevokeToken.TokenId)].revoked = true
	}
}

// unlikeAccess holds tokens and the end of the record of changes, as readers see
// them, against the model.
func (j *judge) unlikeAccess(n *node) string {
	tokens := n.m.Query(&pb.Query{Body: &pb.Query_ListTokens{ListTokens: &pb.ListTokens{Limit: 1000}}}).GetTokens().GetTokens()
	if len(tokens) != len(j.model.Tokens) {
		return fmt.Sprintf("%d tokens, the model has %d", len(tokens), len(j.model.Tokens))
	}
	for _, t := range j.model.Tokens {
		at := slices.IndexFunc(tokens, func(row *pb.TokenRow) bool { return toID(row.Id) == t.ID })
		if at < 0 {
			return fmt.Sprintf("token %s is missing", short(t.ID[:]))
		}
		row := tokens[at]
		if d := differ("token", t.ID, "name", row.Name, t.Name, "made by", row.CreatedBy, t.By, "made at", row.CreatedAtUs, t.CreatedAt,
			"expires", row.ExpiresAtUs, t.ExpiresAt, "revoked at", row.RevokedAtUs, t.RevokedAt, "revoked by", row.RevokedBy, t.RevokedBy,
			"used", row.UsedAtUs, t.LastUsed, "grants", len(row.Grants), len(t.Grants), "secret's hash shown", len(row.SecretHash), 0); d != "" {
			return d
		}
	}
	const newest = 20
	audit := n.m.Query(&pb.Query{Body: &pb.Query_ListAudit{ListAudit: &pb.ListAudit{All: true, Limit: newest}}}).GetAudit().GetRows()
	want := slices.Clone(j.model.Changes[max(0, len(j.model.Changes)-newest):])
	slices.Reverse(want)
	if len(audit) != len(want) {
		return fmt.Sprintf("%d changes are on record, in the model %d", len(audit), len(want))
	}
	for i, row := range audit {
		is := model.Change{Time: row.TimeUs, Principal: row.Principal, Token: hex.EncodeToString(row.TokenId), Action: row.Action, Target: row.Target,
			Note: row.Note, Of: strings.Join(row.Namespaces, " ")}
		should := *want[i]
		should.Detail, should.Target, should.Made = "", should.At(), nil
		if is != should {
			return fmt.Sprintf("on record is %+v, in the model %+v", is, should)
		}
	}
	return ""
}
