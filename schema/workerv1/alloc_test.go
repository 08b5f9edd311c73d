package workerv1

import (
	"testing"

	"pulse/test/allocs"
)

// The frames of a task's life, both ways and on both ends.
func TestAllocationsOfFramesStayWhereTheyAre(t *testing.T) { // not parallel: what others allocate would count
	client := map[string]ClientFrame{}
	for _, s := range clientSamples(t) {
		client[s.name] = s.frame
	}
	server := map[string]ServerFrame{}
	for _, s := range serverSamples(t) {
		server[s.name] = s.frame
	}
	buf := make([]byte, 0, 64<<10)
	var paths []allocs.Path
	for _, name := range []string{"start", "finish_succeeded", "hello"} {
		frame, ok := client[name]
		if !ok {
			t.Fatalf("no sample %s", name)
		}
		data, err := AppendClient(nil, frame)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths,
			allocs.Path{Name: "encode_" + name, Run: func() { _, _ = AppendClient(buf[:0], frame) }}, // it has been encoded before
			allocs.Path{Name: "decode_" + name, Run: func() { _, _ = DecodeClient(data) }})           // likewise
	}
	for _, name := range []string{"assign", "ack_start", "ack_finish", "cancel"} {
		frame, ok := server[name]
		if !ok {
			t.Fatalf("no sample %s", name)
		}
		data, err := AppendServer(nil, frame)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths,
			allocs.Path{Name: "encode_" + name, Run: func() { _, _ = AppendServer(buf[:0], frame) }}, // likewise
			allocs.Path{Name: "decode_" + name, Run: func() { _, _ = DecodeServer(data) }})           // likewise
	}
	allocs.Hold(t, "testdata/allocations.txt", paths)
}
