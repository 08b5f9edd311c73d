package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestWrongUsageExitsWith2AndSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	const id = "0199f3c2a1b87d4e9a0b1c2d3e4f5061"
	for _, c := range []struct {
		args  string
		words string
	}{
		{"frobnicate", `unknown command "frobnicate"`},
		{"task", "needs a verb"},
		{"task lst", `did you mean "list"?`},
		{"task run", "needs HANDLER"},
		{"task run a {} more", "nothing more"},
		{"task run echo {\"a\":1", "ends too early"},
		{"task run echo {} --nope", "unknown flag: --nope"},
		{"task run echo {} --delay soon", "such as 500ms, 30s"},
		{"task run echo {} --delay 1m --at 2030-01-01T00:00:00Z", "exclude each other"},
		{"task run echo {} --max-attempts 0", "1 to 100"},
		{"task run echo {} --deadline yesterday", "such as 2026-03-01"},
		{"task get xyz", "32 hexadecimal digits"},
		{"task get", "needs ID"},
		{"task list --state SLEEPING", "--state is \"SLEEPING\""},
		{"task list --reason because", "--reason is \"because\""},
		{"task list -o xml", "table, json or jsonl"},
		{"task list --addr example.com:7400", "http://HOST:PORT"},
		{"task list --log-level loud", "debug, info, warn or error"},
		{"task list --client-cert a.pem", "go together"},
		{"task cancel", "say which tasks"},
		{"task cancel " + id + " --handler x", "exclude each other"},
		{"task cancel --handler x", "--dry-run"},
		{"task submit", `required flag(s) "file"`},
		{"review resolve " + id, `required flag(s) "decision", "note"`},
		{"review resolve " + id + " --decision MAYBE --note n", "give one of SUCCEEDED"},
		{"review resolve " + id + " --decision FAILED --note n", "--error-code goes with"},
		{"review resolve " + id + " --decision RETRY --note n --result {}", "--result goes with"},
		{"review resolve " + id + " --decision RETRY --note=", "--note has to say"},
		{"queue update default", "say what to change"},
		{"key free a", `required flag(s) "note"`},
		{"worker get 1", "id of a worker"},
		{"cluster remove", "needs NODE"},
		{"cluster transfer a b", "nothing more"},
		{"cluster members a", "unknown command"},
		{"server", "--data is missing"},
		{"server --data x --join 127.0.0.1:7403", "--node-id is missing"},
		{"server --data x --bootstrap-expect 3 --node-id a", "--certs is missing"},
		{"server --data x --http 10.0.0.1:7400", "give --certs DIR"},
		{"server --data x --node-id a --cluster-secret-file s --bootstrap-expect 3 --raft 10.0.0.1:7402", "--raft is \"10.0.0.1:7402\""},
		{"server --data x --node-id a --cluster-secret-file s --bootstrap-expect 3 --gossip 0.0.0.0:7402", "give --certs DIR"},
		{"server --data x --address-handshakes 0", "give a number above 0"},
		{"gateway --node-id g --join 127.0.0.1:7403 --cluster-secret-file s --address-fault-burst -1", "--address-fault-burst is -1"},
		{"cluster init-tls", "needs DIR"},
		{"cluster init-tls x", "--node is missing"},
		{"cluster init-tls x --node n1", "ID=HOST"},
		{"cluster add-node x n1", "ID=HOST"},
		{"cluster add-node x", "needs ID=HOST"},
		{"cluster add-client x", "needs NAME"},
		{"cluster rotate-ca x raft", "one of node, http, client"},
		{"cluster revoke x", "--node ID or --client NAME"},
		{"cluster revoke x --node a --client b", "one of them"},
		{"server --data x --bootstrap-expect 0", "--bootstrap-expect is 0"},
		{"server --data x --http 0.0.0.0:7400", "stays on this machine"},
		{"server --data x --raft 7402", "--raft is \"7402\""},
		{"dev --http 0.0.0.0:7400", "this machine alone"},
		{"dev --http :7400", "this machine alone"},
		{"dev --http 192.168.1.1:7400", "this machine alone"},
		{"dev extra", "unknown command"},
		{"demo --kill -9", "--kill is"},
		{"demo --tasks 0", "--tasks is 0"},
		{"bench --workers 0", "--workers is 0"},
		{"bench --slots 1000", "--slots is 1000"},
		{"completion tcsh", "invalid argument"},
		{"version now", "unknown command"},
	} {
		r := shell{t: t}.run(strings.Fields(c.args)...)
		if r.code != exitUsage || !strings.Contains(r.err, c.words) || !strings.Contains(r.err, "--help") {
			t.Errorf("pulse %s: exit %d, want 2 and %q:\n%s", c.args, r.code, c.words, r.err)
		}
		if r.out != "" {
			t.Errorf("pulse %s: wrong usage on standard output: %q", c.args, r.out)
		}
	}
}

// verbs visits every command that does something.
func verbs(visit func(*cobra.Command)) {
	root := (&app{getenv: func(string) string { return "" }}).root()
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		visit(cmd)
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(root)
}

func TestEveryVerbExplainsItselfWithAnExample(t *testing.T) {
	t.Parallel()
	verbs(func(cmd *cobra.Command) {
		path := cmd.CommandPath()
		switch {
		case cmd.Short == "":
			t.Errorf("%s has no sentence about it", path)
		case !strings.Contains(cmd.Example, "pulse "):
			t.Errorf("%s has no example", path)
		case strings.HasSuffix(cmd.Short, "."):
			t.Errorf("%s: %q ends with a full stop, the others do not", path, cmd.Short)
		}
		for line := range strings.SplitSeq(cmd.Long+"\n"+cmd.Example, "\n") {
			if len([]rune(line)) > 100 {
				t.Errorf("%s: a line of its help has %d characters", path, len([]rune(line)))
			}
		}
		if len(cmd.Commands()) > 0 {
			return
		}
		r := shell{t: t}.run(append(strings.Fields(path)[1:], "--help")...)
		if r.code != exitDone || !strings.Contains(r.out, "Examples:") || r.err != "" {
			t.Errorf("%s --help: exit %d\n%s%s", path, r.code, r.out, r.err)
		}
	})
}

// An example that no longer parses is worse than none.
func TestExamplesAreRightUsage(t *testing.T) {
	t.Parallel()
	seen := 0
	verbs(func(cmd *cobra.Command) {
		for line := range strings.SplitSeq(strings.ReplaceAll(cmd.Example, "\\\n", ""), "\n") {
			_, call, found := strings.Cut(line, "pulse ")
			if !found {
				continue
			}
			seen++
			args := words(call)
			if i := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, ">") || strings.HasPrefix(a, ")") }); i >= 0 {
				args = args[:i]
			}
			root := (&app{getenv: func(string) string { return "" }}).root()
			verb, rest, err := root.Find(args)
			if err == nil {
				err = verb.ParseFlags(rest)
			}
			if err == nil {
				err = verb.ValidateArgs(verb.Flags().Args())
			}
			if err == nil {
				err = verb.ValidateRequiredFlags()
			}
			if err != nil || verb.RunE == nil {
				t.Errorf("example of %s: %q: %v", cmd.CommandPath(), call, err)
			}
		}
	})
	if seen < 40 {
		t.Errorf("only %d examples were read", seen)
	}
}

// words splits a line as a shell does, as far as the examples go.
func words(line string) (out []string) {
	var word strings.Builder
	var quoted rune
	inWord := false
	for _, c := range strings.TrimSuffix(line, ")") {
		switch {
		case quoted != 0 && c == quoted:
			quoted = 0
		case quoted != 0:
			word.WriteRune(c)
		case c == '\'' || c == '"':
			quoted, inWord = c, true
		case c == ' ':
			if inWord {
				out = append(out, word.String())
			}
			word.Reset()
			inWord = false
		default:
			word.WriteRune(c)
			inWord = true
		}
	}
	if inWord {
		out = append(out, word.String())
	}
	return out
}

func TestHelpIsShownForAWordWithoutAVerb(t *testing.T) {
	t.Parallel()
	if r := (shell{t: t}).run(); r.code != exitDone || !strings.Contains(r.out, "Run Pulse:") {
		t.Errorf("pulse: exit %d\n%s%s", r.code, r.out, r.err)
	}
	if r := (shell{t: t}).run("queue"); r.code != exitUsage || !strings.Contains(r.err, "Available Commands:") {
		t.Errorf("pulse queue: exit %d\n%s%s", r.code, r.out, r.err)
	}
}

func TestCompletionIsWrittenForEveryShell(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"bash", "zsh", "fish", "powershell"} {
		if out := (shell{t: t}).ok("completion", name); !strings.Contains(out, "pulse") {
			t.Errorf("completion %s: %d bytes", name, len(out))
		}
	}
	out := shell{t: t}.ok("__complete", "task", "list", "--state", "")
	if !strings.Contains(out, "NEEDS_REVIEW") {
		t.Errorf("states are not offered: %s", out)
	}
}

// What only the cluster knows is completed by asking it.
func TestNamesOfTheClusterAreCompleted(t *testing.T) {
	t.Parallel()
	s, _ := startNode(t)
	s.ok("queue", "create", "mail")
	s.ok("namespace", "create", "billing")
	s.submit("nobody", "--key", "account/9")
	member := object(t, s.ok("cluster", "members", "-o", "jsonl"))
	worker := object(t, s.ok("worker", "list", "-o", "jsonl"))
	for _, c := range []struct {
		want any
		line []string
	}{
		{"mail", []string{"queue", "pause", ""}},
		{"mail", []string{"task", "list", "--queue", "m"}},
		{"mail", []string{"task", "run", "echo", "-q", ""}},
		{"billing", []string{"task", "list", "--namespace", ""}},
		{"billing", []string{"namespace", "delete", ""}},
		{worker["instance_id"], []string{"worker", "drain", ""}},
		{member["id"], []string{"cluster", "transfer", ""}},
	} {
		if out := s.ok(append([]string{"__complete"}, c.line...)...); !strings.Contains("\n"+out, fmt.Sprintf("\n%v\n", c.want)) {
			t.Errorf("%v is not offered for %q:\n%s", c.want, c.line, out)
		}
	}
	if out := s.ok("__complete", "queue", "create", ""); strings.Contains(out, "mail") {
		t.Errorf("a new queue is offered the name of another:\n%s", out)
	}
	away := shell{t: t, env: map[string]string{"PULSE_ADDR": "http://127.0.0.1:1"}}
	if out := away.ok("__complete", "queue", "pause", ""); !strings.HasPrefix(out, ":4") {
		t.Errorf("without a cluster there is offered\n%s", out)
	}
}

func TestBytesAreShownAsTheyGo(t *testing.T) {
	t.Parallel()
	var screen strings.Builder
	p := newByteProgress(io.Discard, "backed up")
	if p.w != nil {
		t.Error("what is no terminal gets a line of progress")
	}
	p.w = &screen
	if n, err := p.Write(make([]byte, 2<<20)); n != 2<<20 || err != nil {
		t.Error(n, err)
	}
	p.end()
	if out := screen.String(); !strings.Contains(out, "backed up "+size(2<<20)) || !strings.HasSuffix(out, "\r\x1b[K") {
		t.Errorf("%q", out)
	}
}

func TestNobodyListeningIsSaidInWords(t *testing.T) {
	t.Parallel()
	s := shell{t: t, env: map[string]string{"PULSE_ADDR": "http://127.0.0.1:1"}}
	r := s.fails(exitFailed, "Start a node with 'pulse dev'", "task", "list", "--timeout", "1s")
	if strings.Contains(r.out, "ID") {
		t.Errorf("a list without an answer has a header: %q", r.out)
	}
}

func TestTheVersionIsShown(t *testing.T) {
	t.Parallel()
	if out := (shell{t: t}).ok("version"); !strings.HasPrefix(out, "pulse "+version) {
		t.Error(out)
	}
	if v := object(t, shell{t: t}.ok("version", "-o", "json")); v["version"] != version {
		t.Error(v)
	}
}
