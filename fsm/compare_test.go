package fsm

import (
	"errors"
	"testing"

	pb "pulse/proto/pulse/v1"
)

func TestTheNodeThatDiffersFromTheMajorityStops(t *testing.T) {
	t.Parallel()
	report := func(hashes ...string) *pb.CompareStates {
		c := &pb.CompareStates{Index: 256, Voters: 3}
		for i, h := range hashes {
			if h != "" {
				c.Reports = append(c.Reports, &pb.StateReport{NodeId: string(rune('a' + i)), StateHash: []byte(h)})
			}
		}
		return c
	}
	for name, tc := range map[string]struct {
		c     *pb.CompareStates
		stops string
	}{
		"all the same":                     {report("x", "x", "x"), ""},
		"one differs":                      {report("x", "y", "x"), "b"},
		"one differs, one is silent":       {report("x", "y", ""), "ab"},
		"two agree, one is silent":         {report("", "x", "x"), ""},
		"only one reports":                 {report("x"), ""},
		"no two agree":                     {report("x", "y", "z"), "abc"},
		"the leader itself is the odd one": {report("y", "x", "x"), "a"},
	} {
		stopped := ""
		for _, node := range []string{"a", "b", "c", "gateway"} {
			func() {
				defer func() {
					if err, ok := recover().(error); ok && errors.Is(err, ErrDiverged) {
						stopped += node
					}
				}()
				r := &run{nodeID: node}
				if res := r.compareStates(tc.c); res.Code != "" {
					t.Errorf("%s: %s", name, res.Code)
				}
			}()
		}
		if stopped != tc.stops {
			t.Errorf("%s: %q stopped, want %q", name, stopped, tc.stops)
		}
	}
}

func TestMarksRememberTheHashAtTheirIndex(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	var want []byte
	for s.index < 3*MarkEvery {
		s.apply()
		if s.index == 2*MarkEvery {
			want = s.m.StateHash()
		}
	}
	if got := s.m.HashAt(2 * MarkEvery); string(got) != string(want) || s.m.LatestMark() != 3*MarkEvery {
		t.Errorf("mark %x, want %x; latest %d", got, want, s.m.LatestMark())
	}
	if s.m.HashAt(5) != nil || s.m.HashAt(0) != nil || s.m.HashAt(66*MarkEvery) != nil {
		t.Error("a hash was made up")
	}
}
