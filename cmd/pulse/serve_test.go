package main

import (
	"testing"

	"pulse/cmd/node"
)

func TestAServerOfSeveralMayTakeLongToBeReady(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		cluster *node.ClusterConfig
		bounded bool
	}{
		"alone":   {nil, true},
		"server":  {&node.ClusterConfig{BootstrapExpect: 3}, false},
		"gateway": {&node.ClusterConfig{Gateway: true}, false},
	} {
		ctx, cancel := awaitReady(t.Context(), node.Config{Cluster: tc.cluster})
		if _, bounded := ctx.Deadline(); bounded != tc.bounded {
			t.Errorf("%s: the wait is bounded: %t", name, bounded)
		}
		cancel()
	}
}
