package cluster

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
)

// bbolt believes its file: it walks the tree at open in a goroutine of its own
// and panics there at a page that leads nowhere, which nobody can catch. So the
// tree is walked before it is opened, with nothing believed. The layout is that
// of bbolt's format 2; every number is in the order of the machine.
const (
	treeVersion = 2
	treeMagic   = 0xED0CDAED
	branchPage  = 0x01
	leafPage    = 0x02
	freePage    = 0x10
	bucketLeaf  = 0x01
	noFreePages = ^uint64(0) // the list is made anew at open

	pageHeadBytes   = 16
	branchElemBytes = 16
	leafElemBytes   = 16
	metaBytes       = 64
	pageBytesMax    = 64 << 10
	depthMax        = 64
)

var native = binary.NativeEndian

// tree is one file of bbolt.
type tree struct {
	file     io.ReaderAt
	pageSize uint64
	pages    uint64 // high-water mark
	root     uint64
	free     uint64
	seen     map[uint64]bool
}

// checkTree says what is wrong with a file of bbolt; a file that is not there or
// was never written is in order.
func checkTree(path string) (err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close() // read only
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return err
	}
	t := &tree{file: f, seen: map[uint64]bool{0: true, 1: true}}
	if err := t.head(); err != nil {
		return err
	}
	if err := t.walk(t.root, nil, nil, 0); err != nil {
		return err
	}
	return t.checkFree()
}

// head takes the newer of the two that are whole.
func (t *tree) head() error {
	var newest uint64
	size := uint64(os.Getpagesize())
	for i := range uint64(2) {
		m := make([]byte, metaBytes)
		if _, err := t.file.ReadAt(m, int64(i*size+pageHeadBytes)); err != nil {
			continue
		}
		sum := fnv.New64a()
		_, _ = sum.Write(m[:metaBytes-8]) // a hash never fails
		if native.Uint32(m) != treeMagic || native.Uint32(m[4:]) != treeVersion || native.Uint64(m[metaBytes-8:]) != sum.Sum64() {
			continue
		}
		if change := native.Uint64(m[48:]); t.pageSize == 0 || change > newest {
			newest = change
			t.pageSize, t.root, t.free, t.pages = uint64(native.Uint32(m[8:])), native.Uint64(m[16:]), native.Uint64(m[32:]), native.Uint64(m[40:])
		}
	}
	if t.pageSize < 512 || t.pageSize > pageBytesMax {
		return errors.New("neither of its heads is whole")
	}
	return nil
}

// page reads one with what flows over from it.
func (t *tree) page(id uint64) ([]byte, error) {
	head := make([]byte, pageHeadBytes)
	if id >= t.pages {
		return nil, fmt.Errorf("page %d is behind the end", id)
	}
	if _, err := t.file.ReadAt(head, int64(id*t.pageSize)); err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	over := uint64(native.Uint32(head[12:]))
	if native.Uint64(head) != id || id+over >= t.pages {
		return nil, fmt.Errorf("page %d is not what the tree says", id)
	}
	data := make([]byte, (over+1)*t.pageSize)
	if _, err := t.file.ReadAt(data, int64(id*t.pageSize)); err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	for i := range over + 1 {
		if t.seen[id+i] {
			return nil, fmt.Errorf("page %d is in two places", id+i)
		}
		t.seen[id+i] = true
	}
	return data, nil
}

// walk checks the pages below one: keys ascend, from least on and below most.
func (t *tree) walk(id uint64, least, most []byte, depth int) error {
	if depth > depthMax {
		return errors.New("it does not end")
	}
	data, err := t.page(id)
	if err != nil {
		return err
	}
	kind, count := native.Uint16(data[8:]), int(native.Uint16(data[10:]))
	if kind != branchPage && kind != leafPage {
		return fmt.Errorf("page %d is of kind %d", id, kind)
	}
	if kind == branchPage && count == 0 {
		return fmt.Errorf("page %d branches nowhere", id)
	}
	return t.elements(id, data, kind == leafPage, count, least, most, depth)
}

func (t *tree) elements(id uint64, data []byte, leaf bool, count int, least, most []byte, depth int) error {
	keys, values, err := cells(data, leaf, count)
	if err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	for i, key := range keys {
		if c := bytes.Compare(key, least); c < 0 || c == 0 && i > 0 || most != nil && bytes.Compare(key, most) >= 0 {
			return fmt.Errorf("page %d: its keys are not in order", id)
		}
		least = key
		if !leaf {
			next := most
			if i+1 < len(keys) {
				next = keys[i+1]
			}
			if err := t.walk(native.Uint64(values[i]), key, next, depth+1); err != nil {
				return err
			}
			continue
		}
		if native.Uint32(data[pageHeadBytes+i*leafElemBytes:])&bucketLeaf == 0 {
			continue
		}
		if err := t.bucket(id, values[i], depth); err != nil {
			return err
		}
	}
	return nil
}

// bucket walks a bucket that is the value of a leaf: its root, or its only page.
func (t *tree) bucket(id uint64, value []byte, depth int) error {
	const headBytes = 16 // root and sequence
	if len(value) < headBytes {
		return fmt.Errorf("page %d: a bucket of %d bytes", id, len(value))
	}
	if root := native.Uint64(value); root != 0 {
		return t.walk(root, nil, nil, depth+1)
	}
	inline := value[headBytes:]
	if len(inline) < pageHeadBytes || native.Uint16(inline[8:]) != leafPage {
		return fmt.Errorf("page %d: a bucket without a page", id)
	}
	return t.elements(id, inline, true, int(native.Uint16(inline[10:])), nil, nil, depth+1)
}

// cells finds the keys of a page with their values; of a branch, the pages they
// lead to.
func cells(data []byte, leaf bool, count int) (keys, values [][]byte, err error) {
	size := branchElemBytes
	if leaf {
		size = leafElemBytes
	}
	if pageHeadBytes+count*size > len(data) {
		return nil, nil, fmt.Errorf("%d elements do not fit", count)
	}
	for i := range count {
		at := pageHeadBytes + i*size
		e := data[at:]
		if leaf {
			from, key, value := at+int(native.Uint32(e[4:])), int(native.Uint32(e[8:])), int(native.Uint32(e[12:]))
			if from+key+value > len(data) || from < at {
				return nil, nil, fmt.Errorf("element %d does not fit", i)
			}
			keys, values = append(keys, data[from:from+key]), append(values, data[from+key:from+key+value])
			continue
		}
		from, key := at+int(native.Uint32(e)), int(native.Uint32(e[4:]))
		if from+key > len(data) || from < at {
			return nil, nil, fmt.Errorf("element %d does not fit", i)
		}
		keys, values = append(keys, data[from:from+key]), append(values, e[8:16])
	}
	return keys, values, nil
}

// checkFree says whether a page that is in use is on the list of free ones.
func (t *tree) checkFree() error {
	if t.free == noFreePages {
		return nil
	}
	data, err := t.page(t.free)
	if err != nil {
		return err
	}
	if kind := native.Uint16(data[8:]); kind != freePage {
		return fmt.Errorf("page %d is of kind %d and should list free pages", t.free, kind)
	}
	count, list := uint64(native.Uint16(data[10:])), data[pageHeadBytes:]
	if count == 0xffff {
		count, list = native.Uint64(list), list[8:]
	}
	if count > uint64(len(list))/8 {
		return fmt.Errorf("page %d lists %d free pages", t.free, count)
	}
	for i := range count {
		id := native.Uint64(list[8*i:])
		if id >= t.pages || t.seen[id] {
			return fmt.Errorf("page %d is in use and listed as free", id)
		}
		t.seen[id] = true
	}
	return nil
}
