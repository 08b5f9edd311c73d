package docs

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// patience bounds a page; most take a second or two.
const patience = 2 * time.Minute

// bin is where the programs are that pages name.
var bin string

// programs are built once: by the path after "go run", or the name in PATH.
var programs = []string{"cmd/pulse", "examples/payonce"}

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if bin, err = os.MkdirTemp("", "pulse-docs-"); err != nil {
			panic(err)
		}
		defer os.RemoveAll(bin)
		for _, program := range programs {
			build := exec.Command("go", "build", "-o", filepath.Join(bin, filepath.Base(program)), "./"+program)
			build.Dir = "../.."
			if out, err := build.CombinedOutput(); err != nil {
				fmt.Fprintf(os.Stderr, "building %s: %v\n%s", program, err, out)
				return 1
			}
		}
		return m.Run()
	}())
}

func TestPagesDoWhatTheySay(t *testing.T) {
	t.Parallel()
	ran := 0
	for name, page := range pages(t) {
		blocks, err := blocksOf(name, page)
		if err != nil {
			t.Error(err)
			continue
		}
		if !slices.ContainsFunc(blocks, func(b block) bool { return b.mark == "run" }) {
			continue
		}
		ran++
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runPage(t, blocks)
		})
	}
	if ran < 3 {
		t.Errorf("only %d pages have something to run", ran)
	}
}

// started are the ways to start the node that a page runs against.
var started = []string{"go run ./cmd/pulse dev\n", "pulse dev\n"}

func runPage(t *testing.T, blocks []block) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	dir := t.TempDir()
	url := startDev(ctx, t)

	var run []block
	script := strings.Builder{}
	script.WriteString(prelude)
	for _, b := range blocks {
		switch {
		case b.mark != "run":
			continue
		case b.detail == "another terminal":
			if !slices.Contains(started, b.text) {
				t.Errorf("%s: the node of a page is started by %q, not %q", b.at, started[0], b.text)
			}
			continue
		}
		path := filepath.Join(dir, fmt.Sprintf(".block%d", len(run)))
		if err := os.WriteFile(path, []byte(b.text), 0o600); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&script, "run %q\n", path)
		run = append(run, b)
	}
	shell := exec.CommandContext(ctx, "bash", "-c", script.String())
	shell.Dir = dir
	shell.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "PULSE_ADDR="+url, "BIN="+bin, "HOME="+dir, "TERM=dumb")
	if out, err := shell.CombinedOutput(); err != nil {
		t.Errorf("the shell: %v\n%s", err, out)
	}
	for i, b := range run {
		check(t, b, filepath.Join(dir, fmt.Sprintf(".block%d", i)))
	}
	checkOutputs(t, blocks, run, dir)
}

// prelude makes "go run" take what was built, and runs blocks one after the other
// in this shell. A block fails with the status of its first command that fails.
const prelude = `set -uo pipefail
go() {
	case "$1" in
	run) local program; program=$(basename "$2"); shift 2; "$BIN/$program" "$@" ;;
	*) command go "$@" ;;
	esac
}
run() {
	failed=0
	set -E
	trap 'status=$?; [[ $failed -ne 0 ]] || failed=$status' ERR
	source "$1" >"$1.out" 2>&1
	trap - ERR
	echo "$failed" >"$1.status"
}
`

// check compares how a block ended with what its comment says.
func check(t *testing.T, b block, path string) {
	t.Helper()
	want := "0"
	if b.detail != "" {
		var found bool
		if want, found = strings.CutPrefix(b.detail, "exit "); !found {
			t.Errorf("%s: what does %q mean?", b.at, b.detail)
		}
	}
	status, err := os.ReadFile(path + ".status")
	out, _ := os.ReadFile(path + ".out") // shown as far as it is there
	if err != nil || strings.TrimSpace(string(status)) != want {
		t.Errorf("%s: exit %s, want %s\n%s\n%s", b.at, strings.TrimSpace(string(status)), want, b.text, out)
	}
}

// checkOutputs compares what was printed with what the page shows.
func checkOutputs(t *testing.T, blocks, run []block, dir string) {
	t.Helper()
	before := -1
	for _, b := range blocks {
		if b.mark == "run" && b.detail != "another terminal" {
			before++
		}
		if b.mark != "output" {
			continue
		}
		if before < 0 {
			t.Errorf("%s: output of nothing", b.at)
			continue
		}
		out, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf(".block%d.out", before)))
		if err != nil {
			t.Error(err)
			continue
		}
		if missing := firstMissing(b.text, string(out)); missing != "" {
			t.Errorf("%s: %s does not print %q; it prints:\n%s", b.at, run[before].at, missing, out)
		}
	}
}

// firstMissing returns the first line that is not printed where it should be.
func firstMissing(want, got string) string {
	lines := strings.Split(got, "\n")
	for line := range strings.SplitSeq(strings.TrimSuffix(want, "\n"), "\n") {
		parts := strings.Split(line, "…")
		for i := range parts {
			// Columns are as wide as what is in them, which differs.
			parts[i] = regexp.MustCompile(`\\?\s+`).ReplaceAllString(regexp.QuoteMeta(parts[i]), `\s+`)
		}
		pattern := regexp.MustCompile(`^` + strings.Join(parts, `.*`) + `\s*$`)
		i := slices.IndexFunc(lines, pattern.MatchString)
		if i < 0 {
			return line
		}
		lines = lines[i+1:]
	}
	return ""
}

// startDev runs "pulse dev" until the test ends.
func startDev(ctx context.Context, t *testing.T) (url string) {
	t.Helper()
	dev := exec.Command(filepath.Join(bin, "pulse"), "dev", "--http", "127.0.0.1:0", "-o", "jsonl")
	dev.Stderr = t.Output()
	out, err := dev.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := dev.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := dev.Wait(); err != nil {
			t.Errorf("pulse dev: %v", err)
		}
	})
	line := make(chan string, 1)
	go func() {
		text, _ := bufio.NewReader(out).ReadString('\n') // "" says enough
		line <- text
	}()
	var ready struct {
		URL string `json:"url"`
	}
	select {
	case text := <-line:
		if err := json.Unmarshal([]byte(text), &ready); err != nil {
			t.Fatalf("pulse dev says %q: %v", text, err)
		}
	case <-ctx.Done():
		t.Fatal("pulse dev does not get ready")
	}
	return ready.URL
}

func TestOutputIsComparedLineByLine(t *testing.T) {
	t.Parallel()
	got := "Task 17\n  WAITING   submitted\n  RUNNING   started\n{\"hi\":1.50}\n"
	for want, missing := range map[string]string{
		"Task …\n":                        "",
		"Task …\n…\n{\"hi\":1.50}\n":      "",
		"WAITING submitted\n":             "WAITING submitted",
		"  WAITING submitted\n":           "",
		"{\"hi\":1.5}\n":                  "{\"hi\":1.5}",
		"  RUNNING started\nTask …\n":     "Task …",
		"  WAITING …\n  RUNNING started.": "  RUNNING started.",
	} {
		if m := firstMissing(want, got); m != missing {
			t.Errorf("%q: missing %q, want %q", want, m, missing)
		}
	}
}
