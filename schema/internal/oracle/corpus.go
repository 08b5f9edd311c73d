package oracle

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode"
)

// seedBytesMax keeps the corpus readable; larger texts are made when a test runs.
const seedBytesMax = 4096

// KeepCorpus holds the kept corpus of a fuzz target, dir, against texts: a text up
// to 4 KiB that is not there is reported, or written if update is set. What the
// fuzzer itself has found stays beside them.
func KeepCorpus(dir string, texts []Hostile, update bool) (missing []string, err error) {
	if update {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	for _, text := range texts {
		if len(text.Text) > seedBytesMax {
			continue
		}
		path := filepath.Join(dir, slug(text.Name))
		content := fmt.Appendf(nil, "go test fuzz v1\n[]byte(%q)\n", text.Text)
		if update {
			if err := os.WriteFile(path, content, 0o644); err != nil {
				return nil, err
			}
			continue
		}
		if kept, err := os.ReadFile(path); err != nil || !bytes.Equal(kept, content) {
			missing = append(missing, text.Name)
		}
	}
	return missing, nil
}

func slug(name string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			return unicode.ToLower(r)
		}
		return '_'
	}, name)
}
