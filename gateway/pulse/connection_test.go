package pulse

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"pulse/gateway/session"
	"pulse/gateway/wsconn"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
	"pulse/schema/access"
	"pulse/schema/workerv1"
)

func TestWhatAFirstFrameMayBe(t *testing.T) {
	for _, c := range []struct {
		name    string
		text    string // sent as it is; a %s stands for a good message id
		code    schema.Code
		answers bool             // has reply_to
		closes  wsconn.CloseCode // 0 = the connection stays
	}{
		{"a frame of a session", `{"protocol_version":"1","type":"task.start","message_id":"%s","session_id":"%[1]s","body":{"task_id":"%[1]s","attempt_id":"%[1]s","epoch":"1","lease_secret":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}}`, schema.SessionRequired, true, wsconn.ClosePolicy},
		{"a capacity", `{"protocol_version":"1","type":"worker.capacity","message_id":"%s","session_id":"%[1]s","body":{"sequence":"1","capacity":1,"drain":false}}`, schema.SessionRequired, true, wsconn.ClosePolicy},
		{"no JSON", `hello`, schema.InvalidFrame, false, wsconn.ClosePolicy},
		{"nothing", ``, schema.InvalidFrame, false, wsconn.ClosePolicy},
		{"no UTF-8", "{\"a\":\"\xff\"}", schema.InvalidFrame, false, wsconn.CloseInvalidPayload},
		{"too long", `{"a":"` + strings.Repeat("x", 1<<20) + `"}`, schema.TooLarge, false, wsconn.CloseTooBig},
		{"no message id", `{"protocol_version":"1","type":"worker.hello"}`, schema.InvalidFrame, false, wsconn.ClosePolicy},
		{"a hello without a body", `{"protocol_version":"1","type":"worker.hello","message_id":"%s"}`, schema.InvalidFrame, true, 0},
		{"a server's frame", `{"protocol_version":"1","type":"worker.welcome","message_id":"%s"}`, schema.InvalidFrame, true, 0},
		{"another version", `{"protocol_version":"2","type":"worker.hello","message_id":"%s","body":{}}`, schema.UnsupportedVersion, true, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, h *house) {
				w := h.dial()
				text := c.text
				if strings.Contains(text, "%") {
					text = fmt.Sprintf(text, ident(5))
				}
				go func() { _ = w.ws.Write(context.Background(), websocket.MessageText, []byte(text)) }()
				reply := 0
				if c.answers {
					reply = 5
				}
				w.refused(c.code, reply, false)
				if c.closes != 0 {
					w.closed(c.closes)
					return
				}
				w.send(helloFrame(6)) // a good one is still welcome
				if f := w.read(); f.ReplyTo.V != ident(6) {
					t.Errorf("read %+v", f)
				}
			})
		})
	}
}

func TestABinaryMessageIsClosedWith1003(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		w := h.join()
		if err := w.ws.Write(context.Background(), websocket.MessageBinary, []byte("{}")); err != nil {
			t.Fatal(err)
		}
		w.refused(schema.InvalidFrame, 0, true)
		w.closed(wsconn.CloseUnsupported)
	})
}

func TestWithoutAHelloTheConnectionEndsAfterTenSeconds(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		begin := time.Now()
		w := h.dial()
		w.refused(schema.SessionRequired, 0, false)
		w.closed(wsconn.ClosePolicy)
		if took := time.Since(begin); took != 10*time.Second {
			t.Errorf("closed after %s, want 10s", took)
		}
		if h.handler.Counters().HellosLate.Load() != 1 {
			t.Error("not counted")
		}
	})
}

func TestARefusedHelloMayBeRepeatedWithinTheTenSeconds(t *testing.T) {
	for _, code := range []schema.Code{
		schema.Forbidden, schema.NotFound, schema.IdentityConflict, schema.NoLeader, schema.NotLeader,
		schema.Unavailable, schema.ResultUnknown, schema.UnknownCommand, schema.Internal,
	} {
		t.Run(string(code), func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, h *house) {
				w := h.dial()
				h.state.script(refuses(code, registers))
				time.Sleep(4 * time.Second)
				w.send(helloFrame(5))
				w.refused(code, 5, false)
				h.state.script(nil)
				time.Sleep(4 * time.Second)
				w.send(helloFrame(6))
				if _, ok := w.read().Body.(*workerv1.Welcome); !ok {
					t.Error("not welcome")
				}
				time.Sleep(4 * time.Second) // the ten seconds are over
				synctest.Wait()
				w.send(about(7, 1, start))
				w.acked(7)
			})
		})
	}
}

func TestARefusedHelloDoesNotBuyTime(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		begin := time.Now()
		w := h.dial()
		h.state.script(refuses(schema.NoLeader, registers))
		time.Sleep(9 * time.Second)
		w.send(helloFrame(5))
		w.refused(schema.NoLeader, 5, false)
		w.refused(schema.SessionRequired, 0, false)
		w.closed(wsconn.ClosePolicy)
		if took := time.Since(begin); took != 10*time.Second {
			t.Errorf("closed after %s, want 10s", took)
		}
	})
}

func TestAHelloUnderWayIsGivenItsAnswer(t *testing.T) {
	for _, c := range []struct {
		name string
		code schema.Code
	}{{"accepted", ""}, {"refused", schema.NoLeader}} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, h *house) {
				h.state.script(func(ctx context.Context, cmd *pb.Command) *pb.Result {
					if !registers(cmd) {
						return nil
					}
					time.Sleep(8 * time.Second)
					if c.code != "" {
						return &pb.Result{Code: string(c.code)}
					}
					return nil
				})
				w := h.dial()
				time.Sleep(5 * time.Second)
				w.send(helloFrame(5)) // decided after thirteen seconds
				if c.code == "" {
					if _, ok := w.read().Body.(*workerv1.Welcome); !ok {
						t.Error("not welcome")
					}
					h.state.script(nil)
					w.send(about(6, 1, start))
					w.acked(6)
					return
				}
				w.refused(c.code, 5, false)
				w.refused(schema.SessionRequired, 0, false)
				w.closed(wsconn.ClosePolicy)
			})
		})
	}
}

func TestAConnectionIsNoPlaceToTrySecrets(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		w := h.dial()
		h.state.script(refuses(schema.Forbidden, registers))
		for i := range failedHellosMax {
			w.send(helloFrame(10 + i))
			w.refused(schema.Forbidden, 10+i, false)
		}
		w.refused(schema.RateLimited, 0, false)
		w.closed(wsconn.ClosePolicy)
	})
}

func TestTheAddressOfATriedSecretPaysForIt(t *testing.T) {
	limiter := wsconn.NewLimiter(wsconn.Limits{FaultBurst: 2, FaultsPerSecond: 0.001})
	bubble(t, Config{Connections: wsconn.Config{Limiter: limiter}}, func(t *testing.T, h *house) {
		w := h.dial()
		h.state.script(refuses(schema.Forbidden, registers))
		for i := range 3 {
			w.send(helloFrame(10 + i))
			w.refused(schema.Forbidden, 10+i, false)
		}
		w.refused(schema.RateLimited, 0, false)
		w.closed(wsconn.ClosePolicy)
	})
}

func TestAWorkerWithASessionNoLongerCountsAsUnknown(t *testing.T) {
	limiter := wsconn.NewLimiter(wsconn.Limits{PendingMax: 1})
	bubble(t, Config{Connections: wsconn.Config{Limiter: limiter}}, func(t *testing.T, h *house) {
		h.join()
		h.join()
	})
}

func TestASecondHelloIsAConflict(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		w := h.join()
		w.send(helloFrame(5))
		w.refused(schema.Conflict, 5, true)
		w.send(about(6, 1, start))
		w.acked(6)
	})
}

func TestAFrameOfAnotherSessionEndsTheConnection(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		w := h.join()
		f := about(5, 1, start)
		f.SessionID = ident(77)
		w.send(f)
		w.refused(schema.SessionSuperseded, 5, true)
		w.closed(wsconn.ClosePolicy)
		synctest.Wait()
		if n := len(of(h.state, (*pb.Command).GetStartAttempt)); n != 0 {
			t.Error("it was forwarded")
		}
		if n := len(of(h.state, (*pb.Command).GetCloseSession)); n != 1 {
			t.Errorf("%d sessions were reported as closed, want the connection's", n)
		}
	})
}

func TestRefusalsOfTheState(t *testing.T) {
	for _, info := range schema.Codes() {
		t.Run(string(info.Code), func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, h *house) {
				w := h.join()
				h.state.script(refuses(info.Code, starts))
				w.send(about(5, 1, start))
				w.refused(info.Code, 5, true)
				if info.Code.Fatal() {
					w.closed(wsconn.ClosePolicy)
					return
				}
				w.send(about(6, 1, renew))
				w.acked(6)
			})
		})
	}
}

func TestAWrongLeaseSecretIsForbidden(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		w := h.join()
		for i, body := range []func(workerv1.AttemptRef) workerv1.ClientBody{start, renew, resume, finish} {
			w.send(about(5+i, 1, func(r workerv1.AttemptRef) workerv1.ClientBody {
				r.LeaseSecret[0] ^= 1
				return body(r)
			}))
			w.refused(schema.Forbidden, 5+i, true)
		}
		w.send(about(10, 1, start))
		w.acked(10)
	})
}

func TestTooManyBadFramesEndTheConnection(t *testing.T) {
	limiter := wsconn.NewLimiter(wsconn.Limits{FaultBurst: 3, FaultsPerSecond: 0.001})
	bubble(t, Config{Connections: wsconn.Config{Limiter: limiter}}, func(t *testing.T, h *house) {
		w := h.join()
		bad := fmt.Appendf(nil, `{"protocol_version":"1","type":"task.start","message_id":"%s"}`, ident(5))
		for range 3 {
			w.sendText(bad)
			w.refused(schema.InvalidFrame, 5, true)
		}
		w.sendText(bad)
		w.refused(schema.InvalidFrame, 5, true)
		w.refused(schema.RateLimited, 0, true)
		w.closed(wsconn.ClosePolicy)
		// The address may not come back at once.
		_, response, err := h.try(nil)
		if err == nil || response.status != http.StatusTooManyRequests {
			t.Errorf("dial: %v, %v; want 429", response, err)
		}
	})
}

func TestABadFrameInsideASessionSaysWhichSession(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		w := h.join()
		w.sendText([]byte(`{"a":1,"a":2}`))
		w.refused(schema.InvalidFrame, 0, true)
		w.closed(wsconn.ClosePolicy)
		synctest.Wait()
		if n := h.handler.Counters().BadFrames.Load(); n != 1 {
			t.Errorf("%d bad frames were counted", n)
		}
	})
}

// The commit of a registration may already have made an assignment, and its
// delivery may be faster than the result.
func TestTheWelcomeIsTheFirstFrame(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		h.state.script(func(_ context.Context, c *pb.Command) *pb.Result {
			if registers(c) {
				h.hub.Deliver([]*pb.Delivery{assignment(1, `1`), assignment(2, `2`), cancellation(1)})
			}
			return nil
		})
		w := h.dial()
		w.send(helloFrame(5))
		want := []workerv1.Type{workerv1.TypeWelcome, workerv1.TypeAssign, workerv1.TypeAssign, workerv1.TypeCancel}
		for i, kind := range want {
			if got := w.read().Body.ServerType(); got != kind {
				t.Errorf("frame %d is %s, want %s", i, got, kind)
			}
		}
	})
}

func TestARepeatedDeliveryIsTheSameButForItsMessageID(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		w := h.join()
		h.hub.Deliver([]*pb.Delivery{assignment(1, `{"n":1.50}`)})
		first := w.read()
		h.hub.Deliver([]*pb.Delivery{assignment(1, `{"n":1.50}`)})
		second := w.read()
		a, b := first.Body.(*workerv1.Assign), second.Body.(*workerv1.Assign)
		if a.AttemptID != b.AttemptID || a.Epoch != b.Epoch || !a.LeaseSecret.Equal(b.LeaseSecret) || string(b.Task.Payload) != `{"n":1.50}` {
			t.Errorf("%+v, then %+v", a, b)
		}
		if first.MessageID == second.MessageID {
			t.Error("the repeat has the message id of the first")
		}
		if !leaseKey.Check(a.AttemptID, a.Epoch, a.LeaseSecret) {
			t.Error("the secret is not the attempt's")
		}
	})
}

func TestASupersededConnectionIsToldAndClosed(t *testing.T) {
	for _, code := range []schema.Code{schema.SessionSuperseded, schema.SessionExpired} {
		t.Run(string(code), func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, h *house) {
				w := h.join()
				h.hub.Deliver([]*pb.Delivery{closing(code)})
				synctest.Wait()
				w.send(about(5, 1, start)) // changes nothing any more
				w.refused(code, 0, true)
				w.closed(wsconn.ClosePolicy)
				synctest.Wait()
				if n := len(of(h.state, (*pb.Command).GetStartAttempt)); n != 0 {
					t.Error("a frame of a superseded session was forwarded")
				}
				if n := len(of(h.state, (*pb.Command).GetCloseSession)); n != 0 {
					t.Error("the cluster was told what it had said")
				}
			})
		})
	}
}

func TestAWorkerThatLeavesIsReportedAtOnce(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		w := h.join()
		begin := time.Now()
		w.leave()
		if n := len(of(h.state, (*pb.Command).GetCloseSession)); n != 1 || time.Since(begin) != 0 {
			t.Errorf("%d sessions were reported as closed after %s", n, time.Since(begin))
		}
	})
}

// The peer of a fatal error may take its time to answer the close; its session
// must not get work meanwhile.
func TestASessionEndsBeforeTheCloseHandshake(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		w := h.join()
		w.sendText([]byte(`nonsense`))
		synctest.Wait() // the worker does not read
		if n := len(of(h.state, (*pb.Command).GetCloseSession)); n != 1 {
			t.Errorf("%d sessions were reported as closed", n)
		}
		w.refused(schema.InvalidFrame, 0, true)
		w.closed(wsconn.ClosePolicy)
	})
}

func TestASlowReaderIsCutOffAndItsWorkStaysLeased(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		other := h.joinAs(ident(51), ident(54))
		slow := h.join()
		begin := time.Now()
		payload := `"` + strings.Repeat("x", 200<<10) + `"`
		for i := range 100 {
			h.hub.Deliver([]*pb.Delivery{assignment(i, payload)})
		}
		synctest.Wait()
		other.send(workerv1.ClientFrame{MessageID: ident(5), SessionID: ident(54), Body: start(ref(1))})
		other.acked(5)
		time.Sleep(10*time.Second + time.Millisecond)
		synctest.Wait()
		cuts := h.handler.Connections().QueueFullCuts.Load() + h.handler.Connections().WriteCuts.Load()
		if cuts != 1 {
			t.Errorf("%d connections were cut off within %s, want one", cuts, time.Since(begin))
		}
		closed := of(h.state, (*pb.Command).GetCloseSession)
		if len(closed) != 1 || !bytes.Equal(closed[0].GetSession().GetSessionId(), raw(sessionID)) {
			t.Errorf("reported as closed: %v", closed)
		}
		if n := len(of(h.state, (*pb.Command).GetFinishAttempt)); n != 0 {
			t.Error("something was finished for it")
		}
		_ = slow
	})
}

// joinAs registers another instance; the state gives it the session.
func (h *house) joinAs(instance, session schema.ID) *worker {
	h.t.Helper()
	h.state.script(func(_ context.Context, c *pb.Command) *pb.Result {
		if !registers(c) {
			return nil
		}
		r := goesWell(c)
		r.GetSession().SessionId = raw(session)
		return r
	})
	defer h.state.script(nil)
	w := h.dial()
	f := helloFrame(100)
	f.Body.(*workerv1.Hello).InstanceID = instance
	w.send(f)
	w.read()
	return w
}

func TestCommandsArePipelined(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		w := h.join()
		h.state.script(func(_ context.Context, c *pb.Command) *pb.Result {
			if finishes(c) && bytes.Equal(c.GetId(), raw(ident(300))) {
				time.Sleep(50 * time.Millisecond)
			}
			return nil
		})
		begin := time.Now()
		for i := range 256 {
			w.send(about(300+i, i, func(r workerv1.AttemptRef) workerv1.ClientBody {
				return &workerv1.Finish{Ref: r, Outcome: workerv1.OutcomeSucceeded, Result: fmt.Appendf(nil, `{"n":%d.50}`, 100+i)}
			}))
		}
		got := make(map[schema.ID]bool)
		for range 256 {
			f := w.read()
			if f.Body.(*workerv1.Ack).Result.Receipt.Operation != workerv1.OperationFinish {
				t.Fatalf("read %+v", f.Body)
			}
			got[f.ReplyTo.V] = true
		}
		if len(got) != 256 {
			t.Errorf("%d frames were answered", len(got))
		}
		if took := time.Since(begin); took > 100*time.Millisecond {
			t.Errorf("it took %s", took)
		}
		for _, f := range of(h.state, (*pb.Command).GetFinishAttempt) {
			n, err := strconv.Atoi(hex.EncodeToString(f.GetRef().GetAttemptId()))
			if want := fmt.Sprintf(`{"n":%d.50}`, n-900); err != nil || string(f.GetResult()) != want {
				t.Fatalf("the result of attempt %d arrived as %s, want %s", n, f.GetResult(), want)
			}
		}
	})
}

// The context of a request says nothing about the commands that came with it.
func TestACommandIsCarriedThoughTheRequestIsOver(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		h.state.script(func(ctx context.Context, c *pb.Command) *pb.Result {
			if finishes(c) {
				time.Sleep(time.Second)
				if ctx.Err() != nil {
					t.Error("the command was given up")
				}
			}
			return nil
		})
		w := h.join()
		w.send(about(5, 1, finish))
		synctest.Wait()
		h.forget()
		w.acked(5)
	})
}

func TestShutdownAnswersWhatIsUnderWayAndClosesWith1001(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		h.state.script(func(_ context.Context, c *pb.Command) *pb.Result {
			if finishes(c) {
				time.Sleep(2 * time.Second)
			}
			return nil
		})
		busy, idle, silent := h.join(), h.join(), h.dial()
		busy.send(about(5, 1, finish))
		synctest.Wait()
		over := make(chan struct{})
		begin := time.Now()
		go func() {
			defer close(over)
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			h.handler.Shutdown(ctx)
		}()
		synctest.Wait()
		idle.closed(wsconn.CloseGoingAway)
		silent.closed(wsconn.CloseGoingAway)
		busy.send(about(6, 2, start)) // too late: nothing new is taken
		busy.refused(schema.Unavailable, 6, true)

		response, err := h.client.Get("http://localhost:7400/v1/worker")
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusServiceUnavailable || response.Header.Get("Retry-After") == "" {
			t.Errorf("a new connection gets %d", response.StatusCode)
		}

		busy.acked(5)
		busy.closed(wsconn.CloseGoingAway)
		<-over
		if took := time.Since(begin); took != 2*time.Second {
			t.Errorf("Shutdown took %s, want 2s", took)
		}
		if open := h.handler.Connections().Open.Load(); open != 0 {
			t.Errorf("%d connections are open", open)
		}
		if n := len(of(h.state, (*pb.Command).GetStartAttempt)); n != 0 {
			t.Error("a command was taken during shutdown")
		}
	})
}

func TestAConnectionMadeDuringShutdownIsClosedToo(t *testing.T) {
	arrived, shutting := make(chan struct{}, 1), make(chan struct{})
	cfg := Config{Connections: wsconn.Config{CheckOrigin: func(*http.Request) bool {
		arrived <- struct{}{}
		<-shutting
		return true
	}}}
	bubbleWith(t, &cfg, func() { arrived, shutting = make(chan struct{}, 1), make(chan struct{}) }, func(t *testing.T, h *house) {
		dialled := make(chan *worker)
		go func() { dialled <- h.dial() }()
		<-arrived
		over := make(chan struct{})
		go func() { h.handler.Shutdown(context.Background()); close(over) }()
		synctest.Wait()
		close(shutting)
		(<-dialled).closed(wsconn.CloseGoingAway)
		<-over
	})
}

func TestShutdownDoesNotWaitForEver(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		h.state.script(func(ctx context.Context, c *pb.Command) *pb.Result {
			if finishes(c) {
				<-ctx.Done()
				return &pb.Result{Code: string(schema.ResultUnknown)}
			}
			return nil
		})
		w := h.join()
		w.send(about(5, 1, finish))
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		begin := time.Now()
		h.handler.Shutdown(ctx)
		if took := time.Since(begin); took != 3*time.Second {
			t.Errorf("Shutdown took %s, want 3s", took)
		}
	})
}

func TestAnIdleWorkerStaysListed(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		w := h.join()
		ctx := w.ws.CloseRead(context.Background()) // answers pings
		time.Sleep(10*time.Minute + time.Second)
		synctest.Wait()
		if ctx.Err() != nil {
			t.Fatal("the connection ended")
		}
		reports := of(h.state, (*pb.Command).GetReportGateway)
		if last := reports[len(reports)-1]; len(last.GetInShort().GetSilentMs()) != 1 || len(reports) < 300 {
			t.Errorf("after %d reports the last speaks of %v", len(reports), last.GetInShort())
		}
	})
}

func TestAWorkerThatDiesSilentlyIsMissedWithinThirtySeconds(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		h.join() // and reads nothing from now on, pings included
		time.Sleep(30*time.Second + time.Millisecond)
		synctest.Wait()
		if n := len(of(h.state, (*pb.Command).GetCloseSession)); n != 1 {
			t.Errorf("%d sessions were reported as closed", n)
		}
		if open := h.handler.Connections().Open.Load(); open != 0 {
			t.Errorf("%d connections are open", open)
		}
	})
}

func TestWhatCannotBeEncodedIsNotSent(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		w := h.join()
		broken := assignment(1, `{}`)
		broken.GetAssign().GetTask().GetTask().RecoverySafety = 99
		h.hub.Deliver([]*pb.Delivery{broken, assignment(2, `{}`)})
		if a, ok := w.read().Body.(*workerv1.Assign); !ok || a.AttemptID != ident(1002) {
			t.Errorf("read %+v, want the second assignment", a)
		}
		h.state.script(func(_ context.Context, c *pb.Command) *pb.Result {
			if starts(c) {
				return &pb.Result{} // a success that says nothing
			}
			return nil
		})
		w.send(about(5, 2, start))
		w.refused(schema.Internal, 5, true)
		synctest.Wait()
		if !strings.Contains(h.log.String(), "could not be encoded") {
			t.Error("nobody was told")
		}
	})
}

func TestNoSecretIsLogged(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *house) {
		w := h.join()
		h.hub.Deliver([]*pb.Delivery{assignment(1, `"payload-that-is-private"`)})
		secret := w.read().Body.(*workerv1.Assign).LeaseSecret
		w.send(about(5, 1, start))
		w.acked(5)
		w.sendText([]byte(`{"instance_secret":"payload-that-is-private"`))
		w.refused(schema.InvalidFrame, 0, true)
		w.closed(wsconn.ClosePolicy)
		synctest.Wait()
		for _, text := range []string{string(secret.AppendBase64(nil)), string(schema.Secret{1, 2, 3}.AppendBase64(nil)), "private"} {
			if strings.Contains(h.log.String(), text) {
				t.Errorf("the log has %q:\n%s", text, h.log)
			}
		}
		if !strings.Contains(h.log.String(), "worker registered") {
			t.Error("nothing was logged, so nothing was shown")
		}
	})
}

func TestUpgradesAreRefusedAsProblems(t *testing.T) {
	for _, c := range []struct {
		name   string
		from   string
		header map[string]string
		status int
		code   schema.Code
	}{
		{"no upgrade", "127.0.0.1", nil, 426, schema.InvalidArgument},
		{"another protocol", "127.0.0.1", map[string]string{"Sec-WebSocket-Protocol": "pulse.worker.v2"}, 426, schema.InvalidArgument},
		{"no handshake", "127.0.0.1", map[string]string{"Sec-WebSocket-Protocol": workerv1.Subprotocol}, 426, schema.InvalidArgument},
		{"another machine", "192.0.2.1", nil, 401, schema.Unauthenticated},
		{"a page of another machine", "127.0.0.1", map[string]string{"Origin": "http://evil.test"}, 401, schema.Unauthenticated},
		{"a page of nowhere", "127.0.0.1", map[string]string{"Origin": "null"}, 401, schema.Unauthenticated},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, h *house) {
				socket, err := h.listener.DialFrom(t.Context(), c.from)
				if err != nil {
					t.Fatal(err)
				}
				defer socket.Close()
				r, err := http.NewRequest(http.MethodGet, "http://evil.test/v1/worker", nil)
				if err != nil {
					t.Fatal(err)
				}
				r.Close = true
				for name, value := range c.header {
					r.Header.Set(name, value)
				}
				go func() { _ = r.Write(socket) }()
				text, err := io.ReadAll(socket)
				if err != nil {
					t.Fatal(err)
				}
				head, body, _ := strings.Cut(string(text), "\r\n\r\n")
				if !strings.HasPrefix(head, fmt.Sprintf("HTTP/1.1 %d ", c.status)) || !strings.Contains(head, "application/problem+json") ||
					!strings.Contains(head, "X-Pulse-Index: 9\r\n") {
					t.Errorf("answered\n%s", head)
				}
				var problem map[string]any
				if err := json.Unmarshal([]byte(body), &problem); err != nil {
					t.Fatalf("%v in %q", err, body)
				}
				if problem["code"] != string(c.code) || problem["type"] != c.code.URN() || problem["status"] != float64(c.status) || problem["retryable"] != false {
					t.Errorf("problem %v", problem)
				}
			})
		})
	}
}

func TestAPageOfThisMachineMayConnect(t *testing.T) {
	for _, origin := range []string{"http://localhost:7400", "http://127.0.0.1:7400", "http://[::1]:7400"} {
		r := &http.Request{RemoteAddr: "127.0.0.1:1", Header: http.Header{"Origin": {origin}}}
		if who, refusal := LoopbackOnly(r); refusal != nil || who.Principal != session.Anonymous.Principal {
			t.Errorf("%s: %v", origin, refusal)
		}
	}
}

func TestTheIdentityOfTheListenerDecides(t *testing.T) {
	cfg := Config{Authenticate: func(r *http.Request) (session.Identity, *schema.Error) {
		if r.Header.Get("Authorization") != "Bearer good" {
			return session.Identity{}, schema.Errorf(schema.Unauthenticated, "no")
		}
		return session.Identity{Principal: "token/1", Grants: access.Grants{{Role: access.Worker, Namespace: "mine"}}}, nil
	}}
	bubble(t, cfg, func(t *testing.T, h *house) {
		dial := func(token string) (*websocket.Conn, answer, error) {
			return h.try(http.Header{"Authorization": {"Bearer " + token}})
		}
		_, response, err := dial("bad")
		if err == nil || response.status != 401 || response.header.Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("a bad token: %v, %v", response, err)
		}
		ws, _, err := dial("good")
		if err != nil {
			t.Fatal(err)
		}
		w := &worker{t: t, ws: ws}
		w.send(helloFrame(5)) // the state's answer names no queue of its own
		w.refused(schema.Forbidden, 5, false)
		w.leave()
	})
}

// What goes wrong in serving one worker must not take the others along.
func TestAPanicEndsItsConnectionAlone(t *testing.T) {
	var connections atomic.Int64
	bubble(t, Config{Authenticate: func(*http.Request) (session.Identity, *schema.Error) {
		who := session.Anonymous
		if connections.Add(1) == 1 {
			who.Hold = func() (<-chan struct{}, func()) { panic("a broken credential") }
		}
		return who, nil
	}}, func(t *testing.T, h *house) {
		first := h.dial()
		if _, _, err := first.ws.Read(t.Context()); err == nil {
			t.Error("the connection goes on")
		}
		synctest.Wait()
		if log := h.log.String(); !strings.Contains(log, "a broken credential") || !strings.Contains(log, "level=ERROR") {
			t.Errorf("the log says %s", log)
		}
		h.join()
	})
}
