package steady

import (
	"bytes"
	"crypto/rand"
	"io"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

func random(t *testing.T, bytes int) []byte {
	t.Helper()
	b := make([]byte, bytes)
	if _, err := rand.Read(b); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestWhatIsWrittenIsInTheFile(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, pieceBytes, windowBytes - 1, windowBytes, 3*windowBytes + 7} {
		for _, step := range []int{1 << 10, pieceBytes + 1, 2*windowBytes + 3} {
			path, want := filepath.Join(t.TempDir(), "file"), random(t, size)
			f, err := os.Create(path)
			if err != nil {
				t.Fatal(err)
			}
			w := NewWriter(f)
			for rest := want; len(rest) > 0; rest = rest[min(step, len(rest)):] {
				if n, err := w.Write(rest[:min(step, len(rest))]); err != nil || n != min(step, len(rest)) {
					t.Fatalf("%d bytes were written: %v", n, err)
				}
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d bytes in steps of %d come back as %d: %v", size, step, len(got), err)
			}
		}
	}
}

func TestAWriterSaysWhatItCouldNotWrite(t *testing.T) {
	t.Parallel()
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := NewWriter(f).Write(make([]byte, 10)); err == nil || n != 0 {
		t.Errorf("of a closed file %d bytes: %v", n, err)
	}
}

func TestACopyKeepsToItsBound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const seconds = 3
		for _, pace := range []Pace{Copying(), Reading()} {
			bytes := int64(seconds * pace.perSecond)
			began := time.Now()
			n, err := io.Copy(io.Discard, &Reader{R: io.LimitReader(zeros{}, bytes), Pace: pace})
			if err != nil || n != bytes {
				t.Fatalf("%d bytes are read: %v", n, err)
			}
			if took := time.Since(began); took < seconds*time.Second-2*lateMost || took > seconds*time.Second {
				t.Errorf("%d bytes took %s", bytes, took)
			}
		}
	})
}

// Who has been slow does not hurry to make up for it.
func TestLostTimeIsLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &Reader{R: zeros{}, Pace: Copying()}
		read := func(bytes int) {
			if _, err := io.CopyN(io.Discard, r, int64(bytes)); err != nil {
				t.Fatal(err)
			}
		}
		read(pieceBytes)
		<-time.After(time.Hour)
		began := time.Now()
		read(copiedPerSecond)
		if took := time.Since(began); took < time.Second-2*lateMost {
			t.Errorf("a second's bytes took %s after an hour without any", took)
		}
	})
}

// zeros never ends.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
