package console

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
)

// A change is taken from a page of ours alone. Three things say so, each enough
// against another site: where the browser says the request comes from
// (Sec-Fetch-Site, or Origin from one that does not send it), a token in the form
// that equals a cookie of this browser, and that the cookie does not travel
// with requests of other sites. The token is random and kept by the browser, so
// that any node may check what any other has given out.

const (
	tokenCookie  = "pulse_csrf"
	tokenField   = "csrf"
	noticeCookie = "pulse_notice"
	// formBytesMax bounds a form: a review's result and room around it.
	formBytesMax = 1 << 20
)

var crossOrigin = http.NewCrossOriginProtection()

// token is what forms of this browser carry.
func (v *visit) token() string {
	if c, err := v.r.Cookie(tokenCookie); err == nil && len(c.Value) == 43 {
		return c.Value
	}
	raw := make([]byte, 32)
	_, _ = rand.Read(raw) // it cannot fail
	token := base64.RawURLEncoding.EncodeToString(raw)
	v.setCookie(tokenCookie, token, 0)
	return token
}

func (v *visit) setCookie(name, value string, maxAge int) {
	http.SetCookie(v.w, &http.Cookie{
		Name: name, Value: value, Path: "/console", MaxAge: maxAge, HttpOnly: true, Secure: v.r.TLS != nil, SameSite: http.SameSiteStrictMode,
	})
}

func (v *visit) checkPost() error {
	v.r.Body = http.MaxBytesReader(v.w, v.r.Body, formBytesMax)
	if err := crossOrigin.Check(v.r); err != nil {
		return &problem{Status: http.StatusForbidden, Title: "Not from here", Detail: "The request was made by a page of another site, so nothing was done."}
	}
	if err := v.r.ParseForm(); err != nil {
		return &problem{Status: http.StatusBadRequest, Title: "The form could not be read", Detail: "It may be larger than a form can be. Nothing was done."}
	}
	c, err := v.r.Cookie(tokenCookie)
	sent := v.r.PostForm.Get(tokenField)
	if err != nil || len(c.Value) != 43 || subtle.ConstantTimeCompare([]byte(c.Value), []byte(sent)) != 1 {
		return &problem{Status: http.StatusForbidden, Title: "The form is too old", Detail: "It does not carry this browser's token. Go back, load the page again and repeat what you did; nothing was done."}
	}
	return nil
}

// notice is what the next page says once.
type notice struct {
	Text  string `json:"t"`
	Bad   bool   `json:"b,omitempty"`
	Index string `json:"i,omitempty"` // of the change it speaks of
}

// done says what was done on the page it leads to.
func (v *visit) done(to, text string) error {
	v.leave(to, notice{Text: text, Index: v.behind})
	return nil
}

// leave goes to a page with a notice.
func (v *visit) leave(to string, n notice) {
	if text, err := json.Marshal(n); err == nil && len(text) < 2048 {
		v.setCookie(noticeCookie, url.QueryEscape(string(text)), 60)
	}
	v.redirect(to)
}

// takeNotice reads what the last page left, and takes it away.
func (v *visit) takeNotice() {
	c, err := v.r.Cookie(noticeCookie)
	if err != nil || v.r.Method != http.MethodGet || v.r.Header.Get(refreshHeader) != "" {
		return
	}
	v.setCookie(noticeCookie, "", -1)
	text, err := url.QueryUnescape(c.Value)
	n := &notice{}
	if err == nil && json.Unmarshal([]byte(text), n) == nil && n.Text != "" {
		v.frame.Notice, v.behind = n, digits(n.Index)
	}
}

// refreshHeader marks a page that refreshes itself.
const refreshHeader = "X-Pulse-Refresh"

// digits is an index, or nothing.
func digits(text string) string {
	for _, c := range text {
		if c < '0' || c > '9' {
			return ""
		}
	}
	if len(text) > 20 {
		return ""
	}
	return text
}

// operationField names a form as a whole: sent twice, by a double click or by
// going back, it does its work once.
const operationField = "op"

// operation is the Idempotency-Key of a form.
func (v *visit) operation() string {
	sent := v.r.PostForm.Get(operationField)
	if len(sent) < 16 || len(sent) > 64 {
		return ""
	}
	for _, c := range sent {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_') {
			return ""
		}
	}
	return "console/" + sent
}
