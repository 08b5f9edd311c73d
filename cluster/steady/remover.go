package steady

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// freedBytes become free at a time, freedPerSecond bytes in a second.
const (
	freedBytes     = 2 << 20
	freedPerSecond = 100 << 20
)

// Remover removes files and directories in the background, one after the other and
// each of them little by little. What it has not come to when it is closed stays.
type Remover struct {
	logger *slog.Logger
	stop   chan struct{}
	all    sync.WaitGroup
	turn   sync.Mutex // held by the goroutine that removes

	mu     sync.Mutex
	closed bool // stop is, and no goroutine is added to all
}

// NewRemover starts nothing yet.
func NewRemover(logger *slog.Logger) *Remover {
	return &Remover{logger: logger, stop: make(chan struct{})}
}

// Remove begins to remove a file, or a directory with all that is in it. Nobody may be
// using it, nor make another name for anything of it: a file that has no other name is
// shortened before it goes.
func (r *Remover) Remove(path string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.all.Go(func() {
		r.turn.Lock()
		defer r.turn.Unlock()
		if err := r.remove(path); err != nil {
			r.logger.Warn("what is not needed any more could not be removed; the next start tries again", "path", path, "error", err)
		}
	})
}

// Wait waits until all is removed.
func (r *Remover) Wait() { r.all.Wait() }

// Close gives up and waits for the goroutines.
func (r *Remover) Close() error {
	r.mu.Lock()
	if !r.closed {
		r.closed = true
		close(r.stop)
	}
	r.mu.Unlock()
	r.all.Wait()
	return nil
}

var errStopped = errors.New("closed")

func (r *Remover) remove(path string) error {
	err := filepath.WalkDir(path, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		return r.free(path, e)
	})
	switch {
	case errors.Is(err, errStopped):
		return nil
	case err != nil:
		return err
	}
	return os.RemoveAll(path)
}

// free removes one file.
func (r *Remover) free(path string, e fs.DirEntry) error {
	info, err := e.Info()
	if err != nil {
		return err
	}
	for size := info.Size(); ; size -= freedBytes {
		select {
		case <-r.stop:
			return errStopped
		default:
		}
		last := size <= freedBytes || !onlyName(info)
		if last {
			err = os.Remove(path)
		} else {
			err = os.Truncate(path, size-freedBytes)
		}
		if err != nil || last && size < freedBytes {
			return err // so little needs no rest
		}
		select {
		case <-r.stop:
		case <-time.After(freedBytes * time.Second / freedPerSecond):
		}
		if last {
			return nil
		}
	}
}
