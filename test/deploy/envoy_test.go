package deploy

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// at follows a path through what YAML holds; a number is a place in a list.
func at(t *testing.T, v any, path ...any) any {
	t.Helper()
	for i, step := range path {
		switch s := step.(type) {
		case string:
			m, ok := v.(map[string]any)
			if !ok || m[s] == nil {
				t.Fatalf("there is nothing at %v", path[:i+1])
			}
			v = m[s]
		case int:
			l, ok := v.([]any)
			if !ok || s >= len(l) {
				t.Fatalf("there is nothing at %v", path[:i+1])
			}
			v = l[s]
		}
	}
	return v
}

func duration(t *testing.T, v any) time.Duration {
	t.Helper()
	text, ok := v.(string)
	d, err := time.ParseDuration(text)
	if !ok || err != nil {
		t.Fatalf("%v is no duration: %v", v, err)
	}
	return d
}

// longestPoll is how long the API may think about one answer in silence.
const longestPoll = 10 * time.Minute

func TestEnvoyKeepsLongConnections(t *testing.T) {
	t.Parallel()
	var config map[string]any
	if err := yaml.Unmarshal([]byte(read(t, files+"/envoy/envoy.yaml")), &config); err != nil {
		t.Fatal(err)
	}
	// Numbers as in JSON, whatever YAML makes of them.
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	cluster := at(t, config, "static_resources", "clusters", 0)
	manager := at(t, config, "static_resources", "listeners", 0, "filter_chains", 0, "filters", 0, "typed_config")
	route := at(t, manager, "route_config", "virtual_hosts", 0, "routes", 1, "route")

	if got := duration(t, at(t, route, "timeout")); got != 0 {
		t.Errorf("a WebSocket is cut off after %v", got)
	}
	if got := duration(t, at(t, manager, "stream_idle_timeout")); got <= longestPoll {
		t.Errorf("a stream is cut off after %v of silence", got)
	}
	if at(t, manager, "upgrade_configs", 0, "upgrade_type") != "websocket" {
		t.Error("WebSockets are not let through")
	}
	if at(t, route, "retry_policy", "retry_on") != "connect-failure" {
		t.Error("a request that may have been done is repeated")
	}
	if at(t, route, "cluster") != at(t, cluster, "name") {
		t.Error("the route leads to another cluster")
	}
	if at(t, cluster, "health_checks", 0, "http_health_check", "path") != "/readyz" {
		t.Error("the nodes are not asked whether they are ready")
	}
	if at(t, cluster, "lb_policy") != "LEAST_REQUEST" {
		t.Error("workers do not go where fewer are")
	}
	limits := at(t, cluster, "circuit_breakers", "thresholds", 0)
	for _, limit := range []string{"max_connections", "max_requests", "max_pending_requests"} {
		if got, _ := at(t, limits, limit).(float64); got < 10_000 {
			t.Errorf("%s is %v: so many workers and no more", limit, got)
		}
	}
	idle := duration(t, at(t, cluster, "typed_extension_protocol_options",
		"envoy.extensions.upstreams.http.v3.HttpProtocolOptions", "common_http_protocol_options", "idle_timeout"))
	if idle >= 2*time.Minute {
		t.Errorf("an idle connection is kept for %v, but nodes close it after two minutes", idle)
	}
	ends, _ := at(t, cluster, "load_assignment", "endpoints", 0, "lb_endpoints").([]any)
	for _, e := range ends {
		if p, _ := at(t, e, "endpoint", "address", "socket_address", "port_value").(float64); p != 7400 {
			t.Errorf("a node's port is %v", p)
		}
	}
	if len(ends) != 3 {
		t.Errorf("%d nodes", len(ends))
	}
	var with map[string]any
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(read(t, files+"/envoy/envoy.yaml"), gatewayLine, "")), &with); err != nil {
		t.Fatalf("with gateways: %v", err)
	}
	ends, _ = at(t, with, "static_resources", "clusters", 0, "load_assignment", "endpoints", 0, "lb_endpoints").([]any)
	if len(ends) != 5 || at(t, ends[4], "endpoint", "address", "socket_address", "address") != "gateway-2" {
		t.Errorf("with gateways: %v", ends)
	}
	if !strings.Contains(read(t, files+"/envoy/envoy.yaml"), "--drain-time-s") {
		t.Error("nothing is said of what a reload does")
	}
}
