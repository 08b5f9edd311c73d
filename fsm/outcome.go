package fsm

import (
	pb "pulse/proto/pulse/v1"
)

// ID is the identity of a task, attempt, session, instance, queue or namespace.
type ID = [16]byte

// Outcome is what applying one entry yields beside the new state. Only the
// leader has use for it: followers make the same one and drop it.
type Outcome struct {
	Index   uint64 // of the log entry, without fence base
	Results []*pb.Result
	Effects []Effect
	Events  []*pb.EventRow // the commits of the entry in their order; read-only
	Time    int64          // cluster clock after the entry, Unix microseconds
	Skipped bool           // at or below the applied index: nothing was done
}

// EffectKind says what a session should be told.
type EffectKind uint8

const (
	// EffectAssign: an attempt is LEASED and its worker has to hear of it.
	EffectAssign EffectKind = iota + 1
	// EffectCancel: a cancel was asked for and the session wants to know.
	EffectCancel
	// EffectClose: the connection of a session that is over has to close.
	EffectClose
)

// Effect is a hint that a session should be told something. It carries no
// truth: Machine.Delivery looks the truth up, and Machine.Undelivered finds
// what a lost effect stood for.
type Effect struct {
	Kind        EffectKind
	GatewayID   string
	NamespaceID ID
	SessionID   ID
	TaskID      ID
	AttemptID   ID
	Code        string // of EffectClose
	OfferedAt   int64  // of EffectAssign, Unix microseconds
	OfferUntil  int64  // of EffectAssign, Unix microseconds
	Once        bool   // of EffectCancel: the attempt is over, so nothing will ever show that the worker knows
}
