package fsm

import (
	"bytes"
	"slices"

	"pulse/fsm/state"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

const (
	// tokensMax bounds the access tokens, which are all in memory.
	tokensMax = 10_000
	// tokenKeptUs is how long a token that is revoked or over is still shown: 30
	// days. It leaves when another is made.
	tokenKeptUs    = 30 * 24 * 3600e6
	tokensLeaveMax = 16 // at a time
	// tokenUseStepUs is how coarsely the last use of a token is known: 10 min.
	tokenUseStepUs = 600e6
)

// refuseToken refuses a command whose caller showed a token that has been revoked
// or has ended since the gateway looked at it: in the log's order nothing is done
// with a token after it was revoked.
func (r *run) refuseToken(c *pb.Command) *pb.Result {
	id := c.GetCaller().GetTokenId()
	if len(id) == 0 {
		return nil
	}
	if t := r.token(id); t == nil || !state.TokenLives(t, r.now) {
		return refuse(schema.Unauthenticated, "the token has been revoked or is over")
	}
	return nil
}

func (r *run) token(id []byte) *pb.TokenRow {
	if len(id) != 16 {
		return nil
	}
	return r.s.Token(ID(id))
}

func (r *run) createToken(c *pb.CreateToken) *pb.Result {
	if len(c.TokenId) != 16 || len(c.SecretHash) != 32 {
		return violation("/token_id", "a token has an id of 16 bytes and a hash of 32")
	}
	old := r.token(c.TokenId)
	switch {
	case old != nil && c.First && bytes.Equal(old.SecretHash, c.SecretHash):
		return tokenResult(old) // each server of a new cluster may bring the same one
	case old != nil:
		return refuse(schema.Conflict, "there is a token with this id already")
	case c.First && r.tx.Meta().TokensMade:
		return refuse(schema.Conflict, "this cluster has had its first token")
	case c.ExpiresAtUs != 0 && c.ExpiresAtUs <= r.now:
		return violation("/expires_at", "expires_at is over already")
	}
	for _, g := range c.Grants {
		if g.Namespace != everywhere && r.s.NamespaceByName(g.Namespace) == nil {
			return refuse(schema.NotFound, "no namespace %q, which a grant names", g.Namespace)
		}
	}
	all := r.s.Tokens(ID{})
	if n := len(slices.DeleteFunc(slices.Clone(all), r.tokenGone)); n >= tokensMax {
		return refuse(schema.Conflict, "the cluster has %d tokens already; revoke some that are not used", n)
	}
	r.forgetTokens(all)
	row := &pb.TokenRow{
		Id: c.TokenId, Name: c.Name, SecretHash: c.SecretHash, Grants: c.Grants,
		CreatedAtUs: r.now, CreatedBy: r.cmd.GetCaller().GetPrincipal(), ExpiresAtUs: c.ExpiresAtUs,
	}
	r.tx.PutToken(row)
	r.tx.Meta().TokensMade = true
	return tokenResult(row)
}

// everywhere is the namespace of a grant that holds in all.
const everywhere = "*"

// tokenGone says that a token has been of no use for so long that it need not be
// shown any more.
func (r *run) tokenGone(t *pb.TokenRow) bool {
	return t.RevokedAtUs != 0 && t.RevokedAtUs+tokenKeptUs <= r.now || t.ExpiresAtUs != 0 && t.ExpiresAtUs+tokenKeptUs <= r.now
}

func (r *run) forgetTokens(all []*pb.TokenRow) {
	left := 0
	for _, t := range all {
		if r.tokenGone(t) && left < tokensLeaveMax {
			r.tx.DeleteToken(ID(t.Id))
			left++
		}
	}
}

// revokeToken ends a token for ever. Once more is no change.
func (r *run) revokeToken(c *pb.RevokeToken) *pb.Result {
	t := r.token(c.TokenId)
	if t == nil {
		return refuse(schema.NotFound, "no such token")
	}
	if t.RevokedAtUs == 0 {
		t = state.CopyToken(t)
		t.RevokedAtUs, t.RevokedBy = r.now, r.cmd.GetCaller().GetPrincipal()
		r.tx.PutToken(t)
	}
	return tokenResult(t)
}

// touchTokens notes when tokens were last used, as coarsely as that is worth.
func (r *run) touchTokens(c *pb.TouchTokens) *pb.Result {
	for _, u := range c.Uses {
		t := r.token(u.TokenId)
		at := min(u.UsedAtUs, r.now)
		if t == nil || t.RevokedAtUs != 0 || t.UsedAtUs != 0 && at < t.UsedAtUs+tokenUseStepUs {
			continue
		}
		t = state.CopyToken(t)
		t.UsedAtUs = at
		r.tx.PutToken(t)
	}
	return &pb.Result{}
}

// recordAction changes nothing: it is there to be put on record.
func (r *run) recordAction(*pb.RecordAction) *pb.Result { return &pb.Result{} }

func tokenResult(t *pb.TokenRow) *pb.Result {
	return &pb.Result{Body: &pb.Result_Token{Token: viewToken(t)}}
}

// viewToken leaves the secret's hash out.
func viewToken(t *pb.TokenRow) *pb.TokenRow {
	v := state.CopyToken(t)
	v.SecretHash = nil
	return v
}

// tokensIn counts the tokens that still give a right in a namespace.
func (r *run) tokensIn(namespace string) int {
	n := 0
	for _, t := range r.s.Tokens(ID{}) {
		if state.TokenLives(t, r.now) && slices.ContainsFunc(t.Grants, func(g *pb.TokenGrant) bool { return g.Namespace == namespace }) {
			n++
		}
	}
	return n
}
