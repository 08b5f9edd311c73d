package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

// nobody is an address where nobody listens.
func nobody(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	return server.URL
}

// leaderless is what is left of a cluster of three: a node that knows no leader.
func leaderless1of3(t *testing.T, alive ...string) string {
	t.Helper()
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, status int, kind, body string) {
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusServiceUnavailable, "application/problem+json",
			`{"title":"No leader","status":503,"detail":"this node does not lead, and knows no leader","code":"no_leader","retryable":true}`)
	})
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusServiceUnavailable, "application/json", `{"status":"not_ready","reasons":["no leader is known"]}`)
	})
	mux.HandleFunc("/v1/cluster/members", func(w http.ResponseWriter, _ *http.Request) {
		var members []string
		for _, id := range []string{"node-1", "node-2", "node-3"} {
			state := `"alive":true` // and gives no answer: the others have not missed it yet
			switch {
			case slices.Contains(alive, id):
				state += `,"applied_index":"7"`
			case id == "node-3":
				state = `"alive":false`
			}
			members = append(members, fmt.Sprintf(`{"id":%q,"role":"voter","voter":true,"raft":"%s:7402",%s}`, id, id, state))
		}
		answer(w, http.StatusOK, "application/json", `{"members":[`+strings.Join(members, ",")+`]}`)
	})
	mux.HandleFunc("/v1/cluster", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, "application/json", `{"node":{"id":"node-1","role":"candidate","term":"2","not_ready":["no leader is known"],
			"applied_index":"1","commit_index":"1","snapshot_index":"0","disk_free_bytes":"0","disk_total_bytes":"0","servers":[
			{"id":"node-1","address":"node-1:7402","voter":true},{"id":"node-2","address":"node-2:7402","voter":true},{"id":"node-3","address":"node-3:7402","voter":true}]}}`)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

// Whoever is on call has to know that there is no leader, who says so, and what it
// takes; not what became of the address that was tried last.
func TestWithoutALeaderItIsSaidWhoAnswersWhat(t *testing.T) {
	t.Parallel()
	for _, alive := range []struct {
		ids   []string
		words string
	}{
		{[]string{"node-1"}, "1 of 3 voters answers, and a leader needs 2: start node-2 (node-2:7402) and node-3 (node-3:7402) again, as they were."},
		{[]string{"node-1", "node-3"}, "2 of 3 voters answer, and a leader needs 2: they should elect one within seconds."},
	} {
		up, down := leaderless1of3(t, alive.ids...), nobody(t)
		for _, verb := range []string{"task list", "task run echo", "queue pause default", "task watch 0199f3c2a1b87d4e9a0b1c2d3e4f5061", "cluster transfer"} {
			for _, addrs := range []string{up, up + "," + down, down + "," + up} {
				s := shell{t: t, env: map[string]string{"PULSE_ADDR": addrs}}
				r := s.fails(exitFailed, alive.words, append(strings.Fields(verb), "--timeout", "300ms")...)
				for _, words := range []string{"pulse: the cluster has no leader", up + "  answers, and is not ready: no leader is known"} {
					if !strings.Contains(r.err, words) {
						t.Errorf("%s: no %q in\n%s", verb, words, r.err)
					}
				}
				if strings.Contains(addrs, down) && !strings.Contains(r.err, down+"  nobody listens") {
					t.Errorf("%s: it is not said that nobody listens at %s:\n%s", verb, down, r.err)
				}
			}
		}
	}
}

func TestADeadServerIsNoLiveOneInTheStatus(t *testing.T) {
	t.Parallel()
	s := shell{t: t, env: map[string]string{"PULSE_ADDR": leaderless1of3(t, "node-1")}}
	r := s.run("cluster", "status")
	for _, words := range []string{"node-1, voter at node-1:7402\n", "node-2, voter at node-2:7402, NO ANSWER\n", "node-3, voter at node-3:7402, SILENT\n", "1 of 3 voters answers, and a leader needs 2: nothing is read or changed until then"} {
		if r.code != exitFailed || !strings.Contains(r.out, words) {
			t.Errorf("exit %d, no %q in\n%s%s", r.code, words, r.out, r.err)
		}
	}
}

// A verb that waits was served all the time.
func TestAWaitThatIsGivenUpIsNoOutage(t *testing.T) {
	t.Parallel()
	s, _ := startNode(t)
	if r := s.fails(exitFailed, "given up after 200ms, as --timeout says", "task", "watch", "--timeout", "200ms"); strings.Contains(r.err, "answer") {
		t.Error(r.err)
	}
}

// twoNodes are two nodes with log levels, and a third that is dead.
func twoNodes(t *testing.T) (addrs [2]string) {
	t.Helper()
	var servers [2]*httptest.Server
	for i := range servers {
		var level atomic.Value
		level.Store("info")
		mux := http.NewServeMux()
		mux.HandleFunc("/v1/cluster/log-level", func(w http.ResponseWriter, r *http.Request) {
			var in struct{ Level string }
			if r.Method == http.MethodPut {
				if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
					t.Error(err)
				}
				level.Store(in.Level)
			}
			fmt.Fprintf(w, `{"level":%q,"node_id":"node-%d"}`, level.Load(), i+1)
		})
		mux.HandleFunc("/v1/cluster/members", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"members":[{"id":"node-1","alive":true,"http":%q},{"id":"node-2","alive":true,"http":%q},{"id":"node-3","alive":false}]}`,
				servers[0].Listener.Addr(), servers[1].Listener.Addr())
		})
		servers[i] = httptest.NewUnstartedServer(mux)
	}
	for i, server := range servers {
		server.Start()
		t.Cleanup(server.Close)
		addrs[i] = server.URL
	}
	return addrs
}

func TestALogLevelIsThatOfTheNodesThatAreMeant(t *testing.T) {
	t.Parallel()
	addrs := twoNodes(t)
	s := shell{t: t, env: map[string]string{"PULSE_ADDR": addrs[0] + "," + addrs[1]}}
	both := func(one, two string) string {
		return "node-1 logs at level " + one + ".\nnode-2 logs at level " + two + ".\n"
	}
	s.fails(exitUsage, "say --node ID, or --all", "cluster", "log-level", "debug")
	if out := s.ok("cluster", "log-level"); out != both("info", "info") {
		t.Errorf("a change that was refused was made, or not both are asked:\n%s", out)
	}
	if r := s.run("cluster", "log-level", "debug", "--node", "node-2"); r.code != exitDone || r.out != "node-2 logs at level debug.\n" || r.err != "" {
		t.Error(r)
	}
	if r := s.run("cluster", "log-level", "--all"); r.code != exitDone || r.out != both("info", "debug") || r.err != "node-3 is silent.\n" {
		t.Error(r)
	}
	if out := s.ok("cluster", "log-level", "warn", "--all"); out != both("warn", "warn") {
		t.Error(out)
	}
	s.fails(exitFailed, "node-3 is silent", "cluster", "log-level", "debug", "--node", "node-3")
	s.fails(exitFailed, "there is no node other; there are: node-1, node-2, node-3", "cluster", "log-level", "debug", "--node", "other")
	s.fails(exitUsage, "exclude each other", "cluster", "log-level", "debug", "--node", "node-1", "--all")
	s.env["PULSE_ADDR"] = addrs[1]
	if out := s.ok("cluster", "log-level", "info"); out != "node-2 logs at level info.\n" {
		t.Error(out)
	}
	s.env["PULSE_ADDR"] = addrs[1] + "," + nobody(t)
	if r := s.fails(exitFailed, "connection refused", "cluster", "log-level"); r.out != "node-2 logs at level info.\n" {
		t.Errorf("one that is dead keeps the other from its answer: %s", r.out)
	}
}
