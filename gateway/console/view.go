package console

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"html/template"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// funcs are what templates may call. None makes markup: what they return is
// escaped like everything else.
func funcs(assets map[string]asset) template.FuncMap {
	return template.FuncMap{
		"asset":     func(name string) string { return assets[name].url },
		"num":       number[uint64],
		"int":       number[int],
		"ago":       func(t time.Time) string { return ago(time.Since(t)) },
		"in":        func(t time.Time) string { return span(max(time.Until(t), 0)) },
		"past":      func(t time.Time) bool { return time.Until(t) <= 0 },
		"span":      span,
		"millis":    func(ms int64) string { return span(time.Duration(ms) * time.Millisecond) },
		"between":   func(a, b time.Time) string { return span(b.Sub(a)) },
		"stamp":     stamp,
		"iso":       func(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) },
		"short":     short,
		"pretty":    pretty,
		"oneline":   oneline,
		"words":     words,
		"lower":     strings.ToLower,
		"sentence":  sentence,
		"tone":      tone,
		"percent":   percent,
		"pathpart":  url.PathEscape,
		"list":      func(items ...any) []any { return items },
		"bytes":     byteCount,
		"json":      asJSON,
		"dict":      dict,
		"has":       func(list []string, item string) bool { return contains(list, item) },
		"ms":        func(ms *float64) string { return span(time.Duration(*ms * float64(time.Millisecond))) },
		"most":      most,
		"operation": rand.Text,
		"sub":       func(a, b uint64) uint64 { return a - min(a, b) },
	}
}

// sentence is what a program said, as a person would write it.
func sentence(text string) string {
	text = sentenceStart(text)
	if text == "" || strings.HasSuffix(text, ".") {
		return text
	}
	return text + "."
}

func sentenceStart(text string) string {
	first, size := utf8.DecodeRuneInString(text)
	if first == utf8.RuneError {
		return text
	}
	return string(unicode.ToUpper(first)) + text[size:]
}

// spell is a duration as it is written into a form, without what is nought.
func spell(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

func contains(list []string, item string) bool {
	for _, have := range list {
		if have == item {
			return true
		}
	}
	return false
}

func dict(pairs ...any) (map[string]any, error) {
	if len(pairs)%2 != 0 {
		return nil, fmt.Errorf("dict has %d arguments", len(pairs))
	}
	out := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		name, ok := pairs[i].(string)
		if !ok {
			return nil, fmt.Errorf("dict has %v for a name", pairs[i])
		}
		out[name] = pairs[i+1]
	}
	return out, nil
}

// number sets a thin space between thousands: commas read as decimal signs to
// half the world.
func number[T int | int64 | uint64](n T) string {
	text := fmt.Sprint(n)
	digits := strings.TrimPrefix(text, "-")
	var out strings.Builder
	out.WriteString(text[:len(text)-len(digits)])
	for i, c := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			out.WriteString("\u202f")
		}
		out.WriteRune(c)
	}
	return out.String()
}

// span is a duration in at most two units.
func span(d time.Duration) string {
	if d < 0 {
		return "−" + span(-d)
	}
	switch {
	case d == 0:
		return "0 s"
	case d < time.Millisecond:
		return "<1 ms"
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	case d < 10*time.Second:
		return strings.TrimSuffix(strconv.FormatFloat(float64(d.Milliseconds()/100)/10, 'f', 1, 64), ".0") + " s"
	case d < 2*time.Minute:
		return strconv.Itoa(int(d.Seconds())) + " s"
	case d < 2*time.Hour:
		return two(int(d/time.Minute), "min", int(d%time.Minute/time.Second), "s")
	case d < 48*time.Hour:
		return two(int(d/time.Hour), "h", int(d%time.Hour/time.Minute), "min")
	}
	return two(int(d/(24*time.Hour)), "d", int(d%(24*time.Hour)/time.Hour), "h")
}

func two(a int, unit string, b int, small string) string {
	if b == 0 {
		return fmt.Sprintf("%d %s", a, unit)
	}
	return fmt.Sprintf("%d %s %d %s", a, unit, b, small)
}

func ago(d time.Duration) string {
	switch {
	case d < time.Second:
		return "just now"
	case d < 2*time.Minute:
		return strconv.Itoa(int(d.Seconds())) + " s ago"
	case d < 2*time.Hour:
		return strconv.Itoa(int(d.Minutes())) + " min ago"
	case d < 48*time.Hour:
		return two(int(d/time.Hour), "h", int(d%time.Hour/time.Minute), "min") + " ago"
	}
	return strconv.Itoa(int(d/(24*time.Hour))) + " d ago"
}

// stamp is an instant as logs spell it.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000") }

// short is the end of an id: ids that are made together begin alike.
func short(id string) string {
	if len(id) <= 10 {
		return id
	}
	return "…" + id[len(id)-8:]
}

// pretty sets JSON out in lines and leaves every number and string as it was
// sent: 2.50 stays 2.50, and no digit of a large one is lost.
func pretty(text json.RawMessage) string {
	var out bytes.Buffer
	if err := json.Indent(&out, text, "", "  "); err != nil {
		return string(text)
	}
	return out.String()
}

// oneline is the beginning of JSON in one line.
func oneline(text json.RawMessage) string {
	const charsMax = 120
	var out bytes.Buffer
	if err := json.Compact(&out, text); err != nil {
		return string(text)
	}
	runes := []rune(out.String())
	if len(runes) > charsMax {
		return string(runes[:charsMax]) + "…"
	}
	return string(runes)
}

var spelled = map[string]string{
	"ready": "ready", "delayed": "delayed", "retry_backoff": "waits to retry", "key_held": "key held", "queue_paused": "queue paused",
	"queue_limit": "queue at its limit", "no_capable_worker": "no capable worker", "workers_busy": "workers busy",
	"lease": "its lease ran out", "attempt_timeout": "it took longer than an attempt may", "deadline": "the deadline passed",
	"start_deadline": "the start deadline passed", "session_lost": "its worker was lost", "undeliverable": "it could not be delivered",
	"unknown_outcome": "the worker could not tell how it ended", "uncertain_failure": "it failed while an earlier run is uncertain",
	"NEEDS_REVIEW": "needs review",
}

// words spells a name of the API for people.
func words(name string) string {
	if text, ok := spelled[name]; ok {
		return text
	}
	return strings.ToLower(strings.ReplaceAll(name, "_", " "))
}

// tone is the colour of a state or a reason.
func tone(name string) string {
	switch name {
	case stateSucceeded, "connected", "ready", "APPLIED", "leader", "SUCCESS":
		return "good"
	case stateFailed, "EXPIRED", "lost", "no_capable_worker":
		return "bad"
	case stateReview, "UNKNOWN", "EVIDENCE_ONLY":
		return "odd"
	case stateRunning:
		return "busy"
	case stateLeased:
		return "soft"
	case "queue_paused", "queue_limit", "key_held", "workers_busy", "draining", "disconnected", "retry_backoff":
		return "warn"
	}
	return "idle"
}

// percent is a share of a whole, 0 to 100.
func percent(part, whole uint64) int {
	if whole == 0 {
		return 0
	}
	return int(min(100, 100*part/whole))
}

func byteCount(n uint64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	size, names := float64(n)/unit, "KMGTPE"
	i := 0
	for ; size >= unit && i < len(names)-1; i++ {
		size /= unit
	}
	return fmt.Sprintf("%.1f %ciB", size, names[i])
}

// asJSON is for attributes that the script reads.
func asJSON(v any) (string, error) {
	text, err := json.Marshal(v)
	return string(text), err
}

// most is the reason most tasks wait for.
func most(list []reasonCount) string {
	var best reasonCount
	for _, r := range list {
		if r.Tasks > best.Tasks {
			best = r
		}
	}
	return best.Reason
}
