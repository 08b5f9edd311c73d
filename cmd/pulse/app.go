package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pulse/schema"
)

// Exit codes. They are part of the interface.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// app is one invocation of the binary: what the flags that all verbs share say.
type app struct {
	getenv   func(string) string
	conn     connection
	format   string // -o
	note     string // why, for the record
	logLevel string
	running  bool // the command line made sense and a verb has begun
}

// usageError is a mistake in the command line that only the verb could see.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// errSilent fails without another word: the verb has said what there is to say.
var errSilent = errors.New("failed")

// Verbs are listed in the order in which they are met.
func init() { cobra.EnableCommandSorting = false }

// run is the whole program. The first SIGINT, SIGTERM or SIGHUP ends the verb's context;
// a second one ends the process as if nobody listened.
func run(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer, getenv func(string) string) int {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup wants us to outlive the terminal
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(ctx, signals...)
	defer stop()
	context.AfterFunc(ctx, stop)

	a := &app{getenv: getenv}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitDone
	}
	var usage usageError
	if !a.running || errors.As(err, &usage) {
		fmt.Fprintf(errOut, "pulse: %s\nTry '%s --help'.\n", strings.TrimSpace(err.Error()), cmd.CommandPath())
		return exitUsage
	}
	if !errors.Is(err, errSilent) {
		fmt.Fprint(errOut, a.explain(ctx, cmd, err))
	}
	if errors.Is(err, schema.InvalidArgument) && ctx.Err() == nil { // only the cluster could see the mistake
		fmt.Fprintf(errOut, "Try '%s --help'.\n", cmd.CommandPath())
		return exitUsage
	}
	return exitFailed
}

// root is the tree of verbs.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "pulse",
		Short: "Run tasks on workers that may die, on servers that may die",
		Long: `Pulse runs tasks on workers. A task is acknowledged once it is on disk, leased to
one worker at a time, and never forgotten; a task that must not run twice is not
run twice, but put before a person when nobody can know how it ended.

Start a node of your own and give it a task:

  pulse dev
  pulse task run echo '{"hi":1.50}' --wait

Environment: PULSE_ADDR, PULSE_NAMESPACE, PULSE_CONTEXT, PULSE_TOKEN, PULSE_CACERT,
PULSE_CLIENT_CERT and PULSE_CLIENT_KEY stand in for the flags of the same names;
the token has no flag, because a command line is for all to see. 'pulse context'
keeps them under a name.

Exit codes: 0 done, 1 failed, 2 wrong usage.`,
		Example:       "  pulse dev\n  pulse demo",
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			// cobra looks for required flags only after this.
			if err := errors.Join(a.begin(cmd), cmd.ValidateRequiredFlags()); err != nil {
				return err
			}
			a.running = true
			return nil
		},
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return badFlag(err) })
	// A word that needs another can be run, to say so, but that is no use of it.
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), "{{if .Runnable}}", "{{if and .Runnable (not .HasAvailableSubCommands)}}", 1))
	a.commonFlags(root)
	root.AddGroup(
		&cobra.Group{ID: groupRun, Title: "Run Pulse:"},
		&cobra.Group{ID: groupUse, Title: "Use it:"},
		&cobra.Group{ID: groupMore, Title: "More:"},
	)
	add := func(group string, verbs ...*cobra.Command) {
		for _, verb := range verbs {
			verb.GroupID = group
			root.AddCommand(verb)
		}
	}
	add(groupRun, a.devCommand(), a.demoCommand(), a.serverCommand(), a.gatewayCommand(), a.benchCommand())
	add(groupUse, a.taskCommand(), a.reviewCommand(), a.queueCommand(), a.scheduleCommand(), a.workerCommand(), a.keyCommand(), a.namespaceCommand(), a.tokenCommand(), a.auditCommand(), a.clusterCommand(), a.activityCommand(), a.topCommand())
	add(groupMore, a.contextCommand(), a.versionCommand(), completionCommand())
	root.SetHelpCommandGroupID(groupMore)
	a.completions(root)
	return root
}

const (
	groupRun  = "run"
	groupUse  = "use"
	groupMore = "more"
)

// noun is a command that only holds verbs. Without one it shows them, and that
// is wrong usage, so that a script with a missing word stops.
func noun(name, short, long, example string, verbs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: name, Short: short, Long: long, Example: example,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			message := fmt.Sprintf("unknown verb %q of %s", args[0], cmd.CommandPath())
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				message += fmt.Sprintf("; did you mean %q?", near[0])
			}
			return errors.New(message)
		},
		SuggestionsMinimumDistance: 2,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.SetOut(cmd.ErrOrStderr())
			if err := cmd.Help(); err != nil {
				return err
			}
			return usagef("%s needs a verb", cmd.CommandPath())
		},
	}
	cmd.AddCommand(verbs...)
	return cmd
}

// numbers matches what package strconv says of a text that is no number.
var numbers = regexp.MustCompile(`strconv\.Parse\w+: parsing .*: (invalid syntax|value out of range)$`)

// badFlag is the error of a flag's value without the names of functions.
func badFlag(err error) error {
	text := numbers.ReplaceAllStringFunc(err.Error(), func(cause string) string {
		switch {
		case strings.Contains(cause, "ParseBool"):
			return "give true or false"
		case strings.HasSuffix(cause, "range"):
			return "it is too large"
		case strings.Contains(cause, "ParseUint"):
			return "give a whole number from 0"
		}
		return "give a whole number"
	})
	return errors.New(text)
}

// noEmptyFlag refuses a flag that is there and says nothing: as a rule a variable
// of a script that is not set, and a task without the key that it was to have.
func noEmptyFlag(cmd *cobra.Command) error {
	if !asksCluster(cmd) {
		return nil
	}
	var empty error
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		if flag.Value.Type() == "string" && flag.Value.String() == "" && flag.Name != "note" && empty == nil {
			empty = fmt.Errorf("--%s is empty: give a value, or leave it out", flag.Name)
		}
	})
	return empty
}

// begin completes the shared flags from the environment and checks them.
func (a *app) begin(cmd *cobra.Command) error {
	switch a.format {
	case formatTable, formatJSON, formatLines:
	default:
		return fmt.Errorf("-o is %q: give table, json or jsonl", a.format)
	}
	if _, err := levelOf(a.logLevel); err != nil {
		return err
	}
	if err := noEmptyFlag(cmd); err != nil {
		return err
	}
	return a.conn.complete(cmd, a.getenv)
}

func (a *app) commonFlags(root *cobra.Command) {
	flags := root.PersistentFlags()
	flags.SortFlags = false
	flags.StringVarP(&a.format, "output", "o", formatTable, "form of what is printed: table, json or jsonl")
	a.conn.flags(flags)
	flags.StringVar(&a.note, "note", "", "why you do it: goes on record with what the verb changes or submits, see 'pulse audit'")
	flags.StringVar(&a.logLevel, "log-level", "", "debug, info, warn or error: what is logged to standard error")
	if err := root.RegisterFlagCompletionFunc("context", a.completeContexts); err != nil {
		panic(err) // as in complete
	}
	complete(root, "output", formatTable, formatJSON, formatLines)
	complete(root, "log-level", "debug", "info", "warn", "error")
}

// complete offers words for a flag to the shell.
func complete(cmd *cobra.Command, flag string, words ...string) {
	err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic(err) // a flag that is not there is a mistake in this program
	}
}
