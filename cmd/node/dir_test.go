package node

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func testConfig(t *testing.T) Config {
	t.Helper()
	return Config{DataDir: filepath.Join(t.TempDir(), "data"), WriteLimit: patience, Logger: slog.New(slog.DiscardHandler)}
}

func mustOpen(t *testing.T, cfg Config) *Dir {
	t.Helper()
	d, err := openDir(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func TestANewDirectoryIsOursAlone(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	d := mustOpen(t, cfg)
	for name, want := range map[string]os.FileMode{"": 0o700, secretFile: 0o600, identityFile: 0o600, lockFile: 0o600} {
		info, err := os.Stat(filepath.Join(cfg.DataDir, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("mode of %q is %o, want %o", name, got, want)
		}
	}
	if d.Node.NodeID != DefaultNodeID || len(d.Node.ClusterID) != 32 {
		t.Errorf("identity %+v", d.Node)
	}
	if _, err := openDir(cfg); !errors.Is(err, ErrInUse) {
		t.Errorf("a second process got in: %v", err)
	}
}

func TestADirectoryThatWasOpenToOthersIsClosed(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	if err := os.MkdirAll(cfg.DataDir, 0o755); err != nil {
		t.Fatal(err)
	}
	mustOpen(t, cfg)
	info, err := os.Stat(cfg.DataDir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestIdentityAndKeysSurviveARestart(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.NodeID = "alpha"
	first := mustOpen(t, cfg)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	cfg.NodeID = "" // the directory knows
	second := mustOpen(t, cfg)
	if second.Node.NodeID != "alpha" || second.Node.ClusterID != first.Node.ClusterID || !bytes.Equal(first.secret, second.secret) {
		t.Errorf("%+v became %+v", first.Node, second.Node)
	}
}

func TestAWrongDirectoryIsRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		spoil func(t *testing.T, cfg *Config)
		want  string
	}{
		{"another node's", func(_ *testing.T, cfg *Config) { cfg.NodeID = "beta" }, "belongs to node"},
		{"another secret", func(_ *testing.T, cfg *Config) { cfg.ClusterSecret = bytes.Repeat([]byte("x"), 32) }, "another cluster secret"},
		{"damaged identity", func(t *testing.T, cfg *Config) { write(t, cfg, identityFile, "{") }, "damaged"},
		{"identity of a later version", func(t *testing.T, cfg *Config) { write(t, cfg, identityFile, `{"format": 9}`) }, "format 9"},
		{"short secret", func(t *testing.T, cfg *Config) { write(t, cfg, secretFile, "short\n") }, "at least 32"},
		{"huge secret", func(t *testing.T, cfg *Config) { write(t, cfg, secretFile, strings.Repeat("x", 5000)) }, "right file"},
		{"a log without identity", func(t *testing.T, cfg *Config) {
			if err := os.Remove(filepath.Join(cfg.DataDir, identityFile)); err != nil {
				t.Fatal(err)
			}
			if err := os.MkdirAll(filepath.Join(cfg.DataDir, "raft", "log"), 0o700); err != nil {
				t.Fatal(err)
			}
		}, "node.json is missing"},
		{"missing secret file", func(t *testing.T, cfg *Config) { cfg.ClusterSecretFile = filepath.Join(t.TempDir(), "none") }, "cluster secret"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig(t)
			cfg.NodeID = "alpha"
			if err := mustOpen(t, cfg).Close(); err != nil {
				t.Fatal(err)
			}
			c.spoil(t, &cfg)
			d, err := openDir(cfg)
			if err == nil {
				d.Close()
				t.Fatal("it was opened")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %q says nothing about %q", err, c.want)
			}
			// A refusal leaves the lock free for the next try.
			l, err := takeLock(filepath.Join(cfg.DataDir, lockFile))
			if err != nil {
				t.Fatalf("lock still held: %v", err)
			}
			l.Close()
		})
	}
}

func write(t *testing.T, cfg *Config, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(cfg.DataDir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestASecretFileReadableByOthersIsMentioned(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	var log bytes.Buffer
	cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	cfg.ClusterSecretFile = filepath.Join(t.TempDir(), "secret")
	secret := strings.Repeat("s3cret", 8)
	if err := os.WriteFile(cfg.ClusterSecretFile, []byte(secret), 0o644); err != nil {
		t.Fatal(err)
	}
	mustOpen(t, cfg)
	if !strings.Contains(log.String(), "chmod 600") {
		t.Errorf("log %q", log.String())
	}
	if strings.Contains(log.String(), secret) {
		t.Error("the secret is in the log")
	}
}

func TestConfigNamesTheWrongField(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Config){
		"DataDir":         func(c *Config) { c.DataDir = "" },
		"Logger":          func(c *Config) { c.Logger = nil },
		"NodeID":          func(c *Config) { c.NodeID = "a b" },
		"HTTPAddr":        func(c *Config) { c.HTTPAddr = "nowhere" },
		"RaftAddr":        func(c *Config) { c.RaftAddr = "nowhere" },
		"ClusterSecret":   func(c *Config) { c.ClusterSecret = []byte("short") },
		"both":            func(c *Config) { c.ClusterSecret, c.ClusterSecretFile = bytes.Repeat([]byte("x"), 32), "f" },
		"ElectionTimeout": func(c *Config) { c.ElectionTimeout = -1 },
		"WriteLimit":      func(c *Config) { c.WriteLimit = -1 },
	} {
		cfg := testConfig(t)
		if err := cfg.Validate(); err != nil {
			t.Fatal(err)
		}
		change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}
