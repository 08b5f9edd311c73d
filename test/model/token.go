package model

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	pb "pulse/proto/pulse/v1"
)

const (
	tokenShown = 30 * 24 * hour // after it was revoked or is over
	tokenStep  = 600 * second   // of when it was last used
	auditKept  = 400 * 24 * hour
)

// Token is an access token.
type Token struct {
	ID                                        ID
	Name, Hash, By, RevokedBy                 string
	Grants                                    []string
	Namespaces                                []string
	CreatedAt, ExpiresAt, RevokedAt, LastUsed int64
}

// Change is a line of the record: who did what to what, and why.
type Change struct {
	Time                                               int64
	Principal, Token, Action, Target, Detail, Note, Of string
	Made                                               *Task // by it: the target, whose id the machine chooses
}

// At is what was changed.
func (c *Change) At() string {
	if c.Made != nil {
		return hex.EncodeToString(c.Made.ID[:])
	}
	return c.Target
}

// Lives says that a token gives a right at a time.
func (t *Token) Lives(now int64) bool {
	return t.RevokedAt == 0 && (t.ExpiresAt == 0 || now < t.ExpiresAt)
}

func (m *Model) token(id []byte) *Token {
	for _, t := range m.Tokens {
		if string(t.ID[:]) == string(id) {
			return t
		}
	}
	return nil
}

func (m *Model) createToken(c *pb.Command, b *pb.CreateToken) Result {
	if len(b.TokenId) != 16 || len(b.SecretHash) != 32 {
		return refuse(invalidArgument)
	}
	if t := m.token(b.TokenId); t != nil {
		if b.First && t.Hash == string(b.SecretHash) {
			return Result{Token: t}
		}
		return refuse(conflict)
	}
	if b.First && m.hadToken {
		return refuse(conflict)
	}
	if b.ExpiresAtUs != 0 && b.ExpiresAtUs <= m.Clock {
		return refuse(invalidArgument)
	}
	t := &Token{
		ID: toID(b.TokenId), Name: b.Name, Hash: string(b.SecretHash), By: c.Caller.GetPrincipal(),
		CreatedAt: m.Clock, ExpiresAt: b.ExpiresAtUs,
	}
	for _, g := range b.Grants {
		if g.Namespace != "*" && m.namespaceNamed(g.Namespace) == nil {
			return refuse(notFound)
		}
		text := g.Role + "@" + g.Namespace
		if len(g.Queues) > 0 {
			text += "/" + strings.Join(g.Queues, ",")
		}
		t.Grants = append(t.Grants, text)
		if !slices.Contains(t.Namespaces, g.Namespace) {
			t.Namespaces = append(t.Namespaces, g.Namespace)
		}
	}
	// Those that have been of no use for long make room, the lowest ids first.
	slices.SortFunc(m.Tokens, func(a, b *Token) int { return strings.Compare(string(a.ID[:]), string(b.ID[:])) })
	left := 0
	m.Tokens = slices.DeleteFunc(m.Tokens, func(t *Token) bool {
		old := t.RevokedAt != 0 && t.RevokedAt+tokenShown <= m.Clock || t.ExpiresAt != 0 && t.ExpiresAt+tokenShown <= m.Clock
		if old && left < 16 {
			left++
			return true
		}
		return false
	})
	m.Tokens = append(m.Tokens, t)
	m.hadToken = true
	return Result{Token: t}
}

func (m *Model) revokeToken(c *pb.Command, b *pb.RevokeToken) Result {
	t := m.token(b.TokenId)
	if t == nil {
		return refuse(notFound)
	}
	if t.RevokedAt == 0 {
		t.RevokedAt, t.RevokedBy = m.Clock, c.Caller.GetPrincipal()
	}
	return Result{Token: t}
}

func (m *Model) touchTokens(b *pb.TouchTokens) Result {
	for _, u := range b.Uses {
		t := m.token(u.TokenId)
		if at := min(u.UsedAtUs, m.Clock); t != nil && t.RevokedAt == 0 && (t.LastUsed == 0 || at >= t.LastUsed+tokenStep) {
			t.LastUsed = at
		}
	}
	return Result{}
}

// roomFor says whether a namespace's quota allows one more task.
func (m *Model) roomFor(ns *Namespace, payload string) bool {
	tasks, bytes := uint64(0), uint64(len(payload))
	for _, t := range m.Tasks {
		if t.Namespace == ns && t.State == waiting {
			tasks++
		}
		if t.Namespace == ns && !t.Terminal() {
			bytes += uint64(len(t.Payload))
		}
	}
	q := ns.Quota
	return (q.TasksWaiting == 0 || tasks < q.TasksWaiting) && (q.PayloadBytes == 0 || bytes <= q.PayloadBytes)
}

// Workers counts the connected workers of a namespace.
func (m *Model) Workers(ns *Namespace) (n uint64) {
	for _, i := range m.Instances {
		if i.Namespace == ns && i.Connected {
			n++
		}
	}
	return n
}

// record notes an accepted change of a caller.
func (m *Model) record(c *pb.Command, r Result, of string) {
	if r.Code != "" || r.Replayed {
		return
	}
	ch := Change{Time: m.Clock, Principal: c.Caller.GetPrincipal(), Token: hex.EncodeToString(c.Caller.GetTokenId()), Of: of, Note: c.Note}
	set := func(action, target, note string) {
		ch.Action, ch.Target = action, target
		if note != "" {
			ch.Note = note
		}
	}
	if ch.Principal == "" {
		ch.Principal = "cluster"
	}
	switch b := c.Body.(type) {
	case *pb.Command_SubmitTask:
		if c.Note == "" || r.Duplicate {
			return
		}
		set("pulse.task.Submit", "", "")
		ch.Made = r.Task
	case *pb.Command_CancelTask:
		set("pulse.task.Cancel", hex.EncodeToString(b.CancelTask.TaskId), b.CancelTask.Note)
	case *pb.Command_RetryTask:
		set("pulse.task.Retry", hex.EncodeToString(b.RetryTask.TaskId), b.RetryTask.Note)
	case *pb.Command_RunTask:
		set("pulse.task.Run", hex.EncodeToString(b.RunTask.TaskId), b.RunTask.Note)
	case *pb.Command_ReviewTask:
		set("pulse.task.Review", hex.EncodeToString(b.ReviewTask.TaskId), b.ReviewTask.Note)
	case *pb.Command_BulkTasks:
		set("pulse.task.Bulk", "", b.BulkTasks.Note)
		if len(b.BulkTasks.TaskIds) == 1 {
			ch.Target = hex.EncodeToString(b.BulkTasks.TaskIds[0])
		}
	case *pb.Command_PutQueue:
		set("pulse.queue.Put", b.PutQueue.Name, "")
	case *pb.Command_DeleteQueue:
		set("pulse.queue.Delete", b.DeleteQueue.Name, "")
	case *pb.Command_PauseQueue:
		set(map[bool]string{true: "pulse.queue.Pause", false: "pulse.queue.Resume"}[b.PauseQueue.Paused], b.PauseQueue.Name, "")
	case *pb.Command_PutSchedule:
		set("pulse.schedule.Put", b.PutSchedule.Name, "")
	case *pb.Command_DeleteSchedule:
		set("pulse.schedule.Delete", b.DeleteSchedule.Name, "")
	case *pb.Command_PauseSchedule:
		set(map[bool]string{true: "pulse.schedule.Pause", false: "pulse.schedule.Resume"}[b.PauseSchedule.Paused], b.PauseSchedule.Name, b.PauseSchedule.Note)
	case *pb.Command_TriggerSchedule:
		set("pulse.schedule.Trigger", b.TriggerSchedule.Name, b.TriggerSchedule.Note)
	case *pb.Command_BackfillSchedule:
		set("pulse.schedule.Backfill", b.BackfillSchedule.Name, b.BackfillSchedule.Note)
	case *pb.Command_PutNamespace:
		set("pulse.namespace.Put", b.PutNamespace.Name, "")
		ch.Of = b.PutNamespace.Name
	case *pb.Command_DeleteNamespace:
		set("pulse.namespace.Delete", b.DeleteNamespace.Name, "")
		ch.Of = "*"
	case *pb.Command_DrainWorker:
		set("pulse.worker.Drain", hex.EncodeToString(b.DrainWorker.InstanceId), "")
	case *pb.Command_FreeKey:
		set("pulse.task.FreeKey", b.FreeKey.Key, b.FreeKey.Note)
	case *pb.Command_SetCluster:
		set("pulse.cluster.Set", "", "")
		ch.Of = "*"
	case *pb.Command_CreateToken:
		set("pulse.token.Create", hex.EncodeToString(b.CreateToken.TokenId), "")
		ch.Of = strings.Join(r.Token.Namespaces, " ")
	case *pb.Command_RevokeToken:
		set("pulse.token.Revoke", hex.EncodeToString(b.RevokeToken.TokenId), "")
		ch.Of = strings.Join(r.Token.Namespaces, " ")
	case *pb.Command_RecordAction:
		set(b.RecordAction.Action, b.RecordAction.Target, "")
	default:
		return
	}
	m.Changes = append(m.Changes, &ch)
	for range 4 { // no more leave at a time, and the newest stays
		if len(m.Changes) == 1 || m.Changes[0].Time >= m.Clock-auditKept {
			break
		}
		m.Changes = m.Changes[1:]
	}
}

// String is for messages.
func (c *Change) String() string { return fmt.Sprintf("%+v", *c) }
