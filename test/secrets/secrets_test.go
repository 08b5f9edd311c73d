package secrets

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"strings"
	"testing"
)

func TestASecretIsFoundInEveryForm(t *testing.T) {
	t.Parallel()
	secret := bytes.Repeat([]byte{0xfb, 'x', 0xff, 7}, 8)
	for form, text := range map[string]string{
		"plain": "x" + string(secret) + "y", "hex": "x" + hex.EncodeToString(secret), "HEX": strings.ToUpper(hex.EncodeToString(secret)),
		"base64": base64.StdEncoding.EncodeToString(secret), "base64url": base64.RawURLEncoding.EncodeToString(secret),
		"one byte in":  base64.URLEncoding.EncodeToString(append([]byte{1}, secret...)),
		"two bytes in": base64.StdEncoding.EncodeToString(append(append([]byte{1, 2}, secret...), 3)),
	} {
		if len(Find(map[string][]byte{"there": []byte(text)}, map[string][]byte{"it": secret})) == 0 {
			t.Errorf("not found: %s", form)
		}
	}
	if found := Find(map[string][]byte{"there": secret[1:]}, map[string][]byte{"it": secret}); len(found) > 0 {
		t.Errorf("found where it is not: %v", found)
	}
}
