package deploy

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"pulse/cluster/pki"
)

// What follows is as much of the API of Kubernetes as our manifests have, under
// the names it has there.

type labels map[string]string

type kubeObject struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct {
		Name   string
		Labels labels
	}
	Type string
	Spec yaml.Node
}

type kubeSelector struct {
	MatchLabels labels `yaml:"matchLabels"`
}

type kubePort struct {
	Name, Protocol string
	Port           int
	TargetPort     string `yaml:"targetPort"`
	ContainerPort  int    `yaml:"containerPort"`
}

type kubeService struct {
	ClusterIP                string `yaml:"clusterIP"`
	PublishNotReadyAddresses bool   `yaml:"publishNotReadyAddresses"`
	Selector                 labels
	Ports                    []kubePort
}

type kubeSet struct {
	ServiceName          string `yaml:"serviceName"`
	Replicas             int
	PodManagementPolicy  string `yaml:"podManagementPolicy"`
	MinReadySeconds      int    `yaml:"minReadySeconds"`
	Selector             kubeSelector
	Template             kubeTemplate
	RetentionPolicy      map[string]string `yaml:"persistentVolumeClaimRetentionPolicy"`
	VolumeClaimTemplates []struct {
		Metadata struct{ Name string }
		Spec     struct {
			AccessModes []string `yaml:"accessModes"`
			Resources   struct{ Requests map[string]string }
		}
	} `yaml:"volumeClaimTemplates"`
}

type kubeTemplate struct {
	Metadata struct{ Labels labels }
	Spec     kubePod
}

type kubePod struct {
	AutomountServiceAccountToken  *bool `yaml:"automountServiceAccountToken"`
	EnableServiceLinks            *bool `yaml:"enableServiceLinks"`
	TerminationGracePeriodSeconds int   `yaml:"terminationGracePeriodSeconds"`
	SecurityContext               struct {
		RunAsNonRoot        bool                  `yaml:"runAsNonRoot"`
		RunAsUser           int                   `yaml:"runAsUser"`
		RunAsGroup          int                   `yaml:"runAsGroup"`
		FSGroup             int                   `yaml:"fsGroup"`
		FSGroupChangePolicy string                `yaml:"fsGroupChangePolicy"`
		SeccompProfile      struct{ Type string } `yaml:"seccompProfile"`
	} `yaml:"securityContext"`
	Affinity struct {
		PodAntiAffinity struct {
			Required []struct {
				TopologyKey   string       `yaml:"topologyKey"`
				LabelSelector kubeSelector `yaml:"labelSelector"`
			} `yaml:"requiredDuringSchedulingIgnoredDuringExecution"`
		} `yaml:"podAntiAffinity"`
	}
	TopologySpreadConstraints []struct {
		TopologyKey       string       `yaml:"topologyKey"`
		MaxSkew           int          `yaml:"maxSkew"`
		WhenUnsatisfiable string       `yaml:"whenUnsatisfiable"`
		LabelSelector     kubeSelector `yaml:"labelSelector"`
	} `yaml:"topologySpreadConstraints"`
	Containers []kubeContainer
	Volumes    []struct {
		Name   string
		Secret struct {
			SecretName  string `yaml:"secretName"`
			DefaultMode int    `yaml:"defaultMode"`
			Items       []struct{ Key, Path string }
		}
	}
}

type kubeProbe struct {
	HTTPGet          struct{ Path, Port, Scheme string } `yaml:"httpGet"`
	PeriodSeconds    int                                 `yaml:"periodSeconds"`
	TimeoutSeconds   int                                 `yaml:"timeoutSeconds"`
	FailureThreshold int                                 `yaml:"failureThreshold"`
}

type kubeContainer struct {
	Name, Image     string
	ImagePullPolicy string `yaml:"imagePullPolicy"`
	Args            []string
	Env             []struct {
		Name, Value string
		ValueFrom   struct {
			FieldRef struct {
				FieldPath string `yaml:"fieldPath"`
			} `yaml:"fieldRef"`
			SecretKeyRef struct{ Name, Key string } `yaml:"secretKeyRef"`
		} `yaml:"valueFrom"`
	}
	Ports           []kubePort
	StartupProbe    kubeProbe `yaml:"startupProbe"`
	LivenessProbe   kubeProbe `yaml:"livenessProbe"`
	ReadinessProbe  kubeProbe `yaml:"readinessProbe"`
	SecurityContext struct {
		AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
		ReadOnlyRootFilesystem   bool  `yaml:"readOnlyRootFilesystem"`
		Capabilities             struct{ Drop []string }
	} `yaml:"securityContext"`
	Resources struct {
		Requests, Limits map[string]string
	}
	VolumeMounts []struct {
		Name      string
		MountPath string `yaml:"mountPath"`
		ReadOnly  bool   `yaml:"readOnly"`
	} `yaml:"volumeMounts"`
}

type kubeBudget struct {
	MaxUnavailable             int    `yaml:"maxUnavailable"`
	UnhealthyPodEvictionPolicy string `yaml:"unhealthyPodEvictionPolicy"`
	Selector                   kubeSelector
}

type kubePolicy struct {
	PodSelector kubeSelector `yaml:"podSelector"`
	PolicyTypes []string     `yaml:"policyTypes"`
	Ingress     []struct {
		From []struct {
			PodSelector kubeSelector `yaml:"podSelector"`
		}
		Ports []struct{ Port, Protocol string }
	}
}

// manifests are all objects, by kind and name.
func manifests(t *testing.T) map[string]kubeObject {
	t.Helper()
	paths, err := filepath.Glob(files + "/kubernetes/*.yaml")
	if err != nil || len(paths) < 5 {
		t.Fatalf("only %v (%v)", paths, err)
	}
	versions := map[string]string{
		"Service": "v1", "Secret": "v1", "StatefulSet": "apps/v1", "Deployment": "apps/v1",
		"PodDisruptionBudget": "policy/v1", "NetworkPolicy": "networking.k8s.io/v1",
	}
	all := map[string]kubeObject{}
	for _, path := range paths {
		for _, o := range decode[kubeObject](t, path) {
			key := o.Kind + "/" + o.Metadata.Name
			if _, twice := all[key]; twice || o.APIVersion == "" || o.APIVersion != versions[o.Kind] {
				t.Errorf("%s: %s of %q", path, key, o.APIVersion)
			}
			all[key] = o
		}
	}
	return all
}

// spec reads an object's spec; a member that T does not know is a mistake.
func spec[T any](t *testing.T, objects map[string]kubeObject, key string) (s T) {
	t.Helper()
	o, ok := objects[key]
	if !ok {
		t.Fatalf("there is no %s: %v", key, slices.Sorted(maps.Keys(objects)))
	}
	text, err := yaml.Marshal(&o.Spec)
	if err != nil {
		t.Fatal(err)
	}
	d := yaml.NewDecoder(strings.NewReader(string(text)))
	d.KnownFields(true)
	if err := d.Decode(&s); err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	return s
}

// selects says whether a selector means the pods with some labels. An empty one
// means everybody, which is never meant here.
func (s kubeSelector) selects(l labels) bool {
	for k, v := range s.MatchLabels {
		if l[k] != v {
			return false
		}
	}
	return len(s.MatchLabels) > 0
}

func (c kubeContainer) port(name string) int {
	for _, p := range c.Ports {
		if p.Name == name {
			return p.ContainerPort
		}
	}
	return 0
}

// checkPod holds a pod to what it needs and no more.
func checkPod(t *testing.T, at string, p kubePod) kubeContainer {
	t.Helper()
	s := p.SecurityContext
	if !s.RunAsNonRoot || s.RunAsUser != 10001 || s.RunAsGroup != 10001 || s.FSGroup != 10001 || s.SeccompProfile.Type != "RuntimeDefault" {
		t.Errorf("%s runs as %+v", at, s)
	}
	if p.AutomountServiceAccountToken == nil || *p.AutomountServiceAccountToken {
		t.Errorf("%s is given a token for Kubernetes", at)
	}
	if p.TerminationGracePeriodSeconds < 30 {
		t.Errorf("%s has %d s to end", at, p.TerminationGracePeriodSeconds)
	}
	if len(p.Containers) != 1 {
		t.Fatalf("%s has %d containers", at, len(p.Containers))
	}
	c := p.Containers[0]
	if !exact.MatchString(c.Image) || !strings.HasPrefix(c.Image, "registry.example.org/") {
		t.Errorf("%s: image %q: name a version, and a registry that is nobody's", at, c.Image)
	}
	cs := c.SecurityContext
	if cs.AllowPrivilegeEscalation == nil || *cs.AllowPrivilegeEscalation || !cs.ReadOnlyRootFilesystem || !slices.Equal(cs.Capabilities.Drop, []string{"ALL"}) {
		t.Errorf("%s: %+v", at, cs)
	}
	if c.Resources.Requests["memory"] == "" || c.Resources.Limits["memory"] == "" {
		t.Errorf("%s: memory is neither asked for nor limited: %+v", at, c.Resources)
	}
	return c
}

func TestKubernetesRunsThreeNodes(t *testing.T) {
	t.Parallel()
	objects := manifests(t)
	set := spec[kubeSet](t, objects, "StatefulSet/pulse")
	pod := set.Template.Spec
	c := checkPod(t, "pulse", pod)
	if !set.Selector.selects(set.Template.Metadata.Labels) {
		t.Errorf("%v does not select %v", set.Selector, set.Template.Metadata.Labels)
	}
	if set.PodManagementPolicy != "Parallel" {
		t.Error("the nodes are started one after the other, but the first waits for all")
	}
	anti := pod.Affinity.PodAntiAffinity.Required
	if len(anti) != 1 || anti[0].TopologyKey != "kubernetes.io/hostname" || !anti[0].LabelSelector.selects(set.Template.Metadata.Labels) {
		t.Errorf("two nodes may share a machine: %+v", anti)
	}

	// Every variable in the arguments is there.
	env := map[string]bool{}
	for _, e := range c.Env {
		env[e.Name] = true
		if e.Name == "POD_NAME" && e.ValueFrom.FieldRef.FieldPath != "metadata.name" {
			t.Errorf("POD_NAME is %q", e.ValueFrom.FieldRef.FieldPath)
		}
	}
	for _, m := range regexp.MustCompile(`\$\((\w+)\)`).FindAllStringSubmatch(strings.Join(c.Args, " "), -1) {
		if !env[m[1]] {
			t.Errorf("the arguments use %s, which is not there", m[0])
		}
	}
	var joins string
	for i := range set.Replicas {
		id := fmt.Sprintf("pulse-%d", i)
		var args []string
		for _, a := range c.Args {
			args = append(args, strings.ReplaceAll(a, "$(POD_NAME)", id))
		}
		f := checkCommand(t, id, args)
		if http := checkServer(t, id, f); http != c.port("http") {
			t.Errorf("%s serves HTTP at %d and says %d", id, http, c.port("http"))
		}
		if f.one(t, id, "node-id") != id || f.one(t, id, "advertise") != id+"."+set.ServiceName {
			t.Errorf("%s is node %v at %v", id, f.flags["node-id"], f.flags["advertise"])
		}
		joins = f.one(t, id, "join")
		if !strings.Contains(joins, id+"."+set.ServiceName+":7403") {
			t.Errorf("nobody joins %s: %s", id, joins)
		}
		for flag, mount := range map[string]string{"data": "data", "certs": "certs"} {
			path := f.one(t, id, flag)
			if !slices.ContainsFunc(c.VolumeMounts, func(m struct {
				Name      string
				MountPath string `yaml:"mountPath"`
				ReadOnly  bool   `yaml:"readOnly"`
			}) bool {
				return m.Name == mount && strings.HasPrefix(path+"/", m.MountPath+"/") && m.ReadOnly == (mount == "certs")
			}) {
				t.Errorf("%s: --%s is %s, where nothing fit is mounted: %+v", id, flag, path, c.VolumeMounts)
			}
		}
	}
	if n := len(strings.Split(joins, ",")); n != set.Replicas || n != 3 {
		t.Errorf("%d replicas join %d", set.Replicas, n)
	}
	if len(set.VolumeClaimTemplates) != 1 || set.VolumeClaimTemplates[0].Metadata.Name != "data" || set.RetentionPolicy["whenDeleted"] != "Retain" {
		t.Errorf("volumes: %+v, kept: %v", set.VolumeClaimTemplates, set.RetentionPolicy)
	}
}

func TestKubernetesAsksTheNodesWhatTheyAnswer(t *testing.T) {
	t.Parallel()
	set := spec[kubeSet](t, manifests(t), "StatefulSet/pulse")
	c := set.Template.Spec.Containers[0]
	n := startNode(t, nodeConfig{id: "probed", ip: "127.0.0.1"})
	for _, p := range []struct {
		name  string
		probe kubeProbe
		path  string
	}{{"startup", c.StartupProbe, "/healthz"}, {"liveness", c.LivenessProbe, "/healthz"}, {"readiness", c.ReadinessProbe, "/readyz"}} {
		if p.probe.HTTPGet.Path != p.path || c.port(p.probe.HTTPGet.Port) != 7400 || p.probe.HTTPGet.Scheme != "HTTPS" {
			t.Errorf("the %s probe asks %+v", p.name, p.probe.HTTPGet)
		}
		if code, body := n.get(p.probe.HTTPGet.Path); code != 200 {
			t.Errorf("the %s probe would be told %d %s", p.name, code, body)
		}
	}
	if s := c.StartupProbe; s.PeriodSeconds*s.FailureThreshold < 600 {
		t.Errorf("a node has %d s to read its log again, want ten minutes", s.PeriodSeconds*s.FailureThreshold)
	}
}

func TestServicesBudgetAndPolicyMeanTheNodes(t *testing.T) {
	t.Parallel()
	objects := manifests(t)
	set := spec[kubeSet](t, objects, "StatefulSet/pulse")
	pods, c := set.Template.Metadata.Labels, set.Template.Spec.Containers[0]
	for _, name := range []string{"pulse", set.ServiceName} {
		s := spec[kubeService](t, objects, "Service/"+name)
		if !(kubeSelector{s.Selector}).selects(pods) {
			t.Errorf("service %s selects %v", name, s.Selector)
		}
		for _, p := range s.Ports {
			if c.port(p.TargetPort) != p.Port {
				t.Errorf("service %s leads %d to %s, which is %d", name, p.Port, p.TargetPort, c.port(p.TargetPort))
			}
		}
		headless := name == set.ServiceName
		if (s.ClusterIP == "None") != headless || s.PublishNotReadyAddresses != headless {
			t.Errorf("service %s: %q, not ready too: %v", name, s.ClusterIP, s.PublishNotReadyAddresses)
		}
	}
	b := spec[kubeBudget](t, objects, "PodDisruptionBudget/pulse")
	if b.MaxUnavailable != 1 || !b.Selector.selects(pods) {
		t.Errorf("budget: %+v", b)
	}
	n := spec[kubePolicy](t, objects, "NetworkPolicy/pulse")
	if !n.PodSelector.selects(pods) || !slices.Equal(n.PolicyTypes, []string{"Ingress"}) {
		t.Errorf("policy: %+v", n)
	}
	seen := map[string]bool{}
	for _, in := range n.Ingress {
		for _, p := range in.Ports {
			seen[p.Port] = true
			if c.port(p.Port) == 0 {
				t.Errorf("the policy speaks of port %s", p.Port)
			}
			// Between nodes, nodes alone.
			own := len(in.From) == 1 && in.From[0].PodSelector.selects(pods)
			if p.Port != "http" && !own {
				t.Errorf("port %s is open to %+v", p.Port, in.From)
			}
		}
	}
	for _, p := range c.Ports {
		if !seen[p.Name] {
			t.Errorf("the policy closes port %s to everybody", p.Name)
		}
	}
}

// initTLS finds the command that a file tells its reader to type.
func initTLS(t *testing.T, path string) command {
	t.Helper()
	text := regexp.MustCompile(`(?m)^# ?`).ReplaceAllString(read(t, path), "")
	text = strings.ReplaceAll(strings.ReplaceAll(text, "\\\n", " "), "$n", "pulse-nodes")
	m := regexp.MustCompile(`(?m)^ *pulse (cluster init-tls .*)$`).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("%s does not say how certificates are made", path)
	}
	words := strings.Fields(m[1])
	c := checkCommand(t, path, append(slices.Clone(words[:2]), words[3:]...))
	c.args = words[2:3]
	return c
}

func TestTheReadersCommandMakesCertificates(t *testing.T) {
	t.Parallel()
	dir, hosts := issued(t, initTLS(t, files+"/README.md"))
	for id, own := range hosts {
		if _, err := pki.Open(pki.Options{Files: pki.NodeFiles(filepath.Join(dir, id)), NodeID: id}); err != nil || len(own) != 2 {
			t.Errorf("%s at %v: %v", id, own, err)
		}
	}
	// The unit's node is one of them.
	if !slices.Contains(hosts["node-1"], "node-1.example.org") || !strings.Contains(read(t, files+"/systemd/server.conf"), "advertise = node-1.example.org\n") {
		t.Errorf("the certificate of node-1 is for %v, which is not where it is reached", hosts["node-1"])
	}
}

func TestTheSecretHasWhatEachNodeNeeds(t *testing.T) {
	t.Parallel()
	objects := manifests(t)
	set := spec[kubeSet](t, objects, "StatefulSet/pulse")
	dir, hosts := issued(t, initTLS(t, files+"/kubernetes/secret.yaml"))
	vol := set.Template.Spec.Volumes[0]
	if _, ok := objects["Secret/"+vol.Secret.SecretName]; !ok {
		t.Errorf("there is no secret %s", vol.Secret.SecretName)
	}
	var got, want []string
	for _, i := range vol.Secret.Items {
		if strings.Replace(i.Path, "/", ".", 1) != i.Key {
			t.Errorf("%s becomes %s", i.Key, i.Path)
		}
		got = append(got, i.Path)
	}
	for i := range set.Replicas {
		id := fmt.Sprintf("pulse-%d", i)
		for _, h := range []string{id + "." + set.ServiceName, "pulse"} {
			if !slices.Contains(hosts[id], h) {
				t.Errorf("the certificate of %s is not good for %s: %v", id, h, hosts[id])
			}
		}
		entries, err := os.ReadDir(filepath.Join(dir, id))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			want = append(want, id+"/"+e.Name())
		}
		if _, err := pki.Open(pki.Options{Files: pki.NodeFiles(filepath.Join(dir, id)), NodeID: id}); err != nil {
			t.Error(err)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the pods see\n%s\nand init-tls makes\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestKubernetesRunsWorkers(t *testing.T) {
	t.Parallel()
	d := spec[kubeSet](t, manifests(t), "Deployment/pulse-worker")
	c := checkPod(t, "pulse-worker", d.Template.Spec)
	if !d.Selector.selects(d.Template.Metadata.Labels) {
		t.Errorf("%v does not select %v", d.Selector, d.Template.Metadata.Labels)
	}
	for _, e := range c.Env {
		if e.Name == "PULSE_ADDR" && e.Value != "https://pulse:7400" {
			t.Errorf("workers connect to %s", e.Value)
		}
		if !strings.Contains(read(t, root+"/examples/worker/main.go"), `"`+e.Name+`"`) {
			t.Errorf("the worker does not know %s", e.Name)
		}
	}
}
