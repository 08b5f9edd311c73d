package model

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	pb "pulse/proto/pulse/v1"
)

// firesTold is how many of its last times a schedule's row tells.
const firesTold = 10

// Unlike says in what a row differs from the schedule, or "". Its payload is
// elsewhere.
func (c *Schedule) Unlike(row *pb.ScheduleRow) string {
	is := fmt.Sprint(row.Name, row.Revision, row.Paused, row.LastUs, row.NextUs, row.BufferedUs, row.ReleaseAtUs,
		row.Fired, row.Ordered, row.Skipped, row.Missed, row.Refused)
	want := fmt.Sprint(c.Name, c.Revision, c.Paused, c.Last, c.Next, c.Buffered, c.Release, c.Fired, c.Ordered, c.Skipped, c.Missed, c.Refused)
	if is != want {
		return fmt.Sprintf("schedule %x: %s, the model has %s", row.Id, is, want)
	}
	spec := proto.CloneOf(row.Spec)
	spec.Task.PayloadDigest, spec.Task.PayloadBytes = nil, 0
	if !proto.Equal(spec, c.Spec) {
		return fmt.Sprintf("schedule %s is set to %v, put was %v", c.Name, spec, c.Spec)
	}
	told := c.Recent[max(0, len(c.Recent)-firesTold):]
	if len(row.Recent) != len(told) {
		return fmt.Sprintf("schedule %s tells %d of its last times, the model %d", c.Name, len(row.Recent), len(told))
	}
	for i, f := range row.Recent {
		want := told[i]
		var task ID
		if want.Task != nil {
			task = want.Task.ID
		}
		if f.NominalUs != want.Nominal || f.Outcome != want.Outcome || f.Code != want.Code || f.Times != want.Times || f.UntilUs != want.Until ||
			toID(f.TaskId) != task {
			return fmt.Sprintf("schedule %s: of its last times %v, the model %+v (task %x)", c.Name, f, want, task)
		}
	}
	return ""
}
