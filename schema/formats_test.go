package schema

import (
	"encoding/json"
	"testing"
)

func TestWhatIsWrittenIsRead(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, f := range Formats() {
		if !f.Reads(f.Written) || f.Reads(0) || f.Reads(f.ReadTo+1) || f.ReadFrom == 0 {
			t.Errorf("%+v does not fit together", f)
		}
		if seen[f.Structure] {
			t.Errorf("%s is listed twice", f.Structure)
		}
		seen[f.Structure] = true
	}
}

func TestTheEmbeddedSchemaKnowsEveryFrame(t *testing.T) {
	t.Parallel()
	var document struct {
		Defs map[string]json.RawMessage `json:"$defs"`
	}
	if err := json.Unmarshal([]byte(WorkerV1), &document); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"clientFrame", "serverFrame", "assignmentFrame"} {
		if document.Defs[name] == nil {
			t.Errorf("%s is missing", name)
		}
	}
}
