package main

import (
	"errors"
	"fmt"
	"testing"

	"pulse/cmd/node"
)

func TestWhatEndedANodeIsSaidOnce(t *testing.T) {
	t.Parallel()
	why, other := errors.New("the disk is gone"), errors.New("the file stays open")
	for _, tc := range []struct {
		err, closed error
		says        string
	}{
		{why, why, "the disk is gone"},
		{fmt.Errorf("serving: %w", why), why, "serving: the disk is gone"},
		{nil, why, "the disk is gone"},
		{why, nil, "the disk is gone"},
		{why, other, "the disk is gone\nthe file stays open"},
	} {
		if err := saidOnce(tc.err, tc.closed); err == nil || err.Error() != tc.says {
			t.Errorf("%v and %v are said as %v", tc.err, tc.closed, err)
		}
	}
	if err := saidOnce(nil, nil); err != nil {
		t.Error(err)
	}
}

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
