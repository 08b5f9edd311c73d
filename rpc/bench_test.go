package rpc

import (
	"syscall"
	"testing"
)

// BenchmarkForward forwards one command at a time to the leader, over a real
// connection. Beside the time it says the processor time of both ends, which
// depends little on what else the machine does.
func BenchmarkForward(b *testing.B) {
	m := &members{addrs: map[string]string{}}
	leads := func() string { return "a" }
	m.serve(b, &standIn{id: "a", leads: leads, propose: answered})
	r, err := NewRouter(Config{Self: "b", Replica: &standIn{id: "b", leads: leads}, Peers: peers(b, m, "secret"), Feed: NewFeed()})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	before := processorUs(b)
	for b.Loop() {
		if _, err := r.Submit(b.Context(), command("c")); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric((processorUs(b)-before)/float64(b.N), "cpu-us/op")
}

func processorUs(b *testing.B) float64 {
	b.Helper()
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return float64(r.Utime.Nano()+r.Stime.Nano()) / 1e3
}
