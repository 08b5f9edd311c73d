package proc

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// Cluster makes n servers below dir that do not run yet: one alone, or several
// that found a cluster together. They have to be started at once; see StartAll.
func Cluster(binary, dir string, n int) ([]*Server, error) {
	if n == 1 {
		return []*Server{New(Config{Binary: binary, NodeID: "node-1", Dir: dir})}, nil
	}
	secret := make([]byte, 32)
	if _, err := rand.Read(secret); err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "cluster.secret")
	if err := os.WriteFile(file, []byte(hex.EncodeToString(secret)), 0o600); err != nil {
		return nil, err
	}
	var out []*Server
	join := ""
	for i := range n {
		ports, err := freePorts(3)
		if err != nil {
			return nil, err
		}
		if join == "" {
			join = ports[0]
		}
		out = append(out, New(Config{
			Binary: binary, NodeID: fmt.Sprintf("node-%d", i+1), Dir: dir, Args: []string{
				"--gossip", ports[0], "--rpc", ports[1], "--raft", ports[2], "--join", join,
				"--bootstrap-expect", fmt.Sprint(n), "--cluster-secret-file", file,
			},
		}))
	}
	return out, nil
}

// Newcomer makes a server that joins those that Cluster made, and does not run yet.
func Newcomer(to []*Server, id string) (*Server, error) {
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	first := to[0].cfg
	value := func(flag string) string { return first.Args[slices.Index(first.Args, flag)+1] }
	return New(Config{
		Binary: first.Binary, NodeID: id, Dir: first.Dir, Args: []string{
			"--gossip", ports[0], "--rpc", ports[1], "--raft", ports[2], "--join", value("--join"),
			"--cluster-secret-file", value("--cluster-secret-file"),
		},
	}), nil
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

// StartAll starts servers at once, because those that found a cluster wait for
// each other, and returns when all of them serve.
func StartAll(ctx context.Context, servers []*Server) error {
	failed := make([]error, len(servers))
	var starting sync.WaitGroup
	for i, s := range servers {
		starting.Go(func() { failed[i] = s.Start(ctx) })
	}
	starting.Wait()
	return errors.Join(failed...)
}

// CloseAll asks all servers to end, one after the other, and makes those that
// have not when ctx ends.
func CloseAll(ctx context.Context, servers []*Server) error {
	var failed []error
	for _, s := range servers {
		failed = append(failed, s.Close(ctx))
	}
	return errors.Join(failed...)
}
