package pulsetest_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"pulse/schema"
	"pulse/sdk"
	"pulse/sdk/pulsetest"
)

// A schedule of every second runs its task under a worker, each time once.
func TestASchedulesTimesRunOnceEach(t *testing.T) {
	t.Parallel()
	pulse := pulsetest.Start(t)
	c, ctx := pulse.Client(), patience(t)
	ran := make(chan *sdk.Task, 100)
	w := pulse.Worker(sdk.WorkerOptions{Capacity: 4})
	w.Handle("tick", "1", "1", func(_ context.Context, task *sdk.Task) (any, error) {
		ran <- task
		return nil, nil
	})
	pulse.Run(w)
	s, err := c.PutSchedule(ctx, "tick", sdk.ScheduleSpec{
		Every: time.Second, Overlap: sdk.OverlapAllow, MaxFires: 3, Task: sdk.TaskSpec{Handler: "tick", Payload: map[string]int{"n": 1}},
	})
	if err != nil || s.State != "active" || s.NextAt.IsZero() || s.Revision != 1 || string(s.Task.Payload) != `{"n":1}` {
		t.Fatalf("%+v, %v", s, err)
	}
	seen := map[string]bool{}
	for range 3 {
		task := <-ran
		if seen[task.BusinessKey] || !strings.HasPrefix(task.BusinessKey, "schedule:"+s.ID+":") {
			t.Errorf("business key %q", task.BusinessKey)
		}
		seen[task.BusinessKey] = true
		info, err := c.Get(ctx, task.ID)
		if err != nil || info.Scheduled == nil || info.Scheduled.Schedule != "tick" || info.Scheduled.NominalAt.Nanosecond() != 0 {
			t.Errorf("%+v, %v", info, err)
		}
	}
	s, err = c.Schedule(ctx, "tick", 5)
	if err != nil || s.State != "ended" || s.Fired != 3 || len(s.Recent) != 3 || s.Recent[0].Outcome != "fired" || len(s.Upcoming) != 0 {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestTheCallsAboutSchedules(t *testing.T) {
	t.Parallel()
	pulse := pulsetest.Start(t)
	c, ctx := pulse.Client(), patience(t)
	spec := sdk.ScheduleSpec{Cron: "0 2 * * *", TimeZone: "Europe/Berlin", Task: sdk.TaskSpec{Handler: "report"}}
	if times, err := c.PreviewSchedule(ctx, spec, 3); err != nil || len(times) != 3 || !times[0].After(time.Now()) {
		t.Errorf("preview: %v, %v", times, err)
	}
	s, err := c.PutSchedule(ctx, "nightly", spec)
	if err != nil || s.Overlap != sdk.OverlapSkip || s.CatchUpWindowMillis != 3_600_000 {
		t.Fatalf("%+v, %v", s, err)
	}
	if _, err := c.PutSchedule(ctx, "nightly", spec, sdk.WithExpectedRevision(7)); !errors.Is(err, schema.RevisionConflict) {
		t.Errorf("put at another revision: %v", err)
	}
	task, err := c.TriggerSchedule(ctx, "nightly", false, sdk.WithNote("now"))
	if err != nil || task.Scheduled == nil || !strings.HasPrefix(task.BusinessKey, "trigger:"+s.ID) {
		t.Fatalf("%+v, %v", task, err)
	}
	if _, err := c.TriggerSchedule(ctx, "nightly", false); !errors.Is(err, schema.Conflict) {
		t.Errorf("a second run at a time: %v", err)
	}
	if _, err := c.TriggerSchedule(ctx, "nightly", true); err != nil {
		t.Error(err)
	}
	until := time.Now().Add(-time.Minute)
	from := until.Add(-72 * time.Hour)
	dry, err := c.BackfillSchedule(ctx, "nightly", from, until, true)
	if err != nil || dry.Times != 3 || dry.Missing != 3 || dry.Submitted != 0 || !dry.DryRun {
		t.Errorf("%+v, %v", dry, err)
	}
	done, err := c.BackfillSchedule(ctx, "nightly", from, until, false)
	if err != nil || done.Missing != 3 || done.Submitted != 3 || done.Results[0].TaskID == "" {
		t.Errorf("%+v, %v", done, err)
	}
	if again, err := c.BackfillSchedule(ctx, "nightly", from, until, false); err != nil || again.Submitted != 0 || !again.Results[2].Existed {
		t.Errorf("again: %+v, %v", again, err)
	}
	if s, err = c.PauseSchedule(ctx, "nightly"); err != nil || s.State != "paused" || !s.NextAt.IsZero() {
		t.Errorf("%+v, %v", s, err)
	}
	if s, err = c.ResumeSchedule(ctx, "nightly"); err != nil || s.State != "active" || s.Ordered != 5 || s.OpenTasks != 5 {
		t.Errorf("%+v, %v", s, err)
	}
	n := 0
	for s, err := range c.Schedules(ctx) {
		if err != nil || s.Name != "nightly" {
			t.Errorf("%+v, %v", s, err)
		}
		n++
	}
	if n != 1 {
		t.Errorf("%d schedules", n)
	}
	if err := c.DeleteQueue(ctx, "default"); !errors.Is(err, schema.Conflict) {
		t.Errorf("the queue of a schedule is deleted: %v", err)
	}
	if err := c.DeleteSchedule(ctx, "nightly"); err != nil {
		t.Error(err)
	}
	if _, err := c.Schedule(ctx, "nightly", 0); !errors.Is(err, schema.NotFound) {
		t.Errorf("deleted: %v", err)
	}
	_, err = c.PutSchedule(ctx, "never", sdk.ScheduleSpec{Cron: "0 25 30 2 *", TimeZone: "Mars/Olympus", Task: sdk.TaskSpec{Handler: "x"}})
	var refused *sdk.Error
	if !errors.As(err, &refused) || len(refused.Violations) != 2 || !strings.Contains(refused.Violations[0].Message, `the hour is "25"`) {
		t.Errorf("%v", err)
	}
	if _, err = c.PutSchedule(ctx, "never", sdk.ScheduleSpec{Cron: "0 0 30 2 *", Task: sdk.TaskSpec{Handler: "x"}}); !errors.As(err, &refused) ||
		len(refused.Violations) != 1 || refused.Violations[0].Path != "/cron" {
		t.Errorf("%v", err)
	}
}
