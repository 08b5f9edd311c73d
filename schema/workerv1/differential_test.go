package workerv1

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

func sameFrame(a, b any) bool { return reflect.DeepEqual(a, b) }

// The decoder accepts exactly what schema and run-time rules accept: frames are
// generated valid, then changed in one place or a few, in meaning or in bytes.
func TestClientFramesGetTheOraclesVerdict(t *testing.T) {
	t.Parallel()
	var trees []*node
	for _, s := range clientSamples(t) {
		trees = append(trees, parse(must(AppendClient(nil, s.frame))))
	}
	differential(t, fromClient, trees, 11)
}

func TestServerFramesGetTheOraclesVerdict(t *testing.T) {
	t.Parallel()
	var trees []*node
	for _, s := range serverSamples(t) {
		trees = append(trees, parse(must(AppendServer(nil, s.frame))))
	}
	differential(t, fromServer, trees, 12)
}

const differentialCases = 20_000 // for each direction

func differential(t *testing.T, d direction, trees []*node, seed uint64) {
	g := &generator{random: rand.New(rand.NewPCG(seed, 2026)), trees: trees}
	for _, tree := range trees {
		if !d.hold(t, []byte(tree.text(nil))).accepted {
			t.Fatalf("a sample is refused: %s", tree.text(nil))
		}
	}
	accepted, refused := 0, map[string]int{}
	for i := 0; i < differentialCases && !t.Failed(); i++ {
		data, how := g.frame()
		want := d.hold(t, data)
		if want.accepted {
			accepted++
		} else {
			refused[how]++
		}
		if t.Failed() {
			t.Logf("case %d: %s", i, how)
		}
	}
	if accepted < differentialCases/5 || accepted > differentialCases*4/5 {
		t.Errorf("%d of %d frames are valid: the generator has lost its balance", accepted, differentialCases)
	}
	for _, how := range []string{"delete", "stranger", "repeat", "replace", "bytes", "nest", "move"} {
		if refused[how] < 40 {
			t.Errorf("only %d frames were refused after %q", refused[how], how)
		}
	}
}

// node is a JSON value whose text can still be bent.
type node struct {
	kind    byte // '{', '[', or 0 for raw text
	members []member
	raw     string
}

type member struct {
	name  string
	value *node
}

func parse(data []byte) *node {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	return parseValue(decoder)
}

func parseValue(decoder *json.Decoder) *node {
	token := must(decoder.Token())
	delim, ok := token.(json.Delim)
	if !ok {
		return &node{raw: string(must(json.Marshal(token)))}
	}
	n := &node{kind: byte(delim)}
	for decoder.More() {
		var m member
		if delim == '{' {
			m.name = must(decoder.Token()).(string)
		}
		m.value = parseValue(decoder)
		n.members = append(n.members, m)
	}
	must(decoder.Token())
	return n
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func (n *node) clone() *node {
	c := *n
	c.members = make([]member, len(n.members))
	for i, m := range n.members {
		c.members[i] = member{m.name, m.value.clone()}
	}
	return &c
}

// text renders a node; random, if given, chooses among spellings of equal meaning.
func (n *node) text(random *rand.Rand) string {
	var b strings.Builder
	n.write(&b, random)
	return b.String()
}

func (n *node) write(b *strings.Builder, random *rand.Rand) {
	blank := func() {
		if random != nil && random.IntN(12) == 0 {
			b.WriteString([]string{" ", "\n", "\t", "\r\n  "}[random.IntN(4)])
		}
	}
	if n.kind == 0 {
		b.WriteString(respell(n.raw, random))
		return
	}
	members := n.members
	if random != nil && n.kind == '{' && random.IntN(3) == 0 {
		members = append([]member(nil), members...)
		random.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	}
	b.WriteByte(n.kind)
	for i, m := range members {
		if i > 0 {
			b.WriteByte(',')
		}
		blank()
		if n.kind == '{' {
			b.WriteString(respell(string(must(json.Marshal(m.name))), random))
			blank()
			b.WriteByte(':')
			blank()
		}
		m.value.write(b, random)
		blank()
	}
	b.WriteByte(n.kind + 2)
}

// respell writes some characters of a string as escapes.
func respell(raw string, random *rand.Rand) string {
	if random == nil || raw == "" || raw[0] != '"' || random.IntN(15) != 0 || strings.Contains(raw, `\`) || len(raw) > 500 {
		return raw
	}
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range raw[1 : len(raw)-1] {
		switch {
		case r == '/':
			b.WriteString(`\/`)
		case r < 0x10000 && random.IntN(4) == 0:
			fmt.Fprintf(&b, []string{`\u%04x`, `\u%04X`}[random.IntN(2)], r)
		case r >= 0x10000:
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xD800+(r-0x10000)>>10, 0xDC00+(r-0x10000)&0x3FF)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

type generator struct {
	random *rand.Rand
	trees  []*node
}

// frame makes one text and says what was done to it last.
func (g *generator) frame() (data []byte, how string) {
	tree := g.trees[g.random.IntN(len(g.trees))].clone()
	how = "none"
	for range []int{1, 1, 1, 1, 1, 2, 3, 0}[g.random.IntN(8)] {
		how = g.bend(tree)
	}
	text := tree.text(g.random)
	if how != "nest" && g.random.IntN(6) == 0 {
		return g.damage([]byte(text)), "bytes"
	}
	return []byte(text), how
}

// place is a member, or an element, somewhere in a frame.
type place struct {
	in    *node
	index int
}

func (p place) name() string   { return p.in.members[p.index].name }
func (p place) value() **node  { return &p.in.members[p.index].value }
func (p place) business() bool { return p.name() == "payload" || p.name() == "result" }

func places(n *node, all []place) []place {
	for i, m := range n.members {
		all = append(all, place{n, i})
		all = places(m.value, all)
	}
	return all
}

func (g *generator) bend(tree *node) (how string) {
	all := places(tree, nil)
	if len(all) == 0 {
		return "none"
	}
	p := all[g.random.IntN(len(all))]
	switch g.random.IntN(16) {
	case 0, 1:
		p.in.members = append(p.in.members[:p.index], p.in.members[p.index+1:]...)
		return "delete"
	case 2:
		name := []string{"x", "", "Type", "type ", "session_id", "reply_to", "error", "priority", "result", "concurrency_token", "retry_of", "cancel_requested_at", "retryable", "error_code"}[g.random.IntN(14)]
		p.in.members = append(p.in.members, member{name, &node{raw: g.any()}})
		return "stranger"
	case 3:
		other := places(g.trees[g.random.IntN(len(g.trees))], nil)
		q := other[g.random.IntN(len(other))]
		p.in.members = append(p.in.members, member{q.name(), (*q.value()).clone()})
		return "move"
	case 4:
		m := p.in.members[p.index]
		p.in.members = append(p.in.members, member{m.name, m.value.clone()})
		return "repeat"
	case 5:
		other := places(g.trees[g.random.IntN(len(g.trees))], nil)
		q := other[g.random.IntN(len(other))]
		*p.value() = (*q.value()).clone()
		return "move"
	case 6:
		return g.nest(all)
	}
	if (*p.value()).kind != 0 && !p.business() && g.random.IntN(8) > 0 {
		// Mostly leaves: an object replaced is refused without a doubt.
		return g.bend(tree)
	}
	*p.value() = &node{raw: g.like(p.name())}
	return "replace"
}

// nest wraps business JSON up to about the greatest depth.
func (g *generator) nest(all []place) string {
	for _, p := range all {
		if p.business() && g.random.IntN(2) == 0 {
			wrapped := *p.value()
			for range 58 + g.random.IntN(8) {
				if g.random.IntN(2) == 0 {
					wrapped = &node{kind: '[', members: []member{{"", wrapped}}}
				} else {
					wrapped = &node{kind: '{', members: []member{{"k", wrapped}}}
				}
			}
			*p.value() = wrapped
			return "nest"
		}
	}
	return "none"
}

// like makes a value that could stand under a name: mostly near a border.
func (g *generator) like(name string) string {
	pick := func(choices ...string) string { return choices[g.random.IntN(len(choices))] }
	quoted := func(text string) string { return string(must(json.Marshal(text))) }
	long := func(chars int) string {
		count := max(chars+g.random.IntN(3)-1, 0)
		if g.random.IntN(5) == 0 {
			return `"` + strings.Repeat(pick(`\ud83d\ude42`, `\u0061`), count) + `"`
		}
		return quoted(strings.Repeat(pick("a", "a", "Z", "é", "🙂"), count))
	}
	if g.random.IntN(10) == 0 {
		return g.any()
	}
	switch name {
	case "protocol_version":
		return pick(`"1"`, `"2"`, `"01"`, `""`, `1`, `null`, `"1 "`, `"\u0031"`)
	case "type":
		return pick(`"worker.hello"`, `"worker.capacity"`, `"worker.resume"`, `"task.start"`, `"task.renew"`, `"task.finish"`, `"worker.welcome"`,
			`"task.assign"`, `"ack"`, `"error"`, `"task.cancel"`, `"Ack"`, `""`, `"task.start\u0000"`, `"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"`)
	case "epoch", "sequence", "revision", "task_revision", "concurrency_token":
		return pick(`"1"`, `"0"`, `"01"`, `"18446744073709551615"`, `"18446744073709551616"`, `"18446744073709551625"`, `"9999999999999999999"`,
			`"10000000000000000000"`, `"99999999999999999999"`, `"-1"`, `"+1"`, `"1.0"`, `"1e3"`, `""`, `" 1"`, `"1\n"`, `1`, `"١"`)
	case "lease_secret", "instance_secret":
		const chars = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
		secret := []byte(strings.Repeat("A", 43))
		for i := range secret {
			secret[i] = chars[g.random.IntN(64)]
		}
		return pick(quoted(string(secret)), quoted(string(secret)+"="), quoted(string(secret[:42])), quoted(string(secret[:42])+"+"), quoted(string(secret)+"\n"), quoted(string(secret[:42])+"\n"))
	case "capacity", "max_attempts", "attempt_count", "priority", "lease_duration_ms", "initial_delay_ms", "max_delay_ms", "attempt_timeout_ms":
		n := pick("0", "1", "9", "10", "100", "101", "256", "257", "999", "1000", "120000", "120001", "2592000000", "2592000001", "9223372036854", "9223372036855",
			"9223372036854775807", "9223372036854775808", "18446744073709551616", "16", "50")
		return pick(n, n, n, n+".0", n+".000000", n+"e0", n+"E+0", n+"0e-1", n+"00e-2", n+".5", n+"e1", n+"e-1", "-"+n, n+"e-1000", n+"0000000000e-10", "-0", "-0.0", "0e400", "0e-99999999999",
			"1e12", "9e12", "1e13", "1e18", "1e19", "1"+strings.Repeat("0", 40)+"e-40", "0."+strings.Repeat("0", 40)+"16e42", "0."+strings.Repeat("0", 40)+"16e41",
			"1e-400", "1e-999999999", "1e400", "1.6e1", "0.16e2", "160e-1", `"`+n+`"`, strings.Repeat("0", 1)+"."+strings.Repeat("0", 61), n+"."+strings.Repeat("0", 62))
	case "server_time", "expires_at", "lease_until", "available_at", "start_deadline_at", "deadline_at", "cancel_requested_at", "completed_at", "created_at", "updated_at", "requested_at":
		return quoted(pick("2026-07-01T12:00:00Z", "2026-07-01T12:00:00.1Z", "2026-07-01T12:00:00.123456Z", "2026-07-01T12:00:00.1234567Z", "2026-07-01T12:00:00.Z",
			"2026-07-01t12:00:00Z", "2026-07-01T12:00:00z", "2026-07-01T12:00:00+00:00", "2026-07-01 12:00:00Z", "2024-02-29T00:00:00Z", "2025-02-29T00:00:00Z", "1900-02-29T00:00:00Z", "2000-02-29T23:59:59.999999Z",
			"2026-13-01T00:00:00Z", "2026-00-10T00:00:00Z", "2026-01-00T00:00:00Z", "2026-04-31T00:00:00Z", "2026-01-32T00:00:00Z", "2026-01-01T24:00:00Z", "2026-01-01T23:60:00Z", "2016-12-31T23:59:60Z", "2016-12-31T23:59:60.5Z",
			"2016-12-31T12:00:60Z", "2016-12-31T12:00:61Z", "0000-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "10000-01-01T00:00:00Z", "1970-01-01T00:00:00.000000Z", "2026-07-01T12:00:0 Z", ""))
	case "handler":
		return pick(`"a"`, `"A.b:c-d_9"`, `"-a"`, `"a b"`, `""`, `"a\n"`, `"ä"`, long(128))
	case "handler_version":
		return pick(`"1"`, `"1.0"`, `".1"`, `""`, long(64))
	case "payload_version":
		return pick(`"1"`, `":"`, `""`, long(32))
	case "code", "error_code":
		return pick(`""`, `"x"`, `"card.refused"`, `"not a code"`, `"_x"`, long(64))
	case "message":
		return pick(`""`, `"\u0000"`, `"\ud83d"`, long(1024))
	case "business_key", "concurrency_key":
		return pick(`""`, `"k"`, `" k"`, `"k\t"`, `"k\u00a0"`, `"\u3000k"`, `"a b"`, `"a\u0000b"`, `"a\u0085b"`, `"\u007f"`, `"\u200bk"`, `"\ud83d\ude42"`, long(191))
	case "outcome", "state", "task_state", "attempt_state", "operation", "disposition", "recovery_safety":
		return pick(`"SUCCEEDED"`, `"FAILED"`, `"UNKNOWN"`, `"CANCELLED"`, `"LEASED"`, `"RUNNING"`, `"EXPIRED"`, `"WAITING"`, `"NEEDS_REVIEW"`, `"start"`, `"renew"`, `"finish"`, `"APPLIED"`, `"EVIDENCE_ONLY"`,
			`"IDEMPOTENT"`, `"RECONCILE_ONLY"`, `"leased"`, `""`, `"LEASED "`)
	case "payload", "result":
		return pick(`0`, `null`, `"null"`, `[null]`, `{}`, `1e400`, `1e-400`, `-0.0`, `12345678901234567890`, strings.Repeat("7", 64), strings.Repeat("7", 65), `{"a":1,"a":2}`, `{"a":1,"\u0061":2}`, `"\ud800"`, `"\u0000"`, `[1.50, "x" ]`)
	case "capabilities":
		capability := func(i int) string {
			return fmt.Sprintf(`{"handler":"h","handler_version":%q,"payload_version":"1"}`, fmt.Sprint(i))
		}
		var list []string
		for i := range []int{0, 1, 2, 31, 32, 33}[g.random.IntN(6)] {
			list = append(list, capability(i))
		}
		if len(list) > 1 && g.random.IntN(3) == 0 {
			list[len(list)-1] = `{"payload_version":"1","handler":"\u0068","handler_version":"0"}`
		}
		return "[" + strings.Join(list, ",") + "]"
	}
	if strings.HasSuffix(name, "id") || name == "reply_to" || name == "retry_of" {
		return pick(`"0123456789abcdef0123456789abcdef"`, `"0123456789abcdef0123456789abcdeF"`, `"0123456789abcdef0123456789abcde"`, `"0123456789abcdef0123456789abcdef0"`, `""`, `"00000000000000000000000000000000"`,
			`"0123456789abcdef0123456789abcde\u0066"`, `"0123456789abcdef0123456789abcdeg"`)
	}
	return pick(`true`, `false`, `true`, `false`, g.any())
}

// any makes a value that fits nowhere in particular.
func (g *generator) any() string {
	return []string{
		`null`, `true`, `false`, `0`, `1`, `""`, `"x"`, `[]`, `{}`, `[{}]`, `"1"`, `1.5`, `"0123456789abcdef0123456789abcdef"`, `"LEASED"`, `nul`, `'x'`,
	}[g.random.IntN(16)]
}

// damage changes bytes without regard to meaning.
func (g *generator) damage(data []byte) []byte {
	at := g.random.IntN(len(data))
	end := min(at+g.random.IntN(8), len(data))
	switch g.random.IntN(6) {
	case 0:
		return append(data[:at:at], data[end:]...)
	case 1:
		return append(append(data[:end:end], data[at:end]...), data[end:]...)
	case 2:
		data[at] ^= 1 << g.random.IntN(8)
		return data
	case 3:
		return data[:at]
	case 4:
		data[at] = byte(g.random.IntN(256))
		return data
	}
	piece := []string{"\"", "\\", `\u0000`, `\ud800`, `\ud83d\ude42`, "\xEF\xBB\xBF", "\xFF", "\xED\xA0\x80", "NaN", "-", "0", ".0", "e1", " ", "\n", "\x00", ",", "}", "]", "{", "[", `"x":1,`, "null"}[g.random.IntN(23)]
	return append(append(data[:at:at], piece...), data[at:]...)
}
