// Command payonce is a worker that charges orders and must never charge one twice.
// Its bank is a file, the ledger, and as many banks do it books whatever it is told:
// nothing but Pulse keeps an order from being charged again.
//
//	payonce [--queue payments] [--ledger ledger.jsonl] [--crash]
//
// With --crash it dies at the worst moment: the charge is booked, and nobody has
// heard of it. A task submitted as RECONCILE_ONLY is then not run again. It waits in
// the review inbox until a person has looked into the ledger.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"pulse/sdk"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "payonce:", err)
		os.Exit(1)
	}
}

func run() error {
	queue := flag.String("queue", "payments", "queue to take tasks from")
	path := flag.String("ledger", "ledger.jsonl", "file to book charges in")
	crash := flag.Bool("crash", false, "die between the charge and the report of it")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	addr := os.Getenv("PULSE_ADDR")
	if addr == "" {
		addr = sdk.DefaultAddr
	}
	w := sdk.NewWorker(sdk.WorkerOptions{
		Addrs: strings.Split(addr, ","), Queue: *queue, Capacity: 4,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	bank := &ledger{path: *path}
	w.Handle("charge", "1", "1", func(ctx context.Context, t *sdk.Task) (any, error) {
		return charge(ctx, bank, t, *crash)
	})
	return w.Run(ctx)
}

// order is the payload. The amount is text to us: a number that went through a
// float could come out as another.
type order struct {
	Order  json.Number `json:"order"`
	Amount json.Number `json:"amount"`
}

// charge does the work of one task. What it returns says what it knows:
//
//	sdk.Failed     nothing was charged, and trying again would not help
//	sdk.Retryable  nothing was charged
//	any other error, or none at all because the process died: perhaps
func charge(ctx context.Context, bank *ledger, t *sdk.Task, crash bool) (any, error) {
	var in order
	if err := t.Unmarshal(&in); err != nil {
		return nil, sdk.Failed("bad_payload", err)
	}
	if in.Order == "" || in.Amount == "" {
		return nil, sdk.Failed("bad_payload", errors.New("an order and an amount are needed"))
	}
	if ctx.Err() != nil {
		return nil, sdk.Retryable(context.Cause(ctx))
	}
	fmt.Printf("charging order %s: %s\n", in.Order, in.Amount)
	b := booking{Order: in.Order, Amount: in.Amount, Task: t.ID, Token: t.FencingToken()}
	if err := bank.book(b); err != nil {
		// Perhaps half a line was written: say what is known, which is nothing.
		return nil, sdk.Unknown(err)
	}
	if crash {
		die()
	}
	return map[string]json.Number{"booked": in.Amount}, nil
}

// die ends the process as a power cut would.
func die() {
	fmt.Println("… and the worker dies before it can say so")
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	panic(err) // only if that did not work
}

// ledger is a bank.
type ledger struct{ path string }

// booking is a line of it.
type booking struct {
	Order  json.Number `json:"order"`
	Amount json.Number `json:"amount"`
	Task   string      `json:"task"`
	Token  uint64      `json:"token"` // a bank that checks it could refuse a late writer
}

func (l *ledger) book(b booking) error {
	line, err := json.Marshal(b)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Sync(), f.Close())
}
