package workerv1

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"pulse/schema"
	"pulse/schema/internal/oracle"
)

const (
	headText = `{"protocol_version":"1","type":"task.start","message_id":"00000000000000000000000000000001","session_id":"00000000000000000000000000000002","body":`
	refText  = `{"task_id":"00000000000000000000000000000003","attempt_id":"00000000000000000000000000000004","epoch":"5","lease_secret":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}`
)

// edited is a start frame with one text replaced.
func edited(old, new string) string {
	text := headText + refText + "}"
	if !strings.Contains(text, old) {
		panic("nothing to replace: " + old)
	}
	return strings.Replace(text, old, new, 1)
}

func TestARefusalSaysWhatBecomesOfTheConnection(t *testing.T) {
	t.Parallel()
	finish := func(members string) string {
		return strings.Replace(headText, "task.start", "task.finish", 1) + `{"ref":` + refText + `,` + members + `}}`
	}
	for _, test := range []struct {
		name, text string
		code       schema.Code
		closeCode  int // 0 = the frame can be answered
		message    string
	}{
		{"an unknown member", edited(`"epoch"`, `"x":0,"epoch"`), schema.InvalidFrame, 0, "/body/x: is not a known member"},
		{"a missing member", edited(`"epoch":"5",`, ``), schema.InvalidFrame, 0, "/body: the member epoch is missing"},
		{"a member of another frame", edited(`"body"`, `"reply_to":"00000000000000000000000000000002","body"`), schema.InvalidFrame, 0, "/reply_to: is not a member of this frame"},
		{"a stranger at the root", edited(`"body"`, `"trace":{},"body"`), schema.InvalidFrame, 0, "/trace: is not a member of this frame"},
		{"an unknown type", edited(`task.start`, `task.begin`), schema.InvalidFrame, 0, "/type: is not the type of a frame in this direction"},
		{"a frame of the other direction", edited(`task.start`, `task.assign`), schema.InvalidFrame, 0, "/type: is not the type of a frame in this direction"},
		{"another version", edited(`"protocol_version":"1"`, `"protocol_version":"2"`), schema.UnsupportedVersion, 0, `/protocol_version: the only protocol_version is "1"`},
		{"a version of another kind", edited(`"protocol_version":"1"`, `"protocol_version":1`), schema.UnsupportedVersion, 0, `/protocol_version: the only protocol_version is "1"`},
		{"another version and no body", strings.Replace(headText, `version":"1"`, `version":"2"`, 1) + `0}`, schema.UnsupportedVersion, 0, `/protocol_version: the only protocol_version is "1"`},
		{"no version", edited(`"protocol_version":"1",`, ``), schema.InvalidFrame, 0, "the member protocol_version is missing"},
		{"a name twice in the body", edited(`"epoch":"5"`, `"epoch":"5","epoch":"5"`), schema.InvalidFrame, 0, "/body/epoch: appears more than once in its object"},
		{"a name twice at the root", edited(`"session_id"`, `"type":"task.start","session_id"`), schema.InvalidFrame, 0, "/type: appears more than once in its object"},
		{"a result out of range", finish(`"outcome":"SUCCEEDED","result":{"n":1e400}`), schema.InvalidFrame, 0, "/body/result/n: a number must be in the range of an IEEE 754 double"},
		{"half of a surrogate pair", finish(`"outcome":"SUCCEEDED","result":"\ud800"`), schema.InvalidFrame, 0, "/body/result: contains half of a surrogate pair"},
		{"a result too deep", finish(`"outcome":"SUCCEEDED","result":` + strings.Repeat("[", 63) + strings.Repeat("]", 63)), schema.InvalidFrame, 0, "is nested too deeply"},
		{"a result too large", finish(`"outcome":"SUCCEEDED","result":"` + strings.Repeat("x", BusinessBytesMax-1) + `"`), schema.TooLarge, 0, "/body/result: business JSON has at most 262144 bytes"},
		{"a null result", finish(`"outcome":"SUCCEEDED","result":null`), schema.InvalidFrame, 0, "/body/result: must not be null"},
		{"an error code with success", finish(`"outcome":"SUCCEEDED","result":0,"error_code":"x"`), schema.InvalidFrame, 0, "/body/error_code: must be empty or absent with SUCCEEDED"},
		{"a failure without error code", finish(`"outcome":"FAILED","result":0`), schema.InvalidFrame, 0, "/body: the member error_code is missing"},
		{"an empty error code", finish(`"outcome":"UNKNOWN","result":0,"error_code":""`), schema.InvalidFrame, 0, "/body/error_code: must be 1 to 64 letters"},
		{"a retryable success", finish(`"outcome":"SUCCEEDED","result":0,"retryable":true`), schema.InvalidFrame, 0, "/body/retryable: must be false or absent unless the outcome is FAILED"},

		{"no message id", edited(`"message_id":"00000000000000000000000000000001",`, ``), schema.InvalidFrame, 1008, "the member message_id is missing"},
		{"a bad message id", edited(`"message_id":"0000`, `"message_id":"000G`), schema.InvalidFrame, 1008, "/message_id: must be 32 lower-case hexadecimal digits"},
		{"the message id twice", edited(`"session_id"`, `"message_id":"00000000000000000000000000000001","session_id"`), schema.InvalidFrame, 1008, "/message_id: appears more than once"},
		{"the message id twice, once escaped", edited(`"session_id"`, `"message_\u0069d":"00000000000000000000000000000001","session_id"`), schema.InvalidFrame, 1008, "/message_id: appears more than once"},
		{"another version and no message id", `{"protocol_version":"2"}`, schema.UnsupportedVersion, 1008, ""},
		{"no object", `["worker.hello"]`, schema.InvalidFrame, 1008, "a frame must be an object"},
		{"no JSON", `hello`, schema.InvalidFrame, 1008, "must be a JSON value"},
		{"nothing", ``, schema.InvalidFrame, 1008, "a value is missing"},
		{"cut off", headText, schema.InvalidFrame, 1008, "a value is missing"},
		{"something behind it", headText + refText + `}{}`, schema.InvalidFrame, 1008, "must end after one value"},
		{"bad UTF-8", edited(`"epoch":"5"`, "\"epoch\":\"\xFF\""), schema.InvalidFrame, 1007, "must be valid UTF-8"},
		{"bad UTF-8 behind a fault", "{]\xC3", schema.InvalidFrame, 1007, "must be valid UTF-8"},
		{"too many bytes", headText + refText + `}` + strings.Repeat(" ", FrameBytesMax), schema.TooLarge, 1009, "a frame has at most 1048576 bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, err := DecodeClient([]byte(test.text))
			refusal, ok := errors.AsType[*DecodeError](err)
			if !ok {
				t.Fatalf("got %v", err)
			}
			if refusal.Code != test.code || !strings.Contains(refusal.Message, test.message) {
				t.Errorf("got %v, want %s: %s", refusal, test.code, test.message)
			}
			if refusal.Fatal() != (test.closeCode != 0) || refusal.Fatal() && refusal.CloseCode != test.closeCode {
				t.Errorf("fatal %v with %d, want %d", refusal.Fatal(), refusal.CloseCode, test.closeCode)
			}
			if !refusal.Fatal() && refusal.MessageID.V != idOf(t, "1") {
				t.Errorf("answers to %s", refusal.MessageID.V)
			}
		})
	}
}

func TestSizesAreHeldToTheByte(t *testing.T) {
	t.Parallel()
	result := `"` + strings.Repeat("x", BusinessBytesMax-2) + `"`
	frame := strings.Replace(headText, "task.start", "task.finish", 1) + `{"ref":` + refText + `,"outcome":"SUCCEEDED","result":` + result + `}}`
	frame += strings.Repeat(" ", FrameBytesMax-len(frame))
	decoded, err := DecodeClient([]byte(frame))
	if err != nil {
		t.Fatalf("a frame of exactly 1 MiB with a result of exactly 256 KiB: %v", err)
	}
	if string(decoded.Body.(*Finish).Result) != result {
		t.Error("the result is not the bytes that were sent")
	}
	if _, err := DecodeClient([]byte(frame + " ")); err == nil {
		t.Error("a frame of 1 MiB and one byte is accepted")
	}
}

func TestAPayloadOfTheDeepestRequestCanBeDelivered(t *testing.T) {
	t.Parallel()
	// In the request body the payload stands one level deep, in task.assign three.
	payload := strings.Repeat("[", schema.DepthMax-1) + strings.Repeat("]", schema.DepthMax-1)
	if err := schema.CheckJSON([]byte(`{"payload":`+payload+`}`), schema.Limits{}); err != nil {
		t.Fatal(err)
	}
	for _, s := range serverSamples(t) {
		if assign, ok := s.frame.Body.(*Assign); ok {
			assign.Task.Payload = []byte(payload)
			data := must(AppendServer(nil, s.frame))
			if _, err := DecodeServer(data); err != nil {
				t.Errorf("%s: %v", s.name, err)
			}
		}
	}
}

func TestBusinessJSONIsASubsliceThatCannotGrowIntoTheFrame(t *testing.T) {
	t.Parallel()
	data := must(AppendClient(nil, ClientFrame{Body: &Finish{
		Ref: AttemptRef{Epoch: 1}, Outcome: OutcomeFailed, Result: []byte(`{"n": 2.50}`), ErrorCode: "x",
	}}))
	before := bytes.Clone(data)
	decoded, err := DecodeClient(data)
	if err != nil {
		t.Fatal(err)
	}
	result := decoded.Body.(*Finish).Result
	_ = append(result, "overwritten"...)
	if !bytes.Equal(data, before) {
		t.Error("appending to the result has changed the frame")
	}
	if &result[0] != &data[bytes.Index(data, []byte(`{"n"`))] {
		t.Error("the result was copied")
	}
}

func TestNothingPrintsASecret(t *testing.T) {
	t.Parallel()
	var frames []any
	for _, s := range clientSamples(t) {
		frames = append(frames, s.frame, s.frame.Body)
	}
	for _, s := range serverSamples(t) {
		frames = append(frames, s.frame, s.frame.Body)
	}
	refused := edited(base64Of(Secret{}), base64Of(secretOf(7))+"x")
	_, err := DecodeClient([]byte(refused))
	frames = append(frames, err)
	var printed strings.Builder
	for _, frame := range frames {
		fmt.Fprintf(&printed, "%v %+v %#v\n", frame, frame, frame)
	}
	for _, fill := range []byte{1, 7, 255} {
		secret := secretOf(fill)
		for _, leak := range []string{base64Of(secret)[:12], fmt.Sprintf("%x", secret[:])[:16], strings.Trim(fmt.Sprint([4]byte(secret[:4])), "[]")} {
			if leak != "" && strings.Contains(printed.String(), leak) {
				t.Errorf("a secret shows as %q", leak)
			}
		}
	}
}

// Not parallel: it reads the allocation counter of the whole process.
func TestHostileFramesCostAtMostFourTimesTheirSize(t *testing.T) {
	client, server := seeds(t)
	for _, run := range []struct {
		texts  []oracle.Hostile
		decode func([]byte) error
	}{
		{client, func(data []byte) error { _, err := DecodeClient(data); return err }},
		{server, func(data []byte) error { _, err := DecodeServer(data); return err }},
	} {
		for _, h := range run.texts {
			if len(h.Text) > 4096 {
				runtime.GC() // empties the pool, so that a large frame pays for its own memory
				runtime.GC()
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_ = run.decode(h.Text)
			runtime.ReadMemStats(&after)
			if allocated, limit := after.TotalAlloc-before.TotalAlloc, uint64(4*len(h.Text)+64<<10); allocated > limit {
				t.Errorf("%s: %d bytes allocated for %d bytes of text, at most %d are allowed", h.Name, allocated, len(h.Text), limit)
			}
		}
	}
}

// Not parallel: testing.AllocsPerRun forbids it.
func TestOrdinaryFramesCostFewAllocations(t *testing.T) {
	limits := map[string]float64{"start": 1, "renew": 1, "resume": 1, "capacity": 1, "finish_succeeded": 1, "finish_failed": 2}
	for _, s := range clientSamples(t) {
		limit, listed := limits[s.name]
		if !listed {
			continue
		}
		data := must(AppendClient(nil, s.frame))
		if got := testing.AllocsPerRun(100, func() {
			if _, err := DecodeClient(data); err != nil {
				t.Fatal(err)
			}
		}); got > limit {
			t.Errorf("decoding %s: %v allocations, want at most %v", s.name, got, limit)
		}
	}
	buf := make([]byte, 0, 4096)
	for _, s := range serverSamples(t) {
		if got := testing.AllocsPerRun(100, func() {
			if _, err := AppendServer(buf, s.frame); err != nil {
				t.Fatal(err)
			}
		}); got > 0 {
			t.Errorf("encoding %s: %v allocations", s.name, got)
		}
	}
}
