package main

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/spf13/pflag"

	"pulse/cmd/node"
	"pulse/gateway/wsconn"
)

// The limits of one address are flags, and without them what the node has by itself.
func TestTheLimitsOfAnAddressHaveFlags(t *testing.T) {
	t.Parallel()
	var server serverFlags
	var gateway gatewayFlags
	for name, f := range map[string]struct {
		limits *limitFlags
		config func() node.Config
	}{
		"server":  {&server.address, func() node.Config { return server.nodeConfig(slog.New(slog.DiscardHandler)) }},
		"gateway": {&gateway.address, func() node.Config { return gateway.nodeConfig(slog.New(slog.DiscardHandler)) }},
	} {
		flags := pflag.NewFlagSet(name, pflag.ContinueOnError)
		f.limits.add(flags)
		want := wsconn.Limits{}.WithDefaults()
		want.AddressesMax = 0 // it has no flag
		if got := f.config().Limits; got != want {
			t.Errorf("%s without flags: %+v, want %+v", name, got, want)
		}
		if err := flags.Parse([]string{"--address-pending=1", "--address-handshakes=2.5", "--address-handshake-burst=3", "--address-faults=4", "--address-fault-burst=5"}); err != nil {
			t.Fatal(err)
		}
		if got, want := f.config().Limits, (wsconn.Limits{PendingMax: 1, HandshakesPerSecond: 2.5, HandshakeBurst: 3, FaultsPerSecond: 4, FaultBurst: 5}); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

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
