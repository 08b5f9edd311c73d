package demo

import (
	"fmt"
	"math/rand/v2"
	"time"

	"pulse/sdk"
)

const (
	queue   = sdk.DefaultName
	handler = "work"
	keys    = 16
)

// job is a task of the demo before anybody knows it. It is a function of the seed
// and its number, so a demo can be repeated.
type job struct {
	n    int
	key  string
	once bool
	work time.Duration // before the effect
	rest time.Duration // between the effect and the report of it
	text string        // a number whose text has to survive, e.g. "12.50"
}

// jobOf draws job n. Most are quick; a few take seconds, so that a kill always
// meets some in the middle. A third must not be done twice, a sixth share keys.
func jobOf(seed uint64, n int) job {
	draw := rand.New(rand.NewPCG(seed, uint64(n)))
	j := job{n: n, once: draw.IntN(3) == 0, text: fmt.Sprintf("%d.%d0", draw.IntN(1000), 1+draw.IntN(9))}
	switch {
	case draw.IntN(6) == 0:
		j.key = fmt.Sprintf("account/%d", draw.IntN(keys))
		j.work, j.rest = upTo(draw, 3*time.Millisecond), upTo(draw, 3*time.Millisecond)
	case draw.IntN(25) == 0:
		j.work, j.rest = upTo(draw, 1500*time.Millisecond), upTo(draw, 1500*time.Millisecond)
	default:
		j.work, j.rest = upTo(draw, 10*time.Millisecond), upTo(draw, 10*time.Millisecond)
	}
	return j
}

func upTo(draw *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(draw.Int64N(int64(most)))
}

// spec is the job as it is submitted.
func (j job) spec() sdk.TaskSpec {
	spec := sdk.TaskSpec{Queue: queue, Handler: handler, ConcurrencyKey: j.key, Payload: jsonText(`{"n":%d,"amount":%s}`, j.n, j.text)}
	if j.once {
		spec.RecoverySafety = sdk.ReconcileOnly
	}
	return spec
}

// result is what its handler gives, and what the cluster has to give back.
func (j job) result() []byte { return jsonText(`{"n":%d,"booked":%s}`, j.n, j.text) }
