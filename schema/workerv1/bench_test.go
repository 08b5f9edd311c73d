package workerv1

import (
	"strconv"
	"testing"
)

func benchmarkDecodeClient(b *testing.B, name string) {
	for _, s := range clientSamples(b) {
		if s.name != name {
			continue
		}
		data, err := AppendClient(nil, s.frame)
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(len(data)))
		b.ReportAllocs()
		for b.Loop() {
			if _, err := DecodeClient(data); err != nil {
				b.Fatal(err)
			}
		}
		return
	}
	b.Fatalf("no sample %s", name)
}

func BenchmarkDecodeStart(b *testing.B)  { benchmarkDecodeClient(b, "start") }
func BenchmarkDecodeFinish(b *testing.B) { benchmarkDecodeClient(b, "finish_succeeded") }
func BenchmarkDecodeHello(b *testing.B)  { benchmarkDecodeClient(b, "hello") }

func sampleAssign(b *testing.B) ServerFrame {
	for _, s := range serverSamples(b) {
		if s.name == "assign" {
			return s.frame
		}
	}
	b.Fatal("no sample assign")
	return ServerFrame{}
}

func BenchmarkEncodeAssign(b *testing.B) {
	frame := sampleAssign(b)
	buf := make([]byte, 0, 4096)
	b.ReportAllocs()
	for b.Loop() {
		out, err := AppendServer(buf[:0], frame)
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(len(out)))
	}
}

func BenchmarkDecodeAssign(b *testing.B) {
	data, err := AppendServer(nil, sampleAssign(b))
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DecodeServer(data); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDecodeWide is the worst of the texts with many keys: each costs an entry.
func BenchmarkDecodeWide(b *testing.B) {
	data := []byte(`{"protocol_version":"1","type":"task.start","message_id":"00000000000000000000000000000001","body":{"`)
	for i := 0; len(data) < FrameBytesMax-16; i++ {
		data = append(strconv.AppendInt(data, int64(i), 36), `":0,"`...)
	}
	data = append(data, `z":0}}`...)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DecodeClient(data); err == nil {
			b.Fatal("accepted")
		}
	}
}
