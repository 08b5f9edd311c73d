package arch

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// libraries returns the directory of every module that is part of the binary.
func libraries(t *testing.T) map[string]string {
	t.Helper()
	all, err := goList("-deps", "./cmd/pulse")
	if err != nil {
		t.Fatal(err)
	}
	dirs := map[string]string{}
	for _, p := range all {
		if p.Module != nil && p.Module.Path != module {
			dirs[p.Module.Path] = p.Module.Dir
		}
	}
	if len(dirs) < 20 {
		t.Fatalf("only %d libraries were found", len(dirs))
	}
	return dirs
}

// licenceOf names the licence by its text, or returns "".
func licenceOf(text []byte) string {
	text = bytes.Join(bytes.Fields(text), []byte(" "))
	for _, l := range []struct{ name, says string }{
		{"MPL-2.0", "Mozilla Public License"},
		{"Apache-2.0", "Apache License"},
		{"MIT", "Permission is hereby granted, free of charge"},
		{"ISC", "Permission to use, copy, modify, and distribute this software"},
		{"ISC", "Permission to use, copy, modify, and/or distribute this software"},
		{"BSD", "Redistribution and use in source and binary forms"},
	} {
		if bytes.Contains(text, []byte(l.says)) {
			return l.name
		}
	}
	return ""
}

func TestEveryLibraryHasALicenceWeMayUse(t *testing.T) {
	t.Parallel()
	notice, err := os.ReadFile(filepath.Join(root, "NOTICE"))
	if err != nil {
		t.Fatal(err)
	}
	dirs := libraries(t)
	for _, path := range slices.Sorted(maps.Keys(dirs)) {
		files, err := os.ReadDir(dirs[path])
		if err != nil {
			t.Fatal(err)
		}
		licence := ""
		for _, f := range files {
			name := strings.ToUpper(f.Name())
			if licence != "" || !strings.HasPrefix(name, "LICENSE") && !strings.HasPrefix(name, "LICENCE") && !strings.HasPrefix(name, "COPYING") {
				continue
			}
			text, err := os.ReadFile(filepath.Join(dirs[path], f.Name()))
			if err != nil {
				t.Fatal(err)
			}
			licence = licenceOf(text)
		}
		if licence == "" {
			t.Errorf("%s: its licence is not one that we know and may use", path)
		}
		if named := slices.Contains(strings.Fields(string(notice)), path); named != (licence == "MPL-2.0") {
			t.Errorf("%s is under %s; NOTICE names those under the MPL-2.0 and no other", path, licence)
		}
	}
}

// vendored is where files of others are kept that the binary serves.
const vendored = "gateway/console/static/vendor"

func TestFilesOfOthersComeWithTheirLicence(t *testing.T) {
	t.Parallel()
	notice, err := os.ReadFile(filepath.Join(root, "NOTICE"))
	if err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(filepath.Join(root, vendored))
	if err != nil {
		t.Fatal(err)
	}
	// A file is LIBRARY-VERSION.min.js or .css; its licence is LIBRARY-LICENSE.txt.
	form := regexp.MustCompile(`^([a-z]+)-([0-9]+(?:\.[0-9]+)+)\.min\.(?:js|css)$`)
	seen := 0
	for _, f := range files {
		if strings.HasSuffix(f.Name(), "-LICENSE.txt") {
			continue
		}
		m := form.FindStringSubmatch(f.Name())
		if m == nil {
			t.Errorf("%s/%s: its name does not say which version of what it is", vendored, f.Name())
			continue
		}
		seen++
		text, err := os.ReadFile(filepath.Join(root, vendored, m[1]+"-LICENSE.txt"))
		if err != nil || licenceOf(text) == "" {
			t.Errorf("%s: no licence that we know and may use stands beside it (%v)", f.Name(), err)
		}
		if !regexp.MustCompile(`(?m)^  ` + m[1] + ` ` + regexp.QuoteMeta(m[2]) + ` `).Match(notice) {
			t.Errorf("NOTICE does not name %s %s", m[1], m[2])
		}
	}
	if seen == 0 {
		t.Error("no file was looked at")
	}
}
