package wsconn

import (
	"net/netip"
	"sync"
	"time"
)

// Limits hold one address to its share. An IPv6 address counts as its /64. The
// zero value of a field means the default named beside it.
type Limits struct {
	// PendingMax bounds the connections of one address that are not yet
	// established: 512.
	PendingMax int
	// HandshakesPerSecond and HandshakeBurst bound upgrades: 50 and 1,000. The
	// burst lets a host full of workers come back after an outage.
	HandshakesPerSecond float64
	HandshakeBurst      int
	// FaultsPerSecond and FaultBurst bound bad frames and failed credentials:
	// 5 and 200.
	FaultsPerSecond float64
	FaultBurst      int
	// ExemptLoopback lifts all of them from 127.0.0.0/8 and ::1.
	ExemptLoopback bool
	// AddressesMax bounds how many addresses are told apart: 65,536. Beyond
	// it the newcomers share one account.
	AddressesMax int
}

// Limiter counts by address. It is safe from any goroutine.
type Limiter struct {
	limits Limits
	now    func() time.Time

	mu       sync.Mutex
	accounts map[netip.Addr]*account
	swept    time.Time
	others   account // shared by those who did not fit the table
}

// account is what one address has used. Guarded by Limiter.mu.
type account struct {
	pending    int
	handshakes bucket
	faults     bucket
}

// WithDefaults are the limits with their gaps filled.
func (l Limits) WithDefaults() Limits {
	setDefault(&l.PendingMax, 512)
	setDefault(&l.HandshakesPerSecond, 50)
	setDefault(&l.HandshakeBurst, 1000)
	setDefault(&l.FaultsPerSecond, 5)
	setDefault(&l.FaultBurst, 200)
	setDefault(&l.AddressesMax, 1<<16)
	return l
}

// NewLimiter returns a limiter that has seen nobody.
func NewLimiter(l Limits) *Limiter {
	l = l.WithDefaults()
	return &Limiter{limits: l, now: time.Now, accounts: make(map[netip.Addr]*account)}
}

func setDefault[T int | float64](value *T, is T) {
	if *value <= 0 {
		*value = is
	}
}

// Admit asks for one more connection from addr. If it is granted, settle must
// be called once: when the connection is established or over.
func (l *Limiter) Admit(addr netip.Addr) (settle func(), ok bool) {
	if l == nil || l.exempt(addr) {
		return func() {}, true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.account(addr)
	switch {
	case a.faults.empty(l.now(), l.limits.FaultsPerSecond, l.limits.FaultBurst):
		return nil, false
	case a.pending >= l.limits.PendingMax:
		return nil, false
	case !a.handshakes.take(l.now(), l.limits.HandshakesPerSecond, l.limits.HandshakeBurst):
		return nil, false
	}
	a.pending++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		a.pending--
	}, true
}

// Fault counts a bad frame or a failed credential. False says that the address
// has used up its share and the connection should end.
func (l *Limiter) Fault(addr netip.Addr) bool {
	if l == nil || l.exempt(addr) {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.account(addr).faults.take(l.now(), l.limits.FaultsPerSecond, l.limits.FaultBurst)
}

func (l *Limiter) exempt(addr netip.Addr) bool {
	return l.limits.ExemptLoopback && addr.Unmap().IsLoopback()
}

// account finds or makes the account of an address.
func (l *Limiter) account(addr netip.Addr) *account {
	addr = addr.Unmap().WithZone("")
	if addr.Is6() {
		if p, err := addr.Prefix(64); err == nil {
			addr = p.Addr()
		}
	}
	if a := l.accounts[addr]; a != nil {
		return a
	}
	if len(l.accounts) >= l.limits.AddressesMax {
		l.sweep()
	}
	if len(l.accounts) >= l.limits.AddressesMax {
		return &l.others
	}
	a := new(account)
	l.accounts[addr] = a
	return a
}

// sweep forgets who has nothing open and whose buckets are full again, at most
// once a second because it looks at all of them.
func (l *Limiter) sweep() {
	now := l.now()
	if now.Sub(l.swept) < time.Second {
		return
	}
	l.swept = now
	for addr, a := range l.accounts {
		if a.pending == 0 &&
			a.handshakes.full(now, l.limits.HandshakesPerSecond, l.limits.HandshakeBurst) &&
			a.faults.full(now, l.limits.FaultsPerSecond, l.limits.FaultBurst) {
			delete(l.accounts, addr)
		}
	}
}

// bucket is a token bucket that remembers what was taken out of it; the zero
// bucket is full.
type bucket struct {
	taken float64
	at    time.Time
}

func (b *bucket) refill(now time.Time, perSecond float64) {
	b.taken = max(0, b.taken-now.Sub(b.at).Seconds()*perSecond)
	b.at = now
}

func (b *bucket) empty(now time.Time, perSecond float64, burst int) bool {
	b.refill(now, perSecond)
	return b.taken+1 > float64(burst)
}

func (b *bucket) take(now time.Time, perSecond float64, burst int) bool {
	if b.empty(now, perSecond, burst) {
		return false
	}
	b.taken++
	return true
}

func (b *bucket) full(now time.Time, perSecond float64, _ int) bool {
	b.refill(now, perSecond)
	return b.taken == 0
}
