package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"pulse/sdk"
)

func TestSpansTakeDays(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"0s": 0, "500ms": 500 * time.Millisecond, "90s": 90 * time.Second, "3d": 72 * time.Hour, "1d12h": 36 * time.Hour, "0": 0,
	} {
		if got, err := parseSpan(text); err != nil || got != want {
			t.Errorf("%q is %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "d", "3", "-1s", "1d-1h", "1.5d", "99999d", "three days", "1h3d"} {
		if got, err := parseSpan(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

func TestSpansAreSpelledForPeople(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0s", 1500 * time.Microsecond: "2ms", 1234 * time.Millisecond: "1.2s", 59 * time.Second: "59s", 61 * time.Second: "1m1s",
		time.Hour: "1h", 90 * time.Minute: "1h30m", 72 * time.Hour: "3d", 73*time.Hour + 5*time.Minute: "3d1h", -time.Minute: "-1m",
	} {
		if got := spell(d); got != want {
			t.Errorf("%d is %q, want %q", d, got, want)
		}
	}
}

func TestAMomentIsATimeOrASpanFromNow(t *testing.T) {
	t.Parallel()
	var m moment
	if err := m.Set("2026-03-01T15:04:05.5Z"); err != nil || m.at.UnixMilli() != 1772377445500 {
		t.Errorf("%v, %v", m.at, err)
	}
	if err := m.Set("2h"); err != nil || time.Until(m.at).Round(time.Minute) != 2*time.Hour {
		t.Errorf("%v, %v", m.at, err)
	}
	if err := m.Set("tomorrow"); err == nil {
		t.Error("tomorrow is a time")
	}
}

// What looks the same to a reader of JSON need not be the same to whoever signs,
// compares or hashes it.
func TestBusinessJSONIsPrintedByteForByte(t *testing.T) {
	t.Parallel()
	payload := "{ \"hi\" : 1.50,\n\"big\":12345678901234567890, \"html\":\"<b>&\\u00e9\" }"
	task := &taskWithAttempts{
		TaskInfo: &sdk.TaskInfo{ID: "1", Payload: json.RawMessage(payload), Result: json.RawMessage("[1e2]")},
		Attempts: []sdk.Attempt{{Result: json.RawMessage("[ 2.0]"), Evidence: []sdk.Evidence{{Result: json.RawMessage("\t3.00")}}}},
	}
	text, err := encode(task, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{payload, "[1e2]", "[ 2.0]", "\t3.00", "\n  \"id\": \"1\""} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	line, err := encodeLine(task.TaskInfo)
	if err != nil || strings.ContainsAny(string(line), "\r\n") || !strings.Contains(string(line), strings.ReplaceAll(payload, "\n", " ")) {
		t.Errorf("%v: %s", err, line)
	}
	if string(task.Payload) != payload {
		t.Error("the task itself was changed")
	}
	if _, err := encode(task.TaskInfo, "  "); err != nil {
		t.Error(err)
	}
}

func TestAConfigFileSetsTheFlagsThatTheCommandLineLeavesAlone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "server.conf")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func(args ...string) (*cobra.Command, error) {
		cmd := (&app{}).serverCommand()
		if err := cmd.ParseFlags(args); err != nil {
			t.Fatal(err)
		}
		return cmd, readConfig(cmd, path)
	}
	write("# a node\n\nnode-id = a\n data=/var/lib/pulse data \njoin = one:1\njoin = two:2\nhttp = 127.0.0.1:1\n")
	cmd, err := read("--http", "127.0.0.1:2")
	if err != nil {
		t.Fatal(err)
	}
	for flag, want := range map[string]string{"node-id": "a", "data": "/var/lib/pulse data", "join": "[one:1,two:2]", "http": "127.0.0.1:2"} {
		if got := cmd.Flag(flag).Value.String(); got != want {
			t.Errorf("%s is %q, want %q", flag, got, want)
		}
	}
	for text, words := range map[string]string{
		"data = x\nnode-name = a\n":    ":2: \"node-name\" is no setting",
		"data\n":                       ":1: \"data\" is not of the form",
		"bootstrap-expect = three\n":   ":1: bootstrap-expect",
		"config = other.conf\n":        "is no setting",
		"output = json\n":              "is no setting",
		strings.Repeat("#\n", 1<<10):   "more than 1000 lines",
		strings.Repeat("#####", 1<<14): "is it the right file",
	} {
		write(text)
		if _, err := read(); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%.20q: %v, want %q", text, err, words)
		}
	}
}

func TestTheProgressBarSaysHowLongItTakes(t *testing.T) {
	t.Parallel()
	p := &progress{total: 50_000}
	if got := p.bar(12_500, 5*time.Second); got != "[=======                       ] 12,500 of 50,000  2,500/s  15s left" {
		t.Error(got)
	}
	if got := p.bar(50_000, 20*time.Second); !strings.HasSuffix(got, "] 50,000 of 50,000  2,500/s") {
		t.Error(got)
	}
	if got := (&progress{}).bar(0, 0); !strings.HasPrefix(got, "[ ") {
		t.Error(got)
	}
}

func TestWordsArePasteableIntoAShell(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]string{"account/1": "account/1", "it's": `'it'\''s'`, "a b": "'a b'", "$x": "'$x'"} {
		if got := quote(word); got != want {
			t.Errorf("%s is %s, want %s", word, got, want)
		}
	}
}
