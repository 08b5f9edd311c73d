package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// place is a cluster and a namespace under a name of the user's: what the flags
// of a connection would say. A token is never in it, only the file that holds it.
type place struct {
	Addr       string `json:"addr,omitempty"`
	Namespace  string `json:"namespace,omitempty"`
	TokenFile  string `json:"token_file,omitempty"`
	CACert     string `json:"cacert,omitempty"`
	ClientCert string `json:"client_cert,omitempty"`
	ClientKey  string `json:"client_key,omitempty"`
}

// places is the file of contexts. A file that is not there holds none.
type places struct {
	path     string
	Current  string           `json:"current,omitempty"`
	Contexts map[string]place `json:"contexts"`
}

// placesPath is where the contexts of this user are kept; "" if there is no home.
func placesPath(getenv func(string) string) string {
	dir := getenv("XDG_CONFIG_HOME")
	if dir == "" {
		home := getenv("HOME")
		if home == "" {
			return ""
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "pulse", "contexts.json")
}

func loadPlaces(getenv func(string) string) (*places, error) {
	p := &places{path: placesPath(getenv), Contexts: map[string]place{}}
	if p.path == "" {
		return p, nil
	}
	text, err := os.ReadFile(p.path)
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err == nil {
		err = json.Unmarshal(text, p)
	}
	if err != nil {
		return nil, fmt.Errorf("the contexts cannot be read: %w; repair or remove %s", err, p.path)
	}
	return p, nil
}

// save replaces the file in one step, so that a reader sees the old or the new.
func (p *places) save() error {
	if p.path == "" {
		return errors.New("there is no place to keep contexts: set HOME or XDG_CONFIG_HOME")
	}
	text, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(p.path), 0o700); err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(p.path), "contexts-*") // for the owner alone
	if err != nil {
		return err
	}
	_, err = file.Write(append(text, '\n'))
	if err = errors.Join(err, file.Sync(), file.Close()); err == nil {
		err = os.Rename(file.Name(), p.path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}

// chosen is the context in force: that of --context or PULSE_CONTEXT, or else
// the current one. The name is "" if there is none.
func (p *places) chosen(name string) (string, place, error) {
	if name == "" {
		name = p.Current
	}
	if name == "" {
		return "", place{}, nil
	}
	found, there := p.Contexts[name]
	if !there {
		return "", place{}, p.unknown(name)
	}
	return name, found, nil
}

func (p *places) unknown(name string) error {
	if len(p.Contexts) == 0 {
		return fmt.Errorf("there is no context %q, nor any other; 'pulse context set %s --addr …' makes it", name, name)
	}
	return fmt.Errorf("there is no context %q; there are: %s", name, strings.Join(slices.Sorted(maps.Keys(p.Contexts)), ", "))
}

// readToken takes a token from a file that is the owner's alone.
func readToken(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("the file of the token: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return "", fmt.Errorf("%s holds a token and others can read it: chmod 600 %s", path, path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("the file of the token: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" || strings.ContainsAny(token, " \t\r\n") {
		return "", fmt.Errorf("%s has to hold one token and nothing else", path)
	}
	return token, nil
}

func (a *app) contextCommand() *cobra.Command {
	return noun("context", "Name clusters, and switch between them",
		`A context is a name for a cluster and a namespace: what --addr, --namespace, --cacert,
--client-cert and --client-key would say, and the file that holds the token. The
current one is in force for every verb. A flag wins over the environment, and that over
the context; --context or PULSE_CONTEXT takes another one for once.

Contexts are kept in ~/.config/pulse/contexts.json, or under XDG_CONFIG_HOME.`,
		"  pulse context set staging --addr https://pulse.staging.example:7400 --use\n  pulse context list\n  pulse context use production",
		a.contextListCommand(), a.contextSetCommand(), a.contextUseCommand(), a.contextDeleteCommand())
}

// namedPlace is a row of the list.
type namedPlace struct {
	Name    string `json:"name"`
	Current bool   `json:"current"`
	place
}

var placeColumns = []column[namedPlace]{
	{"CURRENT", func(p namedPlace) string { return map[bool]string{true: "*"}[p.Current] }},
	{"NAME", func(p namedPlace) string { return p.Name }},
	{"ADDR", func(p namedPlace) string { return p.Addr }},
	{"NAMESPACE", func(p namedPlace) string { return p.Namespace }},
	{"TOKEN FILE", func(p namedPlace) string { return p.TokenFile }},
}

func (a *app) contextListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List contexts",
		Example: "  pulse context list",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := loadPlaces(a.getenv)
			if err != nil {
				return err
			}
			return printList(a, cmd, placeColumns, p.all(), 0, "No contexts. 'pulse context set NAME --addr …' makes one.")
		},
	}
}

func (p *places) all() iter.Seq2[namedPlace, error] {
	return func(yield func(namedPlace, error) bool) {
		for _, name := range slices.Sorted(maps.Keys(p.Contexts)) {
			if !yield(namedPlace{name, name == p.Current, p.Contexts[name]}, nil) {
				return
			}
		}
	}
}

func (a *app) contextSetCommand() *cobra.Command {
	var tokenFile string
	var use bool
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "Make a context, or change it",
		Long: `Make a context of the flags that say where a cluster is, or change one: what no flag
says stays as it is. "" takes a setting away.`,
		Example: "  pulse context set local --addr http://127.0.0.1:7400 --use\n" +
			"  pulse context set production --addr https://a.example:7400,https://b.example:7400 \\\n" +
			"    --namespace billing --cacert ca.pem --token-file ~/.config/pulse/production.token",
		Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := loadPlaces(a.getenv)
			if err != nil {
				return err
			}
			name := args[0]
			if name == "" || strings.ContainsAny(name, " \t\r\n") {
				return usagef("a context needs a name without blanks, not %q", name)
			}
			context := p.Contexts[name]
			for _, setting := range []struct {
				flag string
				file bool
				to   *string
			}{
				{"addr", false, &context.Addr}, {"namespace", false, &context.Namespace}, {"token-file", true, &context.TokenFile},
				{"cacert", true, &context.CACert}, {"client-cert", true, &context.ClientCert}, {"client-key", true, &context.ClientKey},
			} {
				flag := cmd.Flags().Lookup(setting.flag)
				if !flag.Changed {
					continue
				}
				*setting.to = flag.Value.String()
				if setting.file && *setting.to != "" {
					// The next verb may be run in another directory.
					if *setting.to, err = filepath.Abs(*setting.to); err != nil {
						return err
					}
				}
			}
			if context == (place{}) {
				return usagef("say where context %s is, e.g. --addr https://HOST:7400", name)
			}
			if (context.ClientCert == "") != (context.ClientKey == "") {
				return usagef("--client-cert and --client-key go together: give both or none")
			}
			if context.TokenFile != "" {
				if _, err := readToken(context.TokenFile); err != nil {
					return err
				}
			}
			p.Contexts[name] = context
			if use || len(p.Contexts) == 1 {
				p.Current = name
			}
			if err := p.save(); err != nil {
				return err
			}
			words := "Context %s is set; 'pulse context use %s' makes it the current one."
			if p.Current == name {
				words = "Context %s is set, and is the current one."
				return a.done(cmd, namedPlace{name, true, context}, words, name)
			}
			return a.done(cmd, namedPlace{name, false, context}, words, name, name)
		},
	}
	cmd.Flags().StringVar(&tokenFile, "token-file", "", "file with the token, which nobody else can read")
	cmd.Flags().BoolVar(&use, "use", false, "make it the current one")
	return cmd
}

func (a *app) contextUseCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "use NAME",
		Short:             "Make a context the current one",
		Example:           "  pulse context use production",
		Args:              exactly("NAME"),
		ValidArgsFunction: a.completeContexts,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := loadPlaces(a.getenv)
			if err != nil {
				return err
			}
			context, there := p.Contexts[args[0]]
			if !there {
				return p.unknown(args[0])
			}
			p.Current = args[0]
			if err := p.save(); err != nil {
				return err
			}
			return a.done(cmd, namedPlace{args[0], true, context}, "Context %s is the current one.", args[0])
		},
	}
}

func (a *app) contextDeleteCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "delete NAME",
		Short:             "Forget a context",
		Example:           "  pulse context delete staging",
		Args:              exactly("NAME"),
		ValidArgsFunction: a.completeContexts,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := loadPlaces(a.getenv)
			if err != nil {
				return err
			}
			context, there := p.Contexts[args[0]]
			if !there {
				return p.unknown(args[0])
			}
			delete(p.Contexts, args[0])
			if p.Current == args[0] {
				p.Current = ""
			}
			if err := p.save(); err != nil {
				return err
			}
			return a.done(cmd, namedPlace{args[0], false, context}, "Context %s is forgotten.", args[0])
		},
	}
}

// completeContexts offers the names of contexts to the shell.
func (a *app) completeContexts(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	p, err := loadPlaces(a.getenv)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return slices.Sorted(maps.Keys(p.Contexts)), cobra.ShellCompDirectiveNoFileComp
}
