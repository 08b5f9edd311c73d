package apiv1

import (
	"strings"
	"testing"

	"pulse/test/allocs"
)

// A submission alone, and one of a batch.
func TestAllocationsOfSubmissionsStayWhereTheyAre(t *testing.T) { // not parallel: what others allocate would count
	const tasks = 100
	batch := []byte(`{"tasks":[` + strings.TrimSuffix(strings.Repeat(benchSubmission+",", tasks), ",") + `]}`)
	allocs.Hold(t, "testdata/allocations.txt", []allocs.Path{
		{Name: "decode_submission", Run: func() {
			s, refusal := DecodeSubmission([]byte(benchSubmission))
			if refusal != nil {
				t.Fatal(refusal)
			}
			_ = s.Content("default")
		}},
		{Name: "decode_batch_of_100", Run: func() {
			items, refusal := DecodeBatch(batch)
			if refusal != nil || len(items) != tasks {
				t.Fatal(refusal)
			}
			for i := range items {
				_ = items[i].Submission.Content("default")
			}
		}},
	})
}
