package sdk

import (
	"bytes"
	"encoding/json"

	"pulse/schema"
)

// toJSON makes the business JSON of a payload or result: a json.RawMessage
// stays the bytes it is, nil and whatever encodes as null become {}, because
// the cluster keeps no null.
func toJSON(value any) (json.RawMessage, error) {
	switch v := value.(type) {
	case nil:
		return json.RawMessage("{}"), nil
	case json.RawMessage:
		return rawJSON(v)
	case *json.RawMessage:
		if v == nil {
			return json.RawMessage("{}"), nil
		}
		return rawJSON(*v)
	}
	text, err := marshal(value)
	if err != nil {
		return nil, err
	}
	return rawJSON(text)
}

func rawJSON(text json.RawMessage) (json.RawMessage, error) {
	if trimmed := bytes.TrimSpace(text); len(trimmed) == 0 || string(trimmed) == "null" {
		return json.RawMessage("{}"), nil
	}
	// The cluster checks the same again, and the size; here the fault is named
	// where it was made.
	if err := schema.CheckJSON(text, schema.Limits{}); err != nil {
		return nil, err
	}
	return text, nil
}

// marshal is json.Marshal without its HTML escapes: what is not meant for a
// browser should keep its text.
func marshal(value any) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// withMember encodes a struct and one more member of which it knows only the
// bytes: encoding/json would compact them.
func withMember(value any, name string, raw json.RawMessage) ([]byte, error) {
	text, err := marshal(value)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, len(text)+len(name)+len(raw)+4)
	out = append(out, text[:len(text)-1]...) // without the closing brace
	if len(out) > 1 {
		out = append(out, ',')
	}
	out = append(append(append(out, '"'), name...), `":`...)
	return append(append(out, raw...), '}'), nil
}
