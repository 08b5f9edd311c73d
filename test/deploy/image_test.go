package deploy

import (
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// dockerfile is a Dockerfile as its instructions, stage by stage.
type dockerfile struct{ stages []stage }

type stage struct {
	name, from   string
	instructions []instruction
}

type instruction struct{ word, rest string }

// readDockerfile knows the instructions that ours has, and refuses others.
func readDockerfile(path string) (*dockerfile, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	known := []string{"WORKDIR", "COPY", "RUN", "ARG", "ENV", "USER", "ENTRYPOINT", "CMD", "VOLUME", "EXPOSE"}
	d := &dockerfile{}
	joined := strings.ReplaceAll(string(text), "\\\n", " ")
	for number, line := range strings.Split(joined, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		word, rest, _ := strings.Cut(line, " ")
		rest = strings.TrimSpace(rest)
		if word == "FROM" {
			parts := strings.Fields(rest)
			if len(parts) != 3 || parts[1] != "AS" {
				return nil, fmt.Errorf("%s:%d: want FROM image AS name", path, number+1)
			}
			d.stages = append(d.stages, stage{name: parts[2], from: parts[0]})
			continue
		}
		if !slices.Contains(known, word) || len(d.stages) == 0 {
			return nil, fmt.Errorf("%s:%d: %q has no place here", path, number+1, word)
		}
		s := &d.stages[len(d.stages)-1]
		s.instructions = append(s.instructions, instruction{word, rest})
	}
	if len(d.stages) == 0 {
		return nil, fmt.Errorf("%s has no stage", path)
	}
	return d, nil
}

func (s stage) all(word string) (rest []string) {
	for _, i := range s.instructions {
		if i.word == word {
			rest = append(rest, i.rest)
		}
	}
	return rest
}

var goBuild = regexp.MustCompile(`^go build (.*) -o /out/([a-z]+) (\./[a-z/]+)$`)

const testVersion = "9.8.7-test"

// build runs the Dockerfile's go build lines on this machine.
func (d *dockerfile) build(dir string) error {
	s := d.stages[0]
	env := append(os.Environ(), s.all("ENV")...)
	count := 0
	for _, line := range s.all("RUN") {
		m := goBuild.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		count++
		flags := strings.ReplaceAll(m[1], "${VERSION}", testVersion)
		args := []string{"build"}
		for _, quoted := range regexp.MustCompile(`[^\s"]*"[^"]*"|\S+`).FindAllString(flags, -1) {
			args = append(args, strings.ReplaceAll(quoted, `"`, ""))
		}
		cmd := exec.Command("go", append(args, "-o", filepath.Join(dir, m[2]), m[3])...)
		cmd.Dir, cmd.Env = root, env
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("RUN %s: %w\n%s", line, err, out)
		}
	}
	if count != 2 {
		return fmt.Errorf("the Dockerfile builds %d binaries, want 2", count)
	}
	return nil
}

func image(t *testing.T) *dockerfile {
	t.Helper()
	d, err := readDockerfile(files + "/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// tagged is an image with a tag that says which.
var tagged = regexp.MustCompile(`^[a-z0-9./-]+:v?[0-9][A-Za-z0-9_.-]*$`)

func TestTheImageIsABinaryAndNothingElse(t *testing.T) {
	t.Parallel()
	d := image(t)
	if from := d.stages[0].from; !tagged.MatchString(from) {
		t.Errorf("built with %q: name a version", from)
	}
	// The newest Go that go.mod asks for is in the image that builds.
	var wants string
	if m := regexp.MustCompile(`(?m)^go ([0-9]+\.[0-9]+)`).FindStringSubmatch(read(t, root+"/go.mod")); m != nil {
		wants = m[1]
	}
	if !strings.HasPrefix(d.stages[0].from, "golang:"+wants+".") {
		t.Errorf("built with %s, but go.mod asks for Go %s", d.stages[0].from, wants)
	}
	if len(d.stages) != 3 {
		t.Fatalf("%d stages, want build, worker and pulse", len(d.stages))
	}
	for _, s := range d.stages[1:] {
		if s.from != "scratch" {
			t.Errorf("%s is made from %s, want scratch", s.name, s.from)
		}
		if user := s.all("USER"); !slices.Equal(user, []string{"10001:10001"}) {
			t.Errorf("%s runs as %v, want one user by number who is not root", s.name, user)
		}
		if len(s.all("RUN")) > 0 {
			t.Errorf("%s runs something, but scratch has nothing to run", s.name)
		}
		var entry []string
		if err := json.Unmarshal([]byte(strings.Join(s.all("ENTRYPOINT"), "")), &entry); err != nil || len(entry) != 1 {
			t.Errorf("%s starts by %v: scratch has no shell, so give a list (%v)", s.name, s.all("ENTRYPOINT"), err)
			continue
		}
		if !slices.ContainsFunc(s.all("COPY"), func(c string) bool { return strings.HasSuffix(c, "/out"+entry[0]+" "+entry[0]) }) {
			t.Errorf("%s starts %s, which is not copied into it", s.name, entry[0])
		}
	}
	if last := d.stages[2].name; last != "pulse" {
		t.Errorf("the last stage, which is built by default, is %s", last)
	}
}

func TestTheImageServesAndKeepsItsData(t *testing.T) {
	t.Parallel()
	s := image(t).stages[2]
	var cmd []string
	if err := json.Unmarshal([]byte(strings.Join(s.all("CMD"), "")), &cmd); err != nil {
		t.Fatal(err)
	}
	c := checkCommand(t, "Dockerfile: CMD", cmd)
	if data := c.one(t, "Dockerfile: CMD", "data"); !slices.Contains(s.all("VOLUME"), data) {
		t.Errorf("data is kept in %s, which is no volume: %v", data, s.all("VOLUME"))
	}
	// The ports are those that the binary has by default.
	text, _ := run(t, binary(t, "pulse"), "server", "--help")
	exposed := strings.Fields(strings.Join(s.all("EXPOSE"), " "))
	for flag, want := range map[string][]string{"http": {"7400"}, "rpc": {"7401"}, "raft": {"7402"}, "gossip": {"7403/tcp", "7403/udp"}} {
		m := regexp.MustCompile(`--` + flag + ` .*default "127\.0\.0\.1:([0-9]+)"`).FindStringSubmatch(text)
		for _, w := range want {
			port, _, _ := strings.Cut(w, "/")
			if m == nil || m[1] != port || !slices.Contains(exposed, w) {
				t.Errorf("%s: default port %v, exposed %v, want %s in both", flag, m, exposed, w)
			}
		}
	}
}

func TestWhatIsCopiedIntoTheImageIsThere(t *testing.T) {
	t.Parallel()
	d := image(t)
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range d.stages[1:] {
		for _, line := range s.all("COPY") {
			parts := strings.Fields(line)
			from := parts[len(parts)-2]
			if parts[0] != "--from=build" {
				t.Errorf("COPY %s: everything comes from the build", line)
			}
			switch {
			case strings.HasPrefix(from, "/usr/local/go/"):
				// The image that builds has Go there, with the same files.
				if _, err := os.Stat(filepath.Join(strings.TrimSpace(string(goroot)), strings.TrimPrefix(from, "/usr/local/go/"))); err != nil {
					t.Errorf("COPY %s: %v", line, err)
				}
			case from == "/out/data", from == "/out/certs":
				if !slices.ContainsFunc(d.stages[0].all("RUN"), func(r string) bool { return strings.Contains(r, "mkdir -p") && strings.Contains(r, from) }) {
					t.Errorf("COPY %s: nobody has made it", line)
				}
			case from == "/etc/ssl/certs/ca-certificates.crt":
				// Of the Debian image that builds.
			default:
				if _, err := os.Stat(binary(t, strings.TrimPrefix(from, "/out/"))); err != nil {
					t.Errorf("COPY %s: %v", line, err)
				}
			}
		}
	}
}

func TestTheBinariesNeedNothingBesideThem(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"pulse", "worker"} {
		f, err := elf.Open(binary(t, name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for _, p := range f.Progs {
			if p.Type == elf.PT_INTERP {
				t.Errorf("%s asks for a dynamic linker, and scratch has none", name)
			}
		}
		if libs, err := f.ImportedLibraries(); err != nil || len(libs) > 0 {
			t.Errorf("%s needs %v (%v)", name, libs, err)
		}
	}
	text, code := run(t, binary(t, "pulse"), "version", "-o", "json")
	if code != 0 || !strings.Contains(text, testVersion) {
		t.Errorf("the version that the image is built with is lost: %s", text)
	}
}

// TestTheServerWritesNowhereButToItsData is what lets the image and the unit keep
// everything else read-only.
func TestTheServerWritesNowhereButToItsData(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("unshare"); err != nil || os.Getuid() != 0 {
		t.Skip("needs a mount namespace of its own")
	}
	data := t.TempDir()
	// A view of the file system that is read-only from the root down, but for the data.
	const script = `set -e
mount --make-rprivate /
for m in / /tmp /dev/shm /run; do
  [ -d "$m" ] || continue
  mountpoint -q "$m" || mount --bind "$m" "$m"
  mount -o remount,bind,ro "$m"
done
mount --bind "$1" "$1"
mount -o remount,bind,rw "$1"
if touch /tmp/probe 2>/dev/null; then echo "/tmp is still writable" >&2; exit 97; fi
exec setpriv --reuid 10001 --regid 10001 --clear-groups "$2" server -o jsonl --data "$1/d" --http 127.0.0.1:0`
	if err := errors.Join(os.Chmod(filepath.Dir(data), 0o755), os.Chmod(data, 0o777)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "bash", "-c", script, "bash", data, binary(t, "pulse"))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var ready struct {
		URL string `json:"url"`
		PID int    `json:"pid"`
	}
	if err := json.NewDecoder(out).Decode(&ready); err != nil || ready.URL == "" {
		_ = cmd.Wait()
		t.Fatalf("the server did not get ready: %v%s", err, indent(log.String()))
	}
	p, err := os.FindProcess(ready.PID)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the server ended with %v%s", err, indent(log.String()))
	}
}
