package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var update = flag.Bool("update", false, "write docs/cli.md")

const referenceFile = "../../docs/cli.md"

// TestTheReferenceIsCurrent holds docs/cli.md to the verbs as they are;
// `go test ./cmd/pulse -run Reference -update` writes it.
func TestTheReferenceIsCurrent(t *testing.T) {
	t.Parallel()
	want := reference()
	if *update {
		if err := os.WriteFile(referenceFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(referenceFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what the verbs say of themselves; run go test ./cmd/pulse -run Reference -update", referenceFile)
	}
}

// reference is one page about every verb.
func reference() []byte {
	var b bytes.Buffer
	b.WriteString("# Command line\n\n<!-- Written by \"go test ./cmd/pulse -run Reference -update\"; do not edit. -->\n")
	verbs(func(cmd *cobra.Command) {
		cmd.InitDefaultHelpFlag()
		heading, text := "##", cmd.Long
		if cmd.HasParent() && cmd.Parent().HasParent() {
			heading = "###"
		}
		if text == "" {
			text = cmd.Short + "."
		}
		fmt.Fprintf(&b, "\n%s %s\n\n%s\n", heading, cmd.CommandPath(), markdown(text))
		if cmd.Runnable() && !cmd.HasSubCommands() {
			fmt.Fprintf(&b, "\n    %s\n", cmd.UseLine())
		}
		if cmd.Example != "" {
			fmt.Fprintf(&b, "\nExamples:\n\n%s\n", indent(cmd.Example, 2))
		}
		if !cmd.HasParent() {
			fmt.Fprintf(&b, "\nFlags of every verb:\n\n%s", flagTable(cmd.PersistentFlags()))
		} else if cmd.HasAvailableLocalFlags() {
			b.WriteString(prefixed("\n", flagTable(cmd.LocalFlags())))
		}
	})
	return b.Bytes()
}

func prefixed(before, text string) string {
	if text == "" {
		return ""
	}
	return before + text
}

// markdown keeps what is indented in the help as it stands.
func markdown(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "  ") {
			lines[i] = "  " + line
		}
	}
	return strings.Join(lines, "\n")
}

func indent(text string, by int) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.Repeat(" ", by) + lines[i]
	}
	return strings.Join(lines, "\n")
}

func flagTable(flags *pflag.FlagSet) string {
	var b strings.Builder
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		if b.Len() == 0 {
			b.WriteString("| flag | default | meaning |\n|---|---|---|\n")
		}
		name := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		fallback := ""
		if f.DefValue != "" && f.DefValue != "[]" && f.DefValue != "false" {
			fallback = "`" + f.DefValue + "`"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", name, fallback, strings.ReplaceAll(f.Usage, "|", "\\|"))
	})
	return b.String()
}
