package apiv1

import (
	"log/slog"

	"strings"

	"pulse/schema"
)

const (
	// NoteCharsMax bounds a note, in code points.
	NoteCharsMax = 1024
	// BulkIDsMax bounds the tasks a bulk request names, and those it acts on
	// when it selects them by a filter.
	BulkIDsMax = 10_000
)

// Change is the body of :cancel and :retry, and of :pause and :resume, which
// take no note.
type Change struct {
	ExpectedRevision uint64 // 0 = any
	Note             string
}

// DecodeChange reads {expected_revision?, note?}; an empty body is {}.
func DecodeChange(body []byte) (Change, *schema.Error) {
	r, refusal := open(body, schema.DepthMax, true)
	if refusal != nil {
		return Change{}, refusal
	}
	var c Change
	if r.enter() {
		for r.member() {
			switch string(r.name) {
			case "expected_revision":
				r.revision(&c.ExpectedRevision)
			case "note":
				r.note(&c.Note)
			default:
				r.unknown()
			}
		}
	}
	return c, r.refusal()
}

// DecodeExpectation reads {expected_revision?}; an empty body is {}.
func DecodeExpectation(body []byte) (revision uint64, refusal *schema.Error) {
	r, refusal := open(body, schema.DepthMax, true)
	if refusal != nil {
		return 0, refusal
	}
	if r.enter() {
		for r.member() {
			if string(r.name) != "expected_revision" {
				r.unknown()
				continue
			}
			r.revision(&revision)
		}
	}
	return revision, r.refusal()
}

// Content is that of an operation on a task.
func (c *Change) Content(operation string, task schema.ID) Content {
	w := begin(operation)
	w.text("task", task.String())
	w.optRevision(c.ExpectedRevision)
	w.optText("note", c.Note)
	return w.sum()
}

// DecodeNote reads {note}, which has to say something.
func DecodeNote(body []byte) (note string, refusal *schema.Error) {
	r, refusal := open(body, schema.DepthMax, true)
	if refusal != nil {
		return "", refusal
	}
	start := r.at
	if r.enter() {
		for r.member() {
			if string(r.name) != "note" {
				r.unknown()
				continue
			}
			r.note(&note)
		}
	}
	if r.code == "" && blank(note) {
		r.fault(start, "a note is needed that says why")
	}
	return note, r.refusal()
}

// Transfer is the body of cluster:transfer.
type Transfer struct {
	NodeID string // "" = the first voter that can take it
}

// DecodeTransfer reads {node_id?}; an empty body is {}.
func DecodeTransfer(body []byte) (Transfer, *schema.Error) {
	r, refusal := open(body, schema.DepthMax, true)
	if refusal != nil {
		return Transfer{}, refusal
	}
	var t Transfer
	if r.enter() {
		for r.member() {
			if string(r.name) != "node_id" {
				r.unknown()
				continue
			}
			r.nodeID(&t.NodeID)
		}
	}
	return t, r.refusal()
}

// LogLevel is the body of log-level.
type LogLevel struct{ Level slog.Level }

// DecodeLogLevel reads {level}.
func DecodeLogLevel(body []byte) (LogLevel, *schema.Error) {
	r, refusal := open(body, schema.DepthMax, false)
	if refusal != nil {
		return LogLevel{}, refusal
	}
	start, seen := r.at, false
	var l LogLevel
	if r.enter() {
		for r.member() {
			if string(r.name) != "level" {
				r.unknown()
				continue
			}
			seen = true
			var word string
			r.word(&word, "debug", "info", "warn", "error")
			_ = l.Level.UnmarshalText([]byte(word)) // word has refused what it would refuse
		}
		if !seen {
			r.missing(start, "level")
		}
	}
	return l, r.refusal()
}

const (
	// EventRetentionMillisMin bounds how short events are kept: a minute, so that
	// whoever follows them can be away for a moment.
	EventRetentionMillisMin = 60_000
	// IdempotencyKeysMaxMax bounds the bound on remembered keys.
	IdempotencyKeysMaxMax = 1_000_000_000
)

// ClusterSettings is the body of cluster/settings; 0 leaves one as it is.
type ClusterSettings struct {
	EventRetentionMillis int64
	IdempotencyKeysMax   int64 // of a namespace
}

// DecodeClusterSettings reads {event_retention_ms?, idempotency_keys_max?}, at
// least one of them.
func DecodeClusterSettings(body []byte) (ClusterSettings, *schema.Error) {
	r, refusal := open(body, schema.DepthMax, false)
	if refusal != nil {
		return ClusterSettings{}, refusal
	}
	var s ClusterSettings
	start := r.at
	if r.enter() {
		for r.member() {
			switch string(r.name) {
			case "event_retention_ms":
				r.integer(&s.EventRetentionMillis, EventRetentionMillisMin, RetentionMillisMax)
			case "idempotency_keys_max":
				r.count(&s.IdempotencyKeysMax, 1, IdempotencyKeysMaxMax)
			default:
				r.unknown()
			}
		}
	}
	if r.code == "" && s == (ClusterSettings{}) {
		r.fault(start, "give event_retention_ms or idempotency_keys_max")
	}
	return s, r.refusal()
}

// Removal is the body of cluster:remove.
type Removal struct {
	NodeID string
	Force  bool
}

// DecodeRemoval reads {node_id, force?}.
func DecodeRemoval(body []byte) (Removal, *schema.Error) {
	r, refusal := open(body, schema.DepthMax, false)
	if refusal != nil {
		return Removal{}, refusal
	}
	var v Removal
	start, named := r.at, false
	if r.enter() {
		for r.member() {
			switch string(r.name) {
			case "node_id":
				named = true
				r.nodeID(&v.NodeID)
			case "force":
				r.bool(&v.Force)
			default:
				r.unknown()
			}
		}
	}
	if r.code == "" && !named {
		r.missing(start, "node_id")
	}
	return v, r.refusal()
}

// nodeID reads the id of a server, which follows the rule of other names.
func (r *reader) nodeID(dst *string) {
	text, start, ok := r.text(NameCharsMax)
	if ok && !ValidName(string(text)) {
		r.fault(start, nameRule)
	}
	*dst = string(text)
}

// NoteContent is the content of an operation that takes a note.
func NoteContent(operation, target, note string) Content {
	c := begin(operation)
	c.text("target", target)
	c.text("note", note)
	return c.sum()
}

// Decision is what a review says.
type Decision string

// The decisions.
const (
	DecisionSucceeded Decision = "SUCCEEDED"
	DecisionFailed    Decision = "FAILED"
	DecisionCancelled Decision = "CANCELLED"
	DecisionRetry     Decision = "RETRY"
)

// Review is the body of :review.
type Review struct {
	ExpectedRevision uint64
	Decision         Decision
	Note             string
	Result           []byte      // as sent, with DecisionSucceeded
	ErrorCode        string      // with DecisionFailed
	DeadlineAt       schema.Time // with DecisionRetry
}

// DecodeReview reads a decision, and refuses what does not belong to it.
func DecodeReview(body []byte) (Review, *schema.Error) {
	r, refusal := open(body, schema.DepthMax, false)
	if refusal != nil {
		return Review{}, refusal
	}
	v := Review{}
	r.review(&v)
	return v, r.refusal()
}

func (r *reader) review(v *Review) {
	start := r.at
	if !r.enter() {
		return
	}
	var decision string
	at := map[string]int{} // where the members are that belong to one decision
	for r.member() {
		switch string(r.name) {
		case "decision":
			at["decision"] = r.at
			r.word(&decision, string(DecisionSucceeded), string(DecisionFailed), string(DecisionCancelled), string(DecisionRetry))
		case "note":
			at["note"] = r.at
			r.note(&v.Note)
		case "result":
			at["result"] = r.at
			r.json(&v.Result)
		case "error_code":
			at["error_code"] = r.at
			r.named(&v.ErrorCode, schema.ErrorCodeCharsMax)
		case "deadline_at":
			at["deadline_at"] = r.at
			r.time(&v.DeadlineAt)
		case "expected_revision":
			r.revision(&v.ExpectedRevision)
		default:
			r.unknown()
		}
	}
	v.Decision = Decision(decision)
	for _, name := range []string{"decision", "note"} {
		if _, ok := at[name]; !ok {
			r.missing(start, name)
		}
	}
	if r.code != "" {
		return
	}
	if blank(v.Note) {
		r.fault(at["note"], "must say why")
	}
	if _, ok := at["error_code"]; !ok && v.Decision == DecisionFailed {
		r.missing(start, "error_code")
	}
	for _, part := range []struct {
		name string
		with Decision
	}{{"result", DecisionSucceeded}, {"error_code", DecisionFailed}, {"deadline_at", DecisionRetry}} {
		if offset, ok := at[part.name]; ok && v.Decision != part.with {
			r.fault(offset, "belongs to the decision %s alone", part.with)
		}
	}
}

// Content is what two reviews of a task have in common if they are equal.
func (v *Review) Content(task schema.ID) Content {
	c := begin("pulse.task.review")
	c.text("task", task.String())
	c.text("decision", string(v.Decision))
	c.text("note", v.Note)
	if v.Result != nil {
		c.bytes("result", v.Result)
	}
	c.optText("error_code", v.ErrorCode)
	c.optTime("deadline_at", v.DeadlineAt)
	c.optRevision(v.ExpectedRevision)
	return c.sum()
}

// Action is what a bulk request does to each task.
type Action string

// The actions.
const (
	ActionCancel Action = "cancel"
	ActionRetry  Action = "retry"
)

// Filter selects tasks; what is empty selects all.
type Filter struct {
	Queue          string
	States         []string
	Handler        string
	BusinessKey    string
	ConcurrencyKey string
	WaitingReason  string
	ErrorCode      string
	CreatedFrom    schema.Time // at this time or later; 0 = any
	CreatedUntil   schema.Time // before this time; 0 = any
}

// The words of a filter.
var (
	States         = []string{"WAITING", "LEASED", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED", "NEEDS_REVIEW"}
	WaitingReasons = []string{
		"ready", "delayed", "retry_backoff", "key_held", "queue_paused", "queue_limit", "no_capable_worker", "workers_busy",
	}
)

// Bulk is the body of tasks:bulk.
type Bulk struct {
	Action Action
	IDs    []schema.ID // either these
	Filter *Filter     // or this
	Note   string
	DryRun bool
	Cursor string // goes on behind an earlier answer; only with Filter
}

// DecodeBulk reads a bulk request.
func DecodeBulk(body []byte) (Bulk, *schema.Error) {
	r, refusal := open(body, schema.DepthMax, false)
	if refusal != nil {
		return Bulk{}, refusal
	}
	var b Bulk
	r.bulk(&b)
	return b, r.refusal()
}

func (r *reader) bulk(b *Bulk) {
	start := r.at
	if !r.enter() {
		return
	}
	action := ""
	idsAt, cursorAt := -1, -1
	for r.member() {
		switch string(r.name) {
		case "action":
			r.word(&action, string(ActionCancel), string(ActionRetry))
		case "ids":
			idsAt = r.at
			b.IDs = r.ids()
		case "filter":
			b.Filter = new(Filter)
			r.filter(b.Filter)
		case "note":
			r.note(&b.Note)
		case "dry_run":
			r.bool(&b.DryRun)
		case "cursor":
			cursorAt = r.at
			r.chars(&b.Cursor, 128)
		default:
			r.unknown()
		}
	}
	b.Action = Action(action)
	if r.code != "" {
		return
	}
	switch {
	case action == "":
		r.missing(start, "action")
	case idsAt < 0 && b.Filter == nil:
		r.fault(start, "either ids or a filter has to say which tasks")
	case idsAt >= 0 && b.Filter != nil:
		r.fault(idsAt, "ids and filter exclude each other")
	case cursorAt >= 0 && b.Filter == nil:
		r.fault(cursorAt, "belongs to a filter")
	}
}

func (r *reader) ids() []schema.ID {
	start := r.at
	if !r.enterArray() {
		return nil
	}
	ids := []schema.ID{}
	seen := map[schema.ID]bool{}
	for r.element() {
		if len(ids) == BulkIDsMax {
			r.fault(start, "must have at most %d elements", BulkIDsMax)
			r.rest()
			return nil
		}
		at, faults := r.at, len(r.faults)+r.more
		var id schema.ID
		r.id(&id)
		if seen[id] && faults == len(r.faults)+r.more {
			r.fault(at, "repeats an earlier element")
		}
		seen[id] = true
		ids = append(ids, id)
	}
	return ids
}

func (r *reader) filter(f *Filter) {
	if !r.enter() {
		return
	}
	for r.member() {
		switch string(r.name) {
		case "queue":
			text, start, ok := r.text(NameCharsMax)
			if ok && !ValidName(string(text)) {
				r.fault(start, nameRule)
			}
			f.Queue = string(text)
		case "state":
			r.states(f)
		case "handler":
			r.named(&f.Handler, schema.HandlerCharsMax)
		case "business_key":
			r.key(&f.BusinessKey, schema.CheckBusinessKey)
		case "concurrency_key":
			r.key(&f.ConcurrencyKey, schema.CheckConcurrencyKey)
		case "waiting_reason":
			r.word(&f.WaitingReason, WaitingReasons...)
		case "error_code":
			r.named(&f.ErrorCode, schema.ErrorCodeCharsMax)
		case "created_from":
			r.time(&f.CreatedFrom)
		case "created_until":
			r.time(&f.CreatedUntil)
		default:
			r.unknown()
		}
	}
}

// states reads one state or an array of them.
func (r *reader) states(f *Filter) {
	if r.data[r.at] != '[' {
		var state string
		r.word(&state, States...)
		f.States = append(f.States, state)
		return
	}
	r.at++
	for r.element() {
		var state string
		r.word(&state, States...)
		if len(f.States) < len(States) {
			f.States = append(f.States, state)
		}
	}
}

// Content is the content of the part of a bulk request that acts on ids.
func (b *Bulk) Content(ids []schema.ID) Content {
	c := begin("pulse.task.bulk")
	c.text("action", string(b.Action))
	c.optText("note", b.Note)
	for _, id := range ids {
		c.text("task", id.String())
	}
	return c.sum()
}

// NameCharsMax bounds the names of namespaces and queues.
const NameCharsMax = 63

const nameRule = "must be a letter or digit, then up to 62 of letters, digits, _ . -"

// ValidName says whether text names a namespace or queue.
func ValidName(text string) bool {
	return schema.ValidName(text, NameCharsMax) && !strings.Contains(text, ":")
}

// NameRule says it in words.
func NameRule() string { return nameRule }
