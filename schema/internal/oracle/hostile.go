package oracle

import (
	"bytes"
	"strconv"
	"strings"
)

// Hostile is a text that means harm.
type Hostile struct {
	Name string
	Text []byte
}

// Hostiles are texts that have broken or drained readers of JSON, each in four
// places: as the whole text, as the result of a frame from a worker, as the payload
// of one from the server, and as the name of a member.
func Hostiles() []Hostile {
	const mebi = 1 << 20
	wide := []byte(`{"`)
	for i := 0; len(wide) < mebi-64; i++ {
		wide = append(strconv.AppendInt(wide, int64(i), 36), `":0,"`...)
	}
	wide = append(wide, `z":0}`...)
	escapedWide := []byte(`{"`)
	for i := 0; len(escapedWide) < mebi-64; i++ {
		escapedWide = append(escapedWide, `\u0061`...)
		escapedWide = append(strconv.AppendInt(escapedWide, int64(i), 36), `":0,"`...)
	}
	escapedWide = append(escapedWide, `z":0}`...)
	var manyObjects bytes.Buffer
	manyObjects.WriteString("[0")
	for width := 17; manyObjects.Len() < mebi/2; width++ {
		manyObjects.WriteString(`,{"z":0`)
		for i := range width {
			manyObjects.WriteString(`,"` + strconv.FormatInt(int64(i), 35) + `":0`)
		}
		manyObjects.WriteString("}")
	}
	manyObjects.WriteString("]")

	values := []Hostile{
		{"empty", nil},
		{"blank", []byte(" \n\t\r ")},
		{"byte order mark", []byte("\xEF\xBB\xBF{}")},
		{"utf-16", []byte("\xFF\xFE{\x00}\x00")},
		{"bad UTF-8", []byte("\"\xC3\x28\"")},
		{"overlong UTF-8", []byte("\"\xC0\xAF\"")},
		{"surrogate in UTF-8", []byte("\"\xED\xA0\x80\"")},
		{"beyond Unicode", []byte("\"\xF4\x90\x80\x80\"")},
		{"cut UTF-8", []byte("\"\xE2\x82")},
		{"bad UTF-8 outside strings", []byte("{\xFF}")},
		{"high surrogate alone", []byte(`"\ud800"`)},
		{"low surrogate alone", []byte(`"\udc00"`)},
		{"surrogates in the wrong order", []byte(`"\udc00\ud800"`)},
		{"high surrogate twice", []byte(`"\ud800\ud800\udc00"`)},
		{"high surrogate at the end", []byte(`"\ud800\u"`)},
		{"surrogate behind a slash", []byte(`"\\ud800"`)},
		{"nul", []byte(`"\u0000"`)},
		{"raw nul", []byte("\"\x00\"")},
		{"noncharacter", []byte(`"\uffff"`)},
		{"raw control character", []byte("\"\x1f\"")},
		{"delete character", []byte("\"\x7f\"")},
		{"unknown escape", []byte(`"\x41"`)},
		{"endless escape", []byte(`"\`)},
		{"NaN", []byte("NaN")},
		{"Infinity", []byte("-Infinity")},
		{"1e400", []byte("1e400")},
		{"1e999999999", []byte("1e999999999")},
		{"1e-999999999", []byte("1e-999999999")},
		{"0e999999999", []byte("0e999999999")},
		{"largest double", []byte("1.7976931348623157e308")},
		{"just above the largest double", []byte("1.7976931348623159e308")},
		{"beyond uint64", []byte("12345678901234567890")},
		{"64 digits", bytes.Repeat([]byte("9"), 64)},
		{"65 digits", bytes.Repeat([]byte("9"), 65)},
		{"a million digits", bytes.Repeat([]byte("9"), 1_000_000)},
		{"leading zero", []byte("01")},
		{"plus", []byte("+1")},
		{"bare point", []byte("1.")},
		{"no digits", []byte("-")},
		{"hexadecimal", []byte("0x10")},
		{"trailing garbage", []byte(`{}x`)},
		{"two values", []byte(`{}{}`)},
		{"trailing nul", []byte("{}\x00")},
		{"trailing comma", []byte(`{"a":1,}`)},
		{"trailing comma in array", []byte(`[1,]`)},
		{"comment", []byte(`{/**/}`)},
		{"single quotes", []byte(`{'a':1}`)},
		{"bare name", []byte(`{a:1}`)},
		{"crossed brackets", []byte(`[{"a":[}]]`)},
		{"closed too often", []byte(`{}}`)},
		{"null", []byte("null")},
		{"null in blanks", []byte(" null ")},
		{"name twice", []byte(`{"a":1,"a":1}`)},
		{"name twice, escaped", []byte(`{"a":1,"\u0061":1}`)},
		{"name twice, astral", []byte("{\"\U0001F642\":1,\"\\ud83d\\ude42\":1}")},
		{"name twice, deep", []byte(`[[{"x":{"y":1,"y":2}}]]`)},
		{"names that differ in a lone surrogate", []byte(`{"\ud800":1,"\ud801":1}`)},
		{"empty name twice", []byte(`{"":1,"":1}`)},
		{"name twice among many", []byte(`{` + strings.Repeat(`"x":0,`, 40) + `"y":0}`)},
		{"depth 64", nest(64)}, {"depth 65", nest(65)}, {"depth 66", nest(66)}, {"depth 1024", nest(1024)}, {"depth 1025", nest(1025)},
		{"a million arrays", bytes.Repeat([]byte("["), mebi-1)},
		{"a million objects", bytes.Repeat([]byte(`{"":`), mebi/4)},
		{"wide", wide},
		{"wide and escaped", escapedWide},
		{"wide, all the same", append(bytes.Repeat([]byte(`,"":0`), mebi/5-1), '}')},
		{"wider and wider", manyObjects.Bytes()},
		{"all colons", []byte(`{"a":"` + strings.Repeat(":", mebi/2) + `"` + strings.Repeat(`,"b":{}`, 200) + `}`)},
		{"long string", []byte(`"` + strings.Repeat("x", mebi-2) + `"`)},
		{"too long string", []byte(`"` + strings.Repeat("x", mebi) + `"`)},
		{"long name", []byte(`{"` + strings.Repeat("x", mebi-8) + `":0}`)},
		{"long escaped name", []byte(`{"` + strings.Repeat(`\u0078`, mebi/6-8) + `":0}`)},
		{"many bad numbers", []byte("[" + strings.Repeat("1e400,", mebi/6-4) + "0]")},
		{"many long exponents", []byte("[" + strings.Repeat("1.00000000000000000000000000000000000e100,", mebi/42-4) + "0]")},
	}
	for i := range values {
		if values[i].Name == "wide, all the same" {
			values[i].Text[0] = '{'
		}
	}
	all := values
	for _, v := range values {
		if len(v.Text) > mebi/2 {
			continue
		}
		all = append(all,
			Hostile{v.Name + " as a result", finish(`"result":` + string(v.Text))},
			Hostile{v.Name + " as a name", finish(`"result":0,` + string(v.Text) + `:0`)},
			Hostile{v.Name + " as a payload", assign(`"payload":` + string(v.Text))},
		)
	}
	return all
}

func nest(depth int) []byte {
	return []byte(strings.Repeat("[", depth) + strings.Repeat("]", depth))
}

// finish is a frame from a worker with the given members in its body.
func finish(members string) []byte {
	return []byte(`{"protocol_version":"1","type":"task.finish","message_id":"00000000000000000000000000000001",` +
		`"session_id":"00000000000000000000000000000002","body":{"ref":{"task_id":"00000000000000000000000000000003",` +
		`"attempt_id":"00000000000000000000000000000004","epoch":"5","lease_secret":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"},` +
		`"outcome":"SUCCEEDED",` + members + `}}`)
}

// assign is a frame from the server with the given members in its task.
func assign(members string) []byte {
	const at = `:"2026-07-01T12:00:00Z",`
	return []byte(`{"protocol_version":"1","type":"task.assign","message_id":"00000000000000000000000000000001",` +
		`"session_id":"00000000000000000000000000000002","body":{"attempt_id":"00000000000000000000000000000004","epoch":"5",` +
		`"lease_secret":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA","lease_until"` + at + `"server_time"` + at +
		`"task":{"id":"00000000000000000000000000000003","namespace_id":"00000000000000000000000000000006",` +
		`"queue_id":"00000000000000000000000000000007","state":"LEASED","revision":"2","handler":"h","handler_version":"1",` +
		`"payload_version":"1","available_at"` + at + `"deadline_at"` + at + `"created_at"` + at + `"updated_at"` + at +
		`"recovery_safety":"IDEMPOTENT","attempt_count":1,"retry":{"max_attempts":1,"initial_delay_ms":0,"max_delay_ms":0,` +
		`"attempt_timeout_ms":1},` + members + `}}}`)
}
