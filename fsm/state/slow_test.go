package state

import (
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// hangingFS is a disk that does not end the sync of a table before it is let go.
type hangingFS struct {
	vfs.FS
	free chan struct{}
}

func (h hangingFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := h.FS.Create(name, category)
	if err != nil || !strings.HasSuffix(name, ".sst") {
		return file, err
	}
	return hangingFile{file, h.free}, nil
}

type hangingFile struct {
	vfs.File
	free chan struct{}
}

func (h hangingFile) Sync() error {
	<-h.free
	return h.File.Sync()
}

func (h hangingFile) SyncData() error { return h.Sync() }

// A disk that hangs is told of while it does, so that a node with it lets others
// lead.
func TestAHangingDiskIsTold(t *testing.T) {
	t.Parallel()
	free := make(chan struct{})
	told := make(chan string, 1)
	tuning := small.in(hangingFS{vfs.NewMem(), free})
	tuning.SlowDisk = func(file string, _ time.Duration) {
		select {
		case told <- file:
		default:
		}
	}
	s, err := Open(storeDir, tuning)
	if err != nil {
		t.Fatal(err)
	}
	entry(t, s, func(tx *Tx) { tx.PutPayload(ID{1}, []byte("one")) })
	flushed := make(chan error, 1)
	go func() { flushed <- s.flush() }()
	select {
	case file := <-told:
		if !strings.HasSuffix(file, ".sst") {
			t.Errorf("told of %s", file)
		}
		close(free)
		err = <-flushed
	case err = <-flushed:
		t.Errorf("the flush is over, and nobody was told that it hung")
	}
	if err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
