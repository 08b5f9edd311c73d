package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"pulse/schema/internal/oracle"
)

func TestCheckJSONNamesTheFaultAndItsPlace(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ text, path, message string }{
		{`{"a":[0,{"b":01}]}`, "/a/1/b", "must be followed by a comma or the end of its container"},
		{`{"a":[0,{"b":1e400}]}`, "/a/1/b", "a number must be in the range of an IEEE 754 double"},
		{`{"a":{"b":"\ud800"}}`, "/a/b", "contains half of a surrogate pair"},
		{`{"a/b":{"c~d":1,"c~d":2}}`, "/a~1b/c~0d", "appears more than once in its object"},
		{`{"\u0061":1,"a":2}`, "/a", "appears more than once in its object"},
		{`[[],[1,[]],nan]`, "/2", "must be a JSON value"},
		{`[1,2] 3`, "", "must end after one value"},
		{"\xEF\xBB\xBF{}", "", "must not begin with a byte order mark"},
		{``, "", "a value is missing"},
		{`{"a":"` + "\xFF" + `"}`, "/a", "must be valid UTF-8"},
		{`[0,` + strings.Repeat("9", 65) + `]`, "/1", "a number must have at most 64 characters"},
		{`{"k":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + `}`, "/k" + strings.Repeat("/0", 63), "is nested too deeply"},
	} {
		err := CheckJSON([]byte(test.text), Limits{})
		refusal, ok := errors.AsType[*Error](err)
		if !ok || refusal.Code != InvalidArgument || len(refusal.Violations) != 1 {
			t.Errorf("%.60s: got %v", test.text, err)
			continue
		}
		if v := refusal.Violations[0]; v.Path != test.path || v.Message != test.message {
			t.Errorf("%.60s: got %q at %q, want %q at %q", test.text, v.Message, v.Path, test.message, test.path)
		}
	}
}

func TestCheckJSONHoldsItsLimits(t *testing.T) {
	t.Parallel()
	text := []byte(`{"a":[1]}`)
	for _, test := range []struct {
		limits Limits
		want   Code
	}{
		{Limits{}, ""},
		{Limits{Bytes: len(text)}, ""},
		{Limits{Bytes: len(text) - 1}, TooLarge},
		{Limits{Depth: 2}, ""},
		{Limits{Depth: 1}, InvalidArgument},
	} {
		if err := CheckJSON(text, test.limits); test.want == "" && err != nil || test.want != "" && !errors.Is(err, test.want) {
			t.Errorf("%+v: got %v, want %q", test.limits, err, test.want)
		}
	}
}

func TestCheckResultRefusesNullAndWhatDoesNotFitAFrame(t *testing.T) {
	t.Parallel()
	nested := func(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }
	for _, test := range []struct {
		value string
		want  Code
	}{
		{`2.50`, ""}, {`false`, ""}, {`"null"`, ""}, {`[null]`, ""}, {nested(62), ""},
		{`null`, InvalidArgument}, {" null\n", InvalidArgument}, {``, InvalidArgument}, {nested(63), InvalidArgument},
		{`"` + strings.Repeat("x", BusinessBytesMax-2) + `"`, ""},
		{`"` + strings.Repeat("x", BusinessBytesMax-1) + `"`, TooLarge},
	} {
		if err := CheckResult([]byte(test.value)); test.want == "" && err != nil || test.want != "" && !errors.Is(err, test.want) {
			t.Errorf("%.40s: got %v, want %q", test.value, err, test.want)
		}
	}
}

// holdAgainstOracle compares CheckJSON with the other statement of the rules.
func holdAgainstOracle(t *testing.T, data []byte) {
	t.Helper()
	err := CheckJSON(data, Limits{})
	if want := oracle.Judge(data, DepthMax).Strict; want != (err == nil) {
		t.Errorf("%.300q: strict by the oracle: %v, CheckJSON: %v", data, want, err)
	}
	if err == nil {
		return
	}
	refusal, ok := errors.AsType[*Error](err)
	if !ok || len(refusal.Violations) != 1 || refusal.Violations[0].Message == "" {
		t.Fatalf("%.300q: refused without a violation: %v", data, err)
	}
	if path := refusal.Violations[0].Path; len(path) > 256 || path != "" && path[0] != '/' {
		t.Errorf("%.300q: the path is %q", data, path)
	}
}

func TestHostileTextsGetTheOraclesVerdict(t *testing.T) {
	t.Parallel()
	for _, h := range oracle.Hostiles() {
		t.Run(h.Name, func(t *testing.T) { holdAgainstOracle(t, h.Text) })
	}
}

// FuzzCheckJSON starts from the corpus in testdata/fuzz.
func FuzzCheckJSON(f *testing.F) { f.Fuzz(holdAgainstOracle) }

func TestTheCorpusHoldsTheHostileTexts(t *testing.T) {
	t.Parallel()
	missing, err := oracle.KeepCorpus("testdata/fuzz/FuzzCheckJSON", oracle.Hostiles(), *update)
	if err != nil || len(missing) > 0 {
		t.Errorf("run go test -update: missing %q, %v", missing, err)
	}
}

// Texts are made by rule and then damaged, so that both verdicts are common.
func TestRandomTextsGetTheOraclesVerdict(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	strict := 0
	const texts = 40_000
	for range texts {
		text := randomText(random, 0)
		for range random.IntN(3) {
			text = damage(random, text)
		}
		holdAgainstOracle(t, text)
		if oracle.Judge(text, DepthMax).Strict {
			strict++
		}
		if t.Failed() {
			return
		}
	}
	if strict < texts/5 || strict > texts*4/5 {
		t.Errorf("%d of %d texts are strict: the generator has lost its balance", strict, texts)
	}
}

var fragments = []string{
	`"a"`, `"\u0061"`, `"\n"`, `""`, `"ä"`, "\"\U0001F642\"", `"\ud83d\ude42"`, `"\ud83d"`, `"\\"`, `"\\ud83d"`, `"\u0000"`, `"0123456789abcdef"`,
	`0`, `-0`, `1.50`, `1e5`, `1E+400`, `1e-400`, `-1e309`, `1.7976931348623158e308`, `1.7976931348623159e308`, `123456789012345678901234567890`,
	`true`, `false`, `null`,
}

func randomText(random *rand.Rand, depth int) []byte {
	blank := func() string { return []string{"", "", "", " ", "\n\t", "\r "}[random.IntN(6)] }
	var b bytes.Buffer
	b.WriteString(blank())
	switch kind := random.IntN(4); {
	case kind == 0 && depth < 6:
		b.WriteByte('[')
		for i := range random.IntN(4) {
			if i > 0 {
				b.WriteByte(',')
			}
			b.Write(randomText(random, depth+1))
		}
		b.WriteByte(']')
	case kind == 1 && depth < 6:
		b.WriteByte('{')
		count := random.IntN(5)
		if random.IntN(20) == 0 {
			count = 14 + random.IntN(30) // around the change of method
		}
		for i := range count {
			if i > 0 {
				b.WriteByte(',')
			}
			name := fmt.Sprintf(`"%d"`, i)
			if random.IntN(8) == 0 {
				name = fragments[random.IntN(12)]
			}
			b.WriteString(blank() + name + blank() + ":")
			b.Write(randomText(random, depth+1))
		}
		b.WriteByte('}')
	default:
		b.WriteString(fragments[random.IntN(len(fragments))])
	}
	b.WriteString(blank())
	return b.Bytes()
}

func damage(random *rand.Rand, text []byte) []byte {
	text = bytes.Clone(text)
	at := random.IntN(len(text) + 1)
	end := min(at+random.IntN(6), len(text))
	switch random.IntN(5) {
	case 0:
		return append(text[:at], text[end:]...)
	case 1:
		return append(append(bytes.Clone(text[:end]), text[at:end]...), text[end:]...)
	case 2:
		if at < len(text) {
			text[at] ^= 1 << random.IntN(8)
		}
		return text
	case 3:
		piece := []string{`"`, `\`, `\u`, "\xC3", "\x00", "[", "}", ",", ":", "e", "-", ".", "0", "\xEF\xBB\xBF", strings.Repeat("[", 64)}[random.IntN(15)]
		return append(append(bytes.Clone(text[:at]), piece...), text[at:]...)
	}
	return text
}

// Not parallel: it reads the allocation counter of the whole process.
func TestHostileTextsCostAtMostFourTimesTheirSize(t *testing.T) {
	for _, h := range oracle.Hostiles() {
		allocated := allocatedBytes(len(h.Text) > 4096, func() { _ = CheckJSON(h.Text, Limits{}) })
		if limit := 4*len(h.Text) + 64<<10; allocated > limit {
			t.Errorf("%s: %d bytes allocated for %d bytes of text, at most %d are allowed", h.Name, allocated, len(h.Text), limit)
		}
	}
}

func allocatedBytes(emptyPool bool, do func()) int {
	if emptyPool {
		runtime.GC() // so that a large text pays for its own memory
		runtime.GC()
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc - before.TotalAlloc)
}

// Not parallel: testing.AllocsPerRun forbids it.
func TestOrdinaryTextsCostNoAllocation(t *testing.T) {
	text := []byte(`{"amount":2.50,"to":["Ärger & Söhne","\u00e4"],"nested":{"a":{"b":[true,false,null]}},"n":-1.5e10}`)
	if allocations := testing.AllocsPerRun(200, func() {
		if err := CheckJSON(text, Limits{Bytes: 1 << 20}); err != nil {
			t.Fatal(err)
		}
	}); allocations != 0 {
		t.Errorf("%v allocations", allocations)
	}
}

func BenchmarkCheckJSON(b *testing.B) {
	type line struct {
		ID    int      `json:"id"`
		Name  string   `json:"name"`
		Price float64  `json:"price"`
		Tags  []string `json:"tags"`
	}
	var lines []line
	for i := range 500 {
		lines = append(lines, line{i, "an article with a name of ordinary length", 2.5, []string{"new", "sale"}})
	}
	text, err := json.Marshal(lines)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if err := CheckJSON(text, Limits{}); err != nil {
			b.Fatal(err)
		}
	}
}
