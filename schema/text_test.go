package schema

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestTimesReadAsTheStandardLibraryReadsThem(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	pattern := regexp.MustCompile(`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?Z$`)
	accepted := 0
	for range 100_000 {
		text := fmt.Sprintf("%04d-%02d-%02dT%02d:%02d:%02d", random.IntN(10000), random.IntN(14), random.IntN(33), random.IntN(25), random.IntN(61), random.IntN(61))
		if digits := random.IntN(9); digits > 0 {
			text += fmt.Sprintf(".%0*d", digits-1, random.IntN(10))
		}
		text += []string{"Z", "Z", "Z", "Z", "z", "", "+00:00"}[random.IntN(7)]
		want, err := time.Parse("2006-01-02T15:04:05.999999999Z", text)
		valid := err == nil && pattern.MatchString(text)
		got, ok := ParseTime(text)
		if ok != valid {
			t.Fatalf("%s: accepted %v, want %v", text, ok, valid)
		}
		if !ok {
			continue
		}
		accepted++
		if int64(got) != want.UnixMicro() || !got.Time().Equal(want) {
			t.Fatalf("%s: read as %s, want %s", text, got.Time(), want)
		}
		if written := got.String(); written != want.Format("2006-01-02T15:04:05.999999Z") {
			t.Fatalf("%s: written as %s", text, written)
		}
	}
	if accepted < 10_000 {
		t.Errorf("only %d times were valid", accepted)
	}
}

func TestEveryDayIsWrittenAndReadAlike(t *testing.T) {
	t.Parallel()
	for _, from := range []int{0, 1800, 9600} { // the calendar repeats after 400 years
		for day := time.Date(from, 1, 1, 0, 0, 0, 0, time.UTC); day.Year() < from+400; day = day.AddDate(0, 0, 1) {
			at := TimeOf(day)
			if text := at.String(); text != day.Format(time.RFC3339) {
				t.Fatalf("%s: written as %s", day, text)
			} else if back, ok := ParseTime(text); !ok || back != at {
				t.Fatalf("%s: read back as %s", day, back)
			}
		}
	}
	for _, bound := range []struct {
		at   Time
		want string
	}{
		{TimeMax, "9999-12-31T23:59:59.999999Z"},
		{TimeMax + 1, "9999-12-31T23:59:59.999999Z"},
		{TimeMin - 1, "0000-01-01T00:00:00Z"},
		{-1, "1969-12-31T23:59:59.999999Z"},
	} {
		if got := bound.at.String(); got != bound.want {
			t.Errorf("%d: written as %s, want %s", bound.at, got, bound.want)
		}
	}
}

func TestIDsHaveOneSpelling(t *testing.T) {
	t.Parallel()
	const text = "00ff0123456789abcdef000000000000"
	id, ok := ParseID(text)
	if !ok || id.String() != text || id[1] != 0xFF || id[2] != 0x01 {
		t.Fatalf("got %v, %v", id, ok)
	}
	for _, bad := range []string{"", text[:31], text + "0", strings.ToUpper(text), text[:31] + "g", text[:31] + "\x00", text[:31] + "/", text[:31] + ":", text[:31] + "`"} {
		if id, ok := ParseID(bad); ok {
			t.Errorf("%q is accepted as %v", bad, id)
		}
	}
	encoded, err := json.Marshal(map[string]ID{"id": id})
	if err != nil || string(encoded) != `{"id":"`+text+`"}` {
		t.Errorf("marshalled as %s, %v", encoded, err)
	}
	var back map[string]ID
	if err := json.Unmarshal(encoded, &back); err != nil || back["id"] != id {
		t.Errorf("read back as %v, %v", back, err)
	}
}

func TestUint64sHaveOneSpelling(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]uint64{
		"1": 1, "10": 10, "18446744073709551615": 1<<64 - 1, "9999999999999999999": 9999999999999999999,
		"0": 0, "": 0, "01": 0, "-1": 0, "+1": 0, "1.0": 0, "18446744073709551616": 0, "18446744073709551620": 0,
		"99999999999999999999": 0, "100000000000000000000": 0, "1 ": 0, "١": 0,
	} {
		if got, ok := ParseUint64(text); got != want && ok || ok != (want > 0) {
			t.Errorf("%q: got %d, %v, want %d", text, got, ok, want)
		}
	}
}

func TestSecretsHaveOneSpelling(t *testing.T) {
	t.Parallel()
	pattern := regexp.MustCompile(`^[A-Za-z0-9_-]{42}[AEIMQUYcgkosw048]$`)
	random := rand.New(rand.NewPCG(5, 6))
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	for range 20_000 {
		text := make([]byte, 43)
		for i := range text {
			text[i] = alphabet[random.IntN(len(alphabet))]
		}
		switch random.IntN(6) {
		case 0:
			text[random.IntN(43)] = "+/=\n\r \x00é"[random.IntN(8)]
		case 1:
			text = text[:random.IntN(43)]
		case 2:
			text = append(text, '=')
		}
		secret, ok := ParseSecret(text)
		if want := pattern.Match(text); ok != want {
			t.Fatalf("%q: accepted %v, want %v", text, ok, want)
		}
		if ok && string(secret.AppendBase64(nil)) != string(text) {
			t.Fatalf("%q: written as %q", text, secret.AppendBase64(nil))
		}
	}
}

func TestSecretsAreNeverPrinted(t *testing.T) {
	t.Parallel()
	var secret Secret
	for i := range secret {
		secret[i] = 0xAB
	}
	type holder struct {
		Secret  Secret
		Pointer *Secret
		Any     any
		List    []Secret
		Map     map[string]Secret
	}
	held := holder{secret, &secret, secret, []Secret{secret}, map[string]Secret{"k": secret}}
	var out bytes.Buffer
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%o", "%b", "%c", "%U", "%t", "%e", "%5.2f"} {
		fmt.Fprintf(&out, format+"\n"+format+"\n", secret, held)
	}
	fmt.Fprintln(&out, secret, &secret, held)
	encoded, err := json.Marshal(held)
	if err != nil {
		t.Fatal(err)
	}
	out.Write(encoded)
	for _, handler := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		slog.New(handler).Info("m", "secret", secret, "pointer", &secret, "held", held)
	}
	for _, leak := range []string{"171", "ab", "AB", "253", "10101011", "«", base64.RawURLEncoding.EncodeToString(secret[:])[:8]} {
		if strings.Contains(out.String(), leak) {
			t.Errorf("a secret shows as %q in\n%s", leak, out.String())
		}
	}
	if strings.Count(out.String(), "[redacted]") < 30 {
		t.Errorf("not redacted:\n%s", out.String())
	}
}

func TestSecretsCompare(t *testing.T) {
	t.Parallel()
	a, b := Secret{31: 1}, Secret{31: 2}
	if !a.Equal(a) || a.Equal(b) {
		t.Error("equality is wrong")
	}
}

func TestNamesFollowTheirPattern(t *testing.T) {
	t.Parallel()
	pattern := regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.:-]*$`)
	for c := range 256 {
		for _, text := range []string{string([]byte{byte(c)}), "a" + string([]byte{byte(c)}), string([]byte{byte(c)}) + "a"} {
			if got, want := ValidName(text, 8), pattern.MatchString(text); got != want {
				t.Errorf("%q: accepted %v, want %v", text, got, want)
			}
		}
	}
	if ValidName("", 8) || !ValidName("12345678", 8) || ValidName("123456789", 8) {
		t.Error("the length is not held")
	}
}

func TestKeysKeepTheirRules(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		key                   string
		business, concurrency bool
	}{
		{"account/1", true, true}, {"", true, false}, {"inner blank is fine", true, true}, {"Ω 🙂", true, true},
		{" a", true, false}, {"a ", true, false}, {"\u00A0a", true, false}, {"a\u3000", true, false}, {"a\u2028", true, false}, {"\u200Ba", true, true},
		{"a\u0000b", true, false}, {"a\tb", true, false}, {"a\u007Fb", true, false}, {"a\u0085b", true, false},
		{strings.Repeat("é", 191), true, true}, {strings.Repeat("é", 192), false, false}, {strings.Repeat("🙂", 191), true, true},
		{"\xFF", false, false},
	} {
		if got := CheckBusinessKey(test.key) == ""; got != test.business {
			t.Errorf("%.20q as a business key: %v, want %v", test.key, got, test.business)
		}
		if got := CheckConcurrencyKey(test.key) == ""; got != test.concurrency {
			t.Errorf("%.20q as a concurrency key: %v, want %v", test.key, got, test.concurrency)
		}
	}
}
