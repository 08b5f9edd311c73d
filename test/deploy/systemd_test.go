package deploy

import (
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// units are the systemd units: of a server, and of a gateway.
var units = []struct{ unit, config, verb string }{
	{"pulse.service", "server.conf", "server"},
	{"pulse-gateway.service", "gateway.conf", "gateway"},
}

// unit is a systemd unit, with the lines of each section.
func unit(t *testing.T, name string) map[string][]string {
	t.Helper()
	settings := map[string][]string{}
	section := ""
	for line := range strings.SplitSeq(read(t, files+"/systemd/"+name), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if line[0] == '[' {
			section = strings.Trim(line, "[]")
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok {
			t.Fatalf("%q is no setting", line)
		}
		settings[section+"."+key] = append(settings[section+"."+key], value)
	}
	return settings
}

func TestSystemdUnderstandsTheUnits(t *testing.T) {
	t.Parallel()
	for _, u := range units {
		t.Run(u.unit, func(t *testing.T) {
			t.Parallel()
			understood(t, u.unit)
		})
	}
}

func understood(t *testing.T, name string) {
	t.Helper()
	analyze := tool(t, "systemd-analyze")
	// The binary is elsewhere here, and the user is one that there is.
	text := changed(t, files+"/systemd/"+name, "/usr/local/bin/pulse", binary(t, "pulse"), "User=pulse", "User=daemon", "Group=pulse", "Group=daemon")
	path := write(t, filepath.Join(t.TempDir(), name), text)
	if out, code := run(t, analyze, "verify", "--recursive-errors=no", path); code != 0 || strings.Contains(out, name) {
		t.Errorf("systemd-analyze verify: %d%s", code, indent(out))
	}
	// 0 is a prison, 100 a shell for everybody; below 20 is what it calls OK.
	if out, code := run(t, analyze, "security", "--offline=true", "--threshold=20", "--no-pager", path); code != 0 {
		t.Errorf("systemd-analyze security: %d%s", code, indent(out))
	}
	// And a mistake would be noticed.
	bad := write(t, filepath.Join(t.TempDir(), name), strings.Replace(text, "KillMode=mixed", "KillMode=mxied", 1))
	if out, _ := run(t, analyze, "verify", "--recursive-errors=no", bad); !strings.Contains(out, "mxied") {
		t.Errorf("systemd-analyze lets a mistake pass:%s", indent(out))
	}
}

func TestTheUnitsStartANodeAndLetItEnd(t *testing.T) {
	t.Parallel()
	for _, u := range units {
		t.Run(u.unit, func(t *testing.T) {
			t.Parallel()
			startsAndEnds(t, u.unit, u.config, u.verb)
		})
	}
}

func startsAndEnds(t *testing.T, name, config, verb string) {
	t.Helper()
	u := unit(t, name)
	one := func(key string) string {
		t.Helper()
		if len(u["Service."+key]) != 1 {
			t.Fatalf("%s is given as %q", key, u["Service."+key])
		}
		return u["Service."+key][0]
	}
	words := strings.Fields(one("ExecStart"))
	c := checkCommand(t, name, words[1:])
	if !slices.Equal(c.verb, []string{verb}) || c.one(t, name, "config") != "/etc/pulse/"+config {
		t.Errorf("it is told of %v", c.flags)
	}
	if one("Restart") != "on-failure" {
		t.Error("a node that ended because its disk hung is not started again")
	}
	// The end: 15 seconds of the node's, and some more.
	if d, err := time.ParseDuration(one("TimeoutStopSec")); err != nil || d < 20*time.Second {
		t.Errorf("it has %v to end (%v)", d, err)
	}
	if n, err := strconv.Atoi(one("LimitNOFILE")); err != nil || n < 65536 {
		t.Errorf("it may open %d files (%v)", n, err)
	}
	// A wrong flag ends it with the code that no restart follows.
	_, code := run(t, binary(t, "pulse"), verb, "--nonsense")
	if one("RestartPreventExitStatus") != strconv.Itoa(code) {
		t.Errorf("a wrong flag ends with %d, and %s is not restarted", code, one("RestartPreventExitStatus"))
	}
}

func TestTheConfigurationFilesAreSome(t *testing.T) {
	t.Parallel()
	for _, u := range units {
		t.Run(u.config, func(t *testing.T) {
			t.Parallel()
			isConfiguration(t, u.unit, u.config, u.verb)
		})
	}
}

func isConfiguration(t *testing.T, of, name, verb string) {
	t.Helper()
	c := command{verb: []string{verb}, flags: map[string][]string{}}
	line := regexp.MustCompile(`^([a-z-]+) = (\S+)$`)
	for text := range strings.SplitSeq(read(t, files+"/systemd/"+name), "\n") {
		if text == "" || text[0] == '#' {
			continue
		}
		m := line.FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("%q is no line of a configuration", text)
		}
		knowsFlag(t, name, m[1], verb)
		c.flags[m[1]] = append(c.flags[m[1]], m[2])
	}
	join := c.flags["join"]
	if verb == "gateway" {
		checkGateway(t, name, c)
	} else {
		checkServer(t, name, c)
	}
	if len(join) != 3 || slices.Contains(join, c.one(t, name, "advertise")+":7403") != (verb == "server") {
		t.Errorf("this node is at %v and joins %v", c.flags["advertise"], join)
	}
	if dir := unit(t, of)["Service.StateDirectory"]; len(dir) != 1 || c.one(t, name, "data") != "/var/lib/"+dir[0] {
		t.Errorf("data is in %v, and %v may be written", c.flags["data"], dir)
	}

	// The binary reads it; those of its lines that have come by now, with addresses
	// of this machine.
	text := read(t, files+"/systemd/"+name)
	for _, flag := range coming {
		if flag, ok := strings.CutPrefix(flag, verb+" --"); ok {
			text = regexp.MustCompile(`(?m)^`+flag+` = .*$`).ReplaceAllString(text, "")
		}
	}
	text = strings.ReplaceAll(text, "/var/lib/pulse", filepath.Join(t.TempDir(), "data")) + "nonsense = 1\n"
	path := write(t, filepath.Join(t.TempDir(), name), text)
	out, code := run(t, binary(t, "pulse"), verb, "--config", path)
	if code != 2 || !strings.Contains(out, `"nonsense" is no setting`) {
		t.Errorf("with one more line that is nonsense, the binary says %d%s", code, indent(out))
	}
}
