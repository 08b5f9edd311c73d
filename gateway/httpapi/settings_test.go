package httpapi

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"pulse/gateway/session"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
	"pulse/schema/access"
)

const settingsPath = "/v1/cluster/settings"

// settingsRig keeps what is set, as the state does.
func settingsRig(t *testing.T, change ...func(*Options)) *rig {
	r := newRig(t, change...)
	stats := &pb.Stats{EventRetentionMs: 259_200_000, IdempotencyKeysMax: 10_000_000}
	r.submit = func(_ context.Context, cmds []*pb.Command) ([]*pb.Result, error) {
		c := cmds[0].GetSetCluster()
		if c.EventRetentionMs > 0 {
			stats.EventRetentionMs = c.EventRetentionMs
		}
		if c.IdempotencyKeysMax > 0 {
			stats.IdempotencyKeysMax = c.IdempotencyKeysMax
		}
		return []*pb.Result{{Index: 90}}, nil
	}
	r.read = func(_ context.Context, q *pb.Query) (*pb.Answer, error) {
		return &pb.Answer{Index: max(79, q.MinIndex), Body: &pb.Answer_Stats{Stats: stats}}, nil
	}
	return r
}

func TestSettingsAreChangedOneByOneAndReadBack(t *testing.T) {
	t.Parallel()
	r := settingsRig(t)
	for _, c := range []struct{ method, body, want string }{
		{"GET", "", `{"event_retention_ms":259200000,"idempotency_keys_max":"10000000"}`},
		{"PUT", `{"idempotency_keys_max":20000000}`, `{"event_retention_ms":259200000,"idempotency_keys_max":"20000000"}`},
		{"PUT", `{"event_retention_ms":60000}`, `{"event_retention_ms":60000,"idempotency_keys_max":"20000000"}`},
		{"GET", "", `{"event_retention_ms":60000,"idempotency_keys_max":"20000000"}`},
		{"PUT", `{"event_retention_ms":315360000000,"idempotency_keys_max":"1000000000"}`, `{"event_retention_ms":315360000000,"idempotency_keys_max":"1000000000"}`},
		{"PUT", `{"idempotency_keys_max":1}`, `{"event_retention_ms":315360000000,"idempotency_keys_max":"1"}`},
	} {
		if w := r.do(c.method, settingsPath, c.body); w.Code != http.StatusOK || strings.TrimSpace(w.Body.String()) != c.want {
			t.Errorf("%s %s: %d %s", c.method, c.body, w.Code, w.Body)
		}
		if q := r.asked(); c.method == "PUT" && q[len(q)-1].MinIndex != 90 {
			t.Errorf("%s: what was read may be older than the change: %v", c.body, q[len(q)-1])
		}
	}
}

func TestSettingsOutOfBoundsAreRefused(t *testing.T) {
	t.Parallel()
	r := settingsRig(t)
	const retention, keys = "/event_retention_ms must be a whole number from 60000 to 315360000000", "/idempotency_keys_max must be a whole number from 1 to 1000000000"
	for body, want := range map[string]string{
		``:                                                  "",
		`{}`:                                                "give event_retention_ms or idempotency_keys_max",
		`{"event_retention_ms":59999}`:                      retention,
		`{"event_retention_ms":315360000001}`:               retention,
		`{"event_retention_ms":0}`:                          retention,
		`{"event_retention_ms":-60000}`:                     retention,
		`{"event_retention_ms":60000.5}`:                    retention,
		`{"event_retention_ms":"60000"}`:                    retention,
		`{"event_retention_ms":null}`:                       retention,
		`{"idempotency_keys_max":0}`:                        keys,
		`{"idempotency_keys_max":"0"}`:                      keys,
		`{"idempotency_keys_max":1000000001}`:               keys,
		`{"idempotency_keys_max":"x"}`:                      keys,
		`{"idempotency_keys_max":null}`:                     keys,
		`{"format_level":2}`:                                "/format_level",
		`{"event_retention_ms":1,"idempotency_keys_max":0}`: retention + ", and 1 more",
	} {
		w := r.do("PUT", settingsPath, body)
		if p := problemOf(t, w); w.Code != http.StatusBadRequest || p.Code != "invalid_argument" || len(p.Violations) == 0 || !strings.HasPrefix(p.Detail, want) {
			t.Errorf("%s: %d %+v", body, w.Code, p)
		}
	}
	if c := r.commanded(); len(c) > 0 {
		t.Errorf("bad input became %v", c)
	}
}

func TestSettingsAreReadByAllAndChangedByAdmins(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		grant    access.Grant
		get, put int
	}{
		{access.Grant{Role: access.Reader, Namespace: "billing"}, 200, 403},
		{access.Grant{Role: access.Operator, Namespace: access.Everywhere}, 200, 403},
		{access.Grant{Role: access.Admin, Namespace: "billing"}, 200, 403},
		{access.Grant{Role: access.Admin, Namespace: access.Everywhere}, 200, 200},
	} {
		r := settingsRig(t, func(o *Options) {
			o.Authenticate = func(*http.Request) (session.Identity, *schema.Error) {
				return session.Identity{Principal: "somebody", Grants: access.Grants{c.grant}}, nil
			}
		})
		if w := r.do("GET", settingsPath, ""); w.Code != c.get {
			t.Errorf("GET by %s: %d %s", c.grant, w.Code, w.Body)
		}
		if w := r.do("PUT", settingsPath, `{"idempotency_keys_max":5}`); w.Code != c.put {
			t.Errorf("PUT by %s: %d %s", c.grant, w.Code, w.Body)
		}
	}
}

// Who is told that there was no leader takes it that nothing has happened.
func TestSettingsThatWereChangedAreNotSaidToBeAsTheyWere(t *testing.T) {
	t.Parallel()
	r := settingsRig(t)
	r.read = func(context.Context, *pb.Query) (*pb.Answer, error) {
		return nil, schema.Errorf(schema.NoLeader, "none")
	}
	w := r.do("PUT", settingsPath, `{"idempotency_keys_max":5}`)
	if p := problemOf(t, w); p.Code != "result_unknown" || !p.Retryable || !strings.Contains(p.Detail, "were changed") {
		t.Errorf("%d %+v", w.Code, p)
	}
}

// During an upgrade a server may answer that knows of no settings in its answer: a
// 0 would be a lie.
func TestSettingsThatAreNotToldAreNotGuessed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.read = func(context.Context, *pb.Query) (*pb.Answer, error) {
		return &pb.Answer{Index: 79, Body: &pb.Answer_Stats{Stats: &pb.Stats{}}}, nil
	}
	if w := r.do("GET", settingsPath, ""); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "older version") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
