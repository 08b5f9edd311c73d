package steady

import (
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// flushBehind begins to write the window from..to, and waits until the one before it
// is written. The journal of the file system, which a sync would wait for, is left
// alone.
func flushBehind(f *os.File, from, to int64) error {
	const wait = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER
	var err error
	if before := max(from-2*windowBytes, 0); before < from {
		err = unix.SyncFileRange(int(f.Fd()), before, from-before, wait)
	}
	if err == nil {
		err = unix.SyncFileRange(int(f.Fd()), from, to-from, unix.SYNC_FILE_RANGE_WRITE)
	}
	if err != nil {
		return f.Sync() // some file systems know no ranges
	}
	return nil
}

// onlyName says that a file goes with this name of it.
func onlyName(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Nlink == 1
}
