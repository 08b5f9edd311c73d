// Package oracle states the strict rules for JSON a second time, slowly and by
// other means (encoding/json, regular expressions, a published validator), so that
// tests can hold the scanner and the decoder against something that does not share
// their mistakes. Only tests import it.
package oracle

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"strconv"
	"unicode/utf8"
)

// Verdict is what a text is by the rules.
type Verdict struct {
	// Grammar: valid UTF-8 and JSON by its grammar, and not too deep to tell.
	Grammar bool
	// Strict: it also has no name twice in an object, no half of a surrogate
	// pair, no number out of bounds, and at most the given depth.
	Strict bool
	// Depth is the depth of the text.
	Depth int
}

// depthTold is the depth up to which a text that is too deep is still followed.
const depthTold = 1024

// Judge reads a text.
func Judge(data []byte, depthMax int) Verdict {
	depth, deepest, inString := 0, 0, false
	for i := 0; i < len(data); i++ { // encoding/json gives up on its own at 10,000
		switch c := data[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case !inString && (c == '{' || c == '['):
			depth++
			deepest = max(deepest, depth)
		case !inString && (c == '}' || c == ']'):
			depth--
		}
	}
	v := Verdict{Depth: deepest}
	v.Grammar = utf8.Valid(data) && deepest <= depthTold && json.Valid(data)
	v.Strict = v.Grammar && deepest <= depthMax && !loneSurrogate(data) && tokensKeepRules(data)
	return v
}

var (
	escapedSlash  = []byte(`\\`)
	surrogatePair = regexp.MustCompile(`\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}`)
	surrogate     = regexp.MustCompile(`\\u[dD][89a-fA-F][0-9a-fA-F]{2}`)
)

// loneSurrogate looks at a text that is JSON, where a backslash occurs only in an
// escape.
func loneSurrogate(data []byte) bool {
	data = bytes.ReplaceAll(data, escapedSlash, []byte("--"))
	return surrogate.Match(surrogatePair.ReplaceAll(data, []byte("-")))
}

// tokensKeepRules looks for names that repeat and for numbers out of bounds.
func tokensKeepRules(data []byte) bool {
	type container struct {
		names map[string]bool // nil for an array
		name  bool            // a name comes next
	}
	var open []*container
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return true
		}
		if err != nil {
			return false
		}
		var in *container
		if len(open) > 0 {
			in = open[len(open)-1]
		}
		switch token := token.(type) {
		case json.Delim:
			if token == '}' || token == ']' {
				open = open[:len(open)-1]
				continue
			}
			if in != nil {
				in.name = in.names != nil
			}
			next := &container{}
			if token == '{' {
				next.names, next.name = map[string]bool{}, true
			}
			open = append(open, next)
			continue
		case string:
			if in != nil && in.name {
				if in.names[token] {
					return false
				}
				in.names[token], in.name = true, false
				continue
			}
		case json.Number:
			if f, err := strconv.ParseFloat(token.String(), 64); len(token) > 64 || err != nil || f-f != 0 {
				return false
			}
		}
		if in != nil {
			in.name = in.names != nil
		}
	}
}

// RootMember counts the members of a root object that have a name, and returns the
// text of the last one.
func RootMember(data []byte, name string) (count int, text []byte) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	if token, err := decoder.Token(); err != nil || token != json.Delim('{') {
		return 0, nil
	}
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return count, text
		}
		var value json.RawMessage
		if decoder.Decode(&value) != nil {
			return count, text
		}
		if token == name {
			count, text = count+1, value
		}
	}
	return count, text
}
