package deploy

import (
	"bytes"
	"io"
	"net"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"pulse/cluster/pki"
)

// decode reads the documents of a YAML file. A member that T does not know is a
// mistake.
func decode[T any](t *testing.T, path string) []T {
	t.Helper()
	d := yaml.NewDecoder(bytes.NewReader([]byte(read(t, path))))
	d.KnownFields(true)
	var all []T
	for {
		var one T
		err := d.Decode(&one)
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		all = append(all, one)
	}
}

// composeFile is as much of a compose file as ours has.
type composeFile struct {
	Name      string
	Contained any `yaml:"x-contained"`
	Node      any `yaml:"x-node"`
	Worker    any `yaml:"x-worker"`
	Services  map[string]composeService
	Networks  map[string]struct{}
	Volumes   map[string]struct{}
}

type composeService struct {
	Image           string
	Build           *struct{ Context, Dockerfile, Target string }
	Restart         string
	ReadOnly        bool `yaml:"read_only"`
	User            string
	CapDrop         []string `yaml:"cap_drop"`
	SecurityOpt     []string `yaml:"security_opt"`
	Logging         any
	DependsOn       map[string]struct{ Condition string } `yaml:"depends_on"`
	Networks        []string
	Profiles        []string
	NetworkMode     string `yaml:"network_mode"`
	StopGracePeriod string `yaml:"stop_grace_period"`
	Ulimits         any
	Environment     map[string]string
	Command         []string
	Ports           []string
	Volumes         []composeVolume
}

type composeVolume struct {
	Type, Source, Target string
	ReadOnly             bool `yaml:"read_only"`
	Volume               struct{ Subpath string }
}

func compose(t *testing.T) composeFile {
	t.Helper()
	all := decode[composeFile](t, files+"/compose.yaml")
	if len(all) != 1 {
		t.Fatalf("compose.yaml has %d documents", len(all))
	}
	return all[0]
}

// exact is an image with a version, or a line of versions that gets its fixes.
var exact = regexp.MustCompile(`^[a-z0-9./-]+:[0-9]+(\.[0-9]+)+(-[a-z0-9.]+)?$`)

func TestEveryContainerIsHeldToWhatItNeeds(t *testing.T) {
	t.Parallel()
	for name, s := range compose(t).Services {
		if !exact.MatchString(s.Image) {
			t.Errorf("%s: image %q: name a version", name, s.Image)
		}
		if !s.ReadOnly || s.User != "10001:10001" || !slices.Equal(s.CapDrop, []string{"ALL"}) || !slices.Contains(s.SecurityOpt, "no-new-privileges:true") {
			t.Errorf("%s: read-only %v, user %q, capabilities dropped %v, options %v", name, s.ReadOnly, s.User, s.CapDrop, s.SecurityOpt)
		}
	}
}

func TestComposeSpeaksOfWhatIsThere(t *testing.T) {
	t.Parallel()
	c := compose(t)
	d := image(t)
	for name, s := range c.Services {
		for of, on := range s.DependsOn {
			if _, ok := c.Services[of]; !ok || !strings.HasPrefix(on.Condition, "service_") {
				t.Errorf("%s depends on %s (%s)", name, of, on.Condition)
			}
		}
		for _, n := range s.Networks {
			if _, ok := c.Networks[n]; !ok {
				t.Errorf("%s: there is no network %s", name, n)
			}
		}
		for _, v := range s.Volumes {
			if v.Type == "bind" {
				if _, err := os.Stat(filepath.Join(files, v.Source)); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			} else if _, ok := c.Volumes[v.Source]; !ok {
				t.Errorf("%s: there is no volume %s", name, v.Source)
			}
		}
		if s.Build == nil {
			// Then it is somebody else's, or built for another service.
			built := slices.ContainsFunc([]string{"certificates", "worker-1"}, func(b string) bool { return c.Services[b].Image == s.Image })
			if !built && name != "balancer" {
				t.Errorf("%s: nobody builds %s", name, s.Image)
			}
			continue
		}
		if _, err := os.Stat(filepath.Join(files, s.Build.Context, s.Build.Dockerfile)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !slices.ContainsFunc(d.stages, func(s2 stage) bool { return s2.name == s.Build.Target }) {
			t.Errorf("%s: the Dockerfile has no stage %q", name, s.Build.Target)
		}
	}
}

// issued makes the certificates that a command line of init-tls stands for, and
// says which node has which hosts.
func issued(t *testing.T, c command) (dir string, hosts map[string][]string) {
	t.Helper()
	hosts = map[string][]string{}
	o := pki.InitOptions{}
	if names := c.flags["cluster"]; len(names) > 0 {
		o.Cluster = names[0]
	}
	for into, nodes := range map[*[]pki.NodeSpec][]string{&o.Nodes: c.flags["node"], &o.Gateways: c.flags["gateway"]} {
		for _, n := range nodes {
			id, list, _ := strings.Cut(n, "=")
			hosts[id] = strings.Split(list, ",")
			*into = append(*into, pki.NodeSpec{ID: id, Hosts: hosts[id]})
		}
	}
	dir = filepath.Join(t.TempDir(), "pki")
	if _, err := pki.Init(dir, o); err != nil {
		t.Fatal(err)
	}
	for _, id := range c.flags["client"] {
		if _, err := pki.AddClient(dir, id, 0); err != nil {
			t.Fatal(err)
		}
	}
	return dir, hosts
}

// port is the port of an address that has a host.
func port(t *testing.T, at, addr string) int {
	t.Helper()
	host, p, err := net.SplitHostPort(addr)
	n, err2 := strconv.Atoi(p)
	if err != nil || err2 != nil || host == "" {
		t.Errorf("%s: %q is no HOST:PORT", at, addr)
	}
	return n
}

// checkServer holds a server's command line to what three nodes need, and says
// where its HTTP port is.
func checkServer(t *testing.T, at string, c command) (http int) {
	t.Helper()
	if !slices.Equal(c.verb, []string{"server"}) {
		t.Errorf("%s: it runs %v", at, c.verb)
	}
	for flag, want := range map[string]int{"http": 7400, "rpc": 7401, "raft": 7402, "gossip": 7403} {
		addr := c.one(t, at, flag)
		if got := port(t, at, addr); got != want {
			t.Errorf("%s: --%s is %s, want port %d", at, flag, addr, want)
		}
		if host, _, _ := net.SplitHostPort(addr); host != "0.0.0.0" {
			t.Errorf("%s: --%s is %s, which others cannot reach", at, flag, addr)
		}
	}
	join := strings.Split(strings.Join(c.flags["join"], ","), ",")
	if want := c.one(t, at, "bootstrap-expect"); want != strconv.Itoa(len(join)) {
		t.Errorf("%s: joins %v and expects %s", at, join, want)
	}
	for _, j := range join {
		if port(t, at, j) != 7403 {
			t.Errorf("%s: joins %s, which is no gossip port", at, j)
		}
	}
	return port(t, at, c.one(t, at, "http"))
}

func TestComposeMakesACluster(t *testing.T) {
	t.Parallel()
	c := compose(t)
	certs := checkCommand(t, "certificates", c.Services["certificates"].Command)
	if !slices.Equal(certs.args, []string{"/certs"}) || !slices.Equal(certs.verb, []string{"cluster", "init-tls"}) {
		t.Fatalf("certificates runs %v %v", certs.verb, certs.args)
	}
	dir, hosts := issued(t, certs)
	delete(hosts, "gateway-1") // see TestComposeRunsAGatewayIfAsked
	// mounted is the file of the certificates' volume that a service sees at a path.
	mounted := func(s composeService, at string) string {
		for _, v := range s.Volumes {
			if v.Source == "certs" && strings.HasPrefix(at, v.Target) {
				if !v.ReadOnly {
					t.Errorf("the certificates at %s can be written", v.Target)
				}
				return filepath.Join(dir, v.Volume.Subpath, strings.TrimPrefix(at, v.Target))
			}
		}
		return filepath.Join(dir, "nowhere")
	}
	var joins []string
	for id := range hosts {
		s := c.Services[id]
		if s.Image == "" {
			t.Fatalf("there is no service for node %s", id)
		}
		f := checkCommand(t, id, s.Command)
		checkServer(t, id, f)
		if got := f.one(t, id, "node-id"); got != id {
			t.Errorf("%s runs node %s", id, got)
		}
		if got := f.one(t, id, "advertise"); got != id || !slices.Contains(hosts[id], got) {
			t.Errorf("%s is reached at %s; its certificate is for %v", id, got, hosts[id])
		}
		joins = append(joins, strings.Join(f.flags["join"], ","))
		// The directory is this node's own and would start it.
		own := mounted(s, f.one(t, id, "certs"))
		if _, err := pki.Open(pki.Options{Files: pki.NodeFiles(own), NodeID: id}); err != nil {
			t.Errorf("%s: %v", id, err)
		}
		data := f.one(t, id, "data")
		if !slices.ContainsFunc(s.Volumes, func(v composeVolume) bool {
			return v.Target == data && !v.ReadOnly && v.Source == "data-"+id[len("node-"):]
		}) {
			t.Errorf("%s keeps its data in %s, which is no volume of its own: %v", id, data, s.Volumes)
		}
	}
	slices.Sort(joins)
	if joins = slices.Compact(joins); len(joins) != 1 {
		t.Fatalf("nodes join differently: %v", joins)
	}
	for _, j := range strings.Split(joins[0], ",") {
		host, _, _ := net.SplitHostPort(j)
		if _, ok := hosts[host]; !ok {
			t.Errorf("nodes join %s, which is none", j)
		}
	}

	workers := 0
	for name, s := range c.Services {
		if !strings.HasPrefix(name, "worker-") {
			continue
		}
		workers++
		if addr := s.Environment["PULSE_ADDR"]; addr != "https://balancer:7400" {
			t.Errorf("%s connects to %s", name, addr)
		}
		for id := range hosts {
			if !slices.Contains(hosts[id], "balancer") {
				t.Errorf("TLS is passed through, so the certificate of %s has to be good for the balancer's name: %v", id, hosts[id])
			}
		}
		if _, err := os.Stat(mounted(s, s.Environment["PULSE_CACERT"])); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if workers != 2 {
		t.Errorf("%d workers", workers)
	}

	// The balancer's own file, as it is mounted.
	b := c.Services["balancer"]
	config := ""
	for _, v := range b.Volumes {
		if v.Type == "bind" && slices.Contains(b.Command, v.Target) {
			config = read(t, filepath.Join(files, v.Source))
		}
	}
	servers := regexp.MustCompile(`(?m)^ +server (\S+) (\S+)`).FindAllStringSubmatch(config, -1)
	if len(servers) != len(hosts) {
		t.Errorf("the balancer has %d servers for %d nodes", len(servers), len(hosts))
	}
	for _, m := range servers {
		if _, ok := hosts[m[1]]; !ok || m[2] != m[1]+":7400" {
			t.Errorf("the balancer has server %s at %s", m[1], m[2])
		}
	}
	ca := regexp.MustCompile(`ca-file (\S+)`).FindStringSubmatch(config)
	if ca == nil {
		t.Fatal("the balancer does not check the nodes' certificates")
	}
	if _, err := os.Stat(mounted(b, ca[1])); err != nil || path.Base(ca[1]) != pki.HTTPCAFile {
		t.Errorf("the balancer trusts %s: %v", ca[1], err)
	}
	if !strings.Contains(config, "bind :7400\n") || !slices.Equal(b.Ports, []string{"127.0.0.1:7400:7400"}) {
		t.Errorf("the balancer's ports are %v", b.Ports)
	}
}

func TestAMistakeInYAMLIsNoticed(t *testing.T) {
	t.Parallel()
	text := strings.Replace(read(t, files+"/compose.yaml"), "read_only: true\n  user:", "read_olny: true\n  user:", 1)
	d := yaml.NewDecoder(strings.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&composeFile{}); err == nil {
		t.Error("a member that is not known was let in")
	}
}
