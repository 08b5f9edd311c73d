package cluster

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/hashicorp/raft"
)

// A log takes what is damaged at its end for a write that a crash has cut short,
// and opens without it; a file of votes with one damaged head opens as it was one
// change ago. Both would let this server go on as if it had never acknowledged
// what others rely on. So it keeps marks of how far it has come, and is not
// believed without what they promise.
//
// A mark is written after what it stands for is durable, and is not synced
// itself: a killed process leaves it to the kernel, and after a loss of power it
// may be older than the log, never newer. What is taken back is synced first.
type marks struct {
	mu   sync.Mutex
	file *os.File
	at   marked
}

type marked struct {
	last   uint64 // entry of the log; a snapshot may stand for it
	sealed uint64 // entries from here on have been sealed
	change uint64 // of the votes and terms
}

const (
	marksFile  = "marks"
	marksMagic = "pmk1"
	marksBytes = len(marksMagic) + 3*8 + crc32.Size
)

func (m marked) encode() []byte {
	b := []byte(marksMagic)
	for _, n := range []uint64{m.last, m.sealed, m.change} {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, sealTable))
}

func decodeMarks(b []byte) (m marked, ok bool) {
	if len(b) != marksBytes {
		return m, false
	}
	n := b[len(marksMagic):]
	m = marked{binary.BigEndian.Uint64(n), binary.BigEndian.Uint64(n[8:]), binary.BigEndian.Uint64(n[16:])}
	return m, string(b) == string(m.encode())
}

// openMarks reads the marks in dir. Where there are none, all that is there now
// counts as complete.
func openMarks(dir string, logs raft.LogStore, change uint64) (_ *marks, err error) {
	path := filepath.Join(dir, marksFile)
	data, err := os.ReadFile(path)
	fresh := errors.Is(err, fs.ErrNotExist) || err == nil && len(data) == 0
	if err != nil && !fresh {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	m := &marks{}
	if fresh {
		last, err := logs.LastIndex()
		if err != nil {
			return nil, fmt.Errorf("cluster: read the log: %w", err)
		}
		m.at = marked{last: last, sealed: last + 1, change: change}
	} else {
		var ok bool
		if m.at, ok = decodeMarks(data); !ok {
			return nil, fmt.Errorf("cluster: %s is damaged%s", path, startEmpty)
		}
	}
	if m.file, err = os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600); err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	if fresh {
		if err := errors.Join(m.set(true, func(*marked) {}), syncFile(dir)); err != nil {
			return nil, errors.Join(fmt.Errorf("cluster: %w", err), m.file.Close())
		}
	}
	return m, nil
}

// set changes the marks in one write of a few bytes.
func (m *marks) set(sync bool, change func(*marked)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := m.at
	change(&next)
	if _, err := m.file.WriteAt(next.encode(), 0); err != nil {
		return err
	}
	m.at = next
	if sync {
		return m.file.Sync()
	}
	return nil
}

// read returns the marks as they stand.
func (m *marks) read() marked {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.at
}

// Close makes them durable.
func (m *marks) Close() error { return errors.Join(m.file.Sync(), m.file.Close()) }

// check says whether log and votes are as complete as the marks promise.
func (m *marks) check(dir string, last, snapshot, change uint64) error {
	at := m.read()
	switch {
	case at.last > max(last, snapshot):
		return fmt.Errorf("cluster: the log in %s is damaged: it ends at entry %d, and this server had stored entry %d and said so%s",
			dir, last, at.last, startEmpty)
	case at.change > change:
		return fmt.Errorf("cluster: %s is damaged: it shows change %d of the votes and terms, and this server had made change %d%s",
			filepath.Join(dir, stableFile), change, at.change, startEmpty)
	}
	return nil
}

// startEmpty is the way out of damage that is certain.
const startEmpty = ". Put this server's data directory aside and start it empty: one of several servers joins again " +
	"by itself and learns everything from the others; one that is alone needs a backup"

// sealedLog puts a checksum around every entry and marks how far the log goes.
// The stores beneath look at the newest entries only, if at any.
type sealedLog struct {
	raft.LogStore
	marks *marks
}

var _ raft.MonotonicLogStore = (*sealedLog)(nil)

func (l *sealedLog) IsMonotonic() bool { return monotonic(l.LogStore) }

func (l *sealedLog) StoreLog(log *raft.Log) error { return l.StoreLogs([]*raft.Log{log}) }

// StoreLogs stores copies with a seal behind their extensions: the entries are
// raft's and on their way to others.
func (l *sealedLog) StoreLogs(logs []*raft.Log) error {
	sealed := make([]*raft.Log, len(logs))
	copies := make([]raft.Log, len(logs))
	for i, log := range logs {
		copies[i] = *log
		copies[i].Extensions = append(log.Extensions[:len(log.Extensions):len(log.Extensions)], sealOf(log)...)
		sealed[i] = &copies[i]
	}
	if err := l.LogStore.StoreLogs(sealed); err != nil || len(logs) == 0 {
		return err
	}
	return l.marks.set(false, func(m *marked) { m.last = max(m.last, logs[len(logs)-1].Index) })
}

// DeleteRange takes the mark back before the entries it stands for.
func (l *sealedLog) DeleteRange(from, to uint64) error {
	if l.marks.read().last <= to {
		if err := l.marks.set(true, func(m *marked) { m.last = min(m.last, max(from, 1)-1) }); err != nil {
			return err
		}
	}
	return l.LogStore.DeleteRange(from, to)
}

// GetLog returns an entry as it was stored, or says that it is not.
func (l *sealedLog) GetLog(index uint64, log *raft.Log) error {
	if err := l.LogStore.GetLog(index, log); err != nil {
		return err
	}
	whole := log.Extensions
	if end := len(whole) - logSealBytes; end >= 0 {
		log.Extensions = whole[:end:end]
		if string(whole[end:]) == string(sealOf(log)) {
			if end == 0 {
				log.Extensions = nil
			}
			return nil
		}
		log.Extensions = whole
	}
	if index < l.marks.read().sealed {
		return nil // by a version that did not seal
	}
	return damagedEntry(index, errSeal)
}

var errSeal = errors.New("its checksum does not match")

const logSealBytes = crc32.Size + 1

// sealOf sums what raft goes by.
func sealOf(log *raft.Log) []byte {
	head := binary.AppendUvarint(binary.AppendUvarint([]byte{byte(log.Type)}, log.Index), log.Term)
	head = binary.AppendUvarint(head, uint64(len(log.Data)))
	c := crc32.Update(crc32.Checksum(head, sealTable), sealTable, log.Data)
	c = crc32.Update(c, sealTable, log.Extensions)
	return binary.BigEndian.AppendUint32([]byte{sealMark}, c)
}
