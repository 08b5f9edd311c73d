package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"pulse/sdk"
)

// The forms of -o.
const (
	formatTable = "table"
	formatJSON  = "json"  // indented; a list is one array
	formatLines = "jsonl" // one line for each thing
)

// column is one column of a list in table form.
type column[T any] struct {
	title string
	cell  func(T) string
}

// rowsAligned is how many rows of a list are aligned with each other; beyond it
// a long list is printed in pieces, so that it needs no memory for all of it.
const rowsAligned = 1000

// printList prints what a walk yields, at most limit of them (0 = all). In table
// form an empty list says so in words, on standard error.
func printList[T any](a *app, cmd *cobra.Command, columns []column[T], walk iter.Seq2[T, error], limit int, nothing string) error {
	out := cmd.OutOrStdout()
	table := newTable(out)
	n := 0
	for item, err := range walk {
		if err != nil {
			return err
		}
		if limit > 0 && n == limit {
			fmt.Fprintf(cmd.ErrOrStderr(), "More than %d; --limit 0 shows all.\n", limit)
			break
		}
		switch a.format {
		case formatTable:
			if n%rowsAligned == 0 {
				if err := table.Flush(); err != nil {
					return err
				}
				if n == 0 {
					row(table, columns, func(c column[T]) string { return c.title })
				}
			}
			row(table, columns, func(c column[T]) string { return c.cell(item) })
		case formatLines:
			if err := printLine(out, item); err != nil {
				return err
			}
		case formatJSON:
			text, err := encode(item, "  ")
			if err != nil {
				return err
			}
			opening := "[\n  "
			if n > 0 {
				opening = ",\n  "
			}
			fmt.Fprintf(out, "%s%s", opening, text)
		}
		n++
	}
	switch {
	case a.format == formatJSON && n == 0:
		fmt.Fprintln(out, "[]")
	case a.format == formatJSON:
		fmt.Fprintln(out, "\n]")
	case a.format == formatTable && n == 0:
		fmt.Fprintln(cmd.ErrOrStderr(), nothing)
	}
	return table.Flush()
}

// listCommand is a verb that lists everything of a kind.
func listCommand[T any](a *app, short, example string, columns []column[T], walk func(*sdk.Client, context.Context, ...sdk.CallOption) iter.Seq2[T, error], nothing string) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:     "list",
		Short:   short,
		Example: example,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, ctx, cancel, err := a.page(cmd, limit)
			if err != nil {
				return err
			}
			defer cancel()
			return printList(a, cmd, columns, walk(c, ctx), limit, nothing)
		},
	}
	limitFlag(cmd, &limit)
	return cmd
}

func newTable(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 8, 2, ' ', 0) }

func row[T any](w io.Writer, columns []column[T], cell func(column[T]) string) {
	for i, c := range columns {
		if i > 0 {
			fmt.Fprint(w, "\t")
		}
		text := cell(c)
		if text == "" && i < len(columns)-1 {
			text = "-" // an empty cell would be hard to tell from a missing one
		}
		fmt.Fprint(w, text)
	}
	fmt.Fprintln(w)
}

// printIDs is the answer to -q: what another command takes as arguments.
func printIDs[T any](cmd *cobra.Command, walk iter.Seq2[T, error], limit int, id func(T) string) error {
	n := 0
	for item, err := range walk {
		if err != nil {
			return err
		}
		if limit > 0 && n == limit {
			break
		}
		fmt.Fprintln(cmd.OutOrStdout(), id(item))
		n++
	}
	return nil
}

// printOne prints one thing: in table form as describe does.
func (a *app) printOne(cmd *cobra.Command, thing any, describe func(*details)) error {
	out := cmd.OutOrStdout()
	switch a.format {
	case formatLines:
		return printLine(out, thing)
	case formatJSON:
		text, err := encode(thing, "")
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(out, "%s\n", text)
		return err
	}
	d := &details{table: newTable(out)}
	describe(d)
	return d.table.Flush()
}

// done prints one thing that a verb has changed: in table form as a sentence.
func (a *app) done(cmd *cobra.Command, thing any, format string, args ...any) error {
	if a.format == formatTable {
		_, err := fmt.Fprintf(cmd.OutOrStdout(), format+"\n", args...)
		return err
	}
	return a.printOne(cmd, thing, nil)
}

func printLine(w io.Writer, thing any) error {
	text, err := encodeLine(thing)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", text)
	return err
}

// details are names and values, a line for each that has a value.
type details struct{ table *tabwriter.Writer }

func (d *details) put(name, value string) {
	if value != "" {
		fmt.Fprintf(d.table, "%s\t%s\n", name, value)
	}
}

func (d *details) putf(name, format string, args ...any) { d.put(name, fmt.Sprintf(format, args...)) }

func (d *details) time(name string, at time.Time) {
	if !at.IsZero() {
		d.put(name, timeAndAge(at))
	}
}

// Encoding. encoding/json compacts the business JSON it embeds; here it stays the
// bytes that were sent. So a copy is encoded with marks in its place, and then the
// bytes are put where the marks are.

// encode is the indented form; prefix stands before every line but the first.
func encode(thing any, prefix string) ([]byte, error) {
	h := newHoles()
	text, err := marshal(h.dig(thing), prefix)
	if err != nil {
		return nil, err
	}
	return h.fill(text), nil
}

// encodeLine is the form on one line. A line break in business JSON can only be
// between its tokens, so a blank there says the same.
func encodeLine(thing any) ([]byte, error) {
	h := newHoles()
	text, err := marshalCompact(h.dig(thing))
	if err != nil {
		return nil, err
	}
	return bytes.Map(func(r rune) rune {
		if r == '\n' || r == '\r' {
			return ' '
		}
		return r
	}, h.fill(text)), nil
}

func marshal(v any, prefix string) ([]byte, error) {
	text, err := marshalCompact(v)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = json.Indent(&b, text, prefix, "  ")
	return b.Bytes(), err
}

func marshalCompact(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// holes remembers what belongs where the marks are.
type holes struct {
	mark  string // not to be guessed, so that no task can carry it
	texts []json.RawMessage
}

func newHoles() *holes { return &holes{mark: rand.Text()} }

// dig returns a copy of a thing with marks for its business JSON.
func (h *holes) dig(thing any) any {
	switch v := thing.(type) {
	case *sdk.TaskInfo:
		return h.task(v)
	case *taskWithAttempts:
		c := *v
		c.TaskInfo = h.task(v.TaskInfo)
		c.Attempts = make([]sdk.Attempt, len(v.Attempts))
		for i := range v.Attempts {
			c.Attempts[i] = h.attempt(v.Attempts[i])
		}
		return &c
	}
	return thing
}

func (h *holes) task(t *sdk.TaskInfo) *sdk.TaskInfo {
	c := *t
	c.Payload, c.Result = h.hole(t.Payload), h.hole(t.Result)
	return &c
}

func (h *holes) attempt(at sdk.Attempt) sdk.Attempt {
	at.Result = h.hole(at.Result)
	evidence := make([]sdk.Evidence, len(at.Evidence))
	for i, e := range at.Evidence {
		e.Result = h.hole(e.Result)
		evidence[i] = e
	}
	at.Evidence = evidence
	return at
}

func (h *holes) hole(text json.RawMessage) json.RawMessage {
	if len(text) == 0 {
		return nil
	}
	h.texts = append(h.texts, text)
	return json.RawMessage(h.name(len(h.texts) - 1))
}

func (h *holes) name(place int) string { return `"` + h.mark + strconv.Itoa(place) + `"` }

func (h *holes) fill(text []byte) []byte {
	for i, business := range h.texts {
		text = bytes.Replace(text, []byte(h.name(i)), business, 1)
	}
	return text
}

// Cells.

// age is how long ago something was, as people say it.
func age(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return spell(max(time.Since(at), 0).Truncate(time.Second))
}

func timeAndAge(at time.Time) string {
	text := at.Local().Format("2006-01-02 15:04:05.000 MST")
	if d := time.Until(at); d > 0 {
		return text + " (in " + spell(d) + ")"
	}
	return text + " (" + spell(time.Since(at)) + " ago)"
}

// short is the beginning of an id, enough to tell it from its neighbours by eye.
// Ids of tasks begin with their time, so what tells them apart is their end.
func short(id string) string {
	const digits = 8
	if len(id) <= digits {
		return id
	}
	return "…" + id[len(id)-digits:]
}

// brief is the beginning of a text that people wrote, for a cell of a table whose
// other cells should still be seen.
func brief(text string) string {
	const most = 40
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return text
}

func count(n uint64) string { return strconv.FormatUint(n, 10) }

func yes(b bool) string {
	if b {
		return "yes"
	}
	return ""
}

func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + one + "s"
}

// commas writes a large number so that people can read it.
func commas[N int | uint64](n N) string {
	digits := strconv.FormatUint(uint64(n), 10)
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}

// shellQuote puts a word in single quotes.
func shellQuote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }
