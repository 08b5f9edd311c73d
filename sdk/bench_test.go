package sdk

import (
	"encoding/json"
	"strings"
	"testing"
)

// BenchmarkBatchAnswer reads the answer to a thousand submissions: as SubmitBatch
// does, and item by item, as whoever decodes a []BatchItem.
func BenchmarkBatchAnswer(b *testing.B) {
	const task = `{"id":"0199d3f2-7f9e-7b6c-8f0a-4b1c2d3e4f50","namespace_id":"0199d3f2-0000-7000-8000-4b1c2d3e4f50",` +
		`"queue_id":"0199d3f2-0000-7001-8000-4b1c2d3e4f50","namespace":"default","queue":"default","state":"WAITING","revision":"1",` +
		`"handler":"bench","handler_version":"1","payload_version":"1","recovery_safety":"IDEMPOTENT",` +
		`"retry":{"max_attempts":3,"initial_delay_millis":1000,"max_delay_millis":60000,"attempt_timeout_millis":3600000},` +
		`"attempt_count":0,"available_at":"2026-11-30T18:00:00.123456Z","deadline_at":"2026-12-30T18:00:00.123456Z",` +
		`"created_at":"2026-11-30T18:00:00.123456Z","updated_at":"2026-11-30T18:00:00.123456Z","waiting":{"reason":"READY"}}`
	text := []byte(`{"results":[` + strings.Repeat(task+",", 999) + task + `]}`)
	b.Run("one-pass", func(b *testing.B) { readAnswers[batchResult](b, text) })
	b.Run("by-item", func(b *testing.B) { readAnswers[BatchItem](b, text) })
}

func readAnswers[T any](b *testing.B, text []byte) {
	b.ReportAllocs()
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		var answer struct {
			Results []T `json:"results"`
		}
		if err := json.Unmarshal(text, &answer); err != nil || len(answer.Results) != 1000 {
			b.Fatal(err)
		}
	}
}
