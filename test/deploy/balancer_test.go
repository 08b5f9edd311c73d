package deploy

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pulse/cluster/pki"
	"pulse/sdk"
	"pulse/test/ports"
)

// ids are the nodes, by the names that the balancers' files have for them.
var ids = []string{"node-1", "node-2", "node-3"}

// site is three nodes that form a cluster, their certificates, and what stands in
// front of them.
type site struct {
	nodes  []*node
	addrs  []string // of the nodes' HTTP ports
	pki    string   // where the certificates are
	client *http.Client
}

// issue makes the certificates of the nodes at loopback addresses, of the
// balancer's public name and of the clients "balancer" and "worker".
func (s *site) issue(t *testing.T) {
	t.Helper()
	s.pki = filepath.Join(t.TempDir(), "pki")
	o := pki.InitOptions{Cluster: "site", Clients: []string{"balancer", "worker"}}
	for i, id := range append(slices.Clone(ids), "balancer") {
		o.Nodes = append(o.Nodes, pki.NodeSpec{ID: id, Hosts: []string{id, "pulse.internal", fmt.Sprintf("127.0.0.%d", i+1)}})
	}
	if _, err := pki.Init(s.pki, o); err != nil {
		t.Fatal(err)
	}
	// HAProxy wants the key in the same file.
	for _, name := range []string{"balancer/http", "clients/balancer/client"} {
		path := filepath.Join(s.pki, name)
		write(t, path+"-both.pem", read(t, path+".pem")+read(t, path+".key"))
	}
}

// certs are the files of the balancer by the names that its configuration has.
func (s *site) certs(dir string) (pairs []string) {
	server, client := filepath.Join(s.pki, "balancer"), filepath.Join(s.pki, "clients", "balancer")
	for _, name := range []string{"http-ca.pem", "client-ca.pem", "client.crl"} {
		pairs = append(pairs, dir+name, filepath.Join(server, name))
	}
	if strings.Contains(dir, "haproxy") {
		return append(pairs, dir+"balancer.pem", filepath.Join(server, "http-both.pem"), dir+"client.pem", filepath.Join(client, "client-both.pem"))
	}
	return append(pairs, dir+"balancer.pem", filepath.Join(server, pki.HTTPCertFile), dir+"balancer.key", filepath.Join(server, pki.HTTPKeyFile),
		dir+"client.pem", filepath.Join(client, pki.ClientCertFile), dir+"client.key", filepath.Join(client, pki.ClientKeyFile))
}

// clientAs is a client that shows a certificate of the cluster; "" none.
func (s *site) clientAs(t *testing.T, name string) *http.Client {
	t.Helper()
	dir := filepath.Join(s.pki, "clients", "worker")
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(read(t, filepath.Join(dir, pki.HTTPCAFile)))) {
		t.Fatal("no HTTP CA")
	}
	config := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	if name != "" {
		dir = filepath.Join(s.pki, "clients", name)
		cert, err := tls.LoadX509KeyPair(filepath.Join(dir, pki.ClientCertFile), filepath.Join(dir, pki.ClientKeyFile))
		if err != nil {
			t.Fatal(err)
		}
		config.Certificates = []tls.Certificate{cert}
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config}}
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := new(site)
	s.issue(t)
	s.client = s.clientAs(t, "worker")
	own := s.clientAs(t, "worker")
	own.Timeout = direct.Timeout
	own.Transport.(*http.Transport).DisableKeepAlives = true
	join := ports.Free(t, "127.0.0.1")
	for i, id := range ids {
		ip := fmt.Sprintf("127.0.0.%d", i+1)
		gossip := join
		if i > 0 {
			gossip = ports.Free(t, ip)
		}
		n := newNode(t, nodeConfig{id: id, ip: ip, client: own, args: []string{
			"--certs", filepath.Join(s.pki, id), "--rpc", ports.Free(t, ip), "--raft", ports.Free(t, ip), "--gossip", gossip,
			"--join", join, "--bootstrap-expect", "3",
		}})
		s.nodes, s.addrs = append(s.nodes, n), append(s.addrs, n.addr)
		n.start(t)
	}
	for _, n := range s.nodes {
		n.ready(t)
	}
	return s
}

// leader is the place of the node that leads.
func (s *site) leader(t *testing.T) (place int) {
	t.Helper()
	until(t, "a leader", func() (bool, string) {
		for i, n := range s.nodes {
			_, body := n.get("/v1/cluster?consistency=stale")
			var answer struct {
				Node struct{ Role string }
			}
			if json.Unmarshal([]byte(body), &answer) == nil && answer.Node.Role == "leader" {
				place = i
				return true, ""
			}
		}
		return false, "none says so"
	})
	return place
}

// kind of balancer. Its file is the one in deploy, with the addresses, times and
// certificates of the test.
type kind struct {
	name, program, file string
	config              func(t *testing.T, s *site, addr, silence string) string
	args                func(config string) []string
	reload              syscall.Signal
}

var kinds = []kind{
	{"haproxy", "haproxy", "/haproxy/haproxy.cfg", func(t *testing.T, s *site, addr, silence string) string {
		return changed(t, files+"/haproxy/haproxy.cfg", append(s.servers(),
			"maxconn 20000", "maxconn 2000", // a test machine may not open more files
			"bind :7400", "bind "+addr,
			"/etc/haproxy/certs/http-ca.pem", filepath.Join(s.pki, "clients", "balancer", pki.HTTPCAFile),
			"timeout client 11m", "timeout client "+silence,
			"timeout server 11m", "timeout server "+silence)...)
	}, haproxyArgs, syscall.SIGUSR2},
	{"haproxy-http", "haproxy", "/haproxy/haproxy-http.cfg", func(t *testing.T, s *site, addr, silence string) string {
		return changed(t, files+"/haproxy/haproxy-http.cfg", append(append(s.servers(), s.certs("/etc/haproxy/certs/")...),
			"maxconn 20000", "maxconn 2000",
			"bind :7443", "bind "+addr,
			"timeout client 11m", "timeout client "+silence,
			"timeout server 11m", "timeout server "+silence,
			"timeout tunnel 2m", "timeout tunnel "+silence)...)
	}, haproxyArgs, syscall.SIGUSR2},
	{"nginx", "nginx", "/nginx/pulse.conf", func(t *testing.T, s *site, addr, silence string) string {
		dir := t.TempDir()
		ours := changed(t, files+"/nginx/pulse.conf", append(append(s.servers(), s.certs("/etc/nginx/certs/")...),
			"listen 7443", "listen "+addr,
			"proxy_read_timeout 11m", "proxy_read_timeout "+silence,
			"proxy_send_timeout 11m", "proxy_send_timeout "+silence)...)
		// What the package has in nginx.conf, as far as it matters, and the lines that
		// the file tells its reader to add.
		return fmt.Sprintf(`user root; daemon off; worker_processes 2; pid %[1]s/pid; error_log stderr;
worker_shutdown_timeout 1h; events { worker_connections 2000; }
http { access_log off; client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
%[2]s
}
`, dir, ours)
	}, func(config string) []string { return []string{"-c", config} }, syscall.SIGHUP},
}

func haproxyArgs(config string) []string { return []string{"-W", "-db", "-f", config} }

// servers replaces the nodes' names by their addresses here.
func (s *site) servers() (pairs []string) {
	for i, id := range ids {
		pairs = append(pairs, id+":7400", s.addrs[i])
	}
	return pairs
}

// balancer is one that runs, with a queue of its own.
type balancer struct {
	t       *testing.T
	name    string
	site    *site
	program *program
	signal  syscall.Signal
	path    string // of its configuration
	whole   string // its configuration with all nodes
	line    *regexp.Regexp
	url     string
	client  *sdk.Client

	workers []*hand
}

// hand is a worker that can be sent home.
type hand struct {
	*sdk.Worker
	leave func() // returns when it is gone
}

// launchBalancer starts one with a queue of its own, which it returns when it serves.
func launchBalancer(t *testing.T, s *site, k kind, name, silence string) *balancer {
	t.Helper()
	path := tool(t, k.program)
	addr := ports.Free(t, "127.0.0.1")
	b := &balancer{
		t: t, name: name, site: s, signal: k.reload, url: "https://" + addr,
		path: filepath.Join(t.TempDir(), "config"), whole: k.config(t, s, addr, silence),
		// The third node's line, by its name or by its address.
		line: regexp.MustCompile(`(?m)^ +server (` + regexp.QuoteMeta(s.addrs[2]) + `|` + ids[2] + `) .*$`),
	}
	if len(b.line.FindAllString(b.whole, -1)) != 1 {
		t.Fatalf("%s: %s is not there once", k.file, ids[2])
	}
	write(t, b.path, b.whole)
	b.program = launch(t, path, k.args(b.path)...)
	b.client = sdk.NewClient(sdk.ClientOptions{Addr: b.url, Queue: b.queue(), HTTPClient: s.client, Logger: slog.New(slog.DiscardHandler)})
	until(t, b.name+" serves", func() (bool, string) {
		err := b.ask()
		return err == nil, fmt.Sprint(err, b.program.output())
	})
	// Whoever shows no certificate is let through by none of them.
	if err := b.askAs(s.clientAs(t, "")); err == nil || !regexp.MustCompile(`401|400|certificate required|handshake failure`).MatchString(err.Error()) {
		t.Errorf("%s: somebody without a certificate is answered: %v", b.name, err)
	}
	// Short leases, so that a node's death is over soon for what ran there.
	if _, err := b.client.PutQueue(t.Context(), b.queue(), sdk.QueueSettings{LeaseDurationMillis: 5000, OfferDurationMillis: 2000}); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *balancer) queue() string { return "via-" + b.name }

// ask is one request on a connection of its own.
func (b *balancer) ask() error { return b.askAs(b.site.client) }

func (b *balancer) askAs(who *http.Client) error {
	transport := who.Transport.(*http.Transport).Clone()
	transport.DisableKeepAlives = true
	client := &http.Client{Transport: transport, Timeout: patience}
	res, err := client.Get(b.url + "/v1/cluster?consistency=stale")
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return errors.New(res.Status)
	}
	return nil
}

// connect adds workers, one after the other, as a rolling start does.
func (b *balancer) connect(ctx context.Context, running *sync.WaitGroup, count int) {
	b.t.Helper()
	for range count {
		w := sdk.NewWorker(sdk.WorkerOptions{
			Addrs: []string{b.url}, Queue: b.queue(), Capacity: 4, HTTPClient: b.site.client,
			Logger: slog.New(slog.DiscardHandler), DrainTimeout: time.Second,
			Heartbeat: -1, // what keeps the connection has to be pings alone
		})
		w.Handle("work", "1", "1", func(ctx context.Context, t *sdk.Task) (any, error) {
			var in struct{ MS int }
			if err := t.Unmarshal(&in); err != nil {
				return nil, sdk.Failed("bad_payload", err)
			}
			select {
			case <-time.After(time.Duration(in.MS) * time.Millisecond):
			case <-ctx.Done():
				return nil, sdk.Retryable(context.Cause(ctx))
			}
			return nil, nil
		})
		own, leave := context.WithCancel(ctx)
		gone := make(chan struct{})
		running.Go(func() {
			defer close(gone)
			if err := w.Run(own); err != nil {
				b.t.Errorf("%s: a worker has ended: %v", b.name, err)
			}
		})
		select {
		case <-w.Ready():
		case <-time.After(patience):
			b.t.Fatalf("%s: a worker did not connect: %+v", b.name, w.Health())
		}
		// An idle connection counts too where TLS is passed through.
		b.site.client.CloseIdleConnections()
		b.workers = append(b.workers, &hand{w, func() { leave(); <-gone }})
	}
}

// empty sends the workers of a node home.
func (b *balancer) empty(ctx context.Context, id string) (count int) {
	b.t.Helper()
	there := map[string]bool{}
	for info, err := range b.client.Workers(ctx, b.queue()) {
		if err != nil {
			b.t.Fatalf("%s: %v", b.name, err)
		}
		there[info.InstanceID] = info.GatewayID == id && info.State == "connected"
	}
	b.workers = slices.DeleteFunc(b.workers, func(h *hand) bool {
		if !there[h.Health().InstanceID] {
			return false
		}
		h.leave()
		count++
		return true
	})
	return count
}

// spread counts the connected workers of this balancer by node.
func (b *balancer) spread(ctx context.Context) (byNode map[string]int, err error) {
	byNode = map[string]int{}
	for info, err := range b.client.Workers(ctx, b.queue()) {
		if err != nil {
			return nil, err
		}
		if info.State == "connected" {
			byNode[info.GatewayID]++
		}
	}
	return byNode, nil
}

func (b *balancer) mustSpread(ctx context.Context) map[string]int {
	b.t.Helper()
	byNode, err := b.spread(ctx)
	if err != nil {
		b.t.Fatalf("%s: %v", b.name, err)
	}
	return byNode
}

// sessions are how many sessions the workers have had so far. As long as it does
// not change, no connection was lost.
func (b *balancer) sessions() (all []uint64) {
	for _, w := range b.workers {
		all = append(all, w.Stats().Sessions)
	}
	return all
}

// configure makes it go on with another configuration.
func (b *balancer) configure(text string) {
	b.t.Helper()
	write(b.t, b.path, text)
	if err := b.program.cmd.Process.Signal(b.signal); err != nil {
		b.t.Fatal(err)
	}
}

// probe asks again and again, each time on a new connection, and tells how often
// there was no good answer, and what there was.
func (b *balancer) probe(every time.Duration) (stop func() (asked int, failed []error)) {
	done := make(chan struct{})
	var asking sync.WaitGroup
	var asked int
	var failed []error
	asking.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(every):
			}
			asked++
			if err := b.ask(); err != nil {
				failed = append(failed, err)
			}
		}
	})
	return func() (int, []error) {
		close(done)
		asking.Wait()
		return asked, failed
	}
}

// submit puts tasks in and returns their ids.
func (b *balancer) submit(ctx context.Context, count, ms int) (ids []string) {
	b.t.Helper()
	for range count {
		task, err := b.client.Submit(ctx, sdk.TaskSpec{Handler: "work", Payload: map[string]int{"ms": ms}})
		if err != nil {
			b.t.Fatalf("%s: %v", b.name, err)
		}
		ids = append(ids, task.ID)
	}
	return ids
}

func (b *balancer) finish(ctx context.Context, ids []string) {
	b.t.Helper()
	for _, id := range ids {
		task, err := b.client.Wait(ctx, id)
		if err != nil || task.State != sdk.StateSucceeded {
			b.t.Errorf("%s: task %s: %+v, %v", b.name, id, task, err)
		}
	}
}

// events follows the namespace's events through the balancer, and says when the
// stream has spoken and when it has ended.
func (b *balancer) events(ctx context.Context) (lines <-chan string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.url+"/v1/namespaces/default/events", nil)
	if err != nil {
		return nil, err
	}
	res, err := b.site.client.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		return nil, errors.Join(errors.New(res.Status), res.Body.Close())
	}
	out := make(chan string, 1000)
	go func() {
		defer close(out)
		defer res.Body.Close()
		scan := bufio.NewScanner(res.Body)
		for scan.Scan() {
			select {
			case out <- scan.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

// silence is the balancers' limit in the test: above the 15 seconds between two
// pings, as the shipped ones are, and short enough to be outlasted here.
const (
	silence  = "20s"
	outlasts = 27 * time.Second
	tooShort = "5s" // below the pings
)

// TestWorkersLiveWellBehindABalancer puts HAProxy (passing TLS through, and ending
// it) and nginx in front of one cluster of three nodes: workers spread over the
// nodes, keep their connection through silence longer than the balancer's
// limit and through reloads, and find another node when theirs dies.
func TestWorkersLiveWellBehindABalancer(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	s := newSite(t)
	var all []*balancer
	for _, k := range kinds {
		all = append(all, launchBalancer(t, s, k, k.name, silence))
	}
	life, end := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() {
		end()
		running.Wait()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 8*patience)
	defer cancel()
	for _, b := range all {
		b.connect(life, &running, 9)
	}

	// Spread, and where there are few come more: one after the other in a circle, the
	// three that come anew would be put to three nodes.
	for _, b := range all {
		first := b.mustSpread(ctx)
		left := b.empty(ctx, ids[1])
		s.client.CloseIdleConnections()
		b.connect(life, &running, left)
		then := b.mustSpread(ctx)
		t.Logf("%s: 9 workers are connected at %v; %d of %s leave, %d come: %v", b.name, first, left, ids[1], left, then)
		for _, id := range ids {
			if first[id] < 2 || then[id] < 2 {
				t.Errorf("%s: %s has %d of 9 workers, then %d", b.name, id, first[id], then[id])
			}
		}
		b.finish(ctx, b.submit(ctx, 30, 1))
	}

	// Silence. A fourth balancer with a limit below the pings shows that it would
	// be noticed.
	hasty := launchBalancer(t, s, kinds[0], "hasty", tooShort)
	hasty.connect(life, &running, 3)
	streams := map[*balancer]<-chan string{}
	before := map[*balancer][]uint64{}
	for _, b := range append(slices.Clone(all), hasty) {
		before[b] = b.sessions()
	}
	for _, b := range all {
		lines, err := b.events(ctx)
		if err != nil {
			t.Fatalf("%s: %v", b.name, err)
		}
		streams[b] = lines
	}
	pause(outlasts)
	for _, b := range all {
		if after := b.sessions(); !slices.Equal(after, before[b]) {
			t.Errorf("%s: %s of silence cost workers their connection: sessions were %v, are %v", b.name, outlasts, before[b], after)
		}
		b.finish(ctx, b.submit(ctx, 1, 1))
		b.mustHear(streams[b])
	}
	if after := hasty.sessions(); slices.Equal(after, before[hasty]) {
		t.Errorf("with a limit of %s no connection was lost in %s: this test notices nothing", tooShort, outlasts)
	}

	// Reload: once to leave a node out, once to take it back.
	for _, b := range all {
		before[b] = b.sessions()
		on3 := b.mustSpread(ctx)[ids[2]]
		long := b.submit(ctx, 4, 4000) // across both
		stop := b.probe(50 * time.Millisecond)
		b.configure(b.line.ReplaceAllString(b.whole, ""))
		b.settle(ctx, &running, life, on3)
		b.configure(b.whole)
		b.finish(ctx, append(long, b.submit(ctx, 30, 1)...))
		asked, failed := stop()
		if len(failed) > 0 || asked < 20 {
			t.Errorf("%s: during the reloads %d of %d requests failed: %v", b.name, len(failed), asked, failed)
		}
		if after := b.sessions(); !slices.Equal(after[:9], before[b]) {
			t.Errorf("%s: reloads cost workers their connection: sessions were %v, are %v", b.name, before[b], after)
		}
	}

	// A node dies: the one that leads, to make it hard.
	dead := s.leader(t)
	tasks := map[*balancer][]string{}
	stops := map[*balancer]func() (int, []error){}
	for _, b := range all {
		tasks[b] = b.submit(ctx, 20, 500)
		stops[b] = b.probe(100 * time.Millisecond)
	}
	died := time.Now()
	s.nodes[dead].kill()
	for _, b := range all {
		until(t, b.name+": all workers are at the nodes that live", func() (bool, string) {
			call, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			byNode, err := b.spread(call)
			living := 0
			for id, n := range byNode {
				if id != ids[dead] {
					living += n
				}
			}
			return err == nil && living == len(b.workers), fmt.Sprint(byNode, err)
		})
		t.Logf("%s: all %d workers are back %.1f s after the leader's death", b.name, len(b.workers), time.Since(died).Seconds())
	}
	for _, b := range all {
		b.finish(ctx, append(tasks[b], b.submit(ctx, 10, 1)...))
		asked, failed := stops[b]()
		t.Logf("%s: %d of %d requests failed around the death", b.name, len(failed), asked)
		until(t, b.name+": the dead node is left out", func() (bool, string) {
			for range 30 { // of which a third would be for it
				if err := b.ask(); err != nil {
					return false, err.Error()
				}
			}
			return true, ""
		})
	}

	// It comes back, and new workers find it.
	s.nodes[dead].start(t)
	s.nodes[dead].ready(t)
	for _, b := range all {
		until(t, b.name+": a worker is connected to the node that is back", func() (bool, string) {
			b.connect(life, &running, 1)
			byNode := b.mustSpread(ctx)
			return byNode[ids[dead]] > 0, fmt.Sprint(byNode)
		})
	}
}

// mustHear waits for an event of a task: it comes when it happens, and not when a
// buffer is full.
func (b *balancer) mustHear(lines <-chan string) {
	b.t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				b.t.Errorf("%s: the stream of events has ended", b.name)
				return
			}
			if strings.HasPrefix(line, "data: ") {
				return
			}
		case <-deadline:
			b.t.Errorf("%s: no event came", b.name)
			return
		}
	}
}

// settle waits until the new configuration is in force: workers that connect now
// are not put to the third node, whose own stay.
func (b *balancer) settle(ctx context.Context, running *sync.WaitGroup, life context.Context, on3 int) {
	b.t.Helper()
	streak := 0
	until(b.t, b.name+": four workers in a row that are not put to "+ids[2], func() (bool, string) {
		b.connect(life, running, 1)
		byNode := b.mustSpread(ctx)
		streak++
		if byNode[ids[2]] > on3 {
			on3, streak = byNode[ids[2]], 0
		}
		return streak == 4, fmt.Sprint(byNode)
	})
}

// gatewayLine begins what a reader takes out of the comments to have gateways.
const gatewayLine = "#gateway# "

func TestTheBalancersUnderstandTheirFiles(t *testing.T) {
	t.Parallel()
	// Names are looked up when the file is checked; here they are addresses.
	s := new(site)
	s.issue(t)
	for i := range ids {
		s.addrs = append(s.addrs, fmt.Sprintf("127.0.0.%d:7400", i+1))
	}
	for _, k := range kinds {
		program := tool(t, k.program)
		config := k.config(t, s, "127.0.0.1:7400", "11m")
		check := func(text string) (string, int) {
			path := write(t, filepath.Join(t.TempDir(), "config"), text)
			if k.program == "nginx" {
				return run(t, program, "-t", "-c", path)
			}
			return run(t, program, "-c", "-f", path)
		}
		out, code := check(config)
		if code != 0 || strings.Contains(strings.ToLower(out), "warning") || strings.Contains(out, "[warn]") {
			t.Errorf("%s: %d%s", k.file, code, indent(out))
		}
		if out, code := check(strings.Replace(config, "timeout", "tmieout", 1)); code == 0 {
			t.Errorf("%s: a mistake is let pass:%s", k.file, indent(out))
		}
		// With the lines for gateways, too.
		with := strings.NewReplacer(gatewayLine, "", "gateway-1:7400", "127.0.1.1:7400", "gateway-2:7400", "127.0.1.2:7400").Replace(config)
		if n := strings.Count(with, "127.0.1."); n != 2 {
			t.Errorf("%s has lines for %d gateways", k.file, n)
		}
		if out, code := check(with); code != 0 || strings.Contains(strings.ToLower(out), "warning") || strings.Contains(out, "[warn]") {
			t.Errorf("%s with gateways: %d%s", k.file, code, indent(out))
		}
	}
}

// The shipped times, which the tests above replace by shorter ones.
func TestTheBalancersWaitLongEnough(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		file, pattern string
		above         time.Duration
		count         int
	}{
		{"/haproxy/haproxy.cfg", `timeout (?:client|server) (\w+)`, longestPoll, 2},
		{"/haproxy/haproxy-http.cfg", `timeout (?:client|server) (\w+)`, longestPoll, 2},
		{"/haproxy/haproxy-http.cfg", `timeout tunnel (\w+)`, 30 * time.Second, 1},
		{"/nginx/pulse.conf", `proxy_(?:read|send)_timeout (\w+);`, longestPoll, 2},
	} {
		found := regexp.MustCompile(`(?m)^ +`+c.pattern+`$`).FindAllStringSubmatch(read(t, files+c.file), -1)
		if len(found) != c.count {
			t.Errorf("%s: %q is there %d times, want %d", c.file, c.pattern, len(found), c.count)
		}
		for _, m := range found {
			if d, err := time.ParseDuration(m[1]); err != nil || d <= c.above {
				t.Errorf("%s: %s is not above %v (%v)", c.file, strings.TrimSpace(m[0]), c.above, err)
			}
		}
	}
	if _, err := os.Stat(files + "/README.md"); err != nil {
		t.Error(err)
	}
}
