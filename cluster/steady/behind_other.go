//go:build !linux

package steady

import (
	"io/fs"
	"os"
)

// flushBehind syncs.
func flushBehind(f *os.File, _, _ int64) error { return f.Sync() }

// onlyName is not known.
func onlyName(fs.FileInfo) bool { return false }
