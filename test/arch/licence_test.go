package arch

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
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
