package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"pulse/schema"
)

// The contract as these tests read it: the published schema through a published
// validator with formats asserted, one direction each. What the schema cannot say
// is in link.take.

const (
	fromClient = "clientFrame"
	fromServer = "serverFrame"
)

var contract = sync.OnceValue(func() map[string]*jsonschema.Schema {
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(schema.WorkerV1))
	if err != nil {
		panic(err)
	}
	id := document.(map[string]any)["$id"].(string)
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource(id, document); err != nil {
		panic(err)
	}
	compiled := map[string]*jsonschema.Schema{}
	for _, direction := range []string{fromClient, fromServer} {
		compiled[direction] = c.MustCompile(id + "#/$defs/" + direction)
	}
	return compiled
})

// validators are not said to be safe for use by several goroutines.
var validating sync.Mutex

// valid holds a frame to the schema of its direction.
func valid(direction string, text []byte) error {
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return err
	}
	validating.Lock()
	defer validating.Unlock()
	return contract()[direction].Validate(value)
}

// frame is a frame from the server.
type frame struct {
	Type      string          `json:"type"`
	MessageID string          `json:"message_id"`
	SessionID string          `json:"session_id"`
	ReplyTo   string          `json:"reply_to"`
	Body      json.RawMessage `json:"body"`
	Error     *struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

func (f frame) String() string {
	if f.Error != nil {
		return fmt.Sprintf("error %s (%s)", f.Error.Code, f.Error.Message)
	}
	return fmt.Sprintf("%s %s", f.Type, f.Body)
}

// answers says what a frame of a type may be answered with, beside an error.
func (f frame) answers(kind string) error {
	has := func(member string) bool {
		var body map[string]json.RawMessage
		return json.Unmarshal(f.Body, &body) == nil && body[member] != nil
	}
	want := ""
	switch kind {
	case "worker.hello":
		if f.Type != "worker.welcome" {
			want = "a welcome"
		}
	case "worker.capacity":
		if f.Type != "ack" || !has("expires_at") {
			want = "an ack with a welcome"
		}
	case "worker.resume":
		if f.Type != "ack" || !has("active") {
			want = "an ack with a lease"
		}
	case "task.start", "task.renew", "task.finish":
		receipt := strings.TrimPrefix(kind, "task.")
		var r result
		if err := json.Unmarshal(f.Body, &r); f.Type != "ack" || err != nil || r.Receipt.Operation != receipt {
			want = "an ack with a receipt of " + receipt
		}
	default:
		want = "an error"
	}
	if want != "" {
		return fmt.Errorf("%s was answered with %s, want %s", kind, f, want)
	}
	return nil
}

func TestTheContractIsHeldInEachDirection(t *testing.T) {
	t.Parallel()
	const id = `"00000000000000000000000000000001"`
	hello := `{"protocol_version":"1","type":"worker.hello","message_id":` + id + `,"body":{"instance_id":` + id +
		`,"instance_secret":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA","queue_id":` + id + `,"capacity":1,` +
		`"capabilities":[{"handler":"a","handler_version":"1","payload_version":"1"}]}}`
	welcome := `{"protocol_version":"1","type":"worker.welcome","message_id":` + id + `,"session_id":` + id + `,"reply_to":` + id +
		`,"body":{"session_id":` + id + `,"epoch":"1","server_time":"2026-02-28T00:00:00Z","expires_at":"2026-02-28T00:01:00Z","lease_duration_ms":1000,"draining":false}}`
	for _, c := range []struct {
		name, direction, text string
		ok                    bool
	}{
		{"a hello from a worker", fromClient, hello, true},
		{"a hello from the server", fromServer, hello, false},
		{"a welcome from the server", fromServer, welcome, true},
		{"a welcome from a worker", fromClient, welcome, false},
		{"a member too many", fromClient, strings.Replace(hello, `"capacity":1`, `"capacity":1,"more":1`, 1), false},
		{"a capacity of nothing", fromClient, strings.Replace(hello, `"capacity":1`, `"capacity":0`, 1), false},
		{"a day that is none", fromServer, strings.Replace(welcome, "02-28T00:00", "02-31T00:00", 1), false},
		{"an epoch of zero", fromServer, strings.Replace(welcome, `"epoch":"1"`, `"epoch":"0"`, 1), false},
		{"no reply_to", fromServer, strings.Replace(welcome, `"reply_to":`+id+`,`, "", 1), false},
	} {
		err := valid(c.direction, []byte(c.text))
		var refused *jsonschema.ValidationError
		if (err == nil) != c.ok || err != nil && !errors.As(err, &refused) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
