package console

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
)

// sent posts a form as a page of this console would.
func sent(h http.Handler, path string, form url.Values, cookies ...*http.Cookie) *httptest.ResponseRecorder {
	csrf := strings.Repeat("t", 43)
	form.Set("csrf", csrf)
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	for _, c := range append(cookies, &http.Cookie{Name: tokenCookie, Value: csrf}) {
		r.AddCookie(c)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func cookieOf(w *httptest.ResponseRecorder, name string) *http.Cookie {
	for _, c := range w.Result().Cookies() {
		if c.Name == name {
			return c
		}
	}
	return nil
}

func TestSigningInAndOut(t *testing.T) {
	t.Parallel()
	h, api := newConsole(t)
	w := sent(h, "/console/login", url.Values{"token": {"bad"}, "back": {"/console/ns/default/tasks"}})
	if w.Code != http.StatusUnauthorized || cookieOf(w, sessionCookie) != nil || strings.Contains(w.Body.String(), ">bad<") {
		t.Errorf("a bad token: %d", w.Code)
	}
	w = sent(h, "/console/login", url.Values{"token": {" good\n"}, "back": {"/console/ns/default/tasks"}})
	session := cookieOf(w, sessionCookie)
	if w.Code != http.StatusSeeOther || w.Header().Get("Location") != "/console/ns/default/tasks" || session == nil {
		t.Fatalf("a good token: %d %v", w.Code, w.Header())
	}
	if !session.HttpOnly || session.SameSite != http.SameSiteStrictMode || session.Path != "/console" || strings.Contains(session.Value, "good") {
		t.Errorf("the cookie is %+v", session)
	}
	if len(sent(h, "/console/login", url.Values{"token": {"good"}, "back": {"https://evil.example"}}).Header().Get("Location")) > len("/console/ns/default/") {
		t.Error("it leads elsewhere")
	}

	r := httptest.NewRequest(http.MethodGet, "/console/ns/default/keys", nil)
	r.AddCookie(session)
	w = httptest.NewRecorder()
	h.ServeHTTP(w, r)
	asked := api.requests()
	last := asked[len(asked)-1]
	if last.Header.Get("Authorization") != "Bearer good" || last.Header.Get("Cookie") != "" || !strings.Contains(w.Body.String(), "Sign out") {
		t.Errorf("the API is asked with %v", last.Header)
	}
	w = sent(h, "/console/logout", url.Values{}, session)
	if c := cookieOf(w, sessionCookie); c == nil || c.MaxAge >= 0 || c.Value != "" {
		t.Errorf("signing out leaves %+v", c)
	}
}

func TestASessionTravelsOverTLSAlone(t *testing.T) {
	t.Parallel()
	h, _ := newConsole(t)
	r := httptest.NewRequest(http.MethodPost, "https://example.com/console/login", strings.NewReader("csrf="+strings.Repeat("t", 43)+"&token=good"))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.AddCookie(&http.Cookie{Name: tokenCookie, Value: strings.Repeat("t", 43)})
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if c := cookieOf(w, sessionCookie); c == nil || !c.Secure {
		t.Errorf("the cookie is %+v", c)
	}
}

func TestNobodySignsInFromAnotherSite(t *testing.T) {
	t.Parallel()
	h, _ := newConsole(t)
	for _, path := range []string{"/console/login", "/console/logout", "/console/access"} {
		for name, spoil := range map[string]func(*http.Request){
			"another site":    func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") },
			"another origin":  func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") },
			"no form's token": func(r *http.Request) { r.Header.Del("Cookie") },
		} {
			r := httptest.NewRequest(http.MethodPost, path, strings.NewReader("csrf="+strings.Repeat("t", 43)+"&token=good&do=create"))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			r.AddCookie(&http.Cookie{Name: tokenCookie, Value: strings.Repeat("t", 43)})
			spoil(r)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != http.StatusForbidden || cookieOf(w, sessionCookie) != nil {
				t.Errorf("%s from %s: %d", path, name, w.Code)
			}
		}
	}
}

func TestASessionEndsAndCannotBeMade(t *testing.T) {
	t.Parallel()
	s, err := newSealer([32]byte{1})
	if err != nil {
		t.Fatal(err)
	}
	other, err := newSealer([32]byte{2})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1_800_000_000, 0)
	sealed := s.seal("the token", now)
	if token, ok := s.open(sealed, now.Add(sessionFor-time.Second)); !ok || token != "the token" {
		t.Errorf("opened: %q %v", token, ok)
	}
	for name, try := range map[string]func() (string, bool){
		"after its time":   func() (string, bool) { return s.open(sealed, now.Add(sessionFor)) },
		"another cluster":  func() (string, bool) { return other.open(sealed, now) },
		"changed":          func() (string, bool) { return s.open("A"+sealed[1:len(sealed)-1]+"A", now) },
		"cut":              func() (string, bool) { return s.open(sealed[:10], now) },
		"no base64":        func() (string, bool) { return s.open("%%%", now) },
		"nothing":          func() (string, bool) { return s.open("", now) },
		"a very long text": func() (string, bool) { return s.open(strings.Repeat("A", 1<<16), now) },
	} {
		if token, ok := try(); ok || token != "" {
			t.Errorf("%s: opened as %q", name, token)
		}
	}
}

func TestWhoIsUnknownIsSentToSignIn(t *testing.T) {
	t.Parallel()
	h, api := newConsole(t)
	api.broken = http.StatusUnauthorized
	w := get(h, "/console/ns/default/tasks?state=WAITING")
	if to := w.Header().Get("Location"); w.Code != http.StatusSeeOther || to != "/console/login?back="+url.QueryEscape("/console/ns/default/tasks?state=WAITING") {
		t.Errorf("%d to %s", w.Code, to)
	}
	if w := get(h, "/console/ns/default/tasks", refreshHeader, "1"); w.Code != http.StatusUnauthorized {
		t.Errorf("a page that refreshes itself: %d", w.Code)
	}
}

func TestATokenIsShownInTheAnswerThatMakesIt(t *testing.T) {
	t.Parallel()
	h, api := newConsole(t)
	w := sent(h, "/console/access", url.Values{"do": {"create"}, "name": {"ci"}, "grants": {"submitter@billing worker@billing/a,b"}, "days": {"90"}, "op": {strings.Repeat("x", 26)}})
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `<pre id="secret">pulse_the_secret</pre>`) || w.Header().Get("Cache-Control") != "no-store" {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	for _, c := range w.Result().Cookies() {
		if strings.Contains(c.Value, "secret") {
			t.Errorf("it is in the cookie %s", c.Name)
		}
	}
	found := false
	for _, body := range api.bodies {
		found = found || strings.Contains(body, `{"role":"worker","namespace":"billing","queues":["a","b"]}`) && strings.Contains(body, `"expires_at"`)
	}
	if !found {
		t.Errorf("the API was asked %v", api.bodies)
	}
	if w := sent(h, "/console/access", url.Values{"do": {"create"}, "name": {"ci"}, "grants": {"submitter"}}); w.Code != http.StatusBadRequest {
		t.Errorf("a grant that is none: %d", w.Code)
	}
	w = sent(h, "/console/access", url.Values{"do": {"revoke"}, "id": {idOne}})
	if w.Code != http.StatusSeeOther {
		t.Errorf("revoke: %d", w.Code)
	}
}
