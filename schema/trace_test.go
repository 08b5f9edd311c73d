package schema

import (
	"strings"
	"testing"
)

func TestTraceParentsAreRecognised(t *testing.T) {
	t.Parallel()
	const sound = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for text, want := range map[string]bool{
		sound: true,
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00":      true,
		"01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more": true,
		"": false,
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more": false,
		"ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01":      false,
		"00-00000000000000000000000000000000-00f067aa0ba902b7-01":      false,
		"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01":      false,
		strings.ToUpper(sound):                           false,
		sound[:54]:                                       false,
		strings.Replace(sound, "-", "_", 1):              false,
		"01" + sound[2:] + "-\x00":                       false,
		"01" + sound[2:] + "-" + strings.Repeat("x", 60): false,
	} {
		if got := ValidTraceParent(text); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
	if !ValidTraceState("vendor=1,other=x") || ValidTraceState("a=\n") || ValidTraceState(strings.Repeat("x", TraceStateCharsMax+1)) {
		t.Error("tracestate")
	}
}
