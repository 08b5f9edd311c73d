package session

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"

	"pulse/schema"
)

// LeaseKey makes and checks lease secrets. Every node of a cluster derives the
// same one, so that any gateway can deliver an attempt again and check what a
// worker shows, and none of them has to be kept: no secret is in the log.
type LeaseKey struct{ key [32]byte }

// clusterSecretBytesMin keeps a key from being derived from next to nothing.
const clusterSecretBytesMin = 16

// NewLeaseKey derives the key from the secret that all nodes share.
func NewLeaseKey(clusterSecret []byte) (LeaseKey, error) {
	if len(clusterSecret) < clusterSecretBytesMin {
		return LeaseKey{}, fmt.Errorf("session: the cluster secret has %d bytes, it needs at least %d", len(clusterSecret), clusterSecretBytesMin)
	}
	derived, err := hkdf.Key(sha256.New, clusterSecret, nil, "pulse lease key v1", sha256.Size)
	if err != nil {
		return LeaseKey{}, fmt.Errorf("session: derive the lease key: %w", err)
	}
	return LeaseKey{key: [32]byte(derived)}, nil
}

// Mint makes the secret of an attempt: the proof that it was handed to whoever
// shows it. It covers the epoch, so a wrong epoch fails like a wrong secret.
func (k LeaseKey) Mint(attemptID schema.ID, epoch uint64) schema.Secret {
	mac := hmac.New(sha256.New, k.key[:])
	mac.Write(attemptID[:])
	mac.Write(binary.BigEndian.AppendUint64(nil, epoch))
	return schema.Secret(mac.Sum(nil))
}

// Check compares in constant time.
func (k LeaseKey) Check(attemptID schema.ID, epoch uint64, secret schema.Secret) bool {
	return k.Mint(attemptID, epoch).Equal(secret)
}

// Format and LogValue keep the key out of every log line.
func (LeaseKey) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "[redacted]") }

// LogValue is Format for log handlers.
func (LeaseKey) LogValue() slog.Value { return slog.StringValue("[redacted]") }

// MarshalText is Format for encoders.
func (LeaseKey) MarshalText() ([]byte, error) { return []byte("[redacted]"), nil }
