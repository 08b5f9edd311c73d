package cluster

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"pulse/sdk"
)

// TestSchedulesOverElections: every time of a schedule is dealt with once, while
// the leader is killed every 20 s, PULSE_CHAOS_SCHEDULES seconds long.
func TestSchedulesOverElections(t *testing.T) {
	onRequest(t)
	c := startTrio(t)
	quiet := slog.New(slog.DiscardHandler)
	var urls []string
	for _, addr := range c.addrs() {
		urls = append(urls, "http://"+addr)
	}
	client := sdk.NewClient(sdk.ClientOptions{Addrs: urls, Logger: quiet})
	schedules := []struct {
		name string
		spec sdk.ScheduleSpec
		step time.Duration
	}{
		{"each-second", sdk.ScheduleSpec{Cron: "* * * * * *", Overlap: sdk.OverlapAllow}, time.Second},
		{"each-two-seconds", sdk.ScheduleSpec{Every: 2 * time.Second, Overlap: sdk.OverlapSkip}, 2 * time.Second},
		{"each-three-seconds", sdk.ScheduleSpec{Cron: "*/3 * * * * *", TimeZone: "Europe/Berlin", Overlap: sdk.OverlapBufferOne}, 3 * time.Second},
		{"each-minute", sdk.ScheduleSpec{Cron: "* * * * *", Overlap: sdk.OverlapAllow}, time.Minute},
	}
	var mu sync.Mutex
	ran := map[string]int{} // by task
	worker := sdk.NewWorker(sdk.WorkerOptions{Addrs: urls, Logger: quiet, Capacity: 64})
	for _, s := range schedules {
		worker.Handle(s.name, "1", "1", func(_ context.Context, task *sdk.Task) (any, error) {
			mu.Lock()
			defer mu.Unlock()
			ran[task.ID]++
			return nil, nil
		})
	}
	stop := background(t, func(ctx context.Context) {
		if err := worker.Run(ctx); err != nil {
			t.Errorf("the worker: %v", err)
		}
	})
	for _, s := range schedules {
		s.spec.Task = sdk.TaskSpec{Handler: s.name}
		if _, err := client.PutSchedule(t.Context(), s.name, s.spec); err != nil {
			t.Fatalf("schedule %s: %v", s.name, err)
		}
	}

	kills := 0
	length := time.Duration(number("PULSE_CHAOS_SCHEDULES", 600)) * time.Second
	for began := time.Now(); time.Since(began) < length; kills++ {
		pause(20 * time.Second)
		leader := c.leader(30 * time.Second)
		leader.kill()
		c.leader(30*time.Second, leader)
		leader.start()
		leader.ready(60 * time.Second)
	}

	for _, s := range schedules {
		if _, err := client.PauseSchedule(t.Context(), s.name); err != nil {
			t.Fatalf("schedule %s: %v", s.name, err)
		}
		at, err := client.Schedule(t.Context(), s.name, 0)
		if err != nil {
			t.Fatal(err)
		}
		var nominal []time.Time
		for task, err := range client.List(t.Context(), sdk.TaskFilter{Handler: s.name}) {
			if err != nil {
				t.Fatal(err)
			}
			nominal = append(nominal, task.Scheduled.NominalAt)
			if task, err = client.Wait(t.Context(), task.ID); err != nil || task.State != sdk.StateSucceeded {
				t.Errorf("%s of %s: %+v, %v", s.name, nominal[len(nominal)-1], task, err)
			}
		}
		slices.SortFunc(nominal, time.Time.Compare)
		for i, when := range nominal[1:] {
			if gap := when.Sub(nominal[i]); gap <= 0 || gap%s.step != 0 || gap != s.step && s.spec.Overlap == sdk.OverlapAllow {
				t.Errorf("%s: %s comes after %s", s.name, when, nominal[i])
			}
		}
		times := uint64(at.LastAt.Sub(nominal[0])/s.step) + 1
		if at.Fired != uint64(len(nominal)) || at.Fired+at.Skipped != times || at.Missed+at.Refused != 0 {
			t.Errorf("%s: %d tasks for %d times to %s: %d fired, %d skipped, %d missed, %d refused",
				s.name, len(nominal), times, at.LastAt, at.Fired, at.Skipped, at.Missed, at.Refused)
		}
		if at.Skipped > 0 && s.spec.Overlap == sdk.OverlapAllow {
			t.Errorf("%s: %d times were skipped", s.name, at.Skipped)
		}
		t.Logf("MEASURED: %s: %d times, %d fired, %d skipped because a run was not over", s.name, times, at.Fired, at.Skipped)
	}
	stop()
	proved(t, "schedules over %d kills of the leader: every time was dealt with once, %d tasks ran", kills, len(ran))
}
