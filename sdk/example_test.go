package sdk_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"pulse/schema"
	"pulse/sdk"
)

func ExampleWorker() {
	w := sdk.NewWorker(sdk.WorkerOptions{
		Addrs:    []string{"http://10.0.0.1:7400", "http://10.0.0.2:7400", "http://10.0.0.3:7400"},
		Queue:    "mail",
		Capacity: 32,
		Token:    os.Getenv("PULSE_TOKEN"),
	})
	w.Handle("send", "1", "1", func(ctx context.Context, t *sdk.Task) (any, error) {
		var mail struct{ To, Text string }
		if err := t.Unmarshal(&mail); err != nil {
			return nil, sdk.Failed("bad_payload", err) // no other try would read it
		}
		return nil, send(ctx, mail.To, mail.Text) // a plain error is tried again
	})
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := w.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

// A payment must not be made twice, so its task is ReconcileOnly and its handler
// says exactly what it knows.
func ExampleUnknown() {
	w := sdk.NewWorker(sdk.WorkerOptions{Queue: "payments"})
	w.Handle("charge", "1", "1", func(ctx context.Context, t *sdk.Task) (any, error) {
		receipt, err := charge(ctx, t.ID, t.FencingToken())
		switch {
		case errors.Is(err, errDeclined):
			return nil, sdk.Failed("declined", err) // certainly not charged
		case err != nil:
			return nil, sdk.Unknown(err) // perhaps charged: a person looks into it
		}
		return receipt, nil
	})
}

func ExampleHandler_cancellation() {
	_ = sdk.Handler(func(ctx context.Context, t *sdk.Task) (any, error) {
		for page := range 100 {
			if err := render(ctx, page); err == nil {
				continue
			}
			if context.Cause(ctx) == sdk.ErrCancelRequested {
				removePages()
				return nil, sdk.Cancelled() // nothing remains
			}
			return nil, ctx.Err()
		}
		return nil, nil
	})
}

func ExampleClient_Submit() {
	c := sdk.NewClient(sdk.ClientOptions{Addr: "http://127.0.0.1:7400"})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	task, err := c.Submit(ctx, sdk.TaskSpec{
		Queue:          "payments",
		Handler:        "charge",
		Payload:        map[string]any{"order": 4711, "amount": "12.50"},
		BusinessKey:    "order/4711", // a second submission finds this task
		ConcurrencyKey: "account/1",  // one at a time
		RecoverySafety: sdk.ReconcileOnly,
		Retry:          sdk.Retry{MaxAttempts: 3, AttemptTimeout: time.Minute},
	})
	switch {
	case errors.Is(err, schema.Conflict):
		log.Print("the order was submitted before with another amount: ", err)
	case errors.Is(err, schema.ResultUnknown):
		log.Print("perhaps submitted; submit again to find out: ", err)
	case err != nil:
		log.Fatal(err)
	default:
		fmt.Println(task.ID, task.Duplicate)
	}
}

func ExampleClient_Wait() {
	c := sdk.NewClient(sdk.ClientOptions{})
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	task, err := c.Wait(ctx, "0199f3c2a1b87d4e9a0b1c2d3e4f5061")
	if err != nil {
		log.Fatal(err)
	}
	switch task.State {
	case sdk.StateSucceeded:
		var receipt struct{ Number string }
		if err := task.UnmarshalResult(&receipt); err != nil {
			log.Fatal(err)
		}
		fmt.Println(receipt.Number)
	case sdk.StateNeedsReview:
		fmt.Println("somebody has to look into it")
	default:
		fmt.Println(task.State, task.ErrorCode)
	}
}

func ExampleClient_SubmitBatch() {
	c := sdk.NewClient(sdk.ClientOptions{})
	specs := make([]sdk.TaskSpec, 5000)
	for i := range specs {
		specs[i] = sdk.TaskSpec{Handler: "resize", Payload: map[string]int{"image": i}}
	}
	// With a key of your own the batch can be submitted again by another process.
	items, err := c.SubmitBatch(context.Background(), "images", specs, sdk.WithIdempotencyKey("import 2026-02-01"))
	for i, item := range items {
		if item.Err != nil {
			log.Printf("image %d: %v", i, item.Err)
		}
	}
	if err != nil {
		log.Fatal(err)
	}
}

func ExampleClient_List() {
	c := sdk.NewClient(sdk.ClientOptions{})
	ctx := context.Background()
	for task, err := range c.List(ctx, sdk.TaskFilter{States: []sdk.State{sdk.StateNeedsReview}}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(task.ID, task.Handler, task.ErrorCode)
	}
}

func ExampleClient_Watch() {
	c := sdk.NewClient(sdk.ClientOptions{})
	for event, err := range c.Watch(context.Background(), "0199f3c2a1b87d4e9a0b1c2d3e4f5061") {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(event.Revision, event.Type, event.State)
	}
}

func ExampleClient_Review() {
	c := sdk.NewClient(sdk.ClientOptions{})
	_, err := c.Review(context.Background(), "0199f3c2a1b87d4e9a0b1c2d3e4f5061", sdk.Review{
		Decision: sdk.ReviewSucceeded, Note: "found in the bank's ledger", Result: map[string]string{"number": "R-17"},
	})
	if err != nil {
		log.Fatal(err)
	}
}

// Health of a worker as a probe of its own process.
func ExampleWorker_Health() {
	w := sdk.NewWorker(sdk.WorkerOptions{})
	http.HandleFunc("/healthz", func(rw http.ResponseWriter, _ *http.Request) {
		if health := w.Health(); !health.Connected && time.Since(health.Since) > 2*time.Minute {
			http.Error(rw, fmt.Sprint(health.LastError), http.StatusServiceUnavailable)
		}
	})
}

var errDeclined = errors.New("declined")

func charge(context.Context, string, uint64) (any, error) { return nil, nil }
func send(context.Context, string, string) error          { return nil }
func render(context.Context, int) error                   { return nil }
func removePages()                                        {}
