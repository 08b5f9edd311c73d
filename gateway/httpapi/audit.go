package httpapi

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"pulse/gateway/session"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
	"pulse/schema/access"
	"pulse/schema/apiv1"
)

// listAudit is GET /v1/audit: who changed what and why, newest first. A caller sees
// what concerns only namespaces in which it may see it.
func listAudit(e *exchange) error {
	b := &pb.ListAudit{
		Principal: e.query.get("principal"), Action: e.query.get("action"), Target: e.query.get("target"),
		FromUs: int64(e.query.time("from")), UntilUs: int64(e.query.time("until")), Limit: uint32(e.query.limit(pageMax)),
	}
	b.All = e.who.Grants.Over(access.Audit)
	if namespace := e.query.get("namespace"); namespace != "" {
		b.All, b.Namespaces = false, []string{namespace}
		if !e.who.Grants.In(access.Audit, namespace, "") {
			return e.refuse(access.Rule{Permission: access.Audit}.Allows(e.who.Grants, namespace, ""))
		}
	} else if !b.All {
		for _, g := range e.who.Grants {
			if g.Role.Contains(access.Audit) && !slices.Contains(b.Namespaces, g.Namespace) {
				b.Namespaces = append(b.Namespaces, g.Namespace)
			}
		}
	}
	key := strings.Join([]string{e.query.get("namespace"), b.Principal, b.Action, b.Target}, "\x00")
	if place := e.query.cursor(cursorAudit, key); len(place) == 8 {
		b.Before = binary.BigEndian.Uint64(place)
	}
	answer, err := e.read(&pb.Query{Body: &pb.Query_ListAudit{ListAudit: b}})
	if err != nil {
		return err
	}
	out := AuditList{Changes: []AuditEntry{}}
	for _, row := range answer.GetAudit().GetRows() {
		out.Changes = append(out.Changes, shapeAudit(row))
	}
	if next := answer.GetAudit().GetNextBefore(); next != 0 {
		out.NextCursor = newCursor(cursorAudit, key, binary.BigEndian.AppendUint64(nil, next))
	}
	return e.answerShape(out)
}

func shapeAudit(row *pb.AuditRow) AuditEntry {
	out := AuditEntry{
		Position: Number(row.GetPosition()), Index: Number(row.GetIndex()), At: Time(row.GetTimeUs()), Namespaces: row.GetNamespaces(),
		Principal: row.GetPrincipal(), TokenName: row.GetTokenName(), Roles: row.GetRoles(), Action: row.GetAction(), Target: row.GetTarget(),
		Detail: row.GetDetail(), Note: row.GetNote(), RequestID: row.GetRequestId(), IdempotencyKey: row.GetIdempotencyKey(),
	}
	if id, ok := idOf(row.GetTokenId()); ok {
		out.TokenID = ID(id.String())
	}
	if id, ok := idOf(row.GetCommandId()); ok {
		out.CommandID = ID(id.String())
	}
	return out
}

// listRefused is GET /v1/audit/refused: attempts that this node has refused since
// its start. They are counted here and not in the log.
func listRefused(e *exchange) error {
	if err := e.query.err(); err != nil {
		return err
	}
	out := RefusedList{
		Unauthenticated: Number(e.h.opt.Refusals.Count(schema.Unauthenticated)), Forbidden: Number(e.h.opt.Refusals.Count(schema.Forbidden)),
		RateLimited: Number(e.h.opt.Refusals.Count(schema.RateLimited)), Newest: []Refused{},
	}
	for _, r := range e.h.opt.Refusals.Newest() {
		out.Newest = append(out.Newest, Refused{
			At: TimeOf(r.At), Code: string(r.Code), Principal: r.Principal, Address: r.Address, Method: r.Method, Detail: r.Detail,
		})
	}
	return e.answerShape(out)
}

// refuse notes an attempt that is refused because of who made it.
func (e *exchange) refuse(refusal *schema.Error) error {
	e.h.opt.Refusals.Note(session.Refusal{
		At: time.Now(), Code: refusal.Code, Principal: e.who.Principal, Address: e.r.RemoteAddr, Method: e.route.id, Detail: refusal.Message,
	})
	return refusal
}

// deed is what a caller does that changes no row of its own.
type deed struct {
	namespace      string // "" is the cluster
	action, target string
}

// How a deed stands on record. What may be refused, or take long, is there twice:
// when it was asked for, and how it ended. If only the first is there, nobody can
// tell from the record how it ended.
const (
	deedAsked = "asked"
	deedDone  = "done"
)

// deedEnd is how a deed ended, for the record.
func deedEnd(err error) string {
	if err == nil {
		return deedDone
	}
	code, message := schema.Internal, err.Error()
	if refusal := (*schema.Error)(nil); errors.As(err, &refusal) {
		code, message = refusal.Code, refusal.Message
	}
	switch code {
	case schema.ResultUnknown, schema.DeadlineExpired, schema.Internal:
		return fmt.Sprintf("not known to be done: %s: %s", code, message)
	}
	return fmt.Sprintf("not done: %s: %s", code, message)
}

func (e *exchange) recording(d deed, detail string) *pb.Command {
	c := e.command(newIDs(1), apiv1.TargetContent(d.action, d.target, 0))
	c.Namespace, c.IdempotencyKey = d.namespace, ""
	c.Body = &pb.Command_RecordAction{RecordAction: &pb.RecordAction{Action: d.action, Target: d.target, Detail: detail}}
	return c
}

// record puts a deed on record before it is done; without that it must not be.
func (e *exchange) record(within time.Duration, d deed, detail string) error {
	return e.tellRecord(e.r.Context(), within, e.recording(d, detail))
}

func (e *exchange) tellRecord(ctx context.Context, within time.Duration, c *pb.Command) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	results, err := e.h.opt.Backend.Submit(ctx, []*pb.Command{c})
	if err != nil {
		return e.callError(err)
	}
	for _, r := range results {
		e.index = max(e.index, r.GetIndex())
		if refusal := refusalOf(r); refusal != nil {
			return refusal
		}
	}
	return nil
}

// recordWithin bounds how long a caller waits until what it did is on record.
const recordWithin = 2 * time.Second

// recordAnyway puts on record what is done, or will be, whether there is a leader
// or not: without one, later. It is no matter of the caller's patience, and what was
// done under a token that is revoked meanwhile was done all the same.
func (e *exchange) recordAnyway(d deed, detail string) {
	c := e.recording(d, detail)
	if !e.recordsLater {
		err := e.tellRecord(context.WithoutCancel(e.r.Context()), recordWithin, c)
		if err == nil {
			return
		}
		e.h.opt.Logger.Debug("not on record yet", "action", d.action, "error", err)
	}
	e.recordsLater = true // nor does the rest of this request wait for a leader
	at := schema.TimeOf(time.Now())
	c.GetRecordAction().Detail = fmt.Sprintf("%s, at %s by the node's clock; there was no leader to record it then", detail, at)
	err := errors.New("this node keeps no list of what is to go on record")
	if e.h.opt.Owed != nil {
		err = e.h.opt.Owed.Keep(c)
	}
	if err != nil {
		e.h.opt.Logger.Warn("what was done is not on record", "action", d.action, "target", d.target, "detail", detail, "note", e.note, "principal", e.who.Principal, "error", err)
	}
}
