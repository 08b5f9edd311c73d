package workerv1

import (
	"testing"

	"pulse/schema/internal/oracle"
)

// The fuzz targets start from the corpus in testdata/fuzz. They hold the decoder
// against the oracle as the differential test does: no panic, the same verdict, and
// what decodes encodes back to something that decodes equal.

func FuzzDecodeClient(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) { fromClient.hold(t, data) })
}

func FuzzDecodeServer(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) { fromServer.hold(t, data) })
}

func seeds(t *testing.T) (client, server []oracle.Hostile) {
	client, server = oracle.Hostiles(), oracle.Hostiles()
	for _, s := range clientSamples(t) {
		client = append(client, oracle.Hostile{Name: "sample " + s.name, Text: must(AppendClient(nil, s.frame))})
	}
	for _, s := range serverSamples(t) {
		server = append(server, oracle.Hostile{Name: "sample " + s.name, Text: must(AppendServer(nil, s.frame))})
	}
	return client, server
}

func TestTheCorpusHoldsTheHostileTexts(t *testing.T) {
	t.Parallel()
	client, server := seeds(t)
	for dir, texts := range map[string][]oracle.Hostile{"FuzzDecodeClient": client, "FuzzDecodeServer": server} {
		missing, err := oracle.KeepCorpus("testdata/fuzz/"+dir, texts, *update)
		if err != nil || len(missing) > 0 {
			t.Errorf("run go test -update: %s misses %q, %v", dir, missing, err)
		}
	}
}

// The large ones too, which the corpus leaves out. They fail in the scanner, which
// both directions share.
func TestHostileTextsGetTheOraclesVerdict(t *testing.T) {
	t.Parallel()
	client, server := seeds(t)
	for _, h := range client {
		t.Run("client/"+h.Name, func(t *testing.T) { fromClient.hold(t, h.Text) })
	}
	for _, h := range server {
		if len(h.Text) > 64<<10 {
			continue
		}
		t.Run("server/"+h.Name, func(t *testing.T) { fromServer.hold(t, h.Text) })
	}
}
