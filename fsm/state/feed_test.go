package state

import (
	"testing"

	pb "pulse/proto/pulse/v1"
)

// The values are those the common Kafka clients give for the same keys.
func TestMurmur2IsTheHashOfKafkaClients(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int32{
		"21":                         -973932308,
		"foobar":                     -790332482,
		"a-little-bit-long-string":   -985981536,
		"a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	} {
		if got := int32(murmur2([]byte(text))); got != want {
			t.Errorf("murmur2(%q) = %d, want %d", text, got, want)
		}
	}
}

func TestAnAggregateStaysInOnePartition(t *testing.T) {
	t.Parallel()
	seen := map[uint32]int{}
	for i := range 4096 {
		id := ID{byte(i), byte(i >> 8)}
		p := Partition(pb.Aggregate_AGGREGATE_TASK, ID{1}, id)
		if p != Partition(pb.Aggregate_AGGREGATE_TASK, ID{1}, id) || p >= FeedPartitions {
			t.Fatalf("partition %d", p)
		}
		seen[p]++
	}
	if len(seen) != FeedPartitions {
		t.Errorf("4096 ids reach %d of %d partitions", len(seen), FeedPartitions)
	}
}

func TestPrefixEnd(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"a": "b", "a\xff": "b", "a\x01\xff\xff": "a\x02"} {
		if got := string(prefixEnd([]byte(in))); got != want {
			t.Errorf("prefixEnd(%q) = %q, want %q", in, got, want)
		}
	}
	if prefixEnd([]byte{0xff, 0xff}) != nil {
		t.Error("nothing comes after the last prefix")
	}
}
