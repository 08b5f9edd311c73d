package schema

import "strings"

// TraceStateCharsMax bounds a tracestate; a longer one is left out, as W3C Trace
// Context allows.
const TraceStateCharsMax = 512

// ValidTraceParent says whether text is a traceparent of W3C Trace Context: a
// version, a trace id and a span id that are not zero, and flags, in lower-case
// hexadecimal. Versions to come may say more behind that.
func ValidTraceParent(text string) bool {
	const length = 2 + 1 + 32 + 1 + 16 + 1 + 2
	if len(text) < length || len(text) > 2*length || text[2] != '-' || text[35] != '-' || text[52] != '-' {
		return false
	}
	version, trace, span, flags := text[:2], text[3:35], text[36:52], text[53:55]
	switch rest := text[length:]; {
	case !lowerHex(version + trace + span + flags), version == "ff":
		return false
	case strings.Trim(trace, "0") == "", strings.Trim(span, "0") == "":
		return false
	case version == "00":
		return rest == ""
	default:
		return rest == "" || rest[0] == '-' && printable(rest)
	}
}

// ValidTraceState says whether text may be carried as a tracestate. What stands
// in it is for those who wrote it.
func ValidTraceState(text string) bool { return len(text) <= TraceStateCharsMax && printable(text) }

func lowerHex(text string) bool {
	for i := range len(text) {
		if c := text[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func printable(text string) bool {
	for i := range len(text) {
		if text[i] < ' ' || text[i] > '~' {
			return false
		}
	}
	return true
}
