package fsm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"google.golang.org/protobuf/proto"

	pb "pulse/proto/pulse/v1"
)

// EntryFormat is the first byte of every entry this version writes.
const EntryFormat = 1

const entryHeaderBytes = 5 // format, CRC32C

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrDamaged says that the bytes of a committed entry are not what was
// proposed. The node has to stop: its own log cannot be trusted.
var ErrDamaged = errors.New("log entry is damaged: checksum mismatch")

// EncodeEntry frames an entry for the log: format, CRC32C over format and
// content (which holds the proposer's term), content.
func EncodeEntry(e *pb.Entry) ([]byte, error) {
	buf := make([]byte, entryHeaderBytes, entryHeaderBytes+proto.Size(e))
	buf[0] = EntryFormat
	buf, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(buf, e)
	if err != nil {
		return nil, fmt.Errorf("encode entry: %w", err)
	}
	binary.BigEndian.PutUint32(buf[1:], entryCRC(buf))
	return buf, nil
}

// DecodeEntry checks and decodes what EncodeEntry made.
func DecodeEntry(data []byte) (*pb.Entry, error) {
	if err := CheckEntry(data); err != nil {
		return nil, err
	}
	e := &pb.Entry{}
	if err := proto.Unmarshal(data[entryHeaderBytes:], e); err != nil {
		return nil, fmt.Errorf("decode entry: %w", err)
	}
	return e, nil
}

// CheckEntry verifies format and checksum without decoding.
func CheckEntry(data []byte) error {
	if len(data) < entryHeaderBytes {
		return fmt.Errorf("%w: %d bytes are too short", ErrDamaged, len(data))
	}
	if data[0] != EntryFormat {
		return fmt.Errorf("log entry has format %d; this version reads format %d", data[0], EntryFormat)
	}
	if binary.BigEndian.Uint32(data[1:]) != entryCRC(data) {
		return ErrDamaged
	}
	return nil
}

func entryCRC(data []byte) uint32 {
	crc := crc32.Update(0, castagnoli, data[:1])
	return crc32.Update(crc, castagnoli, data[entryHeaderBytes:])
}
