package main

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// A configuration file is a list of flags, "name = value" on each line, with #
// before comments. A server is told a dozen flat things; with this form each has
// one name everywhere, its help and its checks are those of the flag, and no
// reader can disagree with another about types, quotes or nesting. A flag that
// takes several values has several lines.

const (
	configBytesMax = 64 << 10
	configLinesMax = 1000
)

// readConfig sets the flags that the command line left alone.
func readConfig(cmd *cobra.Command, path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	if info.Size() > configBytesMax {
		return fmt.Errorf("--config: %s has more than %d bytes: is it the right file?", path, configBytesMax)
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	defer f.Close()
	given := map[string]bool{} // by the command line, which wins
	lines := bufio.NewScanner(f)
	for number := 1; lines.Scan(); number++ {
		line := strings.TrimSpace(lines.Text())
		if number > configLinesMax {
			return usagef("%s has more than %d lines", path, configLinesMax)
		}
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := setFromFile(cmd, line, given); err != nil {
			return usagef("%s:%d: %w", path, number, err)
		}
	}
	return lines.Err()
}

// notInFile are flags about one call, and the file's own.
var notInFile = []string{"config", "help", "output", "addr", "namespace", "cacert", "client-cert", "client-key", "timeout"}

func setFromFile(cmd *cobra.Command, line string, given map[string]bool) error {
	name, value, found := strings.Cut(line, "=")
	name, value = strings.TrimSpace(name), strings.TrimSpace(value)
	if !found {
		return fmt.Errorf("%q is not of the form name = value", line)
	}
	flag := cmd.Flags().Lookup(name)
	if flag == nil || slices.Contains(notInFile, name) {
		return fmt.Errorf("%q is no setting; '%s --help' lists the flags", name, cmd.CommandPath())
	}
	if _, seen := given[name]; !seen {
		given[name] = flag.Changed
	}
	if given[name] {
		return nil
	}
	if err := cmd.Flags().Set(name, value); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
