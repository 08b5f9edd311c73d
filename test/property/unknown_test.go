package property

import (
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	pb "pulse/proto/pulse/v1"
)

// TestUnknownCommandStops: a command that this version does not know stops the
// node, whatever else is in it; skipping or refusing it would make this replica
// differ from those that know it (C7).
func TestUnknownCommandStops(t *testing.T) {
	newer := protowire.AppendTag(nil, 1000, protowire.BytesType)
	newer = protowire.AppendBytes(newer, []byte("something new"))
	for name, c := range map[string]*pb.Command{
		"in a namespace":          {Namespace: "default"},
		"about the cluster":       {},
		"in one that is not":      {Namespace: "nowhere"},
		"under a key for repeats": {Namespace: "default", IdempotencyKey: "once"},
	} {
		t.Run(name, func(t *testing.T) {
			w, err := newWorld(false)
			if err != nil {
				t.Fatal(err)
			}
			defer w.close()
			for _, s := range w.prelude(1) {
				if v := w.do(s); v != nil {
					t.Fatal(v)
				}
			}
			c.ProtoReflect().SetUnknown(newer)
			v := w.do(step{kind: stepApply, index: 10, term: 1, entry: &pb.Entry{Format: 1, Term: 1, TimeUs: startUs, Commands: []*pb.Command{c}}})
			if v == nil || v.name != "panic" {
				t.Errorf("C7: the machine went on: %v", v)
			}
		})
	}
}
