package arch

import (
	"slices"
	"strings"
	"testing"
)

// rule says what one folder of the house may import of ours. An entry ending
// in "/..." stands for the folder and all below it; otherwise it is one package.
type rule struct {
	pkg string
	may []string
	// never is what must not be reached even through others; entries are
	// folders of ours or modules of others.
	never []string
}

// The drawing. The most specific line holds: "sdk/pulsetest" before "sdk".
var rules = []rule{
	{"cmd/pulse", []string{"cmd/...", "sdk/...", "gateway/...", "rpc", "cluster/...", "fsm/...", "proto/...", "schema/..."}, []string{"test"}},
	{"cmd/node", []string{"gateway/...", "rpc", "cluster/...", "fsm/...", "proto/...", "schema/..."}, []string{"test", "sdk"}},

	{"sdk", []string{"schema/...", "sdk/..."}, []string{"fsm", "cluster", "rpc", "gateway", "cmd", "proto", "test", raft, pebble}},
	{"sdk/pulsetest", []string{"sdk", "cmd/node", "schema/..."}, []string{"test", "cmd/pulse"}},

	{"gateway", []string{"gateway/...", "proto/...", "schema/..."}, []string{"fsm", "cluster", "rpc", "cmd", "test", raft, pebble}},
	{"gateway/session", []string{"proto/...", "schema/..."}, []string{"gateway/pulse", "gateway/httpapi", "gateway/wsconn", "fsm", "cluster", "rpc", raft, pebble}},
	{"gateway/wsconn", []string{"schema/..."}, []string{"gateway/session", "proto", "fsm", "cluster", "rpc", raft, pebble}},
	{"gateway/pulse", []string{"gateway/session", "gateway/wsconn", "proto/...", "schema/..."}, []string{"gateway/httpapi", "fsm", "cluster", "rpc", raft, pebble}},
	{"gateway/httpapi", []string{"gateway/session", "proto/...", "schema/..."}, []string{"gateway/pulse", "gateway/wsconn", "fsm", "cluster", "rpc", raft, pebble}},
	// The console has the API as an http.Handler and no other way to anything.
	{"gateway/console", nil, []string{"gateway/pulse", "gateway/wsconn", "gateway/session", "gateway/httpapi", "proto", "schema", "fsm", "cluster", "rpc", raft, pebble}},

	{"rpc", []string{"proto/...", "fsm/state", "schema/..."}, []string{"gateway", "cluster", "cmd", raft}},

	{"cluster", []string{"cluster/clock", "fsm", "fsm/state", "proto/...", "schema/..."}, []string{"rpc", "gateway", "cmd", "sdk"}},
	{"cluster/clock", nil, []string{"fsm", "proto", "schema", raft, pebble}},
	{"cluster/member", nil, []string{"fsm", raft, pebble}},
	{"cluster/duty", []string{"fsm", "fsm/state", "proto/..."}, []string{"rpc", "gateway", "cmd", raft}},

	{"fsm", []string{"fsm/state", "proto/...", "schema/..."}, []string{"cluster", "rpc", "gateway", "cmd", raft}},
	{"fsm/state", []string{"proto/..."}, []string{"schema", "cluster", "rpc", "gateway", "cmd", raft}},

	// What users would write, so with what users have.
	{"examples", []string{"sdk", "schema/..."}, []string{"fsm", "cluster", "rpc", "gateway", "cmd", "proto", "test", raft, pebble}},

	{"proto", []string{"proto/..."}, nil},
	{"schema", []string{"schema/..."}, nil},
	{"test", []string{"cmd/...", "sdk/...", "gateway/...", "rpc", "cluster/...", "fsm/...", "proto/...", "schema/...", "test/..."}, nil},
}

const (
	raft   = "github.com/hashicorp/raft"
	pebble = "github.com/cockroachdb/pebble/v2"
)

// owners says which folders may import a library that shapes what is around
// it. In tests too.
var owners = []struct {
	lib string
	by  []string
}{
	{raft, []string{"cluster", "test"}},
	{"github.com/hashicorp/raft-boltdb/v2", []string{"cluster"}},
	{"github.com/hashicorp/raft-wal", []string{"cluster", "test/cluster"}}, // reads the logs of stopped nodes
	{"github.com/hashicorp/memberlist", []string{"cluster/member"}},
	{pebble, []string{"fsm", "cluster", "test"}},
	{"github.com/coder/websocket", []string{"gateway/wsconn", "gateway/pulse", "sdk", "test", "cmd"}},
	{"github.com/danielgtaylor/huma/v2", []string{"gateway/httpapi"}},
	{"github.com/robfig/cron/v3", []string{"schema/cron"}},
	{"github.com/prometheus/client_golang", []string{"cmd/node"}},
	{"github.com/spf13/cobra", []string{"cmd/pulse"}},
	{"google.golang.org/grpc", []string{"rpc", "proto", "cmd"}},
	{"github.com/chromedp/chromedp", []string{"test/console"}},
	// The machine and the cluster know no spans; who wires says where they go.
	{"go.opentelemetry.io/otel/sdk", []string{"cmd/pulse"}},
	{"go.opentelemetry.io/otel/exporters", []string{"cmd/pulse"}},
	{"go.opentelemetry.io/otel", []string{"cmd", "sdk", "gateway/httpapi"}},
}

func ruleOf(path string) *rule {
	var best *rule
	for i := range rules {
		r := &rules[i]
		if within(path, r.pkg) && (best == nil || len(r.pkg) > len(best.pkg)) {
			best = r
		}
	}
	return best
}

func (r *rule) allows(path string) bool {
	if within(path, r.pkg) && ruleOf(path) == r {
		return true // its own sub-packages that have no line of their own
	}
	for _, may := range r.may {
		if dir, all := strings.CutSuffix(may, "/..."); path == dir || all && within(path, dir) {
			return true
		}
	}
	return false
}

func TestPackagesImportOnlyWhatTheDrawingAllows(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		r := ruleOf(p.rel())
		if r == nil {
			t.Errorf("%s has no place in the house: give it a line in test/arch", p.rel())
			continue
		}
		for _, imp := range p.Imports {
			if ours(imp) && !r.allows(rel(imp)) {
				t.Errorf("%s imports %s, which the drawing does not allow", p.rel(), rel(imp))
			}
		}
		for _, never := range r.never {
			if i := slices.IndexFunc(p.Deps, func(dep string) bool {
				return ours(dep) && within(rel(dep), never) || !ours(dep) && within(dep, never)
			}); i >= 0 {
				t.Errorf("%s reaches %s, directly or through another package", p.rel(), p.Deps[i])
			}
		}
	}
}

func TestTestsImportNothingFromAbove(t *testing.T) {
	t.Parallel()
	// A package's tests may bring in what they like from their own floor and
	// below, and the whole node only where whole nodes are tested.
	floors := [][]string{{"proto", "schema", "test/allocs", "test/calm", "test/ports", "test/secrets"}, {"fsm", "gateway", "sdk"}, {"cluster", "rpc"}, {"cmd", "examples"}, {"test"}}
	floor := func(path string) int {
		return slices.IndexFunc(floors, func(dirs []string) bool {
			return slices.ContainsFunc(dirs, func(d string) bool { return within(path, d) })
		})
	}
	for _, p := range packages(t) {
		if within(p.rel(), "sdk") {
			continue // the SDK is tested against a whole node
		}
		for _, imp := range slices.Concat(p.TestImports, p.XTestImports) {
			if ours(imp) && floor(rel(imp)) > floor(p.rel()) {
				t.Errorf("tests of %s import %s from a floor above", p.rel(), rel(imp))
			}
		}
	}
}

func TestLibrariesStayWithTheirOwners(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		for _, imp := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			if ours(imp) {
				continue
			}
			for _, o := range owners {
				owned := slices.ContainsFunc(o.by, func(d string) bool { return within(p.rel(), d) })
				if within(imp, o.lib) && !owned {
					t.Errorf("%s imports %s, which belongs to %s", p.rel(), imp, strings.Join(o.by, ", "))
				}
			}
		}
	}
}

func TestThePulseBinaryIsWhole(t *testing.T) {
	t.Parallel()
	// A rule about a package that nobody builds protects nothing.
	have := map[string]bool{}
	for _, p := range packages(t) {
		have[p.rel()] = true
		if p.Error != nil {
			t.Errorf("%s: %s", p.rel(), p.Error.Err)
		}
	}
	for _, want := range []string{"fsm", "fsm/state", "cluster", "cluster/duty", "rpc", "gateway", "gateway/session", "gateway/wsconn",
		"gateway/pulse", "gateway/httpapi", "gateway/console", "sdk", "sdk/pulsetest", "schema", "cmd/node", "cmd/pulse"} {
		if !have[want] {
			t.Errorf("package %s is missing", want)
		}
	}
}

func TestARuleCanFail(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from, to string
		allowed  bool
	}{
		{"fsm", "cluster", false},
		{"fsm", "fsm/state", true},
		{"fsm/state", "schema", false},
		{"gateway/pulse", "gateway/httpapi", false},
		{"gateway/httpapi", "gateway/session", true},
		{"gateway", "fsm", false},
		{"rpc", "gateway/session", false},
		{"rpc", "fsm", false},
		{"cluster", "rpc", false},
		{"cluster/duty", "cluster", false},
		{"cluster/member", "fsm", false},
		{"sdk", "cmd/node", false},
		{"sdk/pulsetest", "cmd/node", true},
		{"cmd/node", "test/conformance", false},
		{"cmd/pulse", "sdk", true},
		{"schema", "schema/internal/utf", true},
		{"proto/pulse/v1", "schema", false},
	} {
		if got := ruleOf(c.from).allows(c.to); got != c.allowed {
			t.Errorf("may %s import %s? %v", c.from, c.to, got)
		}
	}
}
