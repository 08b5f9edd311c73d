package property

import (
	"time"

	"google.golang.org/protobuf/proto"
)

const shrinkTime = 20 * time.Second

// shrink takes steps, and then commands, out of a history for as long as it
// violates the invariant it violated before.
func shrink(steps []step, name string, limit time.Duration) []step {
	end := time.Now().Add(limit)
	fails := func(try []step) bool {
		v, _, err := replay(try, true)
		return err == nil && v != nil && v.name == name
	}
	for size := max(1, len(steps)/2); size > 0 && time.Now().Before(end); {
		removed := false
		for at := len(steps) - size; at >= 0 && time.Now().Before(end); at -= size {
			try := append(append([]step(nil), steps[:at]...), steps[at+size:]...)
			if fails(try) {
				steps, removed = try, true
			}
		}
		if !removed || size > 1 {
			size /= 2
		}
	}
	for at := range steps {
		for i := 0; steps[at].entry != nil && i < len(steps[at].entry.Commands) && time.Now().Before(end); {
			try := append([]step(nil), steps...)
			try[at].entry = proto.CloneOf(steps[at].entry)
			try[at].entry.Commands = append(try[at].entry.Commands[:i:i], try[at].entry.Commands[i+1:]...)
			if fails(try) {
				steps = try
				continue
			}
			i++
		}
	}
	return steps
}
