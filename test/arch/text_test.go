package arch

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// banned are words that have no place in our text: other products' names,
// leftovers of editing, and where or how a text was made.
var banned = []struct {
	pattern *regexp.Regexp
	why     string
}{
	{regexp.MustCompile(`(?i)\borbit(s|al)?\b`), "another product's name"},
	{regexp.MustCompile(`\bTemporal\b|(?i)\b(camunda|zeebe|airflow|celery|sidekiq|faktory|hatchet|inngest|bullmq|resque)\b`), "another product's name"},
	{regexp.MustCompile(`(?i)\b(claude|anthropic|chatgpt|openai|copilot|language model)\b`), "says how a text was made"},
	{regexp.MustCompile(`/work/(main|shared|\.library)|/tmp/brief`), "a path of one machine"},
	{regexp.MustCompile(`\b(TODO|FIXME|XXX|HACK)\b`), "a thing to do is an issue, not a comment"},
	{regexp.MustCompile(`(?m)^(<<<<<<<|>>>>>>>) `), "left over from a merge"},
	{regexp.MustCompile("[\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]"), "a character nobody can see"},
}

// textFiles are what people read: by ending, or by name if there is none.
var textEndings = []string{".go", ".md", ".proto", ".yaml", ".yml", ".json", ".toml", ".sh", ".html", ".css", ".js", ".ts", ".txt", ".service", ".env", ".jsonl"}
var textNames = []string{"Makefile", "LICENSE", "NOTICE", "Dockerfile", "run", ".gitignore"}

var exempt = []string{
	"test/arch/text_test.go", // the list itself
	"schema/worker.v1.json",  // the contract, kept byte for byte as it was given
	"docs/coming-from.md",    // a page for people who know those products
}

// offences lists the banned words of a text.
func offences(text []byte) []string {
	var found []string
	for _, b := range banned {
		if m := b.pattern.FindIndex(text); m != nil {
			line := 1 + bytes.Count(text[:m[0]], []byte("\n"))
			found = append(found, itoa(line)+": "+strings.TrimSpace(string(text[m[0]:m[1]]))+" ("+b.why+")")
		}
	}
	return found
}

func TestTextSaysNothingItShouldNot(t *testing.T) {
	t.Parallel()
	read := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			// .git is not ours to read, .cache, bin and dist are not committed, and
			// what the fuzzer found is not text.
			if slices.Contains([]string{".git", ".cache", "bin", "fuzz", "node_modules", "dist"}, name) {
				return fs.SkipDir
			}
			return nil
		}
		if !slices.Contains(textEndings, filepath.Ext(name)) && !slices.Contains(textNames, name) {
			return nil
		}
		if slices.Contains(exempt, filepath.ToSlash(strings.TrimPrefix(path, root+"/"))) {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		read++
		for _, o := range offences(text) {
			t.Errorf("%s:%s", strings.TrimPrefix(path, root+"/"), o)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if read < 20 {
		t.Errorf("only %d files were read", read)
	}
}

func TestBannedWordsAreFound(t *testing.T) {
	t.Parallel()
	for text, bad := range map[string]bool{
		"the Orbit scheduler":        true,
		"an orbital period":          true,
		"exorbitant":                 false,
		"Temporal does it thus":      true,
		"a temporal order":           false,
		"see /work/shared/x":         true,
		"// TODO: finish":            true,
		"a todo list":                false,
		"zero\u200bwidth":            true,
		"a plain sentence of Pulse.": false,
	} {
		if got := len(offences([]byte(text))) > 0; got != bad {
			t.Errorf("%q: found %v, want %v", text, got, bad)
		}
	}
}
