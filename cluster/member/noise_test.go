package member

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"slices"
	"testing"

	"github.com/hashicorp/memberlist"
)

// Whatever comes to the gossip port, also from one that has the secret and writes
// something else than it should: the list lives and finds its members. (A field that
// was too short ended processes once, hashicorp/memberlist #236.)
func TestNoiseAtTheGossipPortEndsNobody(t *testing.T) {
	t.Parallel()
	a := start(t, config("a"))
	mc, err := a.config()
	if err != nil {
		t.Fatal(err)
	}
	n := &noise{t: t, Rand: rand.New(rand.NewPCG(1, 2)), mc: mc}
	out, err := net.Dial("udp", a.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	for i := range 20_000 {
		message := n.message(0)
		if i%4 > 0 {
			message = n.sealed(message, nil)
		}
		if i%8 > 0 {
			message = append(n.label(), message...)
		}
		_, _ = out.Write(message[:min(len(message), 1400)]) // where nobody listened any more it would fail
	}
	for i := range 300 {
		conn, err := net.Dial("tcp", a.Addr())
		if err != nil {
			t.Fatalf("stream %d: %v", i, err)
		}
		message := n.message(0)
		if i%4 > 0 {
			head := append([]byte{10}, make([]byte, 4)...) // an encrypted message, and how long it is
			binary.BigEndian.PutUint32(head[1:], uint32(1+12+len(message)+16))
			message = append(head, n.sealed(message, head)...)
		}
		_, _ = conn.Write(append(n.label(), message...))
		_ = conn.Close()
	}
	start(t, config("b", a.Addr()))
	until(t, a, "a member is found", func([]Node) bool { _, ok := a.Member("b"); return ok })
}

// noise makes messages that are nearly right.
type noise struct {
	*rand.Rand
	t  *testing.T
	mc *memberlist.Config
}

func (n *noise) label() []byte {
	return append([]byte{244, byte(len(n.mc.Label))}, n.mc.Label...)
}

// sealed is a message as one writes it that has the key.
func (n *noise) sealed(message, head []byte) []byte {
	n.t.Helper()
	block, err := aes.NewCipher(n.mc.SecretKey)
	if err != nil {
		n.t.Fatal(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		n.t.Fatal(err)
	}
	nonce := n.bytes(12, 12)
	return gcm.Seal(append([]byte{1}, nonce...), nonce, message, append(slices.Clone(head), n.mc.Label...))
}

func (n *noise) bytes(least, most int) []byte {
	out := make([]byte, least+n.IntN(most-least+1))
	for i := range out {
		out[i] = byte(n.Uint32())
	}
	return out
}

// message is never empty: of nothing, one that has the key could make a process end.
func (n *noise) message(depth int) []byte {
	kind := byte(n.IntN(16))
	var body []byte
	switch k := n.IntN(6); {
	case k == 0:
		body = n.bytes(0, 200)
	case k == 1 && depth < 3: // several in one
		kind, body = 7, []byte{byte(n.IntN(4))}
		for range int(body[0]) {
			body = binary.BigEndian.AppendUint16(body, uint16(n.IntN(300)))
		}
		body = append(body, n.message(depth+1)...)
	case k == 2 && depth < 3: // with a sum that is right
		inner := n.message(depth + 1)
		kind, body = 12, append(binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE(inner)), inner...)
	case k < 5:
		body = n.fields()
	default:
		kind, body = 4, n.alive()
	}
	if n.IntN(5) == 0 {
		body = body[:n.IntN(len(body)+1)] // cut short
	}
	return append([]byte{kind}, body...)
}

// alive is a member's word of itself, with what it says of any length.
func (n *noise) alive() []byte {
	out := []byte{0x86}
	text := func(name string, s []byte) {
		out = append(append(out, 0xa0|byte(len(name))), name...)
		out = append(append(out, 0xa0|byte(len(s))), s...)
	}
	text("Node", []byte{'x', byte('0' + n.IntN(10))})
	text("Addr", [][]byte{{127, 0, 0, 1}, nil, n.bytes(0, 17)}[n.IntN(3)])
	text("Meta", [][]byte{[]byte(`{"i":"x","r":"voter"}`), nil, n.bytes(0, 17)}[n.IntN(3)])
	text("Vsn", [][]byte{{1, 5, 2, 0, 0, 0}, nil, n.bytes(0, 8)}[n.IntN(3)])
	out = append(append(append(out, 0xa0|11), "Incarnation"...), byte(n.IntN(128)))
	return append(append(append(out, 0xa0|4), "Port"...), 0xcd, byte(n.Uint32()), byte(n.Uint32()))
}

// fields is a map in MessagePack as each kind of message is, with the names that
// they have and values of any length.
func (n *noise) fields() []byte {
	names := []string{"SeqNo", "Node", "Target", "Port", "SourceAddr", "SourcePort", "SourceNode", "Nack", "Incarnation", "From", "Addr", "Meta", "Vsn",
		"Nodes", "UserStateLen", "Join", "UserMsgLen", "Payload", "Algo", "Buf", "Error"}
	count := 1 + n.IntN(12)
	out := []byte{0x80 | byte(count)}
	text := func(s []byte) { out = append(append(out, 0xa0|byte(len(s))), s...) }
	for range count {
		text([]byte(names[n.IntN(len(names))]))
		switch n.IntN(6) {
		case 0:
			out = append(out, byte(n.IntN(128)))
		case 1:
			out = binary.BigEndian.AppendUint64(append(out, 0xcf), n.Uint64())
		case 2:
			out = append(out, 0xc0|byte(n.IntN(4))) // nothing, or a truth
		case 3:
			text([]byte([]string{"a", "x", "", `{"i":"x","r":"voter","c":"c1"}`}[n.IntN(4)]))
		default:
			text(n.bytes(0, 17))
		}
	}
	return out
}
