package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// atHome is a shell with a home of its own.
func atHome(t *testing.T) (s shell, home string) {
	t.Helper()
	home = t.TempDir()
	return shell{t: t, env: map[string]string{"HOME": home}}, home
}

func TestTheCurrentContextSaysWhereTheClusterIs(t *testing.T) {
	t.Parallel()
	_, server := startNode(t)
	s, home := atHome(t)
	s.ok("context", "set", "here", "--addr", server.Addr())
	s.ok("context", "set", "there", "--addr", "http://127.0.0.1:1", "--namespace", "elsewhere")
	if out := s.ok("queue", "list", "-o", "jsonl"); strings.Count(out, "\n") != 1 || !strings.Contains(out, `"name":"default"`) {
		t.Errorf("the first context is not the current one: %q", out)
	}
	s.ok("context", "use", "there")
	s.fails(exitFailed, "the context in force is there", "queue", "list", "--timeout", "1s")
	s.ok("queue", "list", "--context", "here")

	// A flag wins over the environment, and that over the context.
	s.env["PULSE_ADDR"] = server.Addr()
	s.fails(exitFailed, "not_found", "queue", "list")
	s.env["PULSE_NAMESPACE"] = "default"
	s.ok("queue", "list")
	s.fails(exitFailed, "127.0.0.1:1", "queue", "list", "--addr", "http://127.0.0.1:1", "--timeout", "1s")
	delete(s.env, "PULSE_ADDR")
	delete(s.env, "PULSE_NAMESPACE")
	s.env["PULSE_CONTEXT"] = "here"
	s.ok("queue", "list")

	out := s.ok("context", "list")
	if lines := strings.Split(out, "\n"); len(lines) != 4 || !strings.HasPrefix(lines[2], "*") || !strings.Contains(lines[2], "there") {
		t.Errorf("the list:\n%s", out)
	}
	info, err := os.Stat(filepath.Join(home, ".config", "pulse", "contexts.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v", info, err)
	}
}

func TestAContextIsChangedPieceByPiece(t *testing.T) {
	t.Parallel()
	s, home := atHome(t)
	s.ok("context", "set", "a", "--addr", "http://127.0.0.1:1", "-n", "billing", "--cacert", "ca.pem")
	s.ok("context", "set", "a", "--cacert", "", "--addr", "http://127.0.0.1:2")
	if out := s.ok("context", "list", "-o", "jsonl"); out != `{"name":"a","current":true,"addr":"http://127.0.0.1:2","namespace":"billing"}`+"\n" {
		t.Error(out)
	}
	s.env = map[string]string{"XDG_CONFIG_HOME": filepath.Join(home, ".config")}
	s.ok("context", "use", "a")
	s.ok("context", "delete", "a")
	if out := s.ok("context", "list", "-o", "json"); out != "[]\n" {
		t.Error(out)
	}
}

func TestATokenIsTakenFromAFileThatIsTheOwnersAlone(t *testing.T) {
	t.Parallel()
	s, home := atHome(t)
	token := filepath.Join(home, "token")
	if err := os.WriteFile(token, []byte("tok_1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s.fails(exitFailed, "chmod 600", "context", "set", "a", "--addr", "http://127.0.0.1:1", "--token-file", token)
	if err := os.Chmod(token, 0o600); err != nil {
		t.Fatal(err)
	}
	s.ok("context", "set", "a", "--addr", "http://127.0.0.1:1", "--token-file", token)
	a := &app{getenv: func(name string) string { return s.env[name] }}
	root := a.root()
	verb, _, err := root.Find([]string{"queue", "list"})
	if err == nil {
		err = a.conn.complete(verb, a.getenv)
	}
	if err != nil || a.conn.token != "tok_1" {
		t.Errorf("token %q, %v", a.conn.token, err)
	}
	if text, err := os.ReadFile(placesPath(a.getenv)); err != nil || strings.Contains(string(text), "tok_1") {
		t.Errorf("the contexts hold the token: %v\n%s", err, text)
	}
	if err := os.WriteFile(token, []byte("two tokens"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.fails(exitUsage, "one token and nothing else", "queue", "list")
}

func TestABrokenContextStopsOnlyWhatNeedsIt(t *testing.T) {
	t.Parallel()
	s, home := atHome(t)
	s.fails(exitFailed, `there is no context "a", nor any other`, "context", "use", "a")
	s.ok("context", "set", "a", "--addr", "http://127.0.0.1:1")
	s.fails(exitUsage, "there are: a", "queue", "list", "--context", "b")
	s.fails(exitUsage, "say where context c is", "context", "set", "c")
	s.env["PULSE_CONTEXT"] = "gone"
	s.ok("context", "list")
	s.ok("version")
	s.fails(exitUsage, `no context "gone"`, "queue", "list")
	if err := os.WriteFile(filepath.Join(home, ".config", "pulse", "contexts.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.fails(exitUsage, "repair or remove", "queue", "list")
	s.ok("version")
	delete(s.env, "HOME")
	s.fails(exitFailed, "set HOME", "context", "set", "a", "--addr", "http://127.0.0.1:1")
}
