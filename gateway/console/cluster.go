package console

import (
	"net/http"
	"net/url"
	"time"
)

type clusterPage struct {
	Cluster    cluster
	Members    []member
	Namespaces []namespace
	Commit     uint64 // the newest index that any member is known to have applied
}

type namespace struct {
	Name   string `json:"name"`
	Queues int    `json:"queues"`
}

func (v *visit) cluster() error {
	if v.ns = v.r.URL.Query().Get("ns"); v.ns == "" {
		v.ns = defaultNamespace
	}
	p := clusterPage{}
	if err := v.read("/v1/cluster", nil, &p.Cluster); err != nil {
		return err
	}
	var members struct{ Members []member }
	if err := v.call(http.MethodGet, "/v1/cluster/members", nil, nil, &members); err != nil {
		return err
	}
	p.Members = members.Members
	for _, m := range p.Members {
		if m.AppliedIndex != nil {
			p.Commit = max(p.Commit, *m.AppliedIndex)
		}
	}
	p.Commit = max(p.Commit, p.Cluster.Node.AppliedIndex)
	var list struct{ Namespaces []namespace }
	if err := v.read("/v1/namespaces", nil, &list); err != nil {
		return err
	}
	p.Namespaces = list.Namespaces
	if _, err := v.counted(); err != nil && asProblem(err) == nil {
		return err
	}
	v.frame.Here, v.frame.Live, v.frame.Node = "cluster", true, p.Cluster.Node.ID
	return v.render(http.StatusOK, "cluster", "Cluster", p)
}

// Lag is how many log entries a member is behind.
func (p clusterPage) Lag(m member) uint64 {
	if m.AppliedIndex == nil {
		return 0
	}
	return p.Commit - min(p.Commit, *m.AppliedIndex)
}

// Contact is when a member heard of the leader.
func (m member) Contact() time.Duration {
	if m.LastContactMs == nil {
		return 0
	}
	return time.Duration(*m.LastContactMs) * time.Millisecond
}

func (v *visit) doTransfer() error {
	v.ns = v.r.PostForm.Get("ns")
	body := map[string]any{}
	if id := v.r.PostForm.Get("node_id"); id != "" {
		body["node_id"] = id
	}
	var out struct {
		LeaderID string `json:"leader_id"`
	}
	if err := v.call(http.MethodPost, "/v1/cluster:transfer", nil, body, &out); err != nil {
		return err
	}
	v.behind = "" // no index speaks of it
	return v.done(root+"cluster?ns="+url.QueryEscape(v.ns), out.LeaderID+" leads now.")
}
