package session

import (
	"testing"
	"testing/synctest"

	pb "pulse/proto/pulse/v1"
)

// A start that comes too late changes nothing, and is a sign of life all the
// same: without it a session whose offer lapsed could stay without work for ever.
func TestALateStartShowsThatTheWorkerIsThere(t *testing.T) {
	for code, tells := range map[string]bool{"lease_lost": true, "stale_epoch": true, "not_found": false, "": false} {
		t.Run("refused with "+code, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, g *gateway) {
				h, _ := g.worker(t, aHello)
				defer h.Close()
				g.state.set(func(b *backend) {
					b.calls = nil
					b.answer = func(c *pb.Command) *pb.Result {
						if c.GetStartAttempt() != nil && code != "" {
							return &pb.Result{Code: code}
						}
						return nil
					}
				})
				var got answers
				h.Start(t.Context(), ident("m1"), refOf("a"), got.to("start"))
				synctest.Wait()
				resumes := 0
				g.state.set(func(b *backend) {
					for _, call := range b.calls {
						for _, c := range call {
							if r := c.GetResumeAttempt(); r != nil {
								resumes++
								if len(r.Ref.AttemptId) != 16 || len(r.Session.SessionId) != 16 || len(c.NamespaceId) != 16 {
									t.Errorf("it names %v", c)
								}
							}
						}
					}
				})
				if (resumes == 1) != tells {
					t.Errorf("the cluster heard %d times that the worker is there", resumes)
				}
			})
		})
	}
}
