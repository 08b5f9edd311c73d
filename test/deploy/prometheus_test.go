package deploy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"pulse/sdk"
	"pulse/sdk/pulsetest"
	"pulse/test/ports"
)

const rulesFile = files + "/prometheus/rules.yaml"

// ruleGroups is a file of Prometheus rules.
type ruleGroups struct {
	Groups []struct {
		Name  string      `yaml:"name"`
		Rules []alertRule `yaml:"rules"`
	} `yaml:"groups"`
}

type alertRule struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

func alerts(t *testing.T) (all []alertRule) {
	t.Helper()
	for _, g := range decode[ruleGroups](t, rulesFile)[0].Groups {
		all = append(all, g.Rules...)
	}
	if len(all) < 20 {
		t.Fatalf("only %d alerts were found", len(all))
	}
	return all
}

func TestEachAlertLeadsToASectionOfTheRunbook(t *testing.T) {
	t.Parallel()
	runbook := read(t, root+"/docs/runbook.md")
	for _, a := range alerts(t) {
		if want := "docs/runbook.md#" + strings.ToLower(a.Alert); a.Annotations["runbook"] != want {
			t.Errorf("%s: runbook is %q, want %q", a.Alert, a.Annotations["runbook"], want)
		}
		if !strings.Contains(runbook, "\n### "+a.Alert+"\n") {
			t.Errorf("%s has no section in docs/runbook.md", a.Alert)
		}
		if a.Annotations["summary"] == "" || !slices.Contains([]string{"critical", "warning"}, a.Labels["severity"]) {
			t.Errorf("%s: summary %q, severity %q", a.Alert, a.Annotations["summary"], a.Labels["severity"])
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^### (Pulse\w+)$`).FindAllStringSubmatch(runbook, -1) {
		if !slices.ContainsFunc(alerts(t), func(a alertRule) bool { return a.Alert == m[1] }) {
			t.Errorf("docs/runbook.md has a section for %s, which is no alert", m[1])
		}
	}
}

// promtool plays series and says which alerts fire. Each alert has to fire at
// least once there.
func TestTheAlertsFireOnWhatTheyAreFor(t *testing.T) {
	t.Parallel()
	promtool := tool(t, "promtool")
	dir := files + "/prometheus"
	if text, code := run(t, promtool, "check", "rules", rulesFile); code != 0 {
		t.Fatal(text)
	}
	if text, code := run(t, promtool, "test", "rules", dir+"/rules_test.yaml"); code != 0 {
		t.Fatal(text)
	}
	var fires []string
	for _, f := range decode[struct {
		Files    []string `yaml:"rule_files"`
		Interval string   `yaml:"evaluation_interval"`
		Tests    []struct {
			Interval string `yaml:"interval"`
			Name     string `yaml:"name"`
			Series   []struct {
				Series string `yaml:"series"`
				Values string `yaml:"values"`
			} `yaml:"input_series"`
			Alerts []struct {
				Time  string `yaml:"eval_time"`
				Alert string `yaml:"alertname"`
				Want  []any  `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		} `yaml:"tests"`
	}](t, dir+"/rules_test.yaml") {
		for _, test := range f.Tests {
			for _, a := range test.Alerts {
				if len(a.Want) > 0 {
					fires = append(fires, a.Alert)
				}
			}
		}
	}
	for _, a := range alerts(t) {
		if !slices.Contains(fires, a.Alert) {
			t.Errorf("no test of %s/rules_test.yaml lets %s fire", dir, a.Alert)
		}
	}
	checked := write(t, filepath.Join(t.TempDir(), "prometheus.yaml"), changed(t, dir+"/prometheus.yaml",
		"/etc/prometheus/pulse/http-ca.pem", write(t, filepath.Join(t.TempDir(), "ca.pem"), ""), "[rules.yaml]", "[]"))
	if text, code := run(t, promtool, "check", "config", checked); code != 0 {
		t.Error(text)
	}
}

// dashboard is the part of a Grafana dashboard that asks Prometheus.
type dashboard struct {
	Title  string `json:"title"`
	Panels []struct {
		ID      int    `json:"id"`
		Type    string `json:"type"`
		Title   string `json:"title"`
		Grid    struct{ X, Y, W, H int }
		Targets []struct {
			Expr   string `json:"expr"`
			Legend string `json:"legendFormat"`
		} `json:"targets"`
		Field struct {
			Defaults struct {
				Unit string `json:"unit"`
			} `json:"defaults"`
		} `json:"fieldConfig"`
	} `json:"panels"`
	Templating struct {
		List []struct {
			Name  string `json:"name"`
			Query any    `json:"query"`
		} `json:"list"`
	} `json:"templating"`
}

func board(t *testing.T) (d dashboard) {
	t.Helper()
	if err := json.Unmarshal([]byte(read(t, files+"/grafana/pulse.json")), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// filled is an expression as Grafana sends it when everything is chosen.
var filled = strings.NewReplacer("$__rate_interval", "1m", "$job", "pulse", "$namespace", ".*", "$queue", ".*")

// expressions are all that alerts and dashboard ask, as a Prometheus takes it.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, a := range alerts(t) {
		out["alert "+a.Alert] = a.Expr
	}
	d := board(t)
	seen := map[int]bool{}
	for _, p := range d.Panels {
		if seen[p.ID] {
			t.Errorf("panel %d is there twice", p.ID)
		}
		seen[p.ID] = true
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %q asks nothing", p.Title)
		}
		for i, target := range p.Targets {
			out[fmt.Sprintf("panel %s, %d", p.Title, i+1)] = filled.Replace(target.Expr)
		}
	}
	if len(out) < 60 {
		t.Errorf("only %d expressions were found", len(out))
	}
	return out
}

var metricName = regexp.MustCompile(`\b(?:pulse_[a-z_]+|scrape_[a-z_]+|up)\b`)

// prometheus is a real one that scrapes a node.
type prometheus struct{ url string }

// startPrometheus scrapes addr each second and evaluates the real rules.
func startPrometheus(t *testing.T, addr string) prometheus {
	t.Helper()
	bin := tool(t, "prometheus")
	dir := t.TempDir()
	rules, err := filepath.Abs(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	config := write(t, filepath.Join(dir, "prometheus.yaml"), fmt.Sprintf(`
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%s]
scrape_configs:
- job_name: pulse
  static_configs: [{targets: ['%s']}]
`, rules, addr))
	listen := ports.Free(t, "127.0.0.1")
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	// Killed when the test ends: a Prometheus that is asked to stop takes its time.
	cmd := exec.CommandContext(t.Context(), bin, "--config.file="+config, "--web.listen-address="+listen, "--storage.tsdb.path="+filepath.Join(dir, "data"))
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("prometheus said:\n%s", tail(log.Name()))
		}
	})
	return prometheus{"http://" + listen}
}

// ask returns the data of an answer, or what is wrong.
func (p prometheus) ask(ctx context.Context, path string, query url.Values, data any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	resp, err := direct.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	answer := struct {
		Status string `json:"status"`
		Error  string `json:"error"`
		Data   any    `json:"data"`
	}{Data: data}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return fmt.Errorf("%s: %w", resp.Status, err)
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s: %s", resp.Status, answer.Error)
	}
	return nil
}

// Work is done on a real node that a real Prometheus scrapes. Then every name that
// a rule or a panel uses has to be one that Prometheus has seen, every
// expression one that it takes, and no alert may fire but those that there is
// reason for.
func TestAPrometheusKnowsEveryNameThatIsAskedFor(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*patience)
	defer cancel()
	pulse := pulsetest.Start(t)
	p := startPrometheus(t, strings.TrimPrefix(pulse.Addr(), "http://"))
	pulse.Handle("work", "1", "1", func(context.Context, *sdk.Task) (any, error) { return nil, nil })
	if task := pulse.Do(sdk.TaskSpec{Handler: "work"}); task.State != sdk.StateSucceeded {
		t.Fatalf("the task is %s", task.State)
	}
	// What becomes of its times is counted from when there is one.
	if _, err := pulse.Client().PutSchedule(ctx, "nightly", sdk.ScheduleSpec{Cron: "@daily", Task: sdk.TaskSpec{Handler: "work"}}); err != nil {
		t.Fatal(err)
	}

	// What only a gateway without a vote serves.
	ofGateways := []string{"pulse_watch_connected"}
	var names []string
	known := func(name string) bool { return slices.Contains(names, name) || slices.Contains(ofGateways, name) }
	wanted := map[string]string{"pulse_task_events_total": "the test", "pulse_pickup_seconds_bucket": "the test"}
	for at, expr := range expressions(t) {
		for _, name := range metricName.FindAllString(expr, -1) {
			wanted[name] = at
		}
	}
	// No snapshot has been taken.
	delete(wanted, "pulse_snapshot_age_seconds")
	for {
		missing := ""
		err := p.ask(ctx, "/api/v1/label/__name__/values", nil, &names)
		for name, at := range wanted {
			if !known(name) {
				missing = name + " of " + at
			}
		}
		if err == nil && missing == "" {
			break
		}
		select {
		case <-ctx.Done():
			t.Fatalf("Prometheus never saw %s (%v)", missing, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
	for at, expr := range expressions(t) {
		if err := p.ask(ctx, "/api/v1/query", url.Values{"query": {expr}}, &struct{}{}); err != nil {
			t.Errorf("%s: %v\n%s", at, err, expr)
		}
	}
	var leads struct {
		Result []struct{ Value [2]any }
	}
	if err := p.ask(ctx, "/api/v1/query", url.Values{"query": {`sum(pulse_task_events_total{event="succeeded"}) and sum(pulse_leader) == 1`}}, &leads); err != nil {
		t.Fatal(err)
	}
	if len(leads.Result) != 1 || leads.Result[0].Value[1] != "1" {
		t.Errorf("one task succeeded and one node leads, Prometheus says %v", leads.Result)
	}
	var active struct {
		Alerts []struct {
			State  string
			Labels map[string]string
		}
	}
	if err := p.ask(ctx, "/api/v1/alerts", nil, &active); err != nil {
		t.Fatal(err)
	}
	for _, a := range active.Alerts {
		if a.State == "firing" { // before the first scrape, that nothing leads was pending
			t.Errorf("an alert fires on a sound node: %v", a.Labels)
		}
	}
}

// The names in alerts and dashboard are those of the page of metrics.
func TestTheMetricsThatAreAskedForAreDocumented(t *testing.T) {
	t.Parallel()
	page := read(t, root+"/docs/metrics.md")
	for at, expr := range expressions(t) {
		for _, name := range metricName.FindAllString(expr, -1) {
			if !strings.HasPrefix(name, "pulse_") {
				continue
			}
			base := name
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				base = strings.TrimSuffix(base, suffix)
			}
			if !strings.Contains(page, "`"+name+"`") && !strings.Contains(page, "`"+base+"`") {
				t.Errorf("%s asks for %s, which docs/metrics.md does not have", at, name)
			}
		}
	}
}

// series is what an expression is answered with.
type series struct {
	Metric map[string]string
	Value  [2]any
}

// numbers asks for an expression and returns the series that have a number, and what
// is wrong with the answer, if anything is.
func (p prometheus) numbers(ctx context.Context, expr string) ([]series, error) {
	var answer struct{ Result []series }
	if err := p.ask(ctx, "/api/v1/query", url.Values{"query": {expr}}, &answer); err != nil {
		return nil, err
	}
	out := slices.DeleteFunc(answer.Result, func(s series) bool { return s.Value[1] == "NaN" })
	if len(out) == 0 {
		return nil, fmt.Errorf("of %d series none has a number", len(answer.Result))
	}
	return out, nil
}

// A node with work of every kind is looked at through each panel of the dashboard:
// each shows a number, and each of its lines is told from the others by a label that
// there is.
func TestEveryPanelShowsSomething(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*patience)
	defer cancel()
	pulse := pulsetest.Start(t)
	p := startPrometheus(t, strings.TrimPrefix(pulse.Addr(), "http://"))
	pulse.Handle("work", "1", "1", func(context.Context, *sdk.Task) (any, error) { return nil, nil })
	pulse.Handle("forget", "1", "1", func(context.Context, *sdk.Task) (any, error) { return nil, sdk.Unknown(errors.New("forgotten")) })
	client := pulse.Client()
	for _, spec := range []sdk.TaskSpec{{Handler: "nobody"}, {Handler: "forget", RecoverySafety: sdk.ReconcileOnly}} {
		if _, err := client.Submit(ctx, spec); err != nil {
			t.Fatal(err)
		}
	}
	panels := board(t).Panels
	// What one server never has: no snapshot was taken, and nobody but itself leads.
	empty := map[string]bool{"Age of the newest snapshot": true}
	labels := regexp.MustCompile(`{{(\w+)}}`)
	for {
		missing := ""
		// A rate is of what happens while Prometheus looks.
		if task := pulse.Do(sdk.TaskSpec{Handler: "work"}); task.State != sdk.StateSucceeded {
			t.Fatalf("a task is %s", task.State)
		}
		for _, panel := range panels {
			for _, target := range panel.Targets {
				found, err := p.numbers(ctx, filled.Replace(target.Expr))
				if err != nil {
					if !empty[panel.Title] {
						missing = fmt.Sprintf("%s: %v\n%s", panel.Title, err, target.Expr)
					}
					continue
				}
				names := map[string]bool{}
				for _, s := range found {
					name := labels.ReplaceAllStringFunc(target.Legend, func(l string) string { return s.Metric[strings.Trim(l, "{}")] })
					if names[name] || strings.Contains(target.Legend, "{{") && strings.Trim(name, "/") == "" {
						t.Fatalf("%s has two lines, or one without a name, called %q: %v", panel.Title, name, found)
					}
					names[name] = true
				}
			}
		}
		if missing == "" {
			break
		}
		select {
		case <-ctx.Done():
			t.Fatal(missing)
		case <-time.After(200 * time.Millisecond):
		}
	}
	for expr, want := range map[string]string{
		`sum(pulse_tasks_in_review{job="pulse"})`:                          "1",
		`sum(pulse_tasks_waiting{job="pulse",reason="no_capable_worker"})`: "1",
		`sum(pulse_task_events_total{job="pulse",event="review_needed"})`:  "1",
		`sum(pulse_leader{job="pulse"})`:                                   "1",
		`sum(pulse_worker_slots{job="pulse",state="total"}) > bool 0`:      "1",
	} {
		if got, err := p.numbers(ctx, expr); err != nil || got[0].Value[1] != want {
			t.Errorf("%s is %v (%v), want %s", expr, got, err, want)
		}
	}
}

// The unit of a panel is that of what it asks for, as the names of metrics say it.
func TestPanelsShowWhatTheyAskForInItsUnit(t *testing.T) {
	t.Parallel()
	ofTime, ofBytes := regexp.MustCompile(`_seconds\b|_seconds_bucket`), regexp.MustCompile(`_bytes\b`)
	for _, panel := range board(t).Panels {
		for _, target := range panel.Targets {
			want := "short"
			switch expr := target.Expr; {
			case strings.Contains(expr, "histogram_quantile") && ofTime.MatchString(expr), !strings.Contains(expr, "rate(") && ofTime.MatchString(expr):
				want = "s"
			case ofBytes.MatchString(expr):
				want = "bytes"
			case strings.Contains(expr, `state="used"`) && strings.Contains(expr, " / "):
				want = "percentunit"
			case strings.Contains(expr, "rate(") && !strings.Contains(expr, " / "):
				want = "ops"
			}
			if panel.Field.Defaults.Unit != want {
				t.Errorf("%s is shown in %q, and is %q: %s", panel.Title, panel.Field.Defaults.Unit, want, target.Expr)
			}
		}
	}
}
