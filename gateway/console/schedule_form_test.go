package console

import (
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

// fieldsOf is a form as a browser would send it.
func fieldsOf(t *testing.T, page string) url.Values {
	t.Helper()
	out := url.Values{}
	unescape := strings.NewReplacer("&#34;", `"`, "&#39;", "'", "&lt;", "<", "&gt;", ">", "&#43;", "+", "&amp;", "&").Replace
	for _, m := range regexp.MustCompile(`<input[^>]*name="([^"]*)"[^>]*>`).FindAllStringSubmatch(page, -1) {
		value := regexp.MustCompile(` value="([^"]*)"`).FindStringSubmatch(m[0])
		if value != nil && !strings.Contains(m[0], `type="checkbox"`) {
			out.Set(m[1], unescape(value[1]))
		}
	}
	for _, m := range regexp.MustCompile(`(?s)<select name="([^"]*)">.*?</select>`).FindAllStringSubmatch(page, -1) {
		chosen := regexp.MustCompile(`<option(?: value="([^"]*)")? selected>([^<]*)`).FindStringSubmatch(m[0])
		if chosen == nil {
			t.Fatalf("nothing is chosen in %s", m[0])
		}
		if chosen[1] == "" {
			chosen[1] = chosen[2]
		}
		out.Set(m[1], unescape(chosen[1]))
	}
	out.Set("payload", unescape(regexp.MustCompile(`(?s)<textarea name="payload"[^>]*>(.*?)</textarea>`).FindStringSubmatch(page)[1]))
	return out
}

// A schedule that is opened and saved is the schedule that was there: no setting is
// lost, and no digit.
func TestASchedulesFormKeepsWhatItDoesNotChange(t *testing.T) {
	t.Parallel()
	h, api := newConsole(t)
	values := fieldsOf(t, get(h, "/console/ns/default/schedule?name=nightly").Body.String())
	token := strings.Repeat("t", 43)
	values.Set(tokenField, token)
	values.Set("do", "save")
	values.Set("name", "nightly")
	if w := form(h, "/console/ns/default/schedule", token, values); w.Code != http.StatusSeeOther {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	api.mu.Lock()
	sent := api.bodies[len(api.bodies)-1]
	asked := api.asked[len(api.asked)-1]
	api.mu.Unlock()
	if asked.Method != http.MethodPut || asked.URL.Path != "/v1/namespaces/default/schedules/nightly" || asked.Header.Get("Idempotency-Key") == "" {
		t.Errorf("asked with %s %s", asked.Method, asked.URL)
	}
	var was, is map[string]any
	key, _ := json.Marshal(hostile)
	for text, into := range map[string]*map[string]any{fakeSchedule(key): &was, sent: &is} {
		d := json.NewDecoder(strings.NewReader(text))
		d.UseNumber()
		if err := d.Decode(into); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
	}
	if is["expected_revision"] != was["revision"] {
		t.Errorf("it expects revision %v", is["expected_revision"])
	}
	for _, name := range []string{"cron", "time_zone", "jitter_ms", "overlap", "catch_up_window_ms", "start_at", "max_fires", "paused", "task"} {
		before, _ := json.Marshal(was[name])
		after, _ := json.Marshal(is[name])
		want := strings.Trim(string(before), `"`)
		if name == "cron" || name == "time_zone" {
			want = strings.TrimSuffix(want, `\u2028`) // no blank is meant around these
		}
		if want != strings.Trim(string(after), `"`) {
			t.Errorf("%s was\n%s\nand is\n%s", name, before, after)
		}
	}
	if !strings.Contains(sent, "12345678901234567890.10") {
		t.Errorf("digits are lost: %s", sent)
	}
}

func TestASchedulesFormSaysWhatIsWrongAndForgetsNothing(t *testing.T) {
	t.Parallel()
	h, api := newConsole(t)
	token := strings.Repeat("t", 43)
	good := url.Values{"name": {"none"}, "cron": {"0 2 * * *"}, "time_zone": {"Europe/Berlin"}, "handler": {"report"}, "queue": {"default"}, "payload": {`{"of":2.50}`}, "do": {"save"}, tokenField: {token}}
	send := func(name, value string) (status int, page string) {
		values := url.Values{}
		for n, v := range good {
			values[n] = v
		}
		values.Set(name, value)
		w := form(h, "/console/ns/default/schedule", token, values)
		return w.Code, w.Body.String()
	}
	for _, c := range []struct {
		name, value, says string
		status            int
	}{
		{"name", "", "a name", http.StatusBadRequest},
		{"name", "nightly", "has a schedule nightly already", http.StatusConflict},
		{"payload", "{", "Payload is", http.StatusBadRequest},
		{"every_ms", "soon", "a duration with its unit", http.StatusBadRequest},
		{"priority", "high", "a whole number", http.StatusBadRequest},
		{"do", "preview", "It would run at", http.StatusOK},
	} {
		status, page := send(c.name, c.value)
		if status != c.status || !strings.Contains(page, c.says) || !strings.Contains(page, "Europe/Berlin") || c.name != "payload" && !strings.Contains(page, "of&#34;:2.50") {
			t.Errorf("%s=%q: %d %s", c.name, c.value, status, page)
		}
	}
	for _, r := range api.requests() {
		if r.Method == http.MethodPut {
			t.Errorf("something was saved: %s", r.URL)
		}
	}
	if status, page := send("do", "save"); status != http.StatusSeeOther {
		t.Errorf("a good one: %d %s", status, page)
	}
}
