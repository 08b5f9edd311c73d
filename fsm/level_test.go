package fsm

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"pulse/fsm/state"
	pb "pulse/proto/pulse/v1"
)

// A machine that is too old for its cluster stops at the entry that raises the
// level, and refuses a store and a snapshot of it.
func TestAMachineRefusesAHigherFormatLevel(t *testing.T) {
	t.Parallel()
	raise := func(level uint32) []byte {
		data, err := EncodeEntry(&pb.Entry{Format: 1, Term: 1, TimeUs: storyStart, Commands: []*pb.Command{
			{Body: &pb.Command_OpenTerm{OpenTerm: &pb.OpenTerm{NodeId: "n1", ClusterId: []byte("cluster")}}},
			{Body: &pb.Command_SetCluster{SetCluster: &pb.SetCluster{FormatLevel: level}}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	dir := t.TempDir()
	newer, err := Open(Options{Dir: dir, FormatLevel: FormatLevel + 1})
	if err != nil {
		t.Fatal(err)
	}
	newer.Apply(1, 1, raise(FormatLevel+1))
	if newer.FormatLevel() != FormatLevel+1 {
		t.Fatalf("level %d", newer.FormatLevel())
	}
	backup := t.TempDir() + "/backup"
	if _, err := newer.Checkpoint(backup); err != nil {
		t.Fatal(err)
	}
	if err := newer.Close(); err != nil {
		t.Fatal(err)
	}
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, ErrFormatLevel) || !strings.Contains(err.Error(), "run the version that the other servers run") {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err = Open(Options{Dir: dir})
	refused("its store", err)

	older, err := Open(Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer older.Close()
	var stream bytes.Buffer
	if _, err := state.WriteStream(backup, &stream); err != nil {
		t.Fatal(err)
	}
	built := t.TempDir() + "/built"
	header, err := state.ReadStream(bytes.NewReader(stream.Bytes()), built)
	if err != nil {
		t.Fatal(err)
	}
	refused("a snapshot", older.Restore(&stream, 1))
	refused("a snapshot's store", older.RestoreStore(built, header, 1))
	func() {
		defer func() {
			err, _ := recover().(error)
			refused("the entry", err)
		}()
		older.Apply(1, 1, raise(FormatLevel+1))
	}()
}
