package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pulse/gateway/session"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
	"pulse/schema/access"
)

// tokenState is what the replicated state knows of tokens. What is in newest alone
// has not reached this node's replica.
type tokenState struct {
	mu     sync.Mutex
	rows   map[schema.ID]*pb.TokenRow
	newest map[schema.ID]*pb.TokenRow
	reads  []*pb.Query
	told   []*pb.TokenUse
	fail   error
}

func (s *tokenState) Read(_ context.Context, q *pb.Query) (*pb.Answer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads = append(s.reads, q)
	if s.fail != nil {
		return nil, s.fail
	}
	list := &pb.TokenList{}
	for _, id := range q.GetReadTokens().GetTokenIds() {
		row := s.rows[schema.ID(id)]
		if row == nil && q.Consistency == pb.Consistency_CONSISTENCY_LINEARIZABLE {
			row = s.newest[schema.ID(id)]
		}
		if row != nil {
			list.Tokens = append(list.Tokens, row)
		}
	}
	return &pb.Answer{Body: &pb.Answer_Tokens{Tokens: list}}, nil
}

func (s *tokenState) Submit(_ context.Context, cmds []*pb.Command) ([]*pb.Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range cmds {
		s.told = append(s.told, c.GetTouchTokens().GetUses()...)
	}
	return make([]*pb.Result, len(cmds)), nil
}

func (*tokenState) Subscribe([]byte) (<-chan struct{}, func()) { return nil, func() {} }
func (*tokenState) AppliedIndex() uint64                       { return 0 }

func (s *tokenState) set(change func(*tokenState)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

func rowOf(t access.Token) *pb.TokenRow {
	return &pb.TokenRow{Id: append([]byte(nil), t.ID[:]...), SecretHash: t.Hash(), Grants: []*pb.TokenGrant{{Role: "worker", Namespace: "mine", Queues: []string{"q"}}}}
}

// withTokens runs a test in a bubble with one token that is known.
func withTokens(t *testing.T, cfg TokensConfig, test func(t *testing.T, tokens *Tokens, state *tokenState, token access.Token)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		token := access.NewToken()
		state := &tokenState{rows: map[schema.ID]*pb.TokenRow{token.ID: rowOf(token)}, newest: map[schema.ID]*pb.TokenRow{}}
		if cfg.Else == nil {
			cfg.Else = Loopback{}
		}
		cfg.Backend, cfg.Logger = state, slog.New(slog.DiscardHandler)
		tokens, err := NewTokens(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { tokens.Run(ctx) })
		test(t, tokens, state, token)
		stop()
		running.Wait()
	})
}

func asking(authorization ...string) *http.Request {
	r := (&http.Request{RemoteAddr: "127.0.0.1:1", Header: http.Header{}}).WithContext(context.Background())
	if len(authorization) > 0 {
		r.Header["Authorization"] = authorization
	}
	return r
}

func TestATokenSaysWhoAsksAndWhatHeMay(t *testing.T) {
	t.Parallel()
	withTokens(t, TokensConfig{}, func(t *testing.T, tokens *Tokens, _ *tokenState, token access.Token) {
		who, refusal := tokens.Authenticate(asking("Bearer " + token.Reveal()))
		if refusal != nil || who.Principal != "token/"+token.ID.String() || string(who.Token) != string(token.ID[:]) ||
			strings.Join(who.Grants.Strings(), " ") != "worker@mine/q" {
			t.Errorf("%+v %v", who, refusal)
		}
		if who, refusal := tokens.Authenticate(asking()); refusal != nil || who.Principal != "anonymous" {
			t.Errorf("nobody, on this machine: %+v %v", who, refusal)
		}
	})
}

// A token that is shown decides alone, and all that is wrong with one is answered
// alike.
func TestABadTokenIsNoTokenEvenOnThisMachine(t *testing.T) {
	t.Parallel()
	withTokens(t, TokensConfig{}, func(t *testing.T, tokens *Tokens, state *tokenState, token access.Token) {
		good := token.Reveal()
		revoked, over := access.NewToken(), access.NewToken()
		state.set(func(s *tokenState) {
			s.rows[revoked.ID], s.rows[over.ID] = rowOf(revoked), rowOf(over)
			s.rows[revoked.ID].RevokedAtUs = 1
			s.rows[over.ID].ExpiresAtUs = time.Now().UnixMicro()
		})
		want := errNoToken().Message
		for name, header := range map[string][]string{
			"no token":             {"Bearer"},
			"another scheme":       {"Basic " + good},
			"text":                 {"Bearer hello"},
			"an unknown id":        {"Bearer " + access.NewToken().Reveal()},
			"a wrong secret":       {"Bearer " + good[:len(good)-64] + strings.Repeat("0", 64)},
			"another's secret":     {"Bearer " + good[:len(good)-64] + revoked.Reveal()[39:]},
			"in capitals":          {"Bearer " + strings.ToUpper(good)},
			"with more behind":     {"Bearer " + good + "0"},
			"twice":                {"Bearer " + good, "Bearer " + good},
			"revoked":              {"Bearer " + revoked.Reveal()},
			"over to the instant":  {"Bearer " + over.Reveal()},
			"with an empty secret": {"Bearer " + good[:len(good)-64]},
		} {
			who, refusal := tokens.Authenticate(asking(header...))
			if refusal == nil || refusal.Code != schema.Unauthenticated || refusal.Message != want || len(who.Grants) != 0 {
				t.Errorf("%s: %+v %v", name, who, refusal)
			}
		}
	})
}

func TestANodeThatAsksForTokensAsksEverybody(t *testing.T) {
	t.Parallel()
	withTokens(t, TokensConfig{Required: true}, func(t *testing.T, tokens *Tokens, _ *tokenState, token access.Token) {
		if _, refusal := tokens.Authenticate(asking()); refusal == nil || refusal.Code != schema.Unauthenticated || !strings.Contains(refusal.Message, "PULSE_TOKEN") {
			t.Errorf("nobody: %v", refusal)
		}
		if _, refusal := tokens.Authenticate(asking("bearer " + token.Reveal())); refusal != nil {
			t.Errorf("a token: %v", refusal)
		}
		if !tokens.DemandsCredential() {
			t.Error("it does not say so")
		}
	})
}

// The token may have been made on another node a moment ago.
func TestATokenThatThisNodeHasNotHeardOfIsAskedFor(t *testing.T) {
	t.Parallel()
	withTokens(t, TokensConfig{}, func(t *testing.T, tokens *Tokens, state *tokenState, _ access.Token) {
		young := access.NewToken()
		state.set(func(s *tokenState) { s.newest[young.ID] = rowOf(young) })
		who, refusal := tokens.Authenticate(asking("Bearer " + young.Reveal()))
		if refusal != nil {
			t.Fatal(refusal)
		}
		// That the replica does not know it yet does not end what is open with it.
		ended, release := who.Watch()
		defer release()
		time.Sleep(10 * time.Second)
		select {
		case <-ended:
			t.Error("it was ended because the replica lags")
		default:
		}
	})
}

func TestARevokedTokenIsRefusedAndEndsWhatIsOpen(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*pb.TokenRow) *pb.TokenRow{
		"revoked": func(r *pb.TokenRow) *pb.TokenRow {
			return &pb.TokenRow{Id: r.Id, SecretHash: r.SecretHash, Grants: r.Grants, RevokedAtUs: 1}
		},
		"over": func(r *pb.TokenRow) *pb.TokenRow {
			return &pb.TokenRow{Id: r.Id, SecretHash: r.SecretHash, Grants: r.Grants, ExpiresAtUs: time.Now().Add(2 * time.Second).UnixMicro()}
		},
	} {
		t.Run(name, func(t *testing.T) {
			withTokens(t, TokensConfig{}, func(t *testing.T, tokens *Tokens, state *tokenState, token access.Token) {
				who, refusal := tokens.Authenticate(asking("Bearer " + token.Reveal()))
				if refusal != nil {
					t.Fatal(refusal)
				}
				ended, release := who.Watch()
				defer release()
				time.Sleep(time.Minute)
				select {
				case <-ended:
					t.Fatal("ended while it is good")
				default:
				}
				state.set(func(s *tokenState) { s.rows[token.ID] = spoil(s.rows[token.ID]) })
				start := time.Now()
				<-ended
				if took := time.Since(start); took > 4*time.Second {
					t.Errorf("it took %s", took)
				}
				if _, refusal := tokens.Authenticate(asking("Bearer " + token.Reveal())); refusal == nil || refusal.Code != schema.Unauthenticated {
					t.Errorf("a request: %v", refusal)
				}
			})
		})
	}
}

func TestWithoutAnAnswerNothingIsRefusedForGood(t *testing.T) {
	t.Parallel()
	withTokens(t, TokensConfig{}, func(t *testing.T, tokens *Tokens, state *tokenState, token access.Token) {
		who, _ := tokens.Authenticate(asking("Bearer " + token.Reveal()))
		ended, release := who.Watch()
		defer release()
		state.set(func(s *tokenState) { s.fail = errors.New("nobody there") })
		time.Sleep(time.Minute)
		select {
		case <-ended:
			t.Error("what is open was ended because nobody answers")
		default:
		}
		if _, refusal := tokens.Authenticate(asking("Bearer " + token.Reveal())); refusal == nil || refusal.Code != schema.Unavailable {
			t.Errorf("a request: %v, want unavailable: it may be tried again", refusal)
		}
	})
}

func TestATokenIsLookedUpOnceASecond(t *testing.T) {
	t.Parallel()
	withTokens(t, TokensConfig{}, func(t *testing.T, tokens *Tokens, state *tokenState, token access.Token) {
		for range 1000 {
			if _, refusal := tokens.Authenticate(asking("Bearer " + token.Reveal())); refusal != nil {
				t.Fatal(refusal)
			}
		}
		if n := len(state.reads); n != 1 {
			t.Errorf("%d reads for 1000 requests", n)
		}
	})
}

func TestATokenIsHeldToItsRate(t *testing.T) {
	t.Parallel()
	withTokens(t, TokensConfig{RequestsPerSecond: 2, RequestBurst: 3}, func(t *testing.T, tokens *Tokens, state *tokenState, token access.Token) {
		other := access.NewToken()
		state.set(func(s *tokenState) { s.rows[other.ID] = rowOf(other) })
		refused := func(of access.Token) bool {
			_, refusal := tokens.Authenticate(asking("Bearer " + of.Reveal()))
			if refusal != nil && refusal.Code != schema.RateLimited {
				t.Fatal(refusal)
			}
			return refusal != nil
		}
		got := fmt.Sprint(refused(token), refused(token), refused(token), refused(token), refused(other))
		time.Sleep(time.Second)
		got += fmt.Sprint(" ", refused(token), refused(token), refused(token))
		if want := "false false false true false false false true"; got != want {
			t.Errorf("refused: %s, want %s", got, want)
		}
	})
}

func TestTheUseOfATokenIsToldCoarsely(t *testing.T) {
	t.Parallel()
	withTokens(t, TokensConfig{}, func(t *testing.T, tokens *Tokens, state *tokenState, token access.Token) {
		for range 60 * 25 { // 25 minutes, a request a second
			if _, refusal := tokens.Authenticate(asking("Bearer " + token.Reveal())); refusal != nil {
				t.Fatal(refusal)
			}
			time.Sleep(time.Second)
		}
		if n := len(state.told); n != 3 {
			t.Errorf("told %d times, want every ten minutes", n)
		}
	})
}

func TestTokensDoNotPrintTheirSecret(t *testing.T) {
	t.Parallel()
	token := access.NewToken()
	secret := token.Reveal()[39:]
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "token", token, "in", struct{ T access.Token }{token})
	for _, text := range []string{fmt.Sprint(token), fmt.Sprintf("%v %+v %#v %s", token, token, token, token), log.String()} {
		if strings.Contains(text, secret) || strings.Contains(text, "[2") && strings.Contains(text, "byte{") {
			t.Errorf("printed: %s", text)
		}
	}
}

var _ session.Backend = (*tokenState)(nil)
