package deploy

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pulse/cluster/pki"
)

// checkGateway holds a gateway's command line to what it needs, and to having
// nothing of a server's.
func checkGateway(t *testing.T, at string, c command) {
	t.Helper()
	if !slices.Equal(c.verb, []string{"gateway"}) {
		t.Errorf("%s: it runs %v", at, c.verb)
	}
	for flag, want := range map[string]int{"http": 7400, "rpc": 7401, "gossip": 7403} {
		addr := c.one(t, at, flag)
		if host, _, _ := net.SplitHostPort(addr); port(t, at, addr) != want || host != "0.0.0.0" {
			t.Errorf("%s: --%s is %s", at, flag, addr)
		}
	}
}

func TestComposeRunsAGatewayIfAsked(t *testing.T) {
	t.Parallel()
	c := compose(t)
	g, ok := c.Services["gateway-1"]
	if !ok || !slices.Equal(g.Profiles, []string{"gateways"}) {
		t.Fatalf("gateway-1 is there: %v, in profiles %v", ok, g.Profiles)
	}
	f := checkCommand(t, "gateway-1", g.Command)
	checkGateway(t, "gateway-1", f)
	server := checkCommand(t, "node-1", c.Services["node-1"].Command)
	if got, want := f.flags["join"], server.flags["join"]; !slices.Equal(got, want) {
		t.Errorf("it joins %v, the nodes %v", got, want)
	}
	dir, hosts := issued(t, checkCommand(t, "certificates", c.Services["certificates"].Command))
	id := f.one(t, "gateway-1", "node-id")
	if i, err := pki.Open(pki.Options{Files: pki.NodeFiles(filepath.Join(dir, id)), NodeID: id}); err != nil || !i.Gateway() || !slices.Contains(hosts[id], f.one(t, "gateway-1", "advertise")) {
		t.Errorf("%s at %v: %v", id, hosts[id], err)
	}
	if len(g.Volumes) != 1 || g.Volumes[0].Volume.Subpath != id || !g.Volumes[0].ReadOnly || g.Volumes[0].Target != f.one(t, "gateway-1", "certs") {
		t.Errorf("it sees %+v", g.Volumes)
	}
	for name, s := range c.Services {
		if name != "gateway-1" && len(s.Profiles) != 0 {
			t.Errorf("%s starts only with %v", name, s.Profiles)
		}
	}
}

func TestKubernetesRunsGatewaysIfAsked(t *testing.T) {
	t.Parallel()
	objects := manifests(t)
	set := spec[kubeSet](t, objects, "StatefulSet/pulse-gateway")
	nodes := spec[kubeSet](t, objects, "StatefulSet/pulse")
	pods := set.Template.Metadata.Labels
	c := checkPod(t, "pulse-gateway", set.Template.Spec)
	if !set.Selector.selects(pods) || nodes.Selector.selects(pods) {
		t.Errorf("labels %v are those of the set, and not of a node: %v", pods, set.Selector)
	}
	dir := filepath.Join(t.TempDir(), "pki")
	if _, err := pki.Init(dir, pki.InitOptions{Nodes: []pki.NodeSpec{{ID: "pulse-0", Hosts: []string{"pulse-0"}}}}); err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for _, id := range []string{"pulse-gateway-0", "pulse-gateway-1"} {
		var args []string
		for _, a := range c.Args {
			args = append(args, strings.ReplaceAll(a, "$(POD_NAME)", id))
		}
		f := checkCommand(t, id, args)
		checkGateway(t, id, f)
		if f.one(t, id, "node-id") != id || f.one(t, id, "advertise") != id+"."+set.ServiceName || f.one(t, id, "certs") != "/certs/"+id {
			t.Errorf("%s: %v", id, f.flags)
		}
		if server := checkCommand(t, "pulse", nodes.Template.Spec.Containers[0].Args); !slices.Equal(f.flags["join"], server.flags["join"]) {
			t.Errorf("it joins %v, the nodes %v", f.flags["join"], server.flags["join"])
		}
		// The hosts that the head of the file has in its command.
		spec := strings.ReplaceAll("pulse-gateway-$i=pulse-gateway-$i.pulse-gateways,pulse-gateway,pulse-gateway.default.svc", "$i", id[len(id)-1:])
		if !strings.Contains(read(t, files+"/kubernetes/gateways.yaml"), strings.ReplaceAll(spec, id, "pulse-gateway-$i")) {
			t.Errorf("the file does not say how the certificates of %s are made", id)
		}
		_, hosts, _ := strings.Cut(spec, "=")
		if _, err := pki.AddGateway(dir, pki.NodeSpec{ID: id, Hosts: strings.Split(hosts, ",")}, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := pki.Open(pki.Options{Files: pki.NodeFiles(filepath.Join(dir, id)), NodeID: id}); err != nil {
			t.Error(err)
		}
		entries, err := os.ReadDir(filepath.Join(dir, id))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			want = append(want, id+"/"+e.Name())
		}
	}
	if set.Replicas != 2 {
		t.Errorf("%d replicas have certificates for two", set.Replicas)
	}
	for _, i := range set.Template.Spec.Volumes[0].Secret.Items {
		if strings.Replace(i.Path, "/", ".", 1) != i.Key {
			t.Errorf("%s becomes %s", i.Key, i.Path)
		}
		got = append(got, i.Path)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the pods see %v, and add-node makes %v", got, want)
	}

	for _, name := range []string{"pulse-gateway", set.ServiceName} {
		s := spec[kubeService](t, objects, "Service/"+name)
		if !(kubeSelector{s.Selector}).selects(pods) || (s.ClusterIP == "None") != (name == set.ServiceName) {
			t.Errorf("service %s: %+v", name, s)
		}
		for _, p := range s.Ports {
			if c.port(p.TargetPort) != p.Port {
				t.Errorf("service %s leads %d to %s", name, p.Port, p.TargetPort)
			}
		}
	}
	if b := spec[kubeBudget](t, objects, "PodDisruptionBudget/pulse-gateway"); b.MaxUnavailable != 1 || !b.Selector.selects(pods) {
		t.Errorf("budget: %+v", b)
	}
	// Gateways reach what they need of the nodes, and the nodes the gateways.
	to := spec[kubePolicy](t, objects, "NetworkPolicy/pulse-from-gateways")
	if !to.PodSelector.selects(nodes.Template.Metadata.Labels) || len(to.Ingress) != 1 || !to.Ingress[0].From[0].PodSelector.selects(pods) || len(to.Ingress[0].Ports) != 3 {
		t.Errorf("to the nodes: %+v", to)
	}
	from := spec[kubePolicy](t, objects, "NetworkPolicy/pulse-gateway")
	if !from.PodSelector.selects(pods) || len(from.Ingress) != 2 || !from.Ingress[1].From[0].PodSelector.selects(nodes.Template.Metadata.Labels) {
		t.Errorf("to the gateways: %+v", from)
	}
}
