package property

import (
	"bytes"
	"os"
	"path/filepath"

	"pulse/fsm/state"
)

// snapshot is the stream a lagging follower or a backup gets.
func (w *world) snapshot() ([]byte, error) {
	dir := filepath.Join(w.root, "checkpoint")
	defer func() { _ = os.RemoveAll(dir) }()
	if _, err := w.m.Checkpoint(dir); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if _, err := state.WriteStream(dir, &b); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
