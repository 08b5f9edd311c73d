package docs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// block is a fenced block of a page and what its comment says.
type block struct {
	at     string // page:line
	text   string
	mark   string // "run", "not run", "output", "" = none
	detail string // behind the colon
}

var (
	fence   = regexp.MustCompile("^```([a-z]*)$")
	comment = regexp.MustCompile(`^<!-- (run|not run|output)(?:: (.+))? -->$`)
)

// blocksOf reads a page. Blocks of other languages than sh and text are not ours
// unless they are marked.
func blocksOf(name, page string) (blocks []block, err error) {
	var mark, detail string
	lines := strings.Split(page, "\n")
	for i := 0; i < len(lines); i++ {
		if m := comment.FindStringSubmatch(lines[i]); m != nil {
			mark, detail = m[1], m[2]
			continue
		}
		m := fence.FindStringSubmatch(lines[i])
		if m == nil {
			if mark != "" {
				return nil, fmt.Errorf("%s:%d: the comment before it marks no block", name, i+1)
			}
			continue
		}
		b := block{at: fmt.Sprintf("%s:%d", name, i+1), mark: mark, detail: detail}
		mark, detail = "", ""
		start := i + 1
		for i++; i < len(lines) && lines[i] != "```"; i++ {
		}
		if i == len(lines) {
			return nil, fmt.Errorf("%s: the block does not end", b.at)
		}
		b.text = strings.Join(lines[start:i], "\n") + "\n"
		if m[1] == "sh" && b.mark == "" {
			return nil, fmt.Errorf("%s: a block of shell with no word on whether it is run", b.at)
		}
		if b.mark != "" {
			blocks = append(blocks, b)
		}
	}
	return blocks, nil
}

// pages are README.md and all of docs.
func pages(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, path := range append(paths, "../../README.md") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		out[filepath.Base(path)] = string(text)
	}
	return out
}

func TestABlockNeedsAWord(t *testing.T) {
	t.Parallel()
	for page, words := range map[string]string{
		"```sh\nls\n```\n":                       "no word",
		"<!-- run -->\ntext\n":                   "marks no block",
		"<!-- run -->\n```sh\nls\n":              "does not end",
		"<!-- run: exit 1 -->\n```sh\nls\n```\n": "",
		"```go\npackage x\n```\n":                "",
		"```\nanything\n```\n":                   "",
	} {
		_, err := blocksOf("p", page)
		if words == "" && err != nil || words != "" && (err == nil || !strings.Contains(err.Error(), words)) {
			t.Errorf("%q: %v, want %q", page, err, words)
		}
	}
}

var link = regexp.MustCompile(`\]\(([^)#:\s]+)(#[^)]*)?\)`)

func TestLinksBetweenPagesLeadSomewhere(t *testing.T) {
	t.Parallel()
	seen := 0
	for name, page := range pages(t) {
		dir := "../../docs"
		if name == "README.md" {
			dir = "../.."
		}
		for _, m := range link.FindAllStringSubmatch(page, -1) {
			seen++
			target := filepath.Join(dir, m[1])
			text, err := os.ReadFile(target)
			if info, statErr := os.Stat(target); statErr == nil && info.IsDir() {
				err = nil
			}
			if err != nil {
				t.Errorf("%s links to %s: %v", name, m[1], err)
			}
			if m[2] != "" && !hasHeading(string(text), m[2][1:]) {
				t.Errorf("%s links to %s%s, where there is no such heading", name, m[1], m[2])
			}
		}
	}
	if seen < 10 {
		t.Errorf("only %d links were found", seen)
	}
}

var notInAnchor = regexp.MustCompile(`[^a-z0-9 _-]`)

func hasHeading(page, anchor string) bool {
	for line := range strings.SplitSeq(page, "\n") {
		title := strings.TrimLeft(line, "#")
		if title == line {
			continue
		}
		title = notInAnchor.ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), "")
		if strings.ReplaceAll(title, " ", "-") == anchor {
			return true
		}
	}
	return false
}

var program = regexp.MustCompile("(?s)```go\n(package main\n.*?)```")

func TestProgramsOnPagesCompile(t *testing.T) {
	t.Parallel()
	seen := 0
	for name, page := range pages(t) {
		for _, m := range program.FindAllStringSubmatch(page, -1) {
			seen++
			path := filepath.Join(t.TempDir(), "main.go")
			if err := os.WriteFile(path, []byte(m[1]), 0o600); err != nil {
				t.Fatal(err)
			}
			build := exec.Command("go", "build", "-o", os.DevNull, path)
			build.Dir = "../.."
			if out, err := build.CombinedOutput(); err != nil {
				t.Errorf("a program on %s: %v\n%s", name, err, out)
			}
		}
	}
	if seen == 0 {
		t.Error("no program was found")
	}
}
