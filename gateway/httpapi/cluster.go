package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
	"pulse/schema/apiv1"
)

// getCluster is GET /v1/cluster. It reads what this node has applied, so that it
// answers when there is no leader, which is when it is asked for most.
func getCluster(e *exchange) error {
	if e.h.opt.Cluster == nil {
		return noCluster()
	}
	query := &pb.Query{Body: &pb.Query_GetStats{GetStats: &pb.GetStats{}}}
	e.freshness(query)
	if err := e.query.err(); err != nil {
		return err
	}
	if _, given := e.query.values["consistency"]; !given {
		query.Consistency = pb.Consistency_CONSISTENCY_STALE
	}
	out := ClusterStatus{}
	answer, err := e.ask(query)
	switch {
	case err == nil:
		e.freshnessHeaders(answer, query.Consistency)
		out.State = stateStatus(answer)
	case query.Consistency != pb.Consistency_CONSISTENCY_STALE:
		return err
	}
	ctx, cancel := context.WithTimeout(e.r.Context(), e.h.opt.CallTimeout)
	defer cancel()
	out.Node = e.h.opt.Cluster.Status(ctx)
	if out.Node.Servers == nil {
		out.Node.Servers = []ServerStatus{}
	}
	return e.answerShape(out)
}

func stateStatus(answer *pb.Answer) *StateStatus {
	s := answer.GetStats()
	out := &StateStatus{
		Index: Number(answer.GetIndex()), Term: Number(answer.GetTerm()), Clock: Time(answer.GetClockUs()),
		ClusterID: fmt.Sprintf("%x", s.GetClusterId()), StateHash: fmt.Sprintf("%x", s.GetStateHash()),
		FenceBase: Number(s.GetFenceBase()), Openings: Number(s.GetOpenings()),
		SessionsConnected: Number(s.GetSessionsConnected()), AttemptsLeased: Number(s.GetAttemptsLeased()),
		AttemptsRunning: Number(s.GetAttemptsRunning()), KeysHeld: Number(s.GetKeysHeld()),
		TimersNear: Number(s.GetTimersNear()), FormatLevel: s.GetFormatLevel(), Gateways: []GatewayStatus{},
	}
	for _, q := range s.GetQueues() {
		out.TasksWaiting += Number(q.GetWaiting())
		out.TasksInReview += Number(q.GetNeedsReview())
	}
	for _, g := range s.GetGateways() {
		out.Gateways = append(out.Gateways, GatewayStatus{ID: g.GetId(), LiveUntil: Time(g.GetLiveUntilUs()), StartedAt: Time(g.GetStartedAtUs())})
	}
	return out
}

// getSettings is GET /v1/cluster/settings.
func getSettings(e *exchange) error {
	query := settingsQuery()
	e.freshness(query)
	if err := e.query.err(); err != nil {
		return err
	}
	answer, err := e.ask(query)
	if err != nil {
		return err
	}
	settings, err := settingsOf(answer)
	if err != nil {
		return err
	}
	e.freshnessHeaders(answer, query.Consistency)
	return e.answerShape(settings)
}

// putSettings is PUT /v1/cluster/settings. No namespace remembers its answer: a
// repeat sets the same again.
func putSettings(e *exchange) error {
	body, err := e.body()
	if err != nil {
		return err
	}
	asked, refusal := apiv1.DecodeClusterSettings(body)
	if refusal != nil {
		return refusal
	}
	c := e.command(newIDs(1), apiv1.TargetContent("pulse.cluster.set", "", 0))
	c.Body = &pb.Command_SetCluster{SetCluster: &pb.SetCluster{
		EventRetentionMs: asked.EventRetentionMillis, IdempotencyKeysMax: uint64(asked.IdempotencyKeysMax),
	}}
	if _, err := e.submit(c); err != nil {
		return err
	}
	var settings ClusterSettings
	answer, err := e.follow(settingsQuery())
	if err == nil {
		settings, err = settingsOf(answer)
	}
	if err != nil {
		// It is done: no error may say that nothing has happened.
		return schema.Errorf(schema.ResultUnknown, "the settings were changed and could not be read then: %v", err)
	}
	return e.answerShape(settings)
}

func settingsQuery() *pb.Query {
	return &pb.Query{Body: &pb.Query_GetStats{GetStats: &pb.GetStats{}}}
}

// settingsOf are the settings in an answer. A server of an older version answers
// without them, and 0 would be a lie.
func settingsOf(answer *pb.Answer) (ClusterSettings, error) {
	s := answer.GetStats()
	if s.GetEventRetentionMs() == 0 {
		return ClusterSettings{}, schema.Errorf(schema.Unavailable, "the server that was asked runs an older version, which does not tell settings")
	}
	return ClusterSettings{EventRetentionMillis: s.GetEventRetentionMs(), IdempotencyKeysMax: Number(s.GetIdempotencyKeysMax())}, nil
}

// backup is GET /v1/cluster/backup: the whole state as one checked stream. A
// backup that fails on the way ends its connection, so that nobody takes what
// has arrived for the whole.
func backup(e *exchange) error {
	if e.h.opt.Cluster == nil {
		return schema.Errorf(schema.Conflict, "this process has no state to back up; ask a server of the cluster")
	}
	if e.h.backups.Add(1) > int64(e.h.opt.BackupsMax) {
		e.h.backups.Add(-1)
		return schema.Errorf(schema.Unavailable, "another backup is being made")
	}
	defer e.h.backups.Add(-1)
	// A cluster that has lost its quorum can still be backed up.
	copied := deed{action: "pulse.cluster.Backup"}
	e.recordAnyway(copied, deedAsked)
	gone, release := e.who.Watch()
	defer release()
	out := &backupWriter{exchange: e, gone: gone}
	err := e.h.opt.Cluster.Backup(e.r.Context(), out)
	switch {
	case err == nil:
		out.begin() // an empty stream is an answer too
		e.recordAnyway(copied, fmt.Sprintf("%s, %d bytes", deedDone, out.bytes))
	case out.begun:
		e.h.opt.Logger.Warn("backup broken off", "error", err)
		e.recordAnyway(copied, fmt.Sprintf("broken off after %d bytes", out.bytes))
	default:
		e.recordAnyway(copied, deedEnd(err))
	}
	return err
}

// backupWriter sends the headers with the first bytes, because an error before
// them can still be answered.
type backupWriter struct {
	*exchange
	begun bool
	bytes int64
	gone  <-chan struct{} // closed when the caller's token is no good any more
}

var _ io.Writer = (*backupWriter)(nil)

func (b *backupWriter) begin() {
	if b.begun {
		return
	}
	b.begun = true
	header := b.w.Header()
	header.Set("Content-Type", "application/octet-stream")
	header.Set("Content-Disposition", `attachment; filename="pulse.backup"`)
	b.commonHeaders(header)
	b.status = http.StatusOK
	b.w.WriteHeader(http.StatusOK)
}

func (b *backupWriter) Write(p []byte) (int, error) {
	select {
	case <-b.gone:
		return 0, schema.Errorf(schema.Unauthenticated, "the token of this request has been revoked or is over")
	default:
	}
	b.writeWithin(b.h.opt.WriteWithin)
	b.begin()
	n, err := b.w.Write(p)
	b.bytes += int64(n)
	return n, err
}

// debugNode is GET /v1/cluster/debug. A bundle is small enough to be made before
// anything is answered.
func debugNode(e *exchange) error {
	if e.h.opt.Cluster == nil {
		return noCluster()
	}
	if err := e.query.err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(e.r.Context(), e.h.opt.CallTimeout)
	defer cancel()
	var bundle bytes.Buffer
	if err := e.h.opt.Cluster.Debug(ctx, &bundle); err != nil {
		return err
	}
	e.w.Header().Set("Content-Disposition", `attachment; filename="pulse-debug.tar.gz"`)
	e.write(http.StatusOK, "application/gzip", bundle.Bytes())
	return nil
}

// listMembers is GET /v1/cluster/members.
func listMembers(e *exchange) error {
	if e.h.opt.Cluster == nil {
		return noCluster()
	}
	if err := e.query.err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(e.r.Context(), e.h.opt.CallTimeout)
	defer cancel()
	out := MemberList{Members: e.h.opt.Cluster.Members(ctx)}
	if out.Members == nil {
		out.Members = []MemberStatus{}
	}
	return e.answerShape(out)
}

// transferLeadership is POST /v1/cluster:transfer.
func transferLeadership(e *exchange) error {
	body, err := e.body()
	if err != nil {
		return err
	}
	asked, refusal := apiv1.DecodeTransfer(body)
	if refusal != nil {
		return refusal
	}
	if e.h.opt.Cluster == nil {
		return noCluster()
	}
	ctx, cancel := context.WithTimeout(e.r.Context(), e.h.opt.CallTimeout)
	defer cancel()
	moved := deed{action: "pulse.cluster.Transfer", target: asked.NodeID}
	if err := e.record(e.h.opt.CallTimeout, moved, deedAsked); err != nil {
		return err
	}
	leader, err := e.h.opt.Cluster.Transfer(ctx, asked.NodeID)
	if err != nil {
		err = e.callError(err)
		e.recordAnyway(moved, deedEnd(err))
		return err
	}
	e.recordAnyway(moved, deedDone+", "+leader+" leads")
	return e.answerShape(Transferred{LeaderID: leader})
}

// removeServer is POST /v1/cluster:remove.
func removeServer(e *exchange) error {
	body, err := e.body()
	if err != nil {
		return err
	}
	asked, refusal := apiv1.DecodeRemoval(body)
	if refusal != nil {
		return refusal
	}
	if e.h.opt.Cluster == nil {
		return noCluster()
	}
	ctx, cancel := context.WithTimeout(e.r.Context(), e.h.opt.CallTimeout)
	defer cancel()
	removed, how := deed{action: "pulse.cluster.Remove", target: asked.NodeID}, deedAsked
	if asked.Force {
		how += ", by force"
	}
	if err := e.record(e.h.opt.CallTimeout, removed, how); err != nil {
		return err
	}
	if err := e.h.opt.Cluster.Remove(ctx, asked.NodeID, asked.Force); err != nil {
		err = e.callError(err)
		e.recordAnyway(removed, deedEnd(err))
		return err
	}
	e.recordAnyway(removed, deedDone)
	return e.answerShape(Nothing{})
}

func noCluster() error {
	return schema.Errorf(schema.Conflict, "this process knows nothing of its cluster; ask a server of the cluster")
}

func (e *exchange) answerShape(shape any) error { return e.answerShapeAs(http.StatusOK, shape) }

func (e *exchange) answerShapeAs(status int, shape any) error {
	body, err := json.Marshal(shape)
	if err != nil {
		return fmt.Errorf("the answer cannot be encoded: %w", err)
	}
	return e.answer(status, body)
}

// healthz is GET /healthz: the process answers.
func healthz(e *exchange) error {
	return e.answer(http.StatusOK, []byte(`{"status":"ok"}`))
}

// readyz is GET /readyz: whether this node can serve, or why not.
func readyz(e *exchange) error {
	ready, reasons := true, []string(nil)
	if e.h.opt.Cluster != nil {
		ctx, cancel := context.WithTimeout(e.r.Context(), e.h.opt.CallTimeout)
		defer cancel()
		ready, reasons = e.h.opt.Cluster.Ready(ctx)
	}
	if e.h.isDraining() {
		ready, reasons = false, append(reasons, "the process is shutting down")
	}
	out, status := Readiness{Status: "ready", Reasons: reasons}, http.StatusOK
	if !ready {
		out.Status, status = "not_ready", http.StatusServiceUnavailable
		e.w.Header().Set("Retry-After", retryAfter)
	}
	body, err := json.Marshal(out)
	if err != nil {
		return fmt.Errorf("readiness cannot be encoded: %w", err)
	}
	return e.answer(status, body)
}

// metrics is GET /metrics.
func metrics(e *exchange) error {
	return e.pass(e.h.opt.Metrics)
}

// pass hands the request to another handler.
func (e *exchange) pass(to http.Handler) error { return e.passWithin(to, e.h.opt.WriteWithin) }

// passWithin is pass for what takes longer to answer.
func (e *exchange) passWithin(to http.Handler, within time.Duration) error {
	if to == nil {
		return schema.Errorf(schema.NotFound, "this process does not serve it")
	}
	e.commonHeaders(e.w.Header())
	e.writeWithin(within)
	w := &statusWriter{ResponseWriter: e.w, exchange: e}
	to.ServeHTTP(w, e.r)
	if e.status == 0 {
		e.status = http.StatusOK
	}
	return nil
}

// statusWriter notes the status another handler answers with.
type statusWriter struct {
	http.ResponseWriter
	exchange *exchange
}

func (s *statusWriter) WriteHeader(status int) {
	s.exchange.status = status
	s.ResponseWriter.WriteHeader(status)
}

func (s *statusWriter) Write(p []byte) (int, error) {
	if s.exchange.status == 0 {
		s.exchange.status = http.StatusOK
	}
	return s.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (s *statusWriter) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// openAPI is GET /openapi.json.
func openAPI(e *exchange) error {
	spec, err := e.h.spec()
	if err != nil {
		return err
	}
	return e.answer(http.StatusOK, spec.json)
}

// docs is GET /docs.
func docs(e *exchange) error {
	spec, err := e.h.spec()
	if err != nil {
		return err
	}
	header := e.w.Header()
	header.Set("Content-Security-Policy", pagePolicy)
	header.Set("Referrer-Policy", "no-referrer")
	e.write(http.StatusOK, "text/html; charset=utf-8", spec.page)
	return nil
}

// home is GET /: for people, the documentation.
func home(e *exchange) error {
	if !strings.Contains(e.r.Header.Get("Accept"), "text/html") {
		return e.answer(http.StatusOK, []byte(`{"name":"pulse","docs":"/docs","openapi":"/openapi.json"}`))
	}
	e.w.Header().Set("Location", "/docs")
	e.write(http.StatusFound, "text/plain; charset=utf-8", nil)
	return nil
}
