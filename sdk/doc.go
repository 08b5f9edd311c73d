// Package sdk is Pulse for Go programs: a Client that submits tasks and looks
// after them, and a Worker that runs them.
//
// # The first ten minutes
//
// Start a node on this machine (it prints the address of its console too):
//
//	pulse dev
//
// Write a worker. It needs no configuration for a local node:
//
//	w := sdk.NewWorker(sdk.WorkerOptions{})
//	w.Handle("greet", "1", "1", func(ctx context.Context, t *sdk.Task) (any, error) {
//		var in struct{ Name string }
//		if err := t.Unmarshal(&in); err != nil {
//			return nil, sdk.Failed("bad_payload", err)
//		}
//		return map[string]string{"text": "Hello " + in.Name}, nil
//	})
//	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
//	defer stop()
//	if err := w.Run(ctx); err != nil { … }
//
// Submit a task to it and wait:
//
//	c := sdk.NewClient(sdk.ClientOptions{})
//	task, err := c.Submit(ctx, sdk.TaskSpec{Handler: "greet", Payload: map[string]string{"name": "Ada"}})
//	task, err = c.Wait(ctx, task.ID)
//	fmt.Println(task.State, string(task.Result)) // SUCCEEDED {"text":"Hello Ada"}
//
// A task is matched with workers that registered exactly its handler, handler
// version and payload version. While there is none it waits, and says so
// (TaskInfo.Waiting). So a handler is changed by registering the new version
// beside the old one until the old tasks are done.
//
// # What a handler's end means
//
// A run that ended is SUCCEEDED, FAILED, CANCELLED or UNKNOWN. FAILED promises
// that the work was not done; UNKNOWN says that it may have been. The
// difference decides what happens next, above all for a task submitted as
// ReconcileOnly, e.g. a payment, which is never run a second time on suspicion.
//
//	handler returns            Idempotent task            ReconcileOnly task
//	------------------------   ------------------------   -----------------------
//	result, nil                SUCCEEDED                  SUCCEEDED
//	Retryable(err)             FAILED, tried again        FAILED
//	Failed(code, err)          FAILED                     FAILED
//	Unknown(err)               UNKNOWN, tried again       UNKNOWN, needs review
//	any other error            FAILED, tried again        UNKNOWN, needs review
//	Cancelled()                CANCELLED if that was asked for; because of a lost
//	                           lease or a stopping worker like Retryable; else FAILED
//	ctx.Err() after a
//	cancellation request       CANCELLED                  UNKNOWN, needs review
//	a panic, runtime.Goexit    UNKNOWN, tried again       UNKNOWN, needs review
//	a result that is no JSON
//	or above 256 KiB           UNKNOWN, tried again       UNKNOWN, needs review
//
// "Tried again" means as far as the task's retry policy and deadline allow. A
// ReconcileOnly task that has once been started is never run again by itself,
// not even after a failure that is certain: somebody has to say so, with
// Client.Retry or Client.Review. Why it is like this:
//
//   - Doing idempotent work twice does no harm, so a plain error is taken for
//     the temporary trouble it mostly is, as everywhere.
//   - A plain error of a ReconcileOnly task says nothing about how far the
//     handler got: no answer from the bank is not a refusal by the bank. Only
//     the handler can know, so only Retryable and Failed count as proof that
//     nothing was done, and save somebody a review.
//   - A panic stops a handler at a place nobody chose.
//   - A result the cluster cannot keep does not undo the work.
//
// Markers may be wrapped with %w, and the outermost decides;
// Retryable(Failed(code, err)) is a failure with a code that is tried again. An
// error's text becomes the result {"error": text}, unless the handler returns a
// result beside it. It is stored and shown: put no secrets in errors.
//
// # How long a handler may run
//
// A handler runs under a lease that the worker renews for it. Its context ends
//
//   - with ErrLeaseLost when the worker cannot be sure any more that the lease
//     holds, in time before the cluster may give the task to another worker; or
//     when attempt timeout or deadline end the lease (ctx.Deadline);
//   - with ErrCancelRequested when somebody asked to cancel the task; the lease
//     is kept while the handler cleans up;
//   - with ErrWorkerStopped when Run's context has ended and DrainTimeout is
//     over.
//
// context.Cause tells which. A handler that ignores the end of its context keeps
// its place in the worker, which then takes fewer tasks.
//
// What a handler reports after its lease was lost is sent all the same. It
// changes nothing any more, but is kept with the attempt as evidence for
// whoever reviews the task.
//
// The worker counts leases on the machine's monotonic clock, from the moment a
// request left, so no clock that is set wrong matters. No clock helps against a
// process that is stopped for an hour and then goes on in the middle of a
// write. For that there is Task.FencingToken: hand it to what you write to, and
// let it refuse a number smaller than the largest it has seen.
//
// # Failure
//
// A connection may break at any time, between any two frames. The worker comes
// back by itself, at another address if it has one, after a random delay of up
// to 1 s that doubles up to 60 s; running handlers do not notice unless it takes
// longer than the lease. Each operation keeps its identity until it is answered,
// so it takes effect once. The same holds for a Client: its calls repeat
// themselves under one Idempotency-Key until they have an answer or their
// context ends.
//
// A worker's identity is made when the Worker is. A process that was restarted
// is another worker; what the first one was running ends with its leases.
//
// Test code that uses this package against a real node in the same process with
// pulse/sdk/pulsetest.
package sdk
