package cluster

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"

	wal "github.com/hashicorp/raft-wal"
	walfs "github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"

	"pulse/cluster/steady"
)

// segmentLog is the segmented log with its list of segments, and what removes those
// that it does not need any more.
type segmentLog struct {
	*wal.WAL
	meta     *metadb.BoltMetaDB
	removing *steady.Remover
}

func (l *segmentLog) Close() error {
	return errors.Join(l.WAL.Close(), l.meta.Close(), l.removing.Close())
}

// goneSuffix is that of a segment that has left the log and is still to be removed.
const goneSuffix = ".gone"

// segmentFiles are the files of segments. The log is locked while one is deleted, and
// a cut behind a snapshot deletes many, of 64 MiB each: appends would wait until the
// file system has freed them all. So it only takes their names away.
type segmentFiles struct {
	*walfs.FS
	removing *steady.Remover
}

// openSegments also goes on with what the last process has not come to.
func openSegments(dir string, logger *slog.Logger) (*segment.Filer, *steady.Remover, error) {
	gone, err := filepath.Glob(filepath.Join(dir, "*"+goneSuffix))
	if err != nil {
		return nil, nil, err
	}
	files := segmentFiles{walfs.New(), steady.NewRemover(logger)}
	for _, path := range gone {
		files.removing.Remove(path)
	}
	return segment.NewFiler(dir, files), files.removing, nil
}

// Delete leaves a crash free to bring the name back: the log deletes at its start
// what its list of segments does not have.
func (f segmentFiles) Delete(dir, name string) error {
	path := filepath.Join(dir, name)
	if err := os.Rename(path, path+goneSuffix); err != nil {
		return err
	}
	f.removing.Remove(path + goneSuffix)
	return nil
}
