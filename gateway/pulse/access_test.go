package pulse

import (
	"maps"
	"net/http"
	"testing"

	"pulse/gateway/session"
	"pulse/schema"
	"pulse/schema/access"
	"pulse/schema/workerv1"
)

func TestEveryFrameOfAWorkerHasALineInTheTable(t *testing.T) {
	t.Parallel()
	left := maps.Clone(access.Frames)
	for _, body := range []workerv1.ClientBody{
		&workerv1.Hello{}, &workerv1.Capacity{}, &workerv1.Resume{}, &workerv1.Start{}, &workerv1.Renew{}, &workerv1.Finish{},
	} {
		name := string(body.ClientType())
		if left[name].Permission != access.Work {
			t.Errorf("%s has no line in schema/access: say who may send it", name)
		}
		delete(left, name)
	}
	for name := range left {
		t.Errorf("the table has a line for %s, which no worker sends", name)
	}
}

func TestOnlyWhoMayWorkSomewhereConnects(t *testing.T) {
	for _, role := range append([]access.Role{""}, access.Roles...) {
		cfg := Config{Authenticate: func(*http.Request) (session.Identity, *schema.Error) {
			return session.Identity{Principal: "token/1", Grants: access.Grants{{Role: role, Namespace: "mine"}}}, nil
		}}
		t.Run(string(role), func(t *testing.T) {
			bubble(t, cfg, func(t *testing.T, h *house) {
				ws, response, err := h.try(nil)
				if role.Contains(access.Work) {
					if err != nil {
						t.Fatalf("%s: %v", role, err)
					}
					(&worker{t: t, ws: ws}).leave()
					return
				}
				if err == nil || response.status != http.StatusForbidden {
					t.Errorf("%s: %v %v", role, response, err)
				}
			})
		})
	}
}
