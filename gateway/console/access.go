package console

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// grant is a role and where it holds.
type grant struct {
	Role      string   `json:"role"`
	Namespace string   `json:"namespace"`
	Queues    []string `json:"queues,omitempty"`
}

func (g grant) String() string {
	out := g.Role + "@" + g.Namespace
	if len(g.Queues) > 0 {
		out += "/" + strings.Join(g.Queues, ",")
	}
	return out
}

type accessToken struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Secret    string    `json:"token"`
	Grants    []grant   `json:"grants"`
	CreatedAt time.Time `json:"created_at"`
	CreatedBy string    `json:"created_by"`
	ExpiresAt time.Time `json:"expires_at"`
	RevokedAt time.Time `json:"revoked_at"`
	RevokedBy string    `json:"revoked_by"`
	UsedAt    time.Time `json:"used_at"`
}

// Good says that the token gives its rights now.
func (t *accessToken) Good() bool {
	return t.RevokedAt.IsZero() && (t.ExpiresAt.IsZero() || time.Now().Before(t.ExpiresAt))
}

type change struct {
	Position   string    `json:"position"`
	At         time.Time `json:"at"`
	Namespaces []string  `json:"namespaces"`
	Principal  string    `json:"principal"`
	TokenName  string    `json:"token_name"`
	Action     string    `json:"action"`
	Target     string    `json:"target"`
	Detail     string    `json:"detail"`
	Note       string    `json:"note"`
	RequestID  string    `json:"request_id"`
}

type refusedAttempts struct {
	Unauthenticated uint64 `json:"unauthenticated,string"`
	Forbidden       uint64 `json:"forbidden,string"`
	RateLimited     uint64 `json:"rate_limited,string"`
	Newest          []struct {
		At        time.Time `json:"at"`
		Code      string    `json:"code"`
		Principal string    `json:"principal"`
		Address   string    `json:"address"`
		Method    string    `json:"method"`
	} `json:"newest"`
}

// accessPage is who may do what, and who did what. What the visitor may not see is
// left out, and the page says so.
type accessPage struct {
	Caller struct {
		Principal string  `json:"principal"`
		Grants    []grant `json:"grants"`
	}
	Tokens    []*accessToken
	MayTokens bool
	Names     map[string]string // what tokens are for, by principal
	Changes   []*change
	MayAudit  bool
	Next      string
	// What changes are shown.
	Everywhere                bool
	Principal, Action, Target string
	Refused                   *refusedAttempts
	Shown                     *accessToken // just made: shown this once
	Roles                     []string
	CreateGrant               string
}

func (v *visit) access() error { return v.accessWith(nil) }

func (v *visit) accessWith(shown *accessToken) error {
	ask := v.r.URL.Query()
	if v.ns = ask.Get("ns"); v.r.Method == http.MethodPost {
		v.ns = v.r.PostForm.Get("ns")
	}
	if v.ns == "" {
		v.ns = defaultNamespace
	}
	p := accessPage{
		Shown: shown, Roles: []string{"reader", "submitter", "operator", "worker", "admin"}, CreateGrant: "submitter@" + v.ns, Names: map[string]string{},
		Everywhere: ask.Get("all") != "", Principal: ask.Get("principal"), Action: ask.Get("action"), Target: ask.Get("target"),
	}
	if err := v.call(http.MethodGet, "/v1/caller", nil, nil, &p.Caller); err != nil {
		return err
	}
	v.askWhatMay()
	var tokens struct {
		Tokens []*accessToken `json:"tokens"`
	}
	if v.frame.May("list-tokens") {
		var err error
		if p.MayTokens, err = may(v.read("/v1/tokens", url.Values{"limit": {"1000"}}, &tokens)); err != nil {
			return err
		}
	}
	p.Tokens = tokens.Tokens
	for _, t := range p.Tokens {
		p.Names["token/"+t.ID] = t.Name
	}
	if err := v.changes(&p); err != nil {
		return err
	}
	if refused := (&refusedAttempts{}); v.frame.May("list-refused") {
		seen, err := may(v.call(http.MethodGet, "/v1/audit/refused", nil, nil, refused))
		if err != nil {
			return err
		}
		if seen {
			p.Refused = refused
		}
	}
	v.frame.Here, v.frame.Live = "access", v.r.Method == http.MethodGet // what is shown once is not to be refreshed away
	return v.render(http.StatusOK, "access", "Access", p)
}

// changes reads a page of the record.
func (v *visit) changes(p *accessPage) error {
	shown := url.Values{"ns": {v.ns}}
	query := url.Values{"limit": {"50"}}
	for name, value := range map[string]string{"principal": p.Principal, "action": p.Action, "target": p.Target, "cursor": v.r.URL.Query().Get("cursor")} {
		if value = strings.TrimSpace(value); value != "" {
			query.Set(name, value)
			shown.Set(name, value)
		}
	}
	if p.Everywhere {
		shown.Set("all", "1")
	} else {
		query.Set("namespace", v.ns)
	}
	var changes struct {
		Changes    []*change `json:"changes"`
		NextCursor string    `json:"next_cursor"`
	}
	if v.frame.May("list-audit") {
		var err error
		if p.MayAudit, err = may(v.read("/v1/audit", query, &changes)); err != nil {
			return err
		}
	}
	p.Changes = changes.Changes
	if changes.NextCursor != "" {
		shown.Set("cursor", changes.NextCursor)
		p.Next = root + "access?" + shown.Encode()
	}
	return nil
}

func (v *visit) accessPath() string { return root + "access?ns=" + url.QueryEscape(v.ns) }

// may tells what the visitor may not see from what went wrong.
func may(err error) (bool, error) {
	if p := asProblem(err); p != nil && p.Status == http.StatusForbidden {
		return false, nil
	}
	return err == nil, err
}

// doAccess makes or revokes a token.
func (v *visit) doAccess() error {
	form := v.r.PostForm
	if v.ns = form.Get("ns"); v.ns == "" {
		v.ns = defaultNamespace
	}
	switch form.Get("do") {
	case "revoke":
		if err := v.post("/v1/tokens/"+url.PathEscape(form.Get("id"))+":revoke", nil, nil); err != nil {
			return err
		}
		return v.done(v.accessPath(), "The token is revoked; what it holds open ends within seconds.")
	case "create":
		body, err := newTokenOf(form, v.now)
		if err != nil {
			return err
		}
		made := &accessToken{}
		if err := v.post("/v1/tokens", body, made); err != nil {
			return err
		}
		return v.accessWith(made) // not behind a redirect: it is shown in this answer alone
	}
	return v.nowhere()
}

func newTokenOf(form url.Values, now time.Time) (map[string]any, error) {
	body := map[string]any{"name": strings.TrimSpace(form.Get("name"))}
	var grants []grant
	for _, text := range strings.Fields(form.Get("grants")) {
		role, where, ok := strings.Cut(text, "@")
		if !ok {
			return nil, &problem{Status: http.StatusBadRequest, Title: "A grant could not be read", Detail: fmt.Sprintf("%q is none: write ROLE@NAMESPACE, like submitter@billing, or worker@billing/queue. No token was made.", text)}
		}
		g := grant{Role: role, Namespace: where}
		if namespace, queues, some := strings.Cut(where, "/"); some {
			g.Namespace, g.Queues = namespace, strings.Split(queues, ",")
		}
		grants = append(grants, g)
	}
	body["grants"] = grants
	if text := strings.TrimSpace(form.Get("days")); text != "" {
		days, err := strconv.ParseUint(text, 10, 16)
		if err != nil || days == 0 {
			return nil, &problem{Status: http.StatusBadRequest, Title: "The days could not be read", Detail: fmt.Sprintf("%q is no number of days from 1. No token was made.", text)}
		}
		body["expires_at"] = now.Add(time.Duration(days) * 24 * time.Hour).UTC().Truncate(time.Microsecond).Format(time.RFC3339Nano)
	}
	return body, nil
}
