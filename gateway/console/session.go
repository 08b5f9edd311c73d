package console

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"net/http"
	"strings"
	"time"
)

// A visitor who signs in with an access token gets a cookie that holds it, sealed
// with a key that all nodes derive from the cluster's secret: any node can open it,
// the browser cannot, and nothing is kept anywhere. Each page asks the API with the
// token, so a revoked one ends the session. The API itself knows no cookie: what
// another site makes a browser send there is nobody's request.

const (
	sessionCookie = "pulse_session"
	// sessionFor bounds a session, whatever its token allows.
	sessionFor = 12 * time.Hour
	// tokenBytesMax bounds what is sealed.
	tokenBytesMax = 256
)

// sealer seals and opens sessions.
type sealer struct{ aead cipher.AEAD }

func newSealer(key [32]byte) (sealer, error) {
	block, err := aes.NewCipher(key[:])
	if err != nil {
		return sealer{}, err
	}
	aead, err := cipher.NewGCM(block)
	return sealer{aead}, err
}

// sessionLabel keeps what is sealed here from being taken for anything else.
var sessionLabel = []byte("pulse console session v1")

func (s sealer) seal(token string, now time.Time) string {
	nonce := make([]byte, s.aead.NonceSize())
	_, _ = rand.Read(nonce) // it cannot fail
	text := append(binary.BigEndian.AppendUint64(nil, uint64(now.Add(sessionFor).Unix())), token...)
	return base64.RawURLEncoding.EncodeToString(s.aead.Seal(nonce, nonce, text, sessionLabel))
}

func (s sealer) open(cookie string, now time.Time) (token string, ok bool) {
	raw, err := base64.RawURLEncoding.DecodeString(cookie)
	n := s.aead.NonceSize()
	if err != nil || len(raw) < n || len(raw) > n+8+tokenBytesMax+s.aead.Overhead() {
		return "", false
	}
	text, err := s.aead.Open(nil, raw[:n], raw[n:], sessionLabel)
	if err != nil || len(text) < 8 || now.Unix() >= int64(binary.BigEndian.Uint64(text)) {
		return "", false
	}
	return string(text[8:]), true
}

// signedIn takes the token out of the visitor's session, if there is one.
func (v *visit) signedIn() {
	if c, err := v.r.Cookie(sessionCookie); err == nil {
		v.session, _ = v.h.sealer.open(c.Value, v.now)
	}
	v.frame.SignedIn = v.session != ""
}

// loginPage is where somebody shows a token.
type loginPage struct {
	Back  string
	Fault string
}

func (v *visit) login() error {
	v.frame.Here = "login"
	return v.render(http.StatusOK, "login", "Sign in", loginPage{Back: v.back()})
}

// doLogin asks the API with the token whether it is good: there the tries of an
// address are counted.
func (v *visit) doLogin() error {
	token := strings.TrimSpace(v.r.PostForm.Get("token"))
	if token == "" || len(token) > tokenBytesMax || strings.ContainsAny(token, " \r\n") {
		token = "none" // and be refused like any other bad one
	}
	v.session = token
	err := v.call(http.MethodGet, "/v1/caller", nil, nil, nil)
	var p *problem
	switch {
	case errors.As(err, &p) && p.Status == http.StatusUnauthorized:
		v.session, v.frame.Here = "", "login"
		return v.render(http.StatusUnauthorized, "login", "Sign in", loginPage{Back: v.back(), Fault: "This token is not known, or has been revoked or is over."})
	case err != nil:
		v.session = ""
		return err
	}
	v.setCookie(sessionCookie, v.h.sealer.seal(token, v.now), int(sessionFor/time.Second))
	v.redirect(v.back())
	return nil
}

func (v *visit) doLogout() error {
	v.setCookie(sessionCookie, "", -1)
	v.session = ""
	v.redirect(root + "login")
	return nil
}
