package property

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

const (
	entriesEnv = "PULSE_PROPERTY_ENTRIES"
	foundMark  = "found by "
	// mutantEntries is within how many random entries a mutant has to be found.
	mutantEntries = 60_000
)

// TestMutants breaks the machine on purpose, one rule at a time, and expects
// the other tests of this package to find each of them. A mutant is a file
// under mutants: why it matters, and what to replace in which file by what. The
// repository is not touched: the go tool compiles the changed file from a
// temporary place. A mutant that no longer applies, or no longer compiles,
// fails here too.
//
// It compiles the machine once for each mutant, so it only runs when
// PULSE_MUTANTS is set: make mutants.
func TestMutants(t *testing.T) {
	if os.Getenv("PULSE_MUTANTS") == "" {
		t.Skip("takes minutes; set PULSE_MUTANTS=1")
	}
	paths, err := filepath.Glob("mutants/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no mutants: %v", err)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".txt")
		t.Run(name, func(t *testing.T) {
			m, err := readMutant(path)
			if err != nil {
				t.Fatal(err)
			}
			overlay, err := m.apply(root, t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			binary := filepath.Join(t.TempDir(), "mutant.test")
			build := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", binary, ".")
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("does not compile: %v\n%s", err, out)
			}
			run := exec.CommandContext(t.Context(), binary, "-test.failfast", "-test.run", "^(TestBounds|TestMachine|TestHistories)$")
			run.Env = append(os.Environ(), "PULSE_PROPERTY_SECONDS=60", fmt.Sprintf("%s=%d", entriesEnv, mutantEntries))
			out, err := run.CombinedOutput()
			if err == nil {
				t.Fatalf("nothing was found in %d entries: %s", mutantEntries, m.why)
			}
			found := regexp.MustCompile(foundMark + "(.*)").FindSubmatch(out)
			if found == nil {
				t.Fatalf("failed in another way: %v\n%s", err, out)
			}
			t.Logf("found by %q (%s)", found[1], regexp.MustCompile(`\d+ entries`).Find(out))
		})
	}
}

// mutant is one change of one file.
type mutant struct {
	why, file, old, new string
}

var mutantForm = regexp.MustCompile(`(?s)\A((?:# [^\n]*\n)+)file: (\S+)\n<<<<\n(.*?)====\n(.*?)>>>>\n\z`)

func readMutant(path string) (mutant, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return mutant{}, err
	}
	f := mutantForm.FindStringSubmatch(string(data))
	if f == nil {
		return mutant{}, fmt.Errorf("%s is not a mutant: want # lines, file: NAME, <<<<, old, ====, new, >>>>", path)
	}
	return mutant{why: strings.TrimSpace(strings.ReplaceAll(f[1], "# ", "")), file: f[2], old: f[3], new: f[4]}, nil
}

// apply writes the changed file and an overlay that puts it in the place of the
// original.
func (m mutant) apply(root, dir string) (overlay string, err error) {
	original := filepath.Join(root, filepath.FromSlash(m.file))
	text, err := os.ReadFile(original)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(text), m.old); n != 1 {
		return "", fmt.Errorf("the text to replace occurs %d times in %s, not once:\n%s", n, m.file, m.old)
	}
	changed := filepath.Join(dir, filepath.Base(m.file))
	if err := os.WriteFile(changed, []byte(strings.Replace(string(text), m.old, m.new, 1)), 0o600); err != nil {
		return "", err
	}
	data, err := json.Marshal(map[string]map[string]string{"Replace": {original: changed}})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, data, 0o600)
}
