package main

import (
	"github.com/spf13/pflag"

	"pulse/gateway/wsconn"
)

// limitFlags hold single addresses to their share of what a node does before it
// knows who is there. They have flags because an address need not be one machine:
// behind a balancer it can be all of them.
type limitFlags struct{ limits wsconn.Limits }

func (f *limitFlags) add(flags *pflag.FlagSet) {
	is := wsconn.Limits{}.WithDefaults()
	flags.IntVar(&f.limits.PendingMax, "address-pending", is.PendingMax, "worker connections of one address that have not said hello yet")
	flags.Float64Var(&f.limits.HandshakesPerSecond, "address-handshakes", is.HandshakesPerSecond, "worker connections that one address may open a second")
	flags.IntVar(&f.limits.HandshakeBurst, "address-handshake-burst", is.HandshakeBurst, "and as many at once after a pause")
	flags.Float64Var(&f.limits.FaultsPerSecond, "address-faults", is.FaultsPerSecond, "bad frames and failed credentials that one address may send a second")
	flags.IntVar(&f.limits.FaultBurst, "address-fault-burst", is.FaultBurst, "and as many at once after a pause")
}

// check refuses what would shut everybody out.
func (f *limitFlags) check() error {
	for _, one := range []struct {
		flag  string
		value float64
	}{
		{"address-pending", float64(f.limits.PendingMax)},
		{"address-handshakes", f.limits.HandshakesPerSecond},
		{"address-handshake-burst", float64(f.limits.HandshakeBurst)},
		{"address-faults", f.limits.FaultsPerSecond},
		{"address-fault-burst", float64(f.limits.FaultBurst)},
	} {
		if !(one.value > 0) { // NaN is not either
			return usagef("--%s is %v: give a number above 0", one.flag, one.value)
		}
	}
	return nil
}
