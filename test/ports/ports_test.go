package ports

import (
	"net"
	"testing"
)

func TestNoPortIsGivenTwice(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 500 {
		addr := Free(t, "127.0.0.1")
		if seen[addr] {
			t.Fatalf("%s is given twice", addr)
		}
		seen[addr] = true
	}
}

func TestAUsedPortIsNotGiven(t *testing.T) {
	t.Parallel()
	l, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if unused(l.LocalAddr().String()) {
		t.Error("somebody listens there")
	}
}
