package session

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"pulse/schema"
)

// Made once with another implementation of HKDF and HMAC from the same inputs.
// Every node and every version of a cluster has to agree on it.
func TestLeaseSecretsAreTheSameEverywhere(t *testing.T) {
	t.Parallel()
	key, err := NewLeaseKey([]byte("0123456789abcdef0123456789abcdef"))
	if err != nil {
		t.Fatal(err)
	}
	var attempt schema.ID
	for i := range attempt {
		attempt[i] = byte(i)
	}
	const want = "gobabxjlm4mw5U4lqDy8Ny6rGRhFNaBBTpnqRsne-p4"
	if got := string(key.Mint(attempt, 0x0102030405060708).AppendBase64(nil)); got != want {
		t.Errorf("secret %s, want %s", got, want)
	}
}

func TestALeaseSecretFitsOneAttemptAndEpoch(t *testing.T) {
	t.Parallel()
	a, b := ident("a"), ident("b")
	secret := testKey.Mint(a, 1)
	if !testKey.Check(a, 1, secret) {
		t.Error("the right secret fails")
	}
	other, err := NewLeaseKey([]byte("the secret of another cluster"))
	if err != nil {
		t.Fatal(err)
	}
	for name, ok := range map[string]bool{
		"another attempt": testKey.Check(b, 1, secret),
		"another epoch":   testKey.Check(a, 2, secret),
		"another cluster": other.Check(a, 1, secret),
		"no secret":       testKey.Check(a, 1, schema.Secret{}),
	} {
		if ok {
			t.Errorf("%s passes", name)
		}
	}
}

func TestAShortClusterSecretIsRefused(t *testing.T) {
	t.Parallel()
	if _, err := NewLeaseKey(make([]byte, clusterSecretBytesMin-1)); err == nil {
		t.Error("accepted")
	}
}

func TestALeaseKeyIsNotPrinted(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	logger := slog.New(slog.NewJSONHandler(&out, nil))
	logger.Info("key", "key", testKey, "in", struct{ K LeaseKey }{testKey})
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d"} {
		fmt.Fprintf(&out, verb+" "+verb+"\n", testKey, struct{ K LeaseKey }{testKey})
	}
	if err := json.NewEncoder(&out).Encode(map[string]any{"k": testKey}); err != nil {
		t.Fatal(err)
	}
	for _, form := range []string{fmt.Sprint(testKey.key), fmt.Sprintf("%x", testKey.key[:]), fmt.Sprint(testKey.key[0], testKey.key[1], testKey.key[2])} {
		if strings.Contains(out.String(), form) {
			t.Errorf("the key is printed as %q in\n%s", form, out.String())
		}
	}
}
