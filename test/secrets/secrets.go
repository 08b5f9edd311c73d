// Package secrets searches what a test's servers have written down for what must be
// written nowhere.
package secrets

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Log takes what many write, to be searched.
type Log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// Bytes is what was written so far.
func (l *Log) Bytes() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Clone(l.buf.Bytes())
}

// Find says which secret is in which place, in every form in which it could be written
// down: as it is, in hexadecimal and in base64. Both maps are by name.
func Find(places, secrets map[string][]byte) (found []string) {
	for _, name := range slices.Sorted(maps.Keys(secrets)) {
		for form, text := range forms(secrets[name]) {
			for place, data := range places {
				if bytes.Contains(data, text) {
					found = append(found, "the secret of "+name+" is in "+place+" as "+form)
				}
			}
		}
	}
	slices.Sort(found)
	return found
}

func forms(secret []byte) map[string][]byte {
	out := map[string][]byte{
		"plain": secret, "hex": []byte(hex.EncodeToString(secret)), "HEX": []byte(strings.ToUpper(hex.EncodeToString(secret))),
	}
	// Inside of other text base64 may begin at any of three places.
	for at := range 3 {
		padded := append(make([]byte, at), secret...)
		for form, encoding := range map[string]*base64.Encoding{"base64": base64.RawStdEncoding, "base64url": base64.RawURLEncoding} {
			text := encoding.EncodeToString(padded)
			out[form+string(rune('0'+at))] = []byte(text[(at*8+5)/6+1 : len(text)-2])
		}
	}
	return out
}
