package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/record"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// The manifest of a store lists its tables. Pebble takes the first record of it
// that is damaged for its end, as after a crash in the middle of a write, and
// opens without the tables that were listed behind: rows are missing and nothing
// says so. So every sync of a manifest is sealed: how long it is now, and its
// checksum, in a file beside it, which is synced before Pebble acts on what it
// has written. What is sealed has to be there at the next open; what comes behind
// has had no consequences yet and may be torn.

const (
	manifestPrefix = "MANIFEST-"
	sealSuffix     = ".seal"
	sealMagic      = "psl1"
	sealBytes      = len(sealMagic) + 8 + 4 + 4 // length, sum of the manifest, sum of the seal
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sealingFS seals the manifests of the store in dir.
type sealingFS struct {
	vfs.FS
	dir string
}

// sealManifests makes the options, whose FS is set, those of a store in dir whose
// manifests are sealed.
func sealManifests(o *pebble.Options, dir string) {
	o.FS = sealingFS{o.FS, dir}
}

func (s sealingFS) manifest(name string) bool {
	return s.PathDir(name) == s.PathDir(s.PathJoin(s.dir, "x")) && isManifest(s.PathBase(name))
}

func isManifest(base string) bool {
	return strings.HasPrefix(base, manifestPrefix) && !strings.HasSuffix(base, sealSuffix)
}

// Create begins a manifest with an empty seal, or any other file.
func (s sealingFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := s.FS.Create(name, category)
	if err != nil || !s.manifest(name) {
		return file, err
	}
	seal, err := s.FS.Create(name+sealSuffix, category)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &sealedManifest{File: file, seal: seal}, nil
}

// Remove removes the seal with its manifest.
func (s sealingFS) Remove(name string) error {
	err := s.FS.Remove(name)
	if err != nil || !s.manifest(name) {
		return err
	}
	if err := s.FS.Remove(name + sealSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Unwrap implements vfs.FS.
func (s sealingFS) Unwrap() vfs.FS { return s.FS }

// sealedManifest is a manifest being written.
type sealedManifest struct {
	vfs.File
	seal   vfs.File
	length uint64
	sum    uint32
}

func (m *sealedManifest) Write(p []byte) (int, error) {
	// Summed first: the file below may change what it is given.
	sum := crc32.Update(m.sum, castagnoli, p)
	n, err := m.File.Write(p)
	if err == nil {
		m.length, m.sum = m.length+uint64(n), sum
	}
	return n, err
}

func (m *sealedManifest) Sync() error { return m.sealAfter(m.File.Sync()) }

func (m *sealedManifest) SyncData() error { return m.sealAfter(m.File.SyncData()) }

// sealAfter appends a seal: the last one that is whole counts, so that a crash
// in the middle of one leaves the one before.
func (m *sealedManifest) sealAfter(err error) error {
	if err != nil {
		return err
	}
	if _, err := m.seal.Write(sealOf(m.length, m.sum)); err != nil {
		return err
	}
	return m.seal.Sync()
}

func (m *sealedManifest) Close() error { return errors.Join(m.File.Close(), m.seal.Close()) }

func sealOf(length uint64, sum uint32) []byte {
	b := binary.BigEndian.AppendUint64([]byte(sealMagic), length)
	b = binary.BigEndian.AppendUint32(b, sum)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// lastSeal is what the last whole seal of a manifest says. One that is torn was
// of a sync that had no consequences, and one that is damaged lies beside a
// manifest that is not.
func lastSeal(data []byte) (length uint64, sum uint32, found bool) {
	for ; len(data) >= sealBytes; data = data[sealBytes:] {
		l, c := binary.BigEndian.Uint64(data[len(sealMagic):]), binary.BigEndian.Uint32(data[len(sealMagic)+8:])
		if bytes.Equal(data[:sealBytes], sealOf(l, c)) {
			length, sum, found = l, c, true
		}
	}
	return length, sum, found
}

// checkManifest says whether the manifest that pebble.Open will read holds what
// it must, before it does.
func checkManifest(dir string, from vfs.FS) error {
	desc, err := pebble.Peek(dir, from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it is made
	}
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrStoreDamaged, dir, err)
	}
	if !desc.Exists {
		return nil
	}
	data, err := readFile(from, desc.ManifestFilename)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStoreDamaged, err)
	}
	seals, err := readFile(from, desc.ManifestFilename+sealSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return readsToItsEnd(desc.ManifestFilename, data)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStoreDamaged, err)
	}
	length, sum, found := lastSeal(seals)
	switch {
	case !found:
		return readsToItsEnd(desc.ManifestFilename, data)
	case length > uint64(len(data)):
		return fmt.Errorf("%w: %s has %d bytes of %d", ErrStoreDamaged, desc.ManifestFilename, len(data), length)
	case crc32.Checksum(data[:length], castagnoli) != sum:
		return fmt.Errorf("%w: %s: checksum mismatch", ErrStoreDamaged, desc.ManifestFilename)
	}
	return nil
}

// readsToItsEnd is all that can be asked of a manifest without a seal.
func readsToItsEnd(name string, data []byte) error {
	records := record.NewReader(bytes.NewReader(data), 0)
	for {
		r, err := records.Next()
		if err == nil {
			_, err = io.Copy(io.Discard, r)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: %s: %w", ErrStoreDamaged, name, err)
		}
	}
}

func readFile(from vfs.FS, name string) ([]byte, error) {
	f, err := from.Open(name)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(f)
	return data, errors.Join(err, f.Close())
}
