package state

import (
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
)

// ErrStoreDamaged says that files of a live store are not what was written.
var ErrStoreDamaged = errors.New("the state on this disk is damaged")

func damagedFile(i pebble.DataCorruptionInfo) error {
	return fmt.Errorf("%w: %s: %w", ErrStoreDamaged, i.Path, i.Details)
}

// asDamage tells errors that come from damaged files from those of a disk that
// cannot be read.
func asDamage(err error) error {
	if err == nil || errors.Is(err, ErrStoreDamaged) || !pebble.IsCorruptionError(err) {
		return err
	}
	if i := pebble.ExtractDataCorruptionInfo(err); i != nil {
		return damagedFile(*i)
	}
	return fmt.Errorf("%w: %w", ErrStoreDamaged, err)
}

// telling is quiet about everything but the end of the store.
type telling struct {
	quiet
	broken func(error)
}

func (t telling) Fatalf(format string, args ...any) {
	t.broken(asDamage(fmt.Errorf(format, args...)))
	t.quiet.Fatalf(format, args...)
}

// tellFailedWrite tells of tables that could not be written. The store would try
// for ever, and nobody would know that it holds nothing new any more.
func tellFailedWrite(broken func(error), err error) {
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		broken(fmt.Errorf("write the state store: %w", err))
	}
}

// findings are kept while a store is being opened, so that opening it fails by
// them, and told from then on. What is fatal is told at once: the store panics
// next, in a goroutine of its own, and opening it does not return.
type findings struct {
	tell func(error)

	mu   sync.Mutex
	done bool
	kept error
}

func (f *findings) add(err error) {
	f.mu.Lock()
	if !f.done {
		f.kept = errors.Join(f.kept, err)
	}
	done := f.done
	f.mu.Unlock()
	if done && f.tell != nil {
		f.tell(err)
	}
}

func (f *findings) options(tuning Tuning) *pebble.Options {
	fatal := telling{broken: func(error) {}}
	if f.tell != nil {
		fatal.broken = f.tell
	}
	tuning.Broken = f.add
	o := tuning.options()
	o.Logger = fatal
	return o
}

// opened ends the keeping and returns what was kept.
func (f *findings) opened() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.done = true
	return f.kept
}
