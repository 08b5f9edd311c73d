package node

import (
	"testing"
	"time"

	pb "pulse/proto/pulse/v1"
	"pulse/schema/access"
	"pulse/schema/cron"
	"pulse/sdk"
)

// A schedule was set through a node of an older version, whose rules were others. The
// next leader brings its own, and the time to come is found anew.
func TestALeaderBringsNewerRulesOfTimeZones(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	first := startNode(t, cfg)
	id := access.NewToken().ID
	f, fault := cron.Parse("0 12 * * *")
	if fault != "" {
		t.Fatal(fault)
	}
	old := &pb.ZoneRow{Name: "Asia/Kathmandu", Release: "2019a", FromS: []int64{0}, OffsetS: []int32{5 * 3600}}
	results, err := first.router.Submit(soon(t), []*pb.Command{{
		Id: id[:], Namespace: "default", Caller: &pb.Caller{Principal: "anonymous"},
		Body: &pb.Command_PutSchedule{PutSchedule: &pb.PutSchedule{
			Name: "noon", Payload: []byte("{}"), Zone: old,
			Spec: &pb.ScheduleSpec{
				Cron: "0 12 * * *", TimeZone: "Asia/Kathmandu",
				Fields: &pb.CronFields{
					Seconds: f.Seconds, Minutes: f.Minutes, Hours: f.Hours, Days: f.Days, Months: f.Months, Weekdays: f.Weekdays,
					AnyDay: f.AnyDay, AnyWeekday: f.AnyWeekday,
				}, Overlap: pb.Overlap_OVERLAP_SKIP, CatchUpMs: 3_600_000,
				Task: &pb.TaskTemplate{Queue: "default", Handler: "h", HandlerVersion: "1", PayloadVersion: "1", RecoverySafety: pb.RecoverySafety_RECOVERY_SAFETY_IDEMPOTENT},
			},
		}},
	}})
	if err != nil || results[0].Code != "" {
		t.Fatalf("%v %v", results, err)
	}
	minute := func(n *Node) int {
		s, err := clientWith(n, "").Schedule(soon(t), "noon", 1)
		if err != nil {
			t.Fatal(err)
		}
		return s.NextAt.UTC().Minute()
	}
	if got := minute(first); got != 0 {
		t.Fatalf("by the old rules it is noon at minute %d", got)
	}
	if err := first.Close(soon(t)); err != nil {
		t.Fatal(err)
	}
	next := startNode(t, cfg)
	eventually(t, "noon is at a quarter past, UTC", func() bool { return minute(next) == 15 })
	if left := next.machine.ZonesBefore("9999z"); len(left) != 1 {
		t.Errorf("zones %v", left)
	}
	for change, err := range clientWith(next, "").Audit(soon(t), sdk.AuditFilter{Action: "pulse.cluster.PutZones"}) {
		if err != nil || change.Principal != "node/"+next.ID() || time.Since(change.At) > time.Hour {
			t.Errorf("on record: %+v %v", change, err)
		}
	}
}
