package property

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"fmt"
	"math"
	"os"
	"strings"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "pulse/proto/pulse/v1"
)

// step is one thing that happens to a machine.
type step struct {
	kind  string // apply, reopen, restore or lag
	index uint64
	term  uint64 // of the log; the proposer's is in the entry
	entry *pb.Entry
}

const (
	stepApply   = "apply"
	stepReopen  = "reopen"  // close the store and open it again
	stepLag     = "lag"     // the twin hears nothing until the next snapshot
	stepRestore = "restore" // snapshot into a fresh store and go on there
)

// names translates between the ids a machine made and names that hold for any
// machine with the same history: a task is called by the command that made it,
// an attempt by its task and its number.
type names struct {
	ref  map[id]id // by real id
	real map[id]id // by name
	seen map[id]int
	// epochs of attempts and sessions, by real id
	epochs map[id]uint64
}

func newNames() *names {
	return &names{ref: map[id]id{}, real: map[id]id{}, seen: map[id]int{}, epochs: map[id]uint64{}}
}

func nameOf(parts ...any) id {
	sum := sha256.Sum256(fmt.Append(nil, parts...))
	return id(sum[:16])
}

func (n *names) add(real, ref id) {
	n.ref[real], n.real[ref] = ref, real
}

// attempt names the next attempt of a task.
func (n *names) attempt(real, task id, epoch uint64) {
	n.seen[task]++
	n.add(real, nameOf("attempt", n.ref[task], n.seen[task]))
	n.epochs[real] = epoch
}

// ownEpoch stands in a written history for the epoch the attempt really has.
const ownEpoch = math.MaxUint64

// toNames is the entry as it is written down.
func (n *names) toNames(e *pb.Entry) *pb.Entry {
	e = proto.CloneOf(e)
	for _, c := range e.Commands { // complete makes these again
		if bytes.Equal(c.ContentHash, contentHash(c)) {
			c.ContentHash = nil
		}
		if c.Caller.GetPrincipal() == anonymous {
			c.Caller = nil
		}
	}
	walk(e.ProtoReflect(), n.ref, func(m proto.Message) {
		switch m := m.(type) {
		case *pb.AttemptRef:
			if len(m.AttemptId) == 16 && n.epochs[id(m.AttemptId)] == m.Epoch {
				m.Epoch = ownEpoch
			}
		case *pb.SessionEntry:
			if len(m.SessionId) == 16 && n.epochs[id(m.SessionId)] == m.Epoch {
				m.Epoch = ownEpoch
			}
		}
	}, nil)
	return e
}

// toReal is a written entry as this machine has to see it.
func (n *names) toReal(e *pb.Entry) *pb.Entry {
	e = proto.CloneOf(e)
	walk(e.ProtoReflect(), n.real, nil, func(m proto.Message) {
		switch m := m.(type) {
		case *pb.AttemptRef:
			if m.Epoch == ownEpoch && len(m.AttemptId) == 16 {
				m.Epoch = n.epochs[id(m.AttemptId)]
			}
		case *pb.SessionEntry:
			if m.Epoch == ownEpoch && len(m.SessionId) == 16 {
				m.Epoch = n.epochs[id(m.SessionId)]
			}
		}
	})
	for _, c := range e.Commands {
		complete(c)
	}
	return e
}

// walk replaces every id in a message that the map knows.
func walk(m protoreflect.Message, to map[id]id, before, after func(proto.Message)) {
	if before != nil {
		before(m.Interface())
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsList() && f.Kind() == protoreflect.MessageKind:
			for i := range v.List().Len() {
				walk(v.List().Get(i).Message(), to, before, after)
			}
		case f.IsList() && f.Kind() == protoreflect.BytesKind:
			for i := range v.List().Len() {
				if b, ok := swap(v.List().Get(i).Bytes(), to); ok {
					v.List().Set(i, protoreflect.ValueOfBytes(b))
				}
			}
		case f.Kind() == protoreflect.MessageKind:
			walk(v.Message(), to, before, after)
		case f.Kind() == protoreflect.BytesKind:
			if b, ok := swap(v.Bytes(), to); ok {
				m.Set(f, protoreflect.ValueOfBytes(b))
			}
		}
		return true
	})
	if after != nil {
		after(m.Interface())
	}
}

func swap(b []byte, to map[id]id) ([]byte, bool) {
	if len(b) != 16 {
		return nil, false
	}
	x, ok := to[id(b)]
	return x[:], ok
}

// write puts a history into the form in which it is kept.
func write(comment string, steps []step) string {
	var b strings.Builder
	for line := range strings.Lines(comment) {
		fmt.Fprintf(&b, "# %s\n", strings.TrimSpace(line))
	}
	for _, s := range steps {
		if s.kind != stepApply {
			fmt.Fprintf(&b, "%s %d\n", s.kind, s.index)
			continue
		}
		fmt.Fprintf(&b, "%s %d %d\n", stepApply, s.index, s.term)
		text := prototext.MarshalOptions{Multiline: true, Indent: " "}.Format(s.entry)
		// The library varies its spaces on purpose; a kept file should not.
		for line := range strings.Lines(text) {
			fmt.Fprintf(&b, " %s\n", strings.ReplaceAll(strings.TrimRight(line, "\n"), ":  ", ": "))
		}
	}
	return b.String()
}

// read is the reverse of write.
func read(path string) ([]step, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var steps []step
	var text strings.Builder
	flush := func() error {
		if len(steps) == 0 || steps[len(steps)-1].kind != stepApply {
			return nil
		}
		e := &pb.Entry{}
		if err := prototext.Unmarshal([]byte(text.String()), e); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		steps[len(steps)-1].entry = e
		text.Reset()
		return nil
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(line, "#") {
			continue
		}
		if strings.HasPrefix(line, " ") {
			text.WriteString(line + "\n")
			continue
		}
		if err := flush(); err != nil {
			return nil, err
		}
		var s step
		switch n, _ := fmt.Sscan(line, &s.kind, &s.index, &s.term); {
		case n == 3 && s.kind == stepApply, n == 2 && (s.kind == stepReopen || s.kind == stepRestore || s.kind == stepLag):
			steps = append(steps, s)
		default:
			return nil, fmt.Errorf("%s: %q is no step", path, line)
		}
	}
	return steps, flush()
}
