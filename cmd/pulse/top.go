package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"pulse/sdk"
)

const (
	topEvery    = 2 * time.Second
	topEveryMin = 200 * time.Millisecond
	topAnswer   = 5 * time.Second // bounds one look, so that a dead node is said to be one

	// The terminal is given back as it was found.
	topEnter = "\x1b[?1049h\x1b[?25l" // another screen, without a cursor
	topLeave = "\x1b[?25h\x1b[?1049l"
)

func (a *app) topCommand() *cobra.Command {
	var every span
	var once bool
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch queues, workers and rates live",
		Long: `Watch the namespace live: how the cluster stands, what waits and for what, what runs and
needs a person, how much room the workers have, and how many tasks a second were submitted and
settled in the last minute. It looks again every two seconds until Ctrl-C, at any node, so that
it costs the leader nothing and goes on while there is none.

Where there is no terminal it takes one look, as --once does. -o jsonl prints a line for
each look.`,
		Example: "  pulse top\n  pulse top --every 500ms -n billing\n  pulse top --once -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if time.Duration(every) < topEveryMin {
				return usagef("--every is %s: give at least %s", every.String(), topEveryMin)
			}
			c, ctx, cancel, err := a.long(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			t := &top{client: c, namespace: a.conn.namespace, every: time.Duration(every)}
			out := cmd.OutOrStdout()
			show := func(l *look) error { return a.printLook(out, l) }
			switch {
			case once || a.format == formatJSON || a.format == formatTable && !isTerminal(out):
				l, err := t.take(ctx)
				if err != nil {
					return err
				}
				return show(l)
			case a.format == formatLines:
				return t.lines(ctx, show)
			}
			return t.screen(ctx, out, func() (rows, columns int) { return sizeOf(out) })
		},
	}
	every = span(topEvery)
	cmd.Flags().Var(&every, "every", "how often to look")
	cmd.Flags().BoolVar(&once, "once", false, "take one look and end")
	return cmd
}

// top looks at a namespace again and again.
type top struct {
	client    *sdk.Client
	namespace string
	every     time.Duration
}

// look is one frame.
type look struct {
	At        time.Time     `json:"at"`
	Namespace string        `json:"namespace"`
	Node      string        `json:"node"`
	Ready     bool          `json:"ready"`
	Leader    string        `json:"leader"`
	Voters    int           `json:"voters"`
	Activity  *sdk.Activity `json:"activity"`
}

// take looks once.
func (t *top) take(ctx context.Context) (*look, error) {
	ctx, cancel := context.WithTimeout(ctx, topAnswer)
	defer cancel()
	text, err := t.client.Cluster(ctx)
	if err != nil {
		return nil, err
	}
	var status clusterStatus
	if err := json.Unmarshal(text, &status); err != nil {
		return nil, fmt.Errorf("the answer is not a status of a cluster: %w", err)
	}
	l := &look{At: time.Now(), Namespace: t.namespace, Node: status.Node.ID, Ready: status.Node.Ready, Leader: status.Node.LeaderID}
	for _, server := range status.Node.Servers {
		if server.Voter {
			l.Voters++
		}
	}
	l.Activity, err = t.client.Activity(ctx, "", sdk.WithStaleRead())
	return l, err
}

// looks yields a frame each interval, or what went wrong with it, until ctx ends
// or yield returns an error, which it then returns.
func (t *top) looks(ctx context.Context, yield func(*look, error) error) error {
	ticker := time.NewTicker(t.every)
	defer ticker.Stop()
	for {
		l, err := t.take(ctx)
		if ctx.Err() != nil {
			return nil // Ctrl-C is how it ends
		}
		if err := yield(l, err); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (t *top) lines(ctx context.Context, show func(*look) error) error {
	return t.looks(ctx, func(l *look, err error) error {
		if err != nil {
			return err
		}
		return show(l)
	})
}

// screen draws on a terminal until Ctrl-C. A look that fails is said below the
// last one that did not: an election is when people watch.
func (t *top) screen(ctx context.Context, out io.Writer, size func() (rows, columns int)) (err error) {
	if _, err := io.WriteString(out, topEnter); err != nil {
		return err
	}
	defer func() {
		_, left := io.WriteString(out, topLeave)
		err = errors.Join(err, left)
	}()
	var last *look
	return t.looks(ctx, func(l *look, fault error) error {
		if fault == nil {
			last = l
		}
		rows, columns := size()
		_, err := out.Write(drawn(last, fault, rows, columns))
		return err
	})
}

// drawn is a frame of a terminal of this size.
func drawn(l *look, fault error, rows, columns int) []byte {
	var lines []string
	if l != nil {
		var text bytes.Buffer
		_ = describeLook(&text, l) // a buffer takes everything
		lines = strings.Split(strings.TrimRight(text.String(), "\n"), "\n")
	}
	if fault != nil {
		since := ""
		if l != nil {
			since = fmt.Sprintf("; above is how it was %s ago", age(l.At))
			lines = append(lines, "")
		}
		lines = append(lines, strings.Split(fmt.Sprintf("No answer: %v%s", fault, since), "\n")...)
	}
	if len(lines) > rows {
		left := len(lines) - rows + 1
		lines = append(lines[:rows-1], fmt.Sprintf("… and %d more lines; a taller window shows them", left))
	}
	var b bytes.Buffer
	b.WriteString("\x1b[H")
	for i, line := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		if runes := []rune(line); len(runes) > columns {
			line = string(runes[:columns])
		}
		b.WriteString(line + "\x1b[K")
	}
	b.WriteString("\x1b[J")
	return b.Bytes()
}

func (a *app) printLook(out io.Writer, l *look) error {
	switch a.format {
	case formatLines:
		return printLine(out, l)
	case formatJSON:
		text, err := encode(l, "")
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(out, "%s\n", text)
		return err
	}
	return describeLook(out, l)
}

func describeLook(out io.Writer, l *look) error {
	leader := "no leader is known"
	switch {
	case l.Leader != "" && l.Leader == l.Node:
		leader = "leads"
	case l.Leader != "":
		leader = l.Leader + " leads"
	}
	ready := ""
	if !l.Ready {
		ready = ", not ready: see pulse cluster status"
	}
	if _, err := fmt.Fprintf(out, "Cluster  %s answers, %s, %s%s\n", l.Node, leader, plural(l.Voters, "voter"), ready); err != nil {
		return err
	}
	return describeActivity(out, l.Namespace, l.Activity)
}

// sizeOf is how much room a terminal has; the classic 24 by 80 if it does not say.
func sizeOf(out any) (rows, columns int) {
	rows, columns = 24, 80
	file, ok := out.(*os.File)
	if !ok {
		return rows, columns
	}
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Row < 2 || size.Col == 0 {
		return rows, columns
	}
	return int(size.Row), int(size.Col)
}
