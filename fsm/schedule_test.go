package fsm

import (
	"fmt"
	"strings"
	"testing"

	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

func (s *story) schedule(name string) *pb.ScheduleRow {
	s.t.Helper()
	a := s.m.Query(&pb.Query{Namespace: DefaultName, Body: &pb.Query_GetSchedule{GetSchedule: &pb.GetSchedule{Name: name}}})
	if a.Code != "" {
		s.t.Fatalf("schedule %s: %s", name, a.Code)
	}
	return a.GetSchedule().Schedule
}

// Whoever gives a task by hand the business key of a run has not run it: what his task
// is for only he knows. The time is refused where everybody sees it, and not lost: a
// backfill brings it once the key is free, and says before what stands in its way.
func TestATaskByHandDoesNotStandForARun(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.say("put", &pb.Command{Namespace: DefaultName, Body: &pb.Command_PutSchedule{PutSchedule: &pb.PutSchedule{
		Name: "often", Payload: []byte("{}"), Spec: &pb.ScheduleSpec{
			EveryMs: 10_000, Overlap: pb.Overlap_OVERLAP_ALLOW, CatchUpMs: 3_600_000,
			Task: &pb.TaskTemplate{Queue: DefaultName, Handler: "h", HandlerVersion: "1", PayloadVersion: "1"},
		},
	}}}).apply()
	row := s.schedule("often")
	taken, next := row.NextUs, row.NextUs+10_000_000
	s.submit("by hand", func(c *pb.SubmitTask) { c.BusinessKey = nominalKey(row.Id, taken) }).apply()
	s.wait(21_000)

	row = s.schedule("often")
	if row.Refused != 1 || row.Fired != 1 || row.Skipped != 0 || len(row.Recent) != 2 {
		t.Fatalf("after both times: %v", row)
	}
	refused, fired := row.Recent[0], row.Recent[1]
	if refused.NominalUs != taken || refused.Outcome != pb.FireOutcome_FIRE_OUTCOME_REFUSED || refused.Code != string(schema.Conflict) ||
		!strings.Contains(refused.Message, fmt.Sprintf("%x, which was submitted by hand", s.id("T1"))) {
		t.Errorf("the time whose key was taken: %v", refused)
	}
	if fired.NominalUs != next || fired.Outcome != pb.FireOutcome_FIRE_OUTCOME_FIRED {
		t.Errorf("the time after it: %v", fired)
	}
	if len(s.task("T1").Task.ScheduleId) != 0 {
		t.Error("the task by hand is a run of the schedule now")
	}

	// What a backfill would do is what it does.
	would := s.m.Query(&pb.Query{Namespace: DefaultName, Body: &pb.Query_PreviewBackfill{PreviewBackfill: &pb.PreviewBackfill{
		Name: "often", FromUs: taken, UntilUs: next + 1,
	}}}).GetBackfill()
	did := s.say("backfill", &pb.Command{Namespace: DefaultName, Body: &pb.Command_BackfillSchedule{BackfillSchedule: &pb.BackfillSchedule{
		Name: "often", FromUs: taken, UntilUs: next + 1,
	}}}).apply()[0].GetBackfill()
	for what, items := range map[string][]*pb.BackfillItem{"would": would.GetItems(), "did": did.GetItems()} {
		if len(items) != 2 || items[0].Code != string(schema.Conflict) || items[0].Existed || len(items[0].TaskId) != 0 || !items[1].Existed {
			t.Errorf("a backfill %s: %v", what, items)
		}
	}
}
