package access

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"strings"

	"pulse/schema"
)

// tokenPrefix begins every access token, so that people and secret scanners know
// one when they see it: pulse_<id, 32 digits>_<secret, 64 digits>.
const tokenPrefix = "pulse_"

// Token is an access token as its owner shows it. Printing it in any way does not
// give it away; Reveal does.
type Token struct {
	ID     schema.ID
	secret [32]byte
}

// NewToken makes a token of 256 random bits.
func NewToken() Token {
	var t Token
	_, _ = rand.Read(t.ID[:]) // it cannot fail
	_, _ = rand.Read(t.secret[:])
	return t
}

// ParseToken reads a token.
func ParseToken(text string) (t Token, ok bool) {
	rest, ok := strings.CutPrefix(text, tokenPrefix)
	if !ok || len(rest) != 32+1+64 || rest[32] != '_' || strings.ToLower(rest) != rest {
		return Token{}, false
	}
	if _, err := hex.Decode(t.ID[:], []byte(rest[:32])); err != nil {
		return Token{}, false
	}
	if _, err := hex.Decode(t.secret[:], []byte(rest[33:])); err != nil {
		return Token{}, false
	}
	return t, true
}

// Reveal is the text that its owner keeps. It belongs into an answer or a file of
// the owner, and nowhere else.
func (t Token) Reveal() string {
	return tokenPrefix + t.ID.String() + "_" + hex.EncodeToString(t.secret[:])
}

// Hash is what the cluster keeps of the secret. It is random, so a plain SHA-256
// cannot be guessed back.
func (t Token) Hash() []byte {
	sum := sha256.Sum256(t.secret[:])
	return sum[:]
}

// Is says, in constant time, whether the secret has this hash.
func (t Token) Is(hash []byte) bool { return subtle.ConstantTimeCompare(t.Hash(), hash) == 1 }

// String keeps the secret out of logs.
func (t Token) String() string { return "[token " + t.ID.String() + "]" }

// GoString keeps it out of %#v.
func (t Token) GoString() string { return t.String() }

// MarshalText keeps it out of JSON and slog.
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// BearerOf is the token of an Authorization header; shown says that there is such
// a header at all.
func BearerOf(header []string) (text string, shown bool) {
	if len(header) == 0 {
		return "", false
	}
	scheme, text, _ := strings.Cut(header[0], " ")
	if len(header) > 1 || !strings.EqualFold(scheme, "Bearer") {
		return "", true
	}
	return strings.TrimSpace(text), true
}
