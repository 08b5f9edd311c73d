package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"pulse/gateway/session"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
	"pulse/schema/access"
)

// TokensConfig of Tokens. Backend, Else and Logger are required; the zero value of
// a number means the default beside it.
type TokensConfig struct {
	Backend session.Backend
	// Else decides about whoever shows no token.
	Else Authenticator
	// Required refuses whoever shows neither token nor client certificate, on this
	// machine too.
	Required bool
	Logger   *slog.Logger

	// RequestsPerSecond and RequestBurst hold one token to its share of this node:
	// 5,000 and 20,000.
	RequestsPerSecond float64
	RequestBurst      int
}

const (
	// tokenFresh is how long a token that was looked up is believed.
	tokenFresh = time.Second
	// tokenLook is how often the tokens of open connections are looked at again.
	tokenLook = time.Second
	// tokenLookWithin bounds one look.
	tokenLookWithin = 5 * time.Second
	// tokensKnownMax bounds the tokens that are remembered between two requests.
	tokensKnownMax = 16_384
	// tokenUseTold is how often the cluster is told of a token's use.
	tokenUseTold = 10 * time.Minute
	// askingMax bounds the looks at unknown ids that are under way with the leader:
	// who guesses ids must not keep it busy.
	askingMax = 16
)

// Tokens lets in whoever shows an access token, with what it grants, and leaves
// everybody else to another Authenticator. A token that is shown decides alone: one
// that is no good is refused, whatever else the caller has.
//
// What the state says about a token is remembered for a second. Run looks again at
// those that something open depends on, and ends it when they are revoked; it also
// tells the cluster which were used.
type Tokens struct {
	cfg    TokensConfig
	now    func() time.Time
	asking chan struct{}

	mu    sync.Mutex
	known map[schema.ID]*knownToken
}

var _ Authenticator = (*Tokens)(nil)

// knownToken is what this node knows of a token. Guarded by Tokens.mu.
type knownToken struct {
	row    *pb.TokenRow // nil: the state knows none
	readAt time.Time
	ended  chan struct{} // closed once row is no good any more
	over   bool
	held   int // by what is open
	usedAt time.Time
	toldAt time.Time // of its use

	taken float64 // of its rate
	since time.Time
}

// NewTokens checks the config.
func NewTokens(cfg TokensConfig) (*Tokens, error) {
	if cfg.Backend == nil || cfg.Else == nil || cfg.Logger == nil {
		return nil, errors.New("gateway: Tokens needs Backend, Else and Logger")
	}
	if cfg.RequestsPerSecond <= 0 {
		cfg.RequestsPerSecond = 5000
	}
	if cfg.RequestBurst <= 0 {
		cfg.RequestBurst = 20_000
	}
	return &Tokens{cfg: cfg, now: time.Now, asking: make(chan struct{}, askingMax), known: map[schema.ID]*knownToken{}}, nil
}

// DemandsCredential implements Authenticator.
func (t *Tokens) DemandsCredential() bool { return t.cfg.Required || t.cfg.Else.DemandsCredential() }

// errNoToken is the same for an unknown id, a wrong secret and text that is no
// token: who guesses learns nothing.
func errNoToken() *schema.Error {
	return schema.Errorf(schema.Unauthenticated, "the token is not known, or has been revoked or is over: give a good one in Authorization: Bearer, or PULSE_TOKEN; 'pulse token list' shows an admin which there are")
}

// Authenticate implements Authenticator.
func (t *Tokens) Authenticate(r *http.Request) (session.Identity, *schema.Error) {
	text, shown := access.BearerOf(r.Header["Authorization"])
	if !shown {
		if _, lone := t.cfg.Else.(Loopback); lone && t.cfg.Required {
			return session.Identity{}, schema.Errorf(schema.Unauthenticated, "show a token in Authorization: Bearer (PULSE_TOKEN); an admin makes one with 'pulse token create'")
		}
		return t.cfg.Else.Authenticate(r)
	}
	token, ok := access.ParseToken(text)
	if !ok {
		return session.Identity{}, errNoToken()
	}
	row, refusal := t.find(r.Context(), token.ID)
	if refusal != nil {
		return session.Identity{}, refusal
	}
	hash := make([]byte, 32)
	if row != nil {
		hash = row.SecretHash
	}
	if good := token.Is(hash); row == nil || !good || !lives(row, t.now()) {
		return session.Identity{}, errNoToken()
	}
	if !t.admit(token.ID) {
		return session.Identity{}, schema.Errorf(schema.RateLimited, "this token makes more than %g requests a second here", t.cfg.RequestsPerSecond)
	}
	return session.Identity{
		Principal: "token/" + token.ID.String(), Grants: grantsOf(row), Token: row.Id,
		Hold: func() (<-chan struct{}, func()) { return t.hold(token.ID) },
	}, nil
}

// lives says that a token is good now. Its end is compared with this node's clock;
// the state compares it with the cluster's again.
func lives(row *pb.TokenRow, now time.Time) bool {
	return row != nil && row.RevokedAtUs == 0 && (row.ExpiresAtUs == 0 || now.UnixMicro() < row.ExpiresAtUs)
}

func grantsOf(row *pb.TokenRow) access.Grants {
	out := make(access.Grants, 0, len(row.Grants))
	for _, g := range row.Grants {
		out = append(out, access.Grant{Role: access.Role(g.Role), Namespace: g.Namespace, Queues: g.Queues})
	}
	return out
}

// find is a token as the state has it; nil if it has none. What this node has
// applied is enough for one that is known. An id that it does not know is asked for
// once more where the newest state is: the token may have been made a moment ago.
func (t *Tokens) find(ctx context.Context, id schema.ID) (*pb.TokenRow, *schema.Error) {
	t.mu.Lock()
	k := t.known[id]
	if k != nil && k.row != nil && t.now().Sub(k.readAt) < tokenFresh {
		row := k.row
		t.mu.Unlock()
		return row, nil
	}
	t.mu.Unlock()
	rows, refusal := t.read(ctx, []schema.ID{id}, pb.Consistency_CONSISTENCY_STALE)
	if refusal == nil && rows[id] == nil {
		select {
		case t.asking <- struct{}{}:
			rows, refusal = t.read(ctx, []schema.ID{id}, pb.Consistency_CONSISTENCY_LINEARIZABLE)
			<-t.asking
		default: // too many guesses at once
		}
	}
	if refusal != nil {
		return nil, refusal
	}
	if rows[id] != nil {
		t.learn(rows, []schema.ID{id})
	}
	return rows[id], nil
}

func (t *Tokens) read(ctx context.Context, ids []schema.ID, level pb.Consistency) (map[schema.ID]*pb.TokenRow, *schema.Error) {
	ctx, cancel := context.WithTimeout(ctx, tokenLookWithin)
	defer cancel()
	b := &pb.ReadTokens{}
	for _, id := range ids {
		b.TokenIds = append(b.TokenIds, append([]byte(nil), id[:]...))
	}
	answer, err := t.cfg.Backend.Read(ctx, &pb.Query{Consistency: level, Body: &pb.Query_ReadTokens{ReadTokens: b}})
	if err == nil && answer.GetCode() != "" {
		err = &schema.Error{Code: schema.Code(answer.Code), Message: answer.Message}
	}
	if err != nil {
		t.cfg.Logger.Debug("tokens could not be looked up", "error", err)
		return nil, schema.Errorf(schema.Unavailable, "the token could not be looked up; try again")
	}
	rows := map[schema.ID]*pb.TokenRow{}
	for _, row := range answer.GetTokens().GetTokens() {
		if len(row.Id) == 16 {
			rows[schema.ID(row.Id)] = row
		}
	}
	return rows, nil
}

// learn notes what was read of tokens, and ends what depends on one that is no good
// any more.
func (t *Tokens) learn(rows map[schema.ID]*pb.TokenRow, asked []schema.ID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range asked {
		k := t.known[id]
		if k == nil {
			if len(t.known) >= tokensKnownMax {
				t.sweep()
			}
			k = &knownToken{ended: make(chan struct{})}
			t.known[id] = k
		}
		k.row, k.readAt = rows[id], t.now()
		if !lives(k.row, t.now()) && !k.over {
			k.over = true
			close(k.ended)
		}
	}
}

// sweep forgets what nothing depends on; t.mu is held.
func (t *Tokens) sweep() {
	for id, k := range t.known {
		if k.held == 0 {
			delete(t.known, id)
		}
	}
}

// admit takes one request out of a token's share.
func (t *Tokens) admit(id schema.ID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.known[id]
	if k == nil {
		return true // forgotten meanwhile
	}
	now := t.now()
	k.usedAt = now
	k.taken = max(0, k.taken-now.Sub(k.since).Seconds()*t.cfg.RequestsPerSecond)
	k.since = now
	if k.taken+1 > float64(t.cfg.RequestBurst) {
		return false
	}
	k.taken++
	return true
}

func (t *Tokens) hold(id schema.ID) (<-chan struct{}, func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.known[id]
	if k == nil {
		k = &knownToken{ended: make(chan struct{})}
		t.known[id] = k
	}
	k.held++
	var once sync.Once
	return k.ended, func() {
		once.Do(func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			k.held--
		})
	}
}

// Run looks again and again at the tokens that something open depends on, and tells
// which were used, until ctx ends.
func (t *Tokens) Run(ctx context.Context) {
	tick := time.NewTicker(tokenLook)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		t.lookAgain(ctx)
		t.tellUses(ctx)
	}
}

func (t *Tokens) lookAgain(ctx context.Context) {
	t.mu.Lock()
	var ids []schema.ID
	for id, k := range t.known {
		if k.held > 0 && !k.over {
			ids = append(ids, id)
		}
	}
	t.mu.Unlock()
	if len(ids) == 0 {
		return
	}
	// What cannot be looked up stays: this node will know when it can. So does what
	// is not there: a token stays on record for a month after its end, so this node
	// has not applied yet that it was made.
	if rows, refusal := t.read(ctx, ids, pb.Consistency_CONSISTENCY_STALE); refusal == nil {
		t.learn(rows, slices.DeleteFunc(ids, func(id schema.ID) bool { return rows[id] == nil }))
	}
}

// tellUses tells the cluster which tokens were used, all in one command. It is not
// repeated when it fails: the next use is told as well.
func (t *Tokens) tellUses(ctx context.Context) {
	now := t.now()
	t.mu.Lock()
	uses := &pb.TouchTokens{}
	for id, k := range t.known {
		if k.usedAt.After(k.toldAt) && now.Sub(k.toldAt) >= tokenUseTold && len(uses.Uses) < 500 {
			uses.Uses = append(uses.Uses, &pb.TokenUse{TokenId: append([]byte(nil), id[:]...), UsedAtUs: k.usedAt.UnixMicro()})
			k.toldAt = now
		}
	}
	t.mu.Unlock()
	if len(uses.Uses) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, tokenLookWithin)
	defer cancel()
	id := access.NewToken().ID
	if _, err := t.cfg.Backend.Submit(ctx, []*pb.Command{{Id: id[:], Body: &pb.Command_TouchTokens{TouchTokens: uses}}}); err != nil {
		t.cfg.Logger.Debug("the use of tokens could not be told", "error", err)
	}
}
