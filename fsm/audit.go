package fsm

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	pb "pulse/proto/pulse/v1"
)

const (
	// auditKeptUs is how long a change stays on record: 400 days, so that a year
	// can be looked at after it is over. auditMax bounds the rows.
	auditKeptUs = 400 * 24 * 3600e6
	auditMax    = 1_000_000
)

// audit puts an accepted change on record: who, what and why. Submissions that
// nobody gave a reason for, and what workers and nodes say, are in the histories of
// their tasks and not here: there are too many of them, and nobody would find the
// rest.
func (r *run) audit(c *pb.Command, res *pb.Result) {
	row := r.auditRow(c, res)
	if row == nil || res.Code != "" || res.Replayed {
		return
	}
	who := c.GetCaller()
	row.Principal, row.Roles, row.TokenId = who.GetPrincipal(), who.GetRoles(), who.GetTokenId()
	if row.Principal == "" {
		row.Principal = "cluster"
	}
	if t := r.token(who.GetTokenId()); t != nil {
		row.TokenName = t.Name
	}
	if row.Action == "" {
		row.Action = commandType(c)
	}
	if row.Note == "" {
		row.Note = c.Note
	}
	row.RequestId, row.CommandId, row.IdempotencyKey = c.RequestId, c.Id, c.IdempotencyKey
	if len(row.Namespaces) == 0 {
		row.Namespaces = []string{r.nameOf(c)}
	}
	r.tx.AppendAudit(row, r.now-auditKeptUs, auditMax)
}

// nameOf is the namespace a command names.
func (r *run) nameOf(c *pb.Command) string {
	if c.Namespace != "" {
		return c.Namespace
	}
	if len(c.NamespaceId) == 16 {
		if n := r.s.Namespace(ID(c.NamespaceId)); n != nil {
			return n.Row.Name
		}
	}
	return everywhere
}

// auditRow says what was done and to what; nil is not for the record.
func (r *run) auditRow(c *pb.Command, res *pb.Result) *pb.AuditRow {
	switch b := c.Body.(type) {
	case *pb.Command_SubmitTask:
		if c.Note == "" || res.GetTask().GetDuplicate() {
			return nil
		}
		return &pb.AuditRow{Target: hex.EncodeToString(res.GetTask().GetTask().GetTask().GetId()), Detail: b.SubmitTask.Handler + " in " + b.SubmitTask.Queue}
	case *pb.Command_CancelTask:
		return &pb.AuditRow{Target: hex.EncodeToString(b.CancelTask.TaskId), Note: b.CancelTask.Note}
	case *pb.Command_RetryTask:
		return &pb.AuditRow{
			Target: hex.EncodeToString(b.RetryTask.TaskId), Note: b.RetryTask.Note,
			Detail: "new task " + hex.EncodeToString(res.GetTask().GetTask().GetTask().GetId()),
		}
	case *pb.Command_RunTask:
		return &pb.AuditRow{Target: hex.EncodeToString(b.RunTask.TaskId), Note: b.RunTask.Note}
	case *pb.Command_ReviewTask:
		detail := strings.TrimPrefix(b.ReviewTask.Decision.String(), "REVIEW_DECISION_")
		return &pb.AuditRow{Target: hex.EncodeToString(b.ReviewTask.TaskId), Note: b.ReviewTask.Note, Detail: strings.TrimSpace(detail + " " + b.ReviewTask.ErrorCode)}
	case *pb.Command_BulkTasks:
		return auditBulk(b.BulkTasks, res)
	case *pb.Command_PutQueue:
		return &pb.AuditRow{Target: b.PutQueue.Name, Detail: fmt.Sprintf("revision %d", res.GetQueue().GetQueue().GetRevision())}
	case *pb.Command_DeleteQueue:
		return &pb.AuditRow{Target: b.DeleteQueue.Name}
	case *pb.Command_PauseQueue:
		row := &pb.AuditRow{Target: b.PauseQueue.Name}
		if !b.PauseQueue.Paused {
			row.Action = "pulse.queue.Resume"
		}
		return row
	case *pb.Command_PutSchedule:
		return &pb.AuditRow{Target: b.PutSchedule.Name, Detail: fmt.Sprintf("revision %d", res.GetSchedule().GetSchedule().GetRevision())}
	case *pb.Command_DeleteSchedule:
		return &pb.AuditRow{Target: b.DeleteSchedule.Name}
	case *pb.Command_PauseSchedule:
		row := &pb.AuditRow{Target: b.PauseSchedule.Name, Note: b.PauseSchedule.Note}
		if !b.PauseSchedule.Paused {
			row.Action = "pulse.schedule.Resume"
		}
		return row
	case *pb.Command_TriggerSchedule:
		return &pb.AuditRow{
			Target: b.TriggerSchedule.Name, Note: b.TriggerSchedule.Note,
			Detail: "new task " + hex.EncodeToString(res.GetTask().GetTask().GetTask().GetId()),
		}
	case *pb.Command_BackfillSchedule:
		return &pb.AuditRow{Target: b.BackfillSchedule.Name, Note: b.BackfillSchedule.Note, Detail: fmt.Sprintf("%d times", len(res.GetBackfill().GetItems()))}
	case *pb.Command_PutNamespace:
		return &pb.AuditRow{Target: b.PutNamespace.Name, Namespaces: []string{b.PutNamespace.Name}, Detail: quotaText(b.PutNamespace.Quota)}
	case *pb.Command_DeleteNamespace:
		return &pb.AuditRow{Target: b.DeleteNamespace.Name, Namespaces: []string{everywhere}}
	case *pb.Command_DrainWorker:
		return &pb.AuditRow{Target: hex.EncodeToString(b.DrainWorker.InstanceId)}
	case *pb.Command_FreeKey:
		return &pb.AuditRow{Target: b.FreeKey.Key, Note: b.FreeKey.Note, Detail: r.told}
	case *pb.Command_SetCluster:
		return &pb.AuditRow{Namespaces: []string{everywhere}, Detail: settingsText(b.SetCluster)}
	case *pb.Command_CreateToken, *pb.Command_RevokeToken:
		t := res.GetToken()
		return &pb.AuditRow{Target: hex.EncodeToString(t.GetId()), Namespaces: namespacesOf(t), Detail: strings.TrimSpace(t.GetName() + " " + grantsText(t.GetGrants()))}
	case *pb.Command_RecordAction:
		return &pb.AuditRow{Action: b.RecordAction.Action, Target: b.RecordAction.Target, Detail: b.RecordAction.Detail}
	default:
		return nil
	}
}

// settingsText names what was set: a setting that stays as it is is not there.
func settingsText(c *pb.SetCluster) string {
	var set []string
	if c.EventRetentionMs > 0 {
		set = append(set, fmt.Sprintf("event_retention_ms %d", c.EventRetentionMs))
	}
	if c.IdempotencyKeysMax > 0 {
		set = append(set, fmt.Sprintf("idempotency_keys_max %d", c.IdempotencyKeysMax))
	}
	if c.FormatLevel > 0 {
		set = append(set, fmt.Sprintf("format_level %d", c.FormatLevel))
	}
	return strings.Join(set, ", ")
}

// auditBulk says what was asked and what came of it. A request that selects many tasks
// may arrive as a command for each: that one reads like the change of a task by itself.
func auditBulk(b *pb.BulkTasks, res *pb.Result) *pb.AuditRow {
	asked := strings.ToLower(strings.TrimPrefix(b.Action.String(), "BULK_ACTION_"))
	items := res.GetBulk().GetItems()
	if len(b.TaskIds) == 1 && len(items) == 1 {
		row := &pb.AuditRow{Target: hex.EncodeToString(b.TaskIds[0]), Note: b.Note, Detail: asked + ": done"}
		switch item := items[0]; {
		case item.Code != "":
			row.Detail = asked + ": refused: " + item.Code
		case len(item.NewTaskId) > 0:
			row.Detail = asked + ": new task " + hex.EncodeToString(item.NewTaskId)
		}
		return row
	}
	done := 0
	for _, item := range items {
		if item.Code == "" {
			done++
		}
	}
	return &pb.AuditRow{Note: b.Note, Detail: fmt.Sprintf("%s %d of %d tasks", asked, done, len(b.TaskIds))}
}

// namespacesOf are the namespaces a token gives rights in.
func namespacesOf(t *pb.TokenRow) []string {
	var out []string
	for _, g := range t.GetGrants() {
		if !slices.Contains(out, g.Namespace) {
			out = append(out, g.Namespace)
		}
	}
	if len(out) == 0 {
		out = []string{everywhere}
	}
	return out
}

func grantsText(grants []*pb.TokenGrant) string {
	var out []string
	for _, g := range grants {
		text := g.Role + "@" + g.Namespace
		if len(g.Queues) > 0 {
			text += "/" + strings.Join(g.Queues, ",")
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

func quotaText(q *pb.NamespaceQuota) string {
	if q == nil {
		return ""
	}
	return fmt.Sprintf("quota tasks_waiting %d payload_bytes %d workers %d", q.TasksWaiting, q.PayloadBytes, q.Workers)
}
