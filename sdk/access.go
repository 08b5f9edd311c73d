package sdk

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"time"
)

// Grant is a role and where it holds: reader, submitter, operator, worker or admin
// in one namespace, or in all of them.
type Grant struct {
	Role      string   `json:"role"`
	Namespace string   `json:"namespace"`        // * for all
	Queues    []string `json:"queues,omitempty"` // the only ones of a worker
}

// TokenSpec is what a new access token is to be.
type TokenSpec struct {
	Name      string    // what it is for
	Grants    []Grant   // at least one
	ExpiresAt time.Time // zero: never
}

// Token is an access token as the cluster shows it.
type Token struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// Secret is what its owner sends. Only the answer that makes a token has it.
	Secret    string     `json:"token,omitempty"`
	Grants    []Grant    `json:"grants"`
	CreatedAt time.Time  `json:"created_at"`
	CreatedBy string     `json:"created_by"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	RevokedAt *time.Time `json:"revoked_at,omitempty"`
	RevokedBy string     `json:"revoked_by,omitempty"`
	UsedAt    *time.Time `json:"used_at,omitempty"` // within some ten minutes
}

// CreateToken makes an access token. Its Secret is shown once: keep it, or revoke
// the token and make another.
func (c *Client) CreateToken(ctx context.Context, spec TokenSpec, opts ...CallOption) (*Token, error) {
	in := struct {
		Name      string  `json:"name"`
		Grants    []Grant `json:"grants"`
		ExpiresAt string  `json:"expires_at,omitempty"`
	}{Name: spec.Name, Grants: spec.Grants}
	if !spec.ExpiresAt.IsZero() {
		in.ExpiresAt = spec.ExpiresAt.UTC().Truncate(time.Microsecond).Format(time.RFC3339Nano)
	}
	body, err := marshal(in)
	if err != nil {
		return nil, err
	}
	out := new(Token)
	if err := c.change(ctx, http.MethodPost, "/v1/tokens", body, out, opts); err != nil {
		return nil, err
	}
	return out, nil
}

// Tokens walks over the access tokens that give rights in the caller's namespaces.
func (c *Client) Tokens(ctx context.Context, opts ...CallOption) iter.Seq2[*Token, error] {
	return walk[*Token](ctx, c, "/v1/tokens", nil, "tokens", opts)
}

// RevokeToken ends a token for ever.
func (c *Client) RevokeToken(ctx context.Context, id string, opts ...CallOption) (*Token, error) {
	out := new(Token)
	if err := c.change(ctx, http.MethodPost, "/v1/tokens/"+escape(id)+":revoke", nil, out, opts); err != nil {
		return nil, err
	}
	return out, nil
}

// Caller is in whose name a client asks, and what it may do.
type Caller struct {
	Principal string  `json:"principal"`
	Grants    []Grant `json:"grants"`
}

// Caller asks the cluster who this client is to it.
func (c *Client) Caller(ctx context.Context, opts ...CallOption) (*Caller, error) {
	out := new(Caller)
	if err := c.read(ctx, "/v1/caller", nil, out, opts); err != nil {
		return nil, err
	}
	return out, nil
}

// Change is one line of the record of changes: who did what, and why.
type Change struct {
	Position       uint64    `json:"position,string"`
	Index          uint64    `json:"index,string"`
	At             time.Time `json:"at"`
	Namespaces     []string  `json:"namespaces"`
	Principal      string    `json:"principal"`
	TokenID        string    `json:"token_id,omitempty"`
	TokenName      string    `json:"token_name,omitempty"`
	Roles          []string  `json:"roles,omitempty"`
	Action         string    `json:"action"`
	Target         string    `json:"target,omitempty"`
	Detail         string    `json:"detail,omitempty"`
	Note           string    `json:"note,omitempty"`
	RequestID      string    `json:"request_id,omitempty"`
	CommandID      string    `json:"command_id,omitempty"`
	IdempotencyKey string    `json:"idempotency_key,omitempty"`
}

// AuditFilter selects changes; what is empty selects all.
type AuditFilter struct {
	Namespace, Principal string
	Action               string // pulse.queue. is all that begin so
	Target               string
	From, Until          time.Time
}

// Audit walks over the record of changes, newest first.
func (c *Client) Audit(ctx context.Context, f AuditFilter, opts ...CallOption) iter.Seq2[*Change, error] {
	query := url.Values{}
	for name, value := range map[string]string{"namespace": f.Namespace, "principal": f.Principal, "action": f.Action, "target": f.Target} {
		if value != "" {
			query.Set(name, value)
		}
	}
	for name, at := range map[string]time.Time{"from": f.From, "until": f.Until} {
		if !at.IsZero() {
			query.Set(name, at.UTC().Truncate(time.Microsecond).Format(time.RFC3339Nano))
		}
	}
	return walk[*Change](ctx, c, "/v1/audit", query, "changes", opts)
}

// Quota bounds what a namespace may hold; 0 is no bound.
type Quota struct {
	TasksWaiting uint64 `json:"tasks_waiting,string"`
	PayloadBytes uint64 `json:"payload_bytes,string"` // of tasks that are not over
	Workers      uint64 `json:"workers,string"`       // connected at a time
}

// SetQuota replaces the quota of a namespace, which is made if it is not there.
func (c *Client) SetQuota(ctx context.Context, namespace string, quota Quota, opts ...CallOption) (*Namespace, error) {
	body, err := marshal(map[string]Quota{"quota": quota})
	if err != nil {
		return nil, err
	}
	out := new(Namespace)
	if err := c.change(ctx, http.MethodPut, "/v1/namespaces/"+escape(namespace), body, out, opts); err != nil {
		return nil, err
	}
	return out, nil
}
