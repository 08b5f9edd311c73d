package member

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
)

// A server that comes back within seconds is still alive to the others, so none
// of them dials it, and if the addresses it was told to join are its own, or
// those of servers that know as little, it would see nobody until the others
// miss it. So each node keeps where it last saw the voters, and dials them.

// lastSeen is where a voter was when it was last seen.
type lastSeen struct {
	Gossip string `json:"gossip"`
	RPC    string `json:"rpc,omitempty"`
}

// recall reads what an earlier life of this node has kept. A file that cannot
// be read costs a moment of being alone, and no more.
func (l *List) recall() {
	if l.cfg.Remember == "" {
		return
	}
	data, err := os.ReadFile(l.cfg.Remember)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	known := map[string]lastSeen{}
	if err == nil {
		err = json.Unmarshal(data, &known)
	}
	if err != nil {
		l.logger.Warn("where the other servers were cannot be read; they are found anew", "file", l.cfg.Remember, "err", err)
		return
	}
	for id, seen := range known {
		if _, _, err := hostPort(seen.Gossip); err == nil && id != l.cfg.Self.ID {
			l.known[id] = seen
		}
	}
}

// note keeps where a voter is. l.mu is held.
func (l *List) note(n Node) {
	seen := lastSeen{Gossip: n.Gossip, RPC: n.RPC}
	if n.ID == l.self.ID || l.known[n.ID] == seen {
		return
	}
	l.known[n.ID] = seen
	select {
	case l.learnt <- struct{}{}:
	default: // it is about to be written
	}
}

// remember writes the file. It is whole or not there, and nothing waits for the
// disk to have it: without it a restart takes a moment longer.
func (l *List) remember() {
	if l.cfg.Remember == "" {
		return
	}
	l.mu.Lock()
	data, err := json.Marshal(l.known)
	l.mu.Unlock()
	next := l.cfg.Remember + ".new"
	if err == nil {
		err = os.WriteFile(next, data, 0o600)
	}
	if err == nil {
		err = os.Rename(next, l.cfg.Remember)
	}
	if err != nil {
		l.logger.Warn("where the other servers are could not be kept", "file", l.cfg.Remember, "err", err)
	}
}

// RPC is where a member takes calls: a live one, or a voter where it was last
// seen. Gossip may be late, or wrong about who is alive; a call finds out.
func (l *List) RPC(id string) (addr string, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n, alive := l.nodes[id]; alive {
		return n.RPC, n.RPC != ""
	}
	addr = l.known[id].RPC
	return addr, addr != ""
}
