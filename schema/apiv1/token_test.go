package apiv1

import (
	"slices"
	"strings"
	"testing"
)

// What is wrong is said once, at its place.
func TestWhatTokensAreRefusedFor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		body string
		want []string
	}{
		"nothing":             {`{}`, []string{" the member name is missing", " the member grants is missing"}},
		"no name":             {`{"name":" ","grants":[{"role":"reader","namespace":"a"}]}`, []string{"/name must say what the token is for"}},
		"a long name":         {`{"name":"` + strings.Repeat("n", 129) + `","grants":[{"role":"reader","namespace":"a"}]}`, []string{"/name must have at most 128 characters"}},
		"no grants":           {`{"name":"n","grants":[]}`, []string{"/grants must grant something"}},
		"grants of a kind":    {`{"name":"n","grants":"reader@a"}`, []string{"/grants must be an array"}},
		"an unknown role":     {`{"name":"n","grants":[{"role":"king","namespace":"a"}]}`, []string{"/grants/0/role must be one of reader, submitter, operator, worker, admin"}},
		"half a grant":        {`{"name":"n","grants":[{"role":"reader"}]}`, []string{"/grants/0 the member namespace is missing"}},
		"a bad namespace":     {`{"name":"n","grants":[{"role":"reader","namespace":""}]}`, []string{"/grants/0/namespace " + nameRule + "; or * for all namespaces"}},
		"queues of a reader":  {`{"name":"n","grants":[{"role":"reader","namespace":"a","queues":["q"]}]}`, []string{"/grants/0/queues is for the role worker alone"}},
		"a queue of a worker": {`{"name":"n","grants":[{"role":"worker","namespace":"a","queues":[""]}]}`, []string{"/grants/0/queues/0 " + nameRule}},
	} {
		_, refusal := DecodeToken([]byte(c.body))
		var got []string
		if refusal != nil {
			for _, v := range refusal.Violations {
				got = append(got, v.Path+" "+v.Message)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, not %q", name, got, c.want)
		}
	}
}

// An answer spells a count as a decimal string, 0 too: what was read can be sent
// again.
func TestACountMayBeZeroInEitherSpelling(t *testing.T) {
	t.Parallel()
	for _, zero := range []string{`0`, `"0"`} {
		q, refusal := DecodeNamespace([]byte(`{"quota":{"tasks_waiting":` + zero + `,"payload_bytes":"7","workers":` + zero + `}}`))
		if refusal != nil || *q != (Quota{PayloadBytes: 7}) {
			t.Errorf("quota of %s: %+v, %v", zero, q, refusal)
		}
		s, refusal := DecodePreview([]byte(`{"cron":"@daily","max_fires":` + zero + `}`))
		if refusal != nil || s.MaxFires != 0 {
			t.Errorf("max_fires of %s: %v, %v", zero, s.MaxFires, refusal)
		}
		if _, refusal := DecodeQueue([]byte(`{"max_waiting":` + zero + `}`)); refusal == nil {
			t.Errorf("max_waiting of %s is taken, and no task could ever wait", zero)
		}
	}
	for _, bad := range []string{`"00"`, `"01"`, `"-0"`, `""`, `" 0"`} {
		if _, refusal := DecodeNamespace([]byte(`{"quota":{"workers":` + bad + `}}`)); refusal == nil {
			t.Errorf("a count of %s is taken", bad)
		}
	}
}
