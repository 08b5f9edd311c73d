package deploy

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"testing"

	"pulse/sdk"
	"pulse/sdk/pulsetest"
)

// kedaObject is either of the two objects of the file.
type kedaObject struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	Metadata   struct {
		Name string `yaml:"name"`
	} `yaml:"metadata"`
	Spec struct {
		Target struct {
			Name string `yaml:"name"`
		} `yaml:"scaleTargetRef"`
		Min      int `yaml:"minReplicaCount"`
		Max      int `yaml:"maxReplicaCount"`
		Polling  int `yaml:"pollingInterval"`
		Cooldown int `yaml:"cooldownPeriod"`
		Triggers []struct {
			Type     string            `yaml:"type"`
			Metadata map[string]string `yaml:"metadata"`
			Auth     struct {
				Name string `yaml:"name"`
			} `yaml:"authenticationRef"`
		} `yaml:"triggers"`
		Secrets []struct {
			Parameter string `yaml:"parameter"`
			Name      string `yaml:"name"`
			Key       string `yaml:"key"`
		} `yaml:"secretTargetRef"`
	} `yaml:"spec"`
}

// What KEDA would ask is asked of a real node, and has to be one JSON number.
func TestAnAutoscalerReadsTheBacklog(t *testing.T) {
	t.Parallel()
	objects := decode[kedaObject](t, files+"/keda/scaledobject.yaml")
	if len(objects) != 2 || objects[0].Kind != "ScaledObject" || objects[1].Kind != "TriggerAuthentication" {
		t.Fatalf("%+v", objects)
	}
	scaled, auth := objects[0], objects[1]
	if all := manifests(t); all["Deployment/"+scaled.Spec.Target.Name].Kind == "" {
		t.Errorf("it scales %q, which no manifest makes", scaled.Spec.Target.Name)
	}
	for _, s := range auth.Spec.Secrets {
		if s.Name != "pulse-worker" {
			t.Errorf("the secret %q is not that of the workers", s.Name)
		}
	}
	trigger := scaled.Spec.Triggers[0]
	if trigger.Type != "metrics-api" || trigger.Metadata["authMode"] != "tls" || trigger.Auth.Name != auth.Metadata.Name {
		t.Errorf("%+v", trigger)
	}
	if n, err := strconv.Atoi(trigger.Metadata["targetValue"]); err != nil || n < 1 {
		t.Errorf("targetValue is %q", trigger.Metadata["targetValue"])
	}
	asked, err := url.Parse(trigger.Metadata["url"])
	if err != nil {
		t.Fatal(err)
	}

	pulse := pulsetest.Start(t)
	client := pulse.Client()
	for range 3 {
		if _, err := client.Submit(t.Context(), sdk.TaskSpec{Handler: "work"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.Submit(t.Context(), sdk.TaskSpec{Handler: "work", Delay: pulsetest.Patience * 100}); err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, pulse.Addr()+asked.RequestURI(), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := direct.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var answer map[string]any
	if err := json.Unmarshal(text, &answer); err != nil || answer[trigger.Metadata["valueLocation"]] != float64(3) {
		t.Errorf("%s is answered with %s (%v), want 3 at %s", asked, text, err, trigger.Metadata["valueLocation"])
	}
}
