package workerv1

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

// Golden frames: the bytes on the wire are pinned, so that a change of encoder or
// decoder that old peers would notice shows as a change of a file.
func TestClientFramesMatchTheirGoldenBytes(t *testing.T) {
	for _, s := range clientSamples(t) {
		t.Run(s.name, func(t *testing.T) {
			encoded, err := AppendClient(nil, s.frame)
			if err != nil {
				t.Fatal(err)
			}
			golden := golden(t, filepath.Join("client", s.name+".json"), encoded)
			decoded, err := DecodeClient(golden)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(decoded, s.frame) {
				t.Errorf("decoded to\n%+v, want\n%+v", decoded, s.frame)
			}
		})
	}
}

func TestServerFramesMatchTheirGoldenBytes(t *testing.T) {
	for _, s := range serverSamples(t) {
		t.Run(s.name, func(t *testing.T) {
			encoded, err := AppendServer(nil, s.frame)
			if err != nil {
				t.Fatal(err)
			}
			golden := golden(t, filepath.Join("server", s.name+".json"), encoded)
			decoded, err := DecodeServer(golden)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(decoded, s.frame) {
				t.Errorf("decoded to\n%+v, want\n%+v", decoded, s.frame)
			}
		})
	}
}

// golden compares encoded with a file, which -update writes.
func golden(t *testing.T, name string, encoded []byte) []byte {
	t.Helper()
	path := filepath.Join("testdata", "frames", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, append(encoded, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if want = bytes.TrimSuffix(want, []byte("\n")); !bytes.Equal(encoded, want) {
		t.Fatalf("encoded as\n%s, want\n%s", encoded, want)
	}
	return want
}
