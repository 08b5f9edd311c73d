package deploy

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

const (
	root  = "../.."
	files = root + "/deploy"
)

// built is where the binaries are, made as the Dockerfile says.
var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "pulse-deploy-test-") //nolint:usetesting // outlives the test that asks first
	if err != nil {
		return "", err
	}
	d, err := readDockerfile(files + "/Dockerfile")
	if err != nil {
		return "", err
	}
	return dir, d.build(dir)
})

var wasBuilt bool

// binary is one of the binaries in the image.
func binary(t *testing.T, name string) string {
	t.Helper()
	wasBuilt = true
	dir, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

func TestMain(m *testing.M) {
	code := m.Run()
	if wasBuilt {
		if dir, err := built(); err == nil {
			_ = os.RemoveAll(dir)
		}
	}
	os.Exit(code)
}

// tool is a program of Debian's that a test needs.
func tool(t *testing.T, name string) string {
	t.Helper()
	for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/sbin", "/sbin") {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && !info.IsDir() {
			return path
		}
	}
	if os.Getenv("CI") != "" {
		t.Fatalf("%s is not installed: .ci/run has to see to it", name)
	}
	t.Skipf("%s is not installed", name)
	return ""
}

func run(t *testing.T, name string, args ...string) (output string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	text, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(text), cmd.ProcessState.ExitCode()
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// coming are verbs and flags that the files name and the binary does not have
// yet. Each is taken out of here when it comes: a test fails until it is.
var coming = []string{}

var flagInHelp = regexp.MustCompile(`(?m)^ +(?:-[a-z], )?--([a-z][a-z-]*)`)

// help lists the flags of a verb; ok is false if there is no such verb.
var help = func() func(t *testing.T, verb ...string) (flags []string, ok bool) {
	var mu sync.Mutex
	known := map[string][]string{}
	return func(t *testing.T, verb ...string) ([]string, bool) {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		key := strings.Join(verb, " ")
		if flags, ok := known[key]; ok {
			return flags, flags != nil
		}
		text, code := run(t, binary(t, "pulse"), append(slices.Clone(verb), "--help")...)
		known[key] = nil
		// The help of a verb that is not there is that of the one above it.
		if code == 0 && strings.Contains(text, "\n  pulse "+key+" ") {
			for _, m := range flagInHelp.FindAllStringSubmatch(text, -1) {
				known[key] = append(known[key], m[1])
			}
		}
		return known[key], known[key] != nil
	}
}()

// knowsVerb fails the test unless the binary has the verb, or is to have it.
func knowsVerb(t *testing.T, at string, verb ...string) (ok bool) {
	t.Helper()
	key := strings.Join(verb, " ")
	_, ok = help(t, verb...)
	if !ok && !slices.Contains(coming, key) {
		t.Errorf("%s: there is no 'pulse %s'", at, key)
	}
	return ok
}

// knowsFlag fails the test unless the verb has the flag, or is to have it.
func knowsFlag(t *testing.T, at, flag string, verb ...string) {
	t.Helper()
	if !knowsVerb(t, at, verb...) {
		return
	}
	flags, _ := help(t, verb...)
	if !slices.Contains(flags, flag) && !slices.Contains(coming, strings.Join(verb, " ")+" --"+flag) {
		t.Errorf("%s: 'pulse %s' has no --%s", at, strings.Join(verb, " "), flag)
	}
}

func TestWhatHasComeIsNoLongerExpected(t *testing.T) {
	t.Parallel()
	for _, c := range coming {
		verb, flag, isFlag := strings.Cut(c, " --")
		flags, ok := help(t, strings.Fields(verb)...)
		if isFlag {
			ok = slices.Contains(flags, flag)
		}
		if ok {
			t.Errorf("'pulse %s' is there now: take it out of the list of what is coming", c)
		}
	}
}

// command is a command line of the binary.
type command struct {
	verb  []string
	flags map[string][]string // by name, in order
	args  []string
}

// commandOf reads a command line with flags of the form --name=value.
func commandOf(words []string) (c command, err error) {
	c.flags = map[string][]string{}
	for i := 0; i < len(words); i++ {
		w := words[i]
		name, isFlag := strings.CutPrefix(w, "--")
		if !isFlag {
			if len(c.flags) == 0 && len(c.verb) < 2 && regexp.MustCompile(`^[a-z][a-z-]*$`).MatchString(w) {
				c.verb = append(c.verb, w)
			} else {
				c.args = append(c.args, w)
			}
			continue
		}
		name, value, whole := strings.Cut(name, "=")
		if !whole && i+1 < len(words) && !strings.HasPrefix(words[i+1], "--") {
			i++
			value = words[i]
		}
		c.flags[name] = append(c.flags[name], value)
	}
	if len(c.verb) == 0 {
		return c, fmt.Errorf("%q names no verb", words)
	}
	return c, nil
}

// checkCommand holds a command line to the binary's flags.
func checkCommand(t *testing.T, at string, words []string) command {
	t.Helper()
	c, err := commandOf(words)
	if err != nil {
		t.Fatalf("%s: %v", at, err)
	}
	for flag := range c.flags {
		knowsFlag(t, at, flag, c.verb...)
	}
	return c
}

// one is the value of a flag that is given once.
func (c command) one(t *testing.T, at, flag string) string {
	t.Helper()
	if len(c.flags[flag]) != 1 || c.flags[flag][0] == "" {
		t.Errorf("%s: --%s is given as %q, want it once", at, flag, c.flags[flag])
		return ""
	}
	return c.flags[flag][0]
}

func TestAFlagThatIsNotThereIsNoticed(t *testing.T) {
	t.Parallel()
	flags, ok := help(t, "server")
	if !ok || !slices.Contains(flags, "bootstrap-expect") || slices.Contains(flags, "bootstrap") {
		t.Errorf("flags of server: %v", flags)
	}
	if _, ok := help(t, "serve"); ok {
		t.Error("there is a verb serve")
	}
	if _, ok := help(t, "cluster", "nonsense"); ok {
		t.Error("there is a verb cluster nonsense")
	}
	if _, ok := help(t, "cluster", "backup"); !ok {
		t.Error("there is no verb cluster backup")
	}
}

// changed is a file with some of its text replaced. Each text has to be there, so
// that a test notices when the file goes another way.
func changed(t *testing.T, path string, pairs ...string) string {
	t.Helper()
	text := read(t, path)
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(text, pairs[i]) {
			t.Fatalf("%s no longer says %q", path, pairs[i])
		}
		text = strings.ReplaceAll(text, pairs[i], pairs[i+1])
	}
	return text
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// indent shows the output of a program.
func indent(text string) string {
	return "\n  " + string(bytes.ReplaceAll([]byte(strings.TrimSpace(text)), []byte("\n"), []byte("\n  ")))
}
