package state

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "pulse/proto/pulse/v1"
)

// A task's and an attempt's row, and the events, are most of what entries encode, several times in a
// life. They are written here field by field, to the same bytes as the library's
// deterministic encoding, for a fraction of the time: one pass, without looking at
// what a message is made of. Tests hold the two against each other for every field.

// appendRow appends the encoding of a row that rowRoom has just been asked about.
func appendRow(b []byte, row proto.Message) ([]byte, error) {
	switch r := row.(type) {
	case *pb.TaskRow:
		return appendTask(b, r)
	case *pb.AttemptRow:
		return appendAttempt(b, r), nil
	case *pb.EventRow:
		return appendEvent(b, r)
	}
	return proto.MarshalOptions{Deterministic: true, UseCachedSize: true}.MarshalAppend(b, row)
}

// fieldMax bounds what a field takes beside its bytes: a tag of at most two bytes and a
// number or a length.
const fieldMax = 12

// rowRoom is how many bytes the encoding of a row takes at the most.
func rowRoom(row proto.Message) int {
	switch r := row.(type) {
	case *pb.TaskRow:
		return 50*fieldMax + len(r.Id) + len(r.NamespaceId) + len(r.QueueId) + len(r.Handler) + len(r.HandlerVersion) +
			len(r.PayloadVersion) + len(r.PayloadDigest) + len(r.ResultDigest) + len(r.BusinessKey) + len(r.ConcurrencyKey) +
			4*fieldMax + len(r.RetryOf) + len(r.ErrorCode) + len(r.AttemptId) + len(r.SubmissionHash) + len(r.CreatedCommandId) +
			len(r.ScheduleId) + len(r.RetriedAs) + decisionRoom(r.Decision)
	case *pb.AttemptRow:
		size := 30*fieldMax + len(r.Id) + len(r.TaskId) + len(r.NamespaceId) + len(r.QueueId) + len(r.InstanceId) +
			len(r.ConcurrencyKey) + len(r.ErrorCode) + len(r.ResultDigest)
		for _, c := range r.Receipts {
			size += 13*fieldMax + len(c.MessageId) + len(c.ContentHash)
		}
		return size
	}
	return proto.MarshalOptions{Deterministic: true}.Size(row)
}

func decisionRoom(d *pb.Decision) int {
	if d == nil {
		return 0
	}
	return proto.Size(d)
}

func appendTask(b []byte, t *pb.TaskRow) ([]byte, error) {
	b = appendUint(b, 1, uint64(t.Format))
	b = appendBytes(b, 2, t.Id)
	b = appendBytes(b, 3, t.NamespaceId)
	b = appendBytes(b, 4, t.QueueId)
	b = appendUint(b, 5, uint64(t.State))
	b = appendUint(b, 6, t.Revision)
	b = appendText(b, 7, t.Handler)
	b = appendText(b, 8, t.HandlerVersion)
	b = appendText(b, 9, t.PayloadVersion)
	b = appendBytes(b, 10, t.PayloadDigest)
	b = appendUint(b, 11, uint64(t.PayloadBytes))
	b = appendBytes(b, 12, t.ResultDigest)
	b = appendUint(b, 13, uint64(t.ResultBytes))
	b = appendText(b, 14, t.BusinessKey)
	b = appendText(b, 15, t.ConcurrencyKey)
	b = appendUint(b, 16, uint64(t.Priority))
	b = appendUint(b, 17, uint64(t.AvailableAtUs))
	b = appendUint(b, 18, uint64(t.StartDeadlineAtUs))
	b = appendUint(b, 19, uint64(t.DeadlineAtUs))
	b = appendUint(b, 20, uint64(t.RecoverySafety))
	if r := t.Retry; r != nil {
		b = protowire.AppendTag(b, 21, protowire.BytesType)
		b = append(b, 0) // the length, which fits: four numbers of at most ten bytes
		at := len(b)
		b = appendUint(b, 1, uint64(r.MaxAttempts))
		b = appendUint(b, 2, uint64(r.InitialDelayMs))
		b = appendUint(b, 3, uint64(r.MaxDelayMs))
		b = appendUint(b, 4, uint64(r.AttemptTimeoutMs))
		b[at-1] = byte(len(b) - at)
	}
	b = appendUint(b, 22, uint64(t.AttemptCount))
	b = appendUint(b, 23, uint64(t.AttemptsExtra))
	b = appendUint(b, 24, uint64(t.CancelRequestedAtUs))
	b = appendUint(b, 25, uint64(t.CompletedAtUs))
	b = appendUint(b, 26, uint64(t.CreatedAtUs))
	b = appendUint(b, 27, uint64(t.UpdatedAtUs))
	b = appendFlag(b, 28, t.EffectUncertain)
	b = appendBytes(b, 29, t.RetryOf)
	b = appendText(b, 30, t.ErrorCode)
	b = appendUint(b, 31, uint64(t.Park))
	b = appendFlag(b, 32, t.Started)
	b = appendUint(b, 33, uint64(t.UnstartedOffers))
	b = appendBytes(b, 34, t.AttemptId)
	b = appendUint(b, 35, t.AttemptEpoch)
	b = appendUint(b, 36, t.KeyToken)
	b = appendBytes(b, 37, t.SubmissionHash)
	b = appendUint(b, 38, uint64(t.RememberedUntilUs))
	b = appendUint(b, 39, uint64(t.RetentionMs))
	b = appendBytes(b, 40, t.CreatedCommandId)
	b = appendUint(b, 41, uint64(t.ReviewCause))
	b = appendUint(b, 42, t.EventIndex)
	b = appendUint(b, 43, uint64(t.EventPlace))
	b = appendBytes(b, 44, t.ScheduleId)
	b = appendUint(b, 45, uint64(t.NominalAtUs))
	b = appendUint(b, 46, uint64(t.ReviewSinceUs))
	if t.Decision != nil { // of few tasks
		var err error
		if b, err = appendMessage(b, 47, t.Decision); err != nil {
			return nil, err
		}
	}
	b = appendBytes(b, 48, t.RetriedAs)
	return appendFlag(b, 60, t.Traced), nil
}

func appendAttempt(b []byte, a *pb.AttemptRow) []byte {
	b = appendUint(b, 1, uint64(a.Format))
	b = appendBytes(b, 2, a.Id)
	b = appendBytes(b, 3, a.TaskId)
	b = appendBytes(b, 4, a.NamespaceId)
	b = appendBytes(b, 5, a.QueueId)
	b = appendUint(b, 6, a.Epoch)
	b = appendUint(b, 7, uint64(a.State))
	b = appendBytes(b, 8, a.InstanceId)
	b = appendUint(b, 9, a.SessionEpoch)
	b = appendUint(b, 10, uint64(a.LeasedAtUs))
	b = appendUint(b, 11, uint64(a.StartedAtUs))
	b = appendUint(b, 12, uint64(a.EndedAtUs))
	b = appendUint(b, 13, uint64(a.LeaseUntilUs))
	b = appendUint(b, 14, uint64(a.LeaseCapUs))
	b = appendUint(b, 15, uint64(a.TimeoutAtUs))
	b = appendUint(b, 16, a.RenewedOpening)
	b = appendText(b, 17, a.ConcurrencyKey)
	b = appendUint(b, 18, a.ConcurrencyToken)
	b = appendUint(b, 19, uint64(a.Number))
	b = appendUint(b, 20, uint64(a.Renewals))
	b = appendText(b, 21, a.ErrorCode)
	b = appendFlag(b, 22, a.Retryable)
	b = appendUint(b, 23, uint64(a.EndCause))
	b = appendBytes(b, 24, a.ResultDigest)
	b = appendUint(b, 25, uint64(a.ResultBytes))
	b = appendFlag(b, 26, a.Counted)
	b = appendUint(b, 27, uint64(a.CancelRequestedAtUs))
	var room [256]byte
	for _, c := range a.Receipts {
		b = protowire.AppendTag(b, 28, protowire.BytesType)
		b = protowire.AppendBytes(b, appendReceipt(room[:0], c))
	}
	return b
}

func appendReceipt(b []byte, c *pb.ReceiptRow) []byte {
	b = appendUint(b, 1, uint64(c.Format))
	b = appendBytes(b, 2, c.MessageId)
	b = appendUint(b, 3, uint64(c.Operation))
	b = appendBytes(b, 4, c.ContentHash)
	b = appendUint(b, 5, uint64(c.TaskState))
	b = appendUint(b, 6, uint64(c.AttemptState))
	b = appendUint(b, 7, c.TaskRevision)
	b = appendUint(b, 8, uint64(c.LeaseUntilUs))
	b = appendUint(b, 9, uint64(c.Disposition))
	b = appendUint(b, 10, uint64(c.TimeUs))
	b = appendUint(b, 11, c.Index)
	return appendUint(b, 12, uint64(c.Number))
}

// appendEvent does not say beforehand how much room it takes.
func appendEvent(b []byte, e *pb.EventRow) ([]byte, error) {
	b = appendUint(b, 1, uint64(e.Format))
	b = appendUint(b, 2, uint64(e.Partition))
	b = appendUint(b, 3, e.Position)
	b = appendUint(b, 4, e.Index)
	b = appendUint(b, 5, uint64(e.Place))
	b = appendUint(b, 6, uint64(e.Aggregate))
	b = appendBytes(b, 7, e.NamespaceId)
	b = appendBytes(b, 8, e.AggregateId)
	b = appendUint(b, 9, e.Version)
	b = appendBytes(b, 10, e.CommandId)
	b = appendText(b, 11, e.CommandType)
	b = appendText(b, 12, e.RequestId)
	b = appendUint(b, 13, uint64(e.TimeUs))
	b = appendText(b, 14, e.Operator)
	b = appendBytes(b, 15, e.CorrelationId)
	b = appendBytes(b, 16, e.CausationId)
	var err error
	for _, fact := range e.Facts {
		if b, err = appendFact(b, 17, fact); err != nil {
			return nil, err
		}
	}
	if e.TaskAfter != nil {
		if b, err = appendInner(b, 18, func(b []byte) ([]byte, error) { return appendTask(b, e.TaskAfter) }); err != nil {
			return nil, err
		}
	}
	if e.QueueAfter != nil {
		if b, err = appendMessage(b, 19, e.QueueAfter); err != nil {
			return nil, err
		}
	}
	if e.NamespaceAfter != nil {
		if b, err = appendMessage(b, 20, e.NamespaceAfter); err != nil {
			return nil, err
		}
	}
	b = appendFlag(b, 21, e.Deleted)
	b = appendText(b, 22, e.AppId)
	b = appendUint(b, 23, e.PreviousIndex)
	b = appendUint(b, 24, uint64(e.PreviousPlace))
	if e.ScheduleAfter != nil {
		if b, err = appendMessage(b, 30, e.ScheduleAfter); err != nil {
			return nil, err
		}
	}
	return appendUint(b, 31, uint64(e.LeftOut)), nil
}

// appendFact knows the facts of a task that goes well.
func appendFact(b []byte, field protowire.Number, fact *pb.Fact) ([]byte, error) {
	switch fact.Kind.(type) {
	case *pb.Fact_Submitted, *pb.Fact_Leased, *pb.Fact_Started, *pb.Fact_Succeeded, *pb.Fact_ScheduleSet:
	default:
		return appendMessage(b, field, fact)
	}
	return appendInner(b, field, func(b []byte) ([]byte, error) {
		switch k := fact.Kind.(type) {
		case *pb.Fact_Submitted:
			return appendInner(b, 1, func(b []byte) ([]byte, error) {
				return appendText(b, 1, k.Submitted.GetSource()), nil
			})
		case *pb.Fact_Leased:
			f := k.Leased
			return appendInner(b, 2, func(b []byte) ([]byte, error) {
				b = appendUint(appendBytes(b, 1, f.GetAttemptId()), 2, f.GetEpoch())
				b = appendUint(appendBytes(b, 3, f.GetInstanceId()), 4, f.GetConcurrencyToken())
				return appendUint(b, 5, uint64(f.GetLeaseUntilUs())), nil
			})
		case *pb.Fact_Started:
			f := k.Started
			return appendInner(b, 4, func(b []byte) ([]byte, error) {
				b = appendUint(appendBytes(b, 1, f.GetAttemptId()), 2, f.GetEpoch())
				return appendUint(b, 3, uint64(f.GetAttemptCount())), nil
			})
		case *pb.Fact_Succeeded:
			f := k.Succeeded
			return appendInner(b, 5, func(b []byte) ([]byte, error) {
				b = appendUint(appendBytes(b, 1, f.GetAttemptId()), 2, f.GetEpoch())
				return appendFlag(b, 3, f.GetEffectUncertain()), nil
			})
		case *pb.Fact_ScheduleSet:
			f := k.ScheduleSet
			return appendInner(b, 17, func(b []byte) ([]byte, error) {
				return appendUint(appendText(b, 1, f.GetKey()), 2, uint64(f.GetDueAtUs())), nil
			})
		}
		return b, nil
	})
}

// appendInner appends a message that fill writes. Most are shorter than 128 bytes,
// whose length takes one byte; a longer one is moved.
func appendInner(b []byte, field protowire.Number, fill func([]byte) ([]byte, error)) ([]byte, error) {
	b = append(protowire.AppendTag(b, field, protowire.BytesType), 0)
	at := len(b)
	b, err := fill(b)
	if err != nil {
		return nil, err
	}
	size := len(b) - at
	if size < 1<<7 {
		b[at-1] = byte(size)
		return b, nil
	}
	more := protowire.SizeVarint(uint64(size)) - 1
	b = slices.Grow(b, more)[:len(b)+more]
	copy(b[at+more:], b[at:at+size])
	protowire.AppendVarint(b[:at-1], uint64(size))
	return b, nil
}

func appendMessage(b []byte, field protowire.Number, m proto.Message) ([]byte, error) {
	options := proto.MarshalOptions{Deterministic: true}
	b = protowire.AppendTag(b, field, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(options.Size(m)))
	options.UseCachedSize = true
	return options.MarshalAppend(b, m)
}

// Each appends a field unless it has its zero value, which is not written.

func appendUint(b []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}

func appendFlag(b []byte, field protowire.Number, v bool) []byte {
	if !v {
		return b
	}
	return append(protowire.AppendTag(b, field, protowire.VarintType), 1)
}

func appendBytes(b []byte, field protowire.Number, v []byte) []byte {
	if len(v) == 0 {
		return b
	}
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), v)
}

func appendText(b []byte, field protowire.Number, v string) []byte {
	if v == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), v)
}
