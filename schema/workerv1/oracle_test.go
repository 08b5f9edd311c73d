package workerv1

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/big"
	"regexp"
	"strings"
	"sync"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"pulse/schema"
	"pulse/schema/internal/oracle"
)

// What a frame is, stated a second time: the published schema, read by a published
// validator, and the run-time rules in the words of this file.

type direction struct {
	definition string
	depthMax   int
	// decode returns the frame encoded again, or the refusal.
	decode func(data []byte) (again []byte, frame any, refusal error)
}

var (
	fromClient = direction{"clientFrame", 64, func(data []byte) ([]byte, any, error) {
		frame, err := DecodeClient(data)
		if err != nil {
			return nil, nil, err
		}
		again, err := AppendClient(nil, frame)
		return again, frame, err
	}}
	fromServer = direction{"serverFrame", 66, func(data []byte) ([]byte, any, error) {
		frame, err := DecodeServer(data)
		if err != nil {
			return nil, nil, err
		}
		again, err := AppendServer(nil, frame)
		return again, frame, err
	}}
)

var compiled = sync.OnceValue(func() map[string]*jsonschema.Schema {
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(schema.WorkerV1))
	if err != nil {
		panic(err)
	}
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	if err := compiler.AddResource("worker.v1.json", document); err != nil {
		panic(err)
	}
	return map[string]*jsonschema.Schema{
		"clientFrame": compiler.MustCompile("worker.v1.json#/$defs/clientFrame"),
		"serverFrame": compiler.MustCompile("worker.v1.json#/$defs/serverFrame"),
	}
})

// expectation is what the oracle says about a text.
type expectation struct {
	accepted  bool
	code      schema.Code // when refused
	messageID bool        // when refused: the message id can be trusted
	closeCode int         // when refused and the message id cannot be trusted
	value     any         // when accepted
}

var idText = regexp.MustCompile(`^[0-9a-f]{32}$`)

func (d direction) expect(data []byte) (e expectation) {
	e.code = schema.InvalidFrame
	e.closeCode = 1008
	if len(data) > 1<<20 {
		e.code, e.closeCode = schema.TooLarge, 1009
		return e
	}
	if !utf8.Valid(data) {
		e.closeCode = 1007
		return e
	}
	verdict := oracle.Judge(data, d.depthMax)
	if !verdict.Grammar {
		return e
	}
	if count, text := oracle.RootMember(data, "message_id"); count == 1 {
		var id string
		e.messageID = json.Unmarshal(text, &id) == nil && idText.MatchString(id)
	}
	if !verdict.Strict {
		return e
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		panic(err)
	}
	root, ok := value.(map[string]any)
	if !ok {
		return e
	}
	if version, present := root["protocol_version"]; present && version != "1" {
		e.code = schema.UnsupportedVersion
		return e
	}
	if compiled()[d.definition].Validate(tamed(value)) != nil || !keepsRuntimeRules(value) {
		return e
	}
	if len(business(data, "result")) > 256<<10 || len(business(data, "task", "payload")) > 256<<10 || len(business(data, "task", "result")) > 256<<10 {
		e.code = schema.TooLarge
		return e
	}
	e.accepted, e.value = true, value
	return e
}

// tamed replaces numbers that the validator would turn into gigabytes of digits.
// Their text has passed the rules, so they are zero or no whole number.
func tamed(value any) any {
	switch value := value.(type) {
	case map[string]any:
		out := make(map[string]any, len(value))
		for name, member := range value {
			out[name] = tamed(member)
		}
		return out
	case []any:
		out := make([]any, len(value))
		for i, element := range value {
			out[i] = tamed(element)
		}
		return out
	case json.Number:
		mantissa, exponent, _ := strings.Cut(strings.ToLower(value.String()), "e")
		if len(exponent) < 5 {
			return value
		}
		if strings.Trim(mantissa, "-0.") == "" {
			return json.Number("0")
		}
		return json.Number("0.5")
	}
	return value
}

// keepsRuntimeRules states what the schema leaves to run time, for a value that it
// accepts.
func keepsRuntimeRules(value any) bool {
	root := value.(map[string]any)
	body, _ := root["body"].(map[string]any)
	task, _ := body["task"].(map[string]any)
	if key, ok := task["concurrency_key"].(string); ok {
		if strings.TrimSpace(key) != key || strings.ContainsFunc(key, unicode.IsControl) {
			return false
		}
	}
	return !hasLeapSecond(root)
}

var leapSecond = regexp.MustCompile(`:60(\.[0-9]+)?Z$`)

func hasLeapSecond(object map[string]any) bool {
	for name, member := range object {
		switch member := member.(type) {
		case map[string]any:
			if name != "payload" && name != "result" && hasLeapSecond(member) {
				return true
			}
		case string:
			if (strings.HasSuffix(name, "_at") || name == "server_time" || name == "lease_until") && leapSecond.MatchString(member) {
				return true
			}
		}
	}
	return false
}

// business cuts business JSON out of a frame without looking inside.
func business(data []byte, path ...string) json.RawMessage {
	for _, name := range append([]string{"body"}, path...) {
		var object map[string]json.RawMessage
		if json.Unmarshal(data, &object) != nil {
			return nil
		}
		data = object[name]
	}
	return data
}

// hold compares decoder and encoder with the oracle.
func (d direction) hold(t *testing.T, data []byte) expectation {
	t.Helper()
	want := d.expect(data)
	again, frame, err := d.decode(data)
	switch {
	case want.accepted && err != nil:
		t.Errorf("refused: %v\n%.3000q", err, data)
		return want
	case want.accepted:
		d.holdAccepted(t, data, want.value, again, frame)
		return want
	case err == nil:
		t.Errorf("accepted, although the oracle says %s\n%.3000q", want.code, data)
		return want
	}
	refusal, ok := errors.AsType[*DecodeError](err)
	if !ok {
		t.Errorf("accepted but not encoded again: %v\n%.3000q", err, data)
		return want
	}
	// Size and another fault can stand in one frame; the order is the decoder's.
	if refusal.Code != want.code && !(refusal.Code == schema.TooLarge && len(data) > 256<<10) {
		t.Errorf("refused with %s, want %s\n%.3000q", refusal.Code, want.code, data)
	}
	if refusal.MessageID.Set != want.messageID {
		t.Errorf("trusts the message id: %v, want %v (%v)\n%.3000q", refusal.MessageID.Set, want.messageID, refusal, data)
	}
	if refusal.Fatal() && refusal.CloseCode != want.closeCode && refusal.Code == want.code {
		t.Errorf("closes with %d, want %d\n%.3000q", refusal.CloseCode, want.closeCode, data)
	}
	if refusal.Message == "" || utf8.RuneCountInString(refusal.Message) > 1024 || !utf8.ValidString(refusal.Message) {
		t.Errorf("the message does not fit an error frame: %q", refusal.Message)
	}
	return want
}

// holdAccepted compares the frame, encoded again, with the text as values.
func (d direction) holdAccepted(t *testing.T, data []byte, value any, again []byte, frame any) {
	t.Helper()
	secondWant := d.expect(again)
	if !secondWant.accepted {
		t.Errorf("encoded again as a frame that is %s:\n%.3000q\nfrom\n%.3000q", secondWant.code, again, data)
		return
	}
	before, after := canonical(value), canonical(secondWant.value)
	if before != after {
		t.Errorf("the value changed from\n%.3000s\nto\n%.3000s", before, after)
	}
	for _, path := range [][]string{{"result"}, {"task", "payload"}, {"task", "result"}} {
		if was, is := business(data, path...), business(again, path...); !bytes.Equal(was, is) {
			t.Errorf("business JSON changed from %.1000q to %.1000q", was, is)
		}
	}
	_, secondFrame, err := d.decode(again)
	if err != nil {
		t.Errorf("what was encoded is refused: %v\n%.3000q", err, again)
	} else if !sameFrame(frame, secondFrame) {
		t.Errorf("decoded again to\n%+v, want\n%+v", secondFrame, frame)
	}
}

// canonical spells a frame's value so that equal meanings have equal texts: whole
// numbers and times in one spelling, members at their default left out.
func canonical(value any) string {
	text, err := json.Marshal(canonicalValue("", value))
	if err != nil {
		panic(err)
	}
	return string(text)
}

var optionalAtDefault = map[string]any{
	"cancellation_notifications": false, "concurrency_keys": false, "retryable": false, "effect_uncertain": false,
	"error_code": "", "business_key": "", "priority": "0",
}

func canonicalValue(name string, value any) any {
	switch value := value.(type) {
	case map[string]any:
		if name == "payload" || name == "result" {
			return value
		}
		out := map[string]any{}
		for name, member := range value {
			member = canonicalValue(name, member)
			if fallback, ok := optionalAtDefault[name]; !ok || fallback != member {
				out[name] = member
			}
		}
		return out
	case []any:
		if name == "payload" || name == "result" {
			return value
		}
		out := make([]any, len(value))
		for i, element := range value {
			out[i] = canonicalValue("", element)
		}
		return out
	case json.Number:
		if name == "payload" || name == "result" {
			return value
		}
		whole, ok := new(big.Rat).SetString(tamed(value).(json.Number).String())
		if !ok || !whole.IsInt() {
			panic("not a whole number: " + value)
		}
		return whole.Num().String()
	case string:
		if head, fraction, ok := strings.Cut(strings.TrimSuffix(value, "Z"), "."); ok && (strings.HasSuffix(name, "_at") || name == "server_time" || name == "lease_until") {
			if fraction = strings.TrimRight(fraction, "0"); fraction != "" {
				head += "." + fraction
			}
			return head + "Z"
		}
	}
	return value
}
