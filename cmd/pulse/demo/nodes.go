package demo

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"

	"pulse/cmd/pulse/proc"
)

// clusterSize is the number of servers of a demo that kills one of several.
const clusterSize = 3

// servers makes the servers of a demo: one that is killed and comes back, or
// three that found a cluster together.
func servers(cfg Config, dir string) ([]*proc.Server, error) {
	if cfg.Kill == KillServer {
		return []*proc.Server{proc.New(proc.Config{Binary: cfg.Binary, NodeID: "node-1", Dir: dir})}, nil
	}
	secret := make([]byte, 32)
	if _, err := rand.Read(secret); err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "cluster.secret")
	if err := os.WriteFile(file, []byte(hex.EncodeToString(secret)), 0o600); err != nil {
		return nil, err
	}
	var out []*proc.Server
	join := ""
	for n := range clusterSize {
		ports, err := freePorts(3)
		if err != nil {
			return nil, err
		}
		if join == "" {
			join = ports[0]
		}
		out = append(out, proc.New(proc.Config{
			Binary: cfg.Binary, NodeID: fmt.Sprintf("node-%d", n+1), Dir: dir, Args: []string{
				"--gossip", ports[0], "--rpc", ports[1], "--raft", ports[2], "--join", join,
				"--bootstrap-expect", fmt.Sprint(clusterSize), "--cluster-secret-file", file,
			},
		}))
	}
	return out, nil
}

// freePorts are on loopback, below the ports that outgoing connections take at
// random, so that they stay free until the servers listen there.
func freePorts(n int) ([]string, error) {
	const low, high, tries = 20_000, 32_000, 1000
	var out []string
	for range tries {
		addr := fmt.Sprintf("127.0.0.1:%d", low+mrand.IntN(high-low))
		l, err := net.Listen("tcp", addr)
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			return nil, err
		}
		if out = append(out, addr); len(out) == n {
			return out, nil
		}
	}
	return nil, errors.New("no free ports on 127.0.0.1 between 20000 and 32000")
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
