package console

import (
	"context"
	"encoding/json"
	"errors"

	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"pulse/sdk"
)

// hostile tries to become markup wherever it is shown.
const hostile = `{"big":12345678901234567890.10,"html":"</pre><script>window.pwned=1</script><img src=x onerror='window.pwned=1'>"}`

func (d *desk) queue(name string, settings sdk.QueueSettings) {
	d.t.Helper()
	if _, err := d.c.PutQueue(d.t.Context(), name, settings); err != nil {
		d.t.Fatal(err)
	}
}

// review makes a task whose outcome nobody can know.
func (d *desk) uncertain(key string) *sdk.TaskInfo {
	d.t.Helper()
	task := d.submit(sdk.TaskSpec{Handler: "charge", RecoverySafety: sdk.ReconcileOnly, BusinessKey: key, ConcurrencyKey: key, Payload: json.RawMessage(hostile)})
	task, err := d.c.Wait(d.t.Context(), task.ID)
	if err != nil || task.State != sdk.StateNeedsReview {
		d.t.Fatalf("%+v, %v", task, err)
	}
	return task
}

func (d *desk) charge() {
	d.node.Handle("charge", "1", "1", func(context.Context, *sdk.Task) (any, error) {
		return nil, sdk.Unknown(errors.New("the bank did not answer"))
	})
}

// notPwned fails if something that was sent has run.
func (d *desk) notPwned() {
	d.t.Helper()
	var ran bool
	d.do(chromedp.Evaluate(`typeof window.pwned !== "undefined"`, &ran))
	if ran {
		d.t.Error("a payload was run as a script")
	}
}

func TestTheOverviewSaysWhatIsWrong(t *testing.T) {
	d := sit(t)
	d.open("/")
	d.at("/console/ns/default/")
	d.sees("Healthy", "nothing waits")
	d.looks("light", 1440)
	d.shoot("overview-empty")

	d.submit(sdk.TaskSpec{Handler: "nobody"})
	d.queue("reports", sdk.QueueSettings{Paused: true})
	d.submit(sdk.TaskSpec{Queue: "reports", Handler: "monthly"})
	// It comes by itself: the page refreshes.
	d.sees("Something is wrong", "1 task waits in queue default that no worker can run", "Queue reports is paused")
	d.shoot("overview-wrong")
	d.click("a", "Show them")
	d.at("/console/ns/default/tasks")
	d.sees("no capable worker", "nobody")

	// Charts are drawn, and in the other theme too.
	d.open("")
	d.do(chromedp.WaitVisible(".plot canvas"))
	d.looks("dark", 1440)
	d.shoot("overview-dark")
	d.looks("dark", 400)
	d.until(`document.documentElement.scrollWidth <= innerWidth`)
	d.shoot("overview-narrow")
}

func TestTasksAreFoundCancelledAndRetried(t *testing.T) {
	d := sit(t)
	for i := range 3 {
		d.submit(sdk.TaskSpec{Handler: "resize", Payload: map[string]int{"image": i}, RecoverySafety: sdk.ReconcileOnly})
	}
	keyed := d.submit(sdk.TaskSpec{Handler: "other", BusinessKey: "image/7 <b>"})

	d.open("tasks")
	d.set(`[name=handler]`, "resize")
	d.do(chromedp.Submit(`[name=handler]`))
	d.until(`location.search.includes("handler=resize") && document.querySelectorAll("tbody tr").length === 3`)

	// All that match: it counts first.
	d.click("a", "Cancel…")
	d.at("/console/ns/default/bulk")
	d.sees("Cancel 3 tasks?", "3")
	d.shoot("bulk")
	d.do(chromedp.SendKeys(`[name=note]`, "wrong size"))
	d.click("button", "Cancel 3 tasks")
	d.sees("Cancelled 3 of 3 tasks")
	if got := d.read(keyed.ID).State; got != sdk.StateWaiting {
		t.Errorf("a task that did not match is %s", got)
	}

	// The selected ones, by keys alone: j, x, then the button.
	d.open("tasks?state=CANCELLED")
	d.keys("j", "x")
	d.sees("1 selected")
	d.click("button", "Retry…")
	d.sees("Retry 1 task?", "Reconcile only among them: 1; none of these was done.")
	d.click("button", "Retry 1 task")
	d.sees("Retried 1 of 1 task")

	// By its business key, from anywhere.
	d.keys("/")
	d.until(`document.activeElement.name === "find"`)
	d.set(`[name=find]`, "image/7 <b>")
	d.do(chromedp.SendKeys(`[name=find]`, kb.Enter))
	d.at("/console/ns/default/tasks/" + keyed.ID)
	d.sees("image/7 <b>", "why it is waiting")

	// g t goes to the list.
	d.do(chromedp.Evaluate(`document.activeElement.blur()`, nil))
	d.keys("g", "t")
	d.at("/console/ns/default/tasks")
	// A filter that cannot be is said and can be put right.
	d.open("tasks?error_code=" + escaped("no code"))
	d.sees("is not an error code")
}

func TestATaskTellsItsStory(t *testing.T) {
	d := sit(t)
	task := d.submit(sdk.TaskSpec{Handler: "echo", Payload: json.RawMessage(hostile)})
	d.open("tasks/" + task.ID)
	d.sees("No worker is connected to queue default")
	d.shoot("task-waiting")
	d.node.Handle("echo", "1", "1", func(_ context.Context, t *sdk.Task) (any, error) { return t.Payload(), nil })
	d.sees("It is done", "Attempt 1", "ran for")
	d.click("summary", "Receipts and times")
	d.sees("finish", "index")
	for _, part := range []string{"#payload", "#result"} {
		if got := d.text(part); !strings.Contains(got, "12345678901234567890.10") || !strings.Contains(got, "<script>window.pwned=1</script>") {
			t.Errorf("%s shows %s", part, got)
		}
	}
	d.notPwned()
	d.shoot("task-done")
	var cli string
	d.do(chromedp.Evaluate(`[...document.querySelectorAll("[data-copy]")].map((b) => b.dataset.copy).join("\n")`, &cli))
	if !strings.Contains(cli, "pulse task get "+task.ID) || !strings.Contains(cli, "12345678901234567890.10") || !strings.Contains(cli, "curl -sS "+d.url) {
		t.Errorf("to copy:\n%s", cli)
	}

	d.click("summary", "Retry…")
	d.click("button", "Submit it once more")
	d.sees("This is the new task", "Retry of")

	sleeper := d.submit(sdk.TaskSpec{Handler: "echo", Delay: time.Hour})
	d.open("tasks/" + sleeper.ID)
	d.sees("submitted with a delay")
	now := d.submit(sdk.TaskSpec{Handler: "echo", Delay: time.Hour})
	d.open("tasks/" + now.ID)
	d.click("button", "Run now")
	d.sees("It waits for its time no longer", "succeeded")
	d.open("tasks/" + sleeper.ID)
	d.click("summary", "Cancel…")
	d.do(chromedp.SendKeys(`details[open] [name=note]`, "not needed"))
	d.click("button", "Cancel the task")
	d.sees("It is cancelled", "not needed")
	if got := d.read(sleeper.ID).State; got != sdk.StateCancelled {
		t.Errorf("it is %s", got)
	}
}

func TestReviewsAreDecided(t *testing.T) {
	d := sit(t)
	d.charge()
	one, two, three := d.uncertain("order/1"), d.uncertain("order/2"), d.uncertain("order/3")
	waits := d.submit(sdk.TaskSpec{Handler: "charge", ConcurrencyKey: "order/3"})
	d.open("tasks/" + waits.ID)
	d.sees("is held by a task that needs a review")
	d.open("review")
	d.sees("the worker could not tell how it ended", "order/1", "holds key order/1", "12345678901234567890.10")
	d.notPwned()
	d.looks("light", 1440)
	d.shoot("review")

	// One, with a result whose digits stay.
	d.open("review?id=" + one.ID)
	d.do(chromedp.Click(`[name=decision][value=SUCCEEDED]`), chromedp.SendKeys(`.decide [name=note]`, "line 1 of the ledger"),
		chromedp.SendKeys(`[name=result]`, `{"booked": 12.50, "ref": 12345678901234567890}`))
	d.click("button", "Decide")
	d.sees("is succeeded")
	if task := d.read(one.ID); task.State != sdk.StateSucceeded || string(task.Result) != `{"booked": 12.50, "ref": 12345678901234567890}` {
		t.Errorf("%s %s", task.State, task.Result)
	}

	// Two at once.
	d.open("review")
	d.do(chromedp.Evaluate(`document.querySelectorAll("[name=id]").forEach((b) => b.click())`, nil))
	d.click("summary", "Decide for the selected 2")
	d.do(chromedp.Click(`#many [value=FAILED]`), chromedp.SendKeys(`#many [name=error_code]`, "not_booked"), chromedp.SendKeys(`#many [name=note]`, "nothing in the ledger"))
	d.click("button", "Decide for the selected")
	d.sees("2 tasks settled", "Nothing asks for a decision")
	for _, id := range []string{two.ID, three.ID} {
		if task := d.read(id); task.State != sdk.StateFailed || task.ErrorCode != "not_booked" {
			t.Errorf("%s %s", task.State, task.ErrorCode)
		}
	}
}

func TestWorkersKeysQueuesAndTheClusterAreLookedAfter(t *testing.T) {
	d := sit(t)
	d.charge()
	held := d.uncertain("account/<7>")

	d.open("workers")
	d.sees("connected", "charge 1", "0 of")
	d.shoot("workers")
	d.do(chromedp.Click(`tbody td a.id`))
	d.sees("Leases it holds", "Last frame")
	d.click("summary", "Drain…")
	d.click("button", "Drain the worker")
	d.sees("gets no new task", "draining")

	d.open("keys")
	d.sees("account/<7>", "needs review")
	d.click("a", "account/<7>")
	d.sees("kept for a review", "holder")
	d.shoot("key")
	d.click("summary", "Free…")
	d.do(chromedp.SendKeys(`details[open] [name=note]`, "the account is closed"))
	d.click("button", "Free the key")
	d.sees("The key is free")
	if key, err := d.c.Key(t.Context(), "account/<7>"); err != nil || key.HolderTaskID != "" {
		t.Errorf("%+v, %v", key, err)
	}
	if got := d.read(held.ID).State; got != sdk.StateNeedsReview {
		t.Errorf("its holder is %s", got)
	}

	d.open("queues")
	d.click("button", "Pause")
	d.sees("is paused", "Resume")
	d.click("button", "Resume")
	d.sees("queue default goes on")
	d.open("queues/default")
	d.set(`[name=max_active]`, "7")
	d.set(`[name=lease_duration_ms]`, "45s")
	d.click("button", "Save")
	d.sees("The settings are in force")
	if q, err := d.c.Queue(t.Context(), "default"); err != nil || q.MaxActive != 7 || q.LeaseDurationMillis != 45_000 || q.MaxWaiting != 1_000_000 {
		t.Errorf("%+v, %v", q, err)
	}
	d.set(`[name=lease_duration_ms]`, "a while")
	d.click("button", "Save")
	d.sees("A setting could not be read", "a duration with its unit")
	d.shoot("error")

	if _, err := d.c.PutSchedule(t.Context(), "nightly", sdk.ScheduleSpec{Cron: "0 2 * * *", TimeZone: "Europe/Berlin", Task: sdk.TaskSpec{Handler: "report"}}); err != nil {
		t.Fatal(err)
	}
	d.open("schedules")
	d.sees("0 2 * * * Europe/Berlin")
	d.click("a", "New schedule…")
	d.set(`[name=name]`, "leap")
	d.set(`[name=cron]`, "30 2 29 2")
	d.set(`[name=time_zone]`, "Asia/Kathmandu")
	d.set(`[name=handler]`, "report")
	d.set(`[name=payload]`, `{"of":2.50}`)
	d.click("button", "Save")
	d.sees("fields") // a cron text of four: nothing that was written is lost
	d.set(`[name=cron]`, "30 2 29 2 *")
	d.click("button", "Show the next times")
	d.sees("It would run at 2028-02-28 20:45:00")
	d.click("button", "Save")
	d.sees("Schedule leap is set", "30 2 29 2 * Asia/Kathmandu")
	d.click("a", "Edit…")
	d.set(`[name=jitter_ms]`, "5m")
	d.do(chromedp.SendKeys(`[name=why]`, "not all at once"))
	d.shoot("schedule-form")
	d.click("button", "Save")
	d.sees("Schedule leap is set", "5m")
	if s, err := d.c.Schedule(t.Context(), "leap", 1); err != nil || s.Revision != 2 || s.JitterMillis != 300_000 || string(s.Task.Payload) != `{"of":2.50}` || s.Task.Handler != "report" {
		t.Errorf("%+v, %v", s, err)
	}
	if err := d.c.DeleteSchedule(t.Context(), "leap"); err != nil {
		t.Fatal(err)
	}
	d.open("schedules")
	d.click("button", "Pause")
	d.sees("is paused", "Resume")
	d.click("button", "Resume")
	d.sees("goes on from now")
	d.click("a", "nightly")
	d.sees("No time has come yet", "Next times")
	d.click("summary", "Run now…")
	d.do(chromedp.SendKeys(`details[open] [name=note]`, "a first try"))
	d.click("button", "Submit the task")
	d.sees("is submitted", "triggered")
	d.shoot("schedule")
	d.click("summary", "Backfill…")
	d.set(`details[open] [name=from]`, "2026-01-01T00:00:00Z")
	d.set(`details[open] [name=until]`, "2026-01-04T00:00:00Z")
	d.click("button", "Go")
	d.sees("3 times in the range, 3 without a task. Nothing was done.")
	d.click("summary", "Delete…")
	d.click("button", "Delete the schedule")
	d.sees("is deleted. Its tasks stay.", "has no schedule")

	d.open("/console/cluster")
	d.sees("leads in term", "This node", "Namespaces")
	d.shoot("cluster")
	d.click("summary", "Transfer leadership…")
	d.click("button", "Transfer")
	d.sees("was not handed over") // it is alone

	d.open("/console/ns/nowhere/")
	d.sees("no such namespace")
}

func TestPagesSayWhenTheNodeIsGoneAndComeBack(t *testing.T) {
	d := sit(t)
	d.open("tasks")
	d.sees("There is no task")
	d.nodeIsAway(true)
	d.node.Restart()
	d.submit(sdk.TaskSpec{Handler: "after", BusinessKey: "the restart"})
	d.until(`document.querySelector(".list") && document.querySelector(".lost").hidden`)
	d.nodeIsAway(false)
	d.sees("the restart")
	// Paused, nothing changes; going on catches up.
	d.keys("p")
	d.sees("Paused")
	d.submit(sdk.TaskSpec{Handler: "later", BusinessKey: "the pause"})
	d.keys("p")
	d.sees("the pause")
	d.keys("?")
	d.until(`document.querySelector("#help").open`)
}
