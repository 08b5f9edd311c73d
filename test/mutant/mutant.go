// Package mutant tries tests: it builds the code wrong on purpose, one rule at a
// time, and expects them to notice. A mutant is a text file: why it matters, and
// what to replace in which file by what.
//
//	# Work that must not be done twice is tried again on suspicion.
//	file: fsm/attempt.go
//	<<<<
//	the lines as they are, once in the file
//	====
//	the lines as they must not be
//	>>>>
//
// The repository is not touched: the go tool compiles the changed file from a
// temporary place. A mutant that no longer applies, or no longer compiles, fails
// like one that nothing notices.
package mutant

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Env has to be set for mutants to be built: each costs a build of the test
// binary, and together they take long. 'make mutants' sets it.
const Env = "PULSE_MUTANTS"

// Found marks what a test says about a mutant that it has noticed. A test that
// fails without it has failed in another way.
const Found = "found by "

// Test looks whether each mutants/*.txt still applies, which costs nothing. With
// Env it builds the test binary of the package in the current directory once for
// each mutants/*.txt and runs it, without the mutants and with env, to fail with
// a line that holds found. root is the repository's.
func Test(t *testing.T, root string, found *regexp.Regexp, env []string, args ...string) {
	paths, err := filepath.Glob("mutants/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no mutants: %v", err)
	}
	if root, err = filepath.Abs(root); err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			c, err := read(path)
			if err != nil {
				t.Fatal(err)
			}
			overlay, err := c.apply(root, t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			if os.Getenv(Env) == "" {
				return
			}
			binary := filepath.Join(t.TempDir(), "mutant.test")
			build := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", overlay, "-o", binary, ".")
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("does not compile: %v\n%s", err, out)
			}
			run := exec.CommandContext(t.Context(), binary, append([]string{"-test.failfast", "-test.timeout=0"}, args...)...)
			run.Env = append(append(os.Environ(), env...), Env+"=")
			out, err := run.CombinedOutput()
			if err == nil {
				t.Fatalf("nothing was found: %s", c.why)
			}
			line := found.Find(out)
			if line == nil {
				t.Fatalf("failed in another way: %v\n%s", err, out)
			}
			t.Logf("%s", line)
		})
	}
}

// change is one of one file.
type change struct {
	why, file, old, new string
}

var form = regexp.MustCompile(`(?s)\A((?:# [^\n]*\n)+)file: (\S+)\n<<<<\n(.*?)====\n(.*?)>>>>\n\z`)

func read(path string) (change, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return change{}, err
	}
	f := form.FindStringSubmatch(string(data))
	if f == nil {
		return change{}, fmt.Errorf("%s is not a mutant: want # lines, file: NAME, <<<<, old, ====, new, >>>>", path)
	}
	return change{why: strings.TrimSpace(strings.ReplaceAll(f[1], "# ", "")), file: f[2], old: f[3], new: f[4]}, nil
}

// apply writes the changed file and an overlay that puts it in the place of the
// original.
func (c change) apply(root, dir string) (overlay string, err error) {
	original := filepath.Join(root, filepath.FromSlash(c.file))
	text, err := os.ReadFile(original)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(text), c.old); n != 1 {
		return "", fmt.Errorf("the text to replace occurs %d times in %s, not once:\n%s", n, c.file, c.old)
	}
	changed := filepath.Join(dir, filepath.Base(c.file))
	if err := os.WriteFile(changed, []byte(strings.Replace(string(text), c.old, c.new, 1)), 0o600); err != nil {
		return "", err
	}
	data, err := json.Marshal(map[string]map[string]string{"Replace": {original: changed}})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, data, 0o600)
}
