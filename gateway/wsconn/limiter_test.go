package wsconn

import (
	"fmt"
	"net/http"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
)

var (
	alice = netip.MustParseAddr("192.0.2.1")
	bob   = netip.MustParseAddr("192.0.2.2")
)

// count is how many of n tries are granted.
func count(n int, try func() bool) (granted int) {
	for range n {
		if try() {
			granted++
		}
	}
	return granted
}

func TestOneAddressDoesNotUseUpTheShareOfAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(Limits{HandshakesPerSecond: 2, HandshakeBurst: 3, PendingMax: 100})
		admit := func(addr netip.Addr) bool {
			settle, ok := l.Admit(addr)
			if ok {
				settle()
			}
			return ok
		}
		for i := range 3 {
			if !admit(alice) {
				t.Fatalf("handshake %d was refused within the burst", i)
			}
		}
		if admit(alice) {
			t.Error("the fourth handshake at once was admitted")
		}
		if !admit(bob) {
			t.Error("bob pays for alice")
		}
		time.Sleep(time.Second)
		if n := count(3, func() bool { return admit(alice) }); n != 2 {
			t.Errorf("a second brought %d handshakes, want 2", n)
		}
		time.Sleep(time.Hour)
		for range 3 {
			if !admit(alice) {
				t.Error("the burst did not come back")
			}
		}
		if admit(alice) {
			t.Error("an hour of patience brought more than the burst")
		}
	})
}

func TestConnectionsWithoutAHelloAreCounted(t *testing.T) {
	t.Parallel()
	l := NewLimiter(Limits{PendingMax: 2})
	one, ok1 := l.Admit(alice)
	_, ok2 := l.Admit(alice)
	if _, ok3 := l.Admit(alice); !ok1 || !ok2 || ok3 {
		t.Errorf("admitted %v %v %v, want two", ok1, ok2, ok3)
	}
	one()
	if _, ok := l.Admit(alice); !ok {
		t.Error("a settled connection still counts")
	}
}

func TestFaultsUseUpTheRightToConnect(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(Limits{FaultsPerSecond: 1, FaultBurst: 2})
		if n := count(3, func() bool { return l.Fault(alice) }); n != 2 {
			t.Errorf("%d faults are allowed at once, want 2", n)
		}
		if _, ok := l.Admit(alice); ok {
			t.Error("an address with its faults used up was admitted")
		}
		time.Sleep(time.Second)
		if _, ok := l.Admit(alice); !ok {
			t.Error("a second later it was still refused")
		}
	})
}

func TestLoopbackIsExemptOnlyWhenAskedFor(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"} {
		addr := netip.MustParseAddr(text)
		for _, exempt := range []bool{true, false} {
			l := NewLimiter(Limits{FaultBurst: 1, PendingMax: 1, ExemptLoopback: exempt})
			l.Fault(addr)
			if got := l.Fault(addr); got != exempt {
				t.Errorf("%s, exempt %v: second fault allowed: %v", text, exempt, got)
			}
		}
	}
	var none *Limiter
	if _, ok := none.Admit(alice); !ok || !none.Fault(alice) {
		t.Error("no limiter limits")
	}
}

func TestAnIPv6HostCountsByItsNetwork(t *testing.T) {
	t.Parallel()
	l := NewLimiter(Limits{FaultBurst: 1})
	if !l.Fault(netip.MustParseAddr("2001:db8:1:2::1")) || l.Fault(netip.MustParseAddr("2001:db8:1:2:ffff::2%eth0")) {
		t.Error("two addresses of one /64 have one account")
	}
	if !l.Fault(netip.MustParseAddr("2001:db8:1:3::1")) {
		t.Error("two networks have one account")
	}
	if !l.Fault(alice) || l.Fault(netip.MustParseAddr("::ffff:192.0.2.1")) {
		t.Error("an IPv4 address has two accounts")
	}
}

func TestTheTableOfAddressesIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(Limits{AddressesMax: 100, FaultsPerSecond: 1, FaultBurst: 2})
		addr := func(i int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("10.0.%d.%d", i/250, i%250)) }
		for i := range 100 {
			l.Fault(addr(i))
		}
		// The table is full of addresses that are still owing: newcomers share.
		if !l.Fault(addr(1000)) || !l.Fault(addr(1001)) || l.Fault(addr(1002)) {
			t.Error("newcomers do not share one account")
		}
		if len(l.accounts) != 100 {
			t.Errorf("%d accounts", len(l.accounts))
		}
		time.Sleep(time.Minute)
		if !l.Fault(addr(2000)) || len(l.accounts) != 1 {
			t.Errorf("%d accounts after a quiet minute, want the newcomer's alone", len(l.accounts))
		}
	})
}

func TestAnAddressOverItsLimitGets429(t *testing.T) {
	bubble(t, Config{Limiter: NewLimiter(Limits{PendingMax: 1})}, func(t *testing.T, h *house) {
		// The limiter's clock is read inside the bubble, like everything else.
		ws, conn := h.dial(nil)
		_, response, err := h.try(new(websocket.DialOptions))
		if err == nil || response.status != http.StatusTooManyRequests || response.header.Get("Retry-After") == "" {
			t.Errorf("the second connection: %v, %v; want 429", response, err)
		}
		conn.Established()
		second, _ := h.dial(nil)
		_ = ws.CloseNow()
		_ = second.CloseNow()
		<-h.causes
		<-h.causes
		third, _ := h.dial(nil) // what ended before it was established counts no longer
		_ = third.CloseNow()
		<-h.causes
	})
}
