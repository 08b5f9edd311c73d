package demo

import (
	"context"
	"encoding/json"
	"fmt"

	"pulse/cmd/pulse/proc"
)

// clusterSize is the number of servers of a demo that kills one of several.
const clusterSize = 3

// servers makes the servers of a demo: one that is killed and comes back, or
// three that found a cluster together.
func servers(cfg Config, dir string) ([]*proc.Server, error) {
	n := clusterSize
	if cfg.Kill == KillServer {
		n = 1
	}
	return proc.Cluster(cfg.Binary, dir, n)
}

// leader asks the cluster who leads it.
func (s *show) leader(ctx context.Context) (string, error) {
	status, err := s.client.Cluster(ctx)
	if err != nil {
		return "", err
	}
	var answer struct {
		Node struct {
			LeaderID string `json:"leader_id"`
		} `json:"node"`
	}
	if err := json.Unmarshal(status, &answer); err != nil {
		return "", fmt.Errorf("status of the cluster: %w", err)
	}
	return answer.Node.LeaderID, nil
}

// victim is the node to kill: the leader, a gateway that does not lead, or with
// one node that one. office is what it is, for the reader.
func (s *show) victim(ctx context.Context) (victim *proc.Server, office string, err error) {
	if len(s.nodes) == 1 {
		return s.nodes[0], "", nil
	}
	leader, err := s.leader(ctx)
	if err != nil {
		return nil, "", err
	}
	for _, n := range s.nodes {
		if (n.ID() == leader) == (s.cfg.Kill == KillLeader) {
			if n.ID() == leader {
				return n, ", the leader", nil
			}
			return n, ", a gateway full of workers; " + leader + " leads", nil
		}
	}
	return nil, "", fmt.Errorf("no node to kill: %q leads", leader)
}
