package pki

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
)

const (
	// secretBytes is what a new cluster secret is drawn from.
	secretBytes = 32
	// secretBytesMin keeps a key from being derived from next to nothing.
	secretBytesMin = 16
	// derivedBytesMax is what HKDF-SHA256 can give.
	derivedBytesMax = 255 * sha256.Size
)

// newSecret draws a cluster secret: one line of text, so that it survives
// editors, environments and Kubernetes.
func newSecret() []byte {
	raw := make([]byte, secretBytes)
	_, _ = rand.Read(raw) // it never fails: crypto/rand would end the program
	return append(base64.RawURLEncoding.AppendEncode(nil, raw), '\n')
}

// DeriveKey makes a key of n bytes from the cluster secret. Every purpose has
// an info of its own, such as "pulse gossip key v1", so that a key that leaks
// opens one door.
func DeriveKey(secret []byte, info string, n int) ([]byte, error) {
	switch {
	case len(secret) < secretBytesMin:
		return nil, fmt.Errorf("pki: the cluster secret has %d bytes, it needs at least %d: give the one that init-tls made", len(secret), secretBytesMin)
	case info == "":
		return nil, errors.New("pki: a key is derived for a purpose: give info")
	case n <= 0 || n > derivedBytesMax:
		return nil, fmt.Errorf("pki: a key of %d bytes cannot be derived, only 1 to %d", n, derivedBytesMax)
	}
	key, err := hkdf.Key(sha256.New, secret, nil, info, n)
	if err != nil {
		return nil, fmt.Errorf("pki: derive %q: %w", info, err)
	}
	return key, nil
}
