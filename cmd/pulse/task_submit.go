package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"pulse/schema"
	"pulse/schema/apiv1"
	"pulse/sdk"
)

const (
	submitTasksMax = apiv1.BatchTasksMax // of one request
	submitBytesMax = 7 << 20             // of one request, below what the API takes
	submitLineMax  = 1 << 20             // a payload of 256 KiB and all around it
	submitErrors   = 20                  // shown one by one; the others are counted
	submitTry      = 2 * time.Minute     // without progress; then the verb gives up
)

func (a *app) taskSubmitCommand() *cobra.Command {
	var file, queue, handler string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "submit --file FILE",
		Short: "Submit many tasks from a file",
		Long: `Submit a file of tasks, one JSON object on each line, as the API takes them:

  {"handler":"send","payload":{"to":"ada@example.com"},"business_key":"mail/1"}

Versions that are left out are "1", a payload that is left out is {}, and --handler
names the handler of lines that name none. All lines are checked first: a file with a
bad line submits nothing.

A run that was broken off is gone on with by running the same command again: each task
has a name made of the file's content and its line, under which the cluster takes it
once (for 24 hours). Tasks that must stay unique for longer need a business_key. A file
that was changed is another file. FILE may be - for standard input.`,
		Example: `  pulse task submit --file tasks.jsonl --queue mail
  jq -c '{payload: .}' orders.json | pulse task submit --file - --handler ship`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s := &submitter{app: a, cmd: cmd, queue: queue, handler: handler}
			if err := s.open(file); err != nil {
				return err
			}
			defer s.close()
			if err := s.check(); err != nil {
				return err
			}
			if dryRun {
				return a.done(cmd, s.answer(), "%s in the file, all sound.", plural(s.lines, "task"))
			}
			return s.submit()
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().StringVarP(&file, "file", "f", "", "file with one task a line, or -")
	cmd.Flags().StringVarP(&queue, "queue", "q", sdk.DefaultName, "queue to submit to")
	cmd.Flags().StringVar(&handler, "handler", "", "handler of lines that name none")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only check the file")
	required(cmd, "file")
	return cmd
}

// submitter submits one file. It reads it twice: once to check and to name it,
// once to send it.
type submitter struct {
	app            *app
	cmd            *cobra.Command
	queue, handler string

	file  *os.File
	spool bool   // file is a copy of standard input
	name  string // hash of the content and of what the flags add to it
	lines int
	bytes int64

	done, duplicates, refused int
}

// submitAnswer is what is printed at the end.
type submitAnswer struct {
	Tasks      int    `json:"tasks"`
	Submitted  int    `json:"submitted"`  // acknowledged, now or by an earlier run
	Duplicates int    `json:"duplicates"` // of these, found under their business key
	Refused    int    `json:"refused"`
	Content    string `json:"content"` // names the file, as it is part of each task's name
}

func (s *submitter) answer() submitAnswer {
	return submitAnswer{Tasks: s.lines, Submitted: s.done, Duplicates: s.duplicates, Refused: s.refused, Content: s.name}
}

func (s *submitter) open(path string) (err error) {
	if path != "-" {
		s.file, err = os.Open(path)
		return err
	}
	// The name of the content is needed before the first task is sent.
	if s.file, err = os.CreateTemp("", "pulse-submit-*.jsonl"); err != nil {
		return err
	}
	s.spool = true
	if _, err = io.Copy(s.file, s.cmd.InOrStdin()); err != nil {
		s.close()
	}
	return err
}

func (s *submitter) close() {
	_ = s.file.Close() // was only read, or is removed
	if s.spool {
		_ = os.Remove(s.file.Name())
	}
}

// each calls f with every line that is not blank, from the start of the file.
func (s *submitter) each(f func(number int, line []byte) error) error {
	if _, err := s.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	lines := bufio.NewScanner(s.file)
	lines.Buffer(make([]byte, 64<<10), submitLineMax)
	number := 0
	for lines.Scan() {
		number++
		if s.cmd.Context().Err() != nil {
			return context.Cause(s.cmd.Context())
		}
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		if err := f(number, line); err != nil {
			return err
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return fmt.Errorf("line %d has more than %d bytes", number+1, submitLineMax)
	}
	return lines.Err()
}

// check reads the whole file, so that a mistake in its last line is found before
// its first is sent.
func (s *submitter) check() error {
	hash := sha256.New()
	fmt.Fprintf(hash, "%s\x00%s\x00%s\x00", s.app.conn.namespace, s.queue, s.handler)
	bad := 0
	err := s.each(func(number int, line []byte) error {
		hash.Write(line)
		hash.Write([]byte{'\n'})
		s.lines++
		s.bytes += int64(len(line))
		if _, err := s.spec(line); err != nil {
			if bad++; bad <= submitErrors {
				fmt.Fprintf(s.cmd.ErrOrStderr(), "line %d: %s", number, s.app.explainItem(nil, err))
			}
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case bad > 0:
		return fmt.Errorf("%s; nothing was submitted", plural(bad, "bad line"))
	case s.lines == 0:
		return errors.New("the file holds no task")
	}
	s.name = hex.EncodeToString(hash.Sum(nil)[:16])
	return nil
}

// spec reads a line as strictly as the server would.
func (s *submitter) spec(line []byte) (sdk.TaskSpec, error) {
	if err := schema.CheckJSON(line, schema.Limits{}); err != nil {
		return sdk.TaskSpec{}, plain(err)
	}
	line, err := s.complete(line)
	if err != nil {
		return sdk.TaskSpec{}, err
	}
	in, refusal := apiv1.DecodeSubmission(line)
	if refusal != nil {
		return sdk.TaskSpec{}, plain(refusal)
	}
	spec := sdk.TaskSpec{
		Handler: in.Handler, HandlerVersion: in.HandlerVersion, PayloadVersion: in.PayloadVersion,
		Payload: json.RawMessage(bytes.Clone(in.Payload)), BusinessKey: in.BusinessKey, ConcurrencyKey: in.ConcurrencyKey,
		Priority: int(in.Priority), Delay: millis(in.DelayMillis), AvailableAt: atTime(in.AvailableAt),
		StartDeadlineAt: atTime(in.StartDeadlineAt), DeadlineAt: atTime(in.DeadlineAt),
		Retry: sdk.Retry{
			InitialDelay: orNone(in.Retry.InitialDelayMillis), MaxDelay: orNone(in.Retry.MaxDelayMillis),
			AttemptTimeout: orAbsent(in.Retry.AttemptTimeoutMillis),
		},
	}
	if in.Retry.MaxAttempts != apiv1.Absent {
		spec.Retry.MaxAttempts = int(in.Retry.MaxAttempts)
	}
	if in.ReconcileOnly {
		spec.RecoverySafety = sdk.ReconcileOnly
	}
	return spec, nil
}

// complete adds the members that a line may leave out.
func (s *submitter) complete(line []byte) ([]byte, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(line, &members); err != nil {
		return nil, errors.New("is not a JSON object")
	}
	handler, err := json.Marshal(s.handler)
	if err != nil {
		return nil, err
	}
	out := bytes.Clone(line[:len(line)-1])
	empty := len(members) == 0
	add := func(name string, value []byte) {
		if _, there := members[name]; there {
			return
		}
		if !empty {
			out = append(out, ',')
		}
		empty = false
		out = fmt.Appendf(out, "%q:%s", name, value)
	}
	if s.handler != "" {
		add("handler", handler)
	}
	add("handler_version", []byte(`"1"`))
	add("payload_version", []byte(`"1"`))
	add("payload", []byte("{}"))
	return append(out, '}'), nil
}

// plain turns a refusal by the rules of the schema into lines for people.
func plain(err error) error {
	refusal, ok := errors.AsType[*schema.Error](err)
	if !ok {
		return err
	}
	return &sdk.Error{Code: refusal.Code, Message: "not a task", Violations: refusal.Violations}
}

func millis(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

func orNone(ms int64) time.Duration {
	switch ms {
	case apiv1.Absent:
		return 0
	case 0:
		return sdk.NoDelay
	}
	return millis(ms)
}

func orAbsent(ms int64) time.Duration {
	if ms == apiv1.Absent {
		return 0
	}
	return millis(ms)
}

func atTime(t schema.Time) time.Time {
	if t == 0 {
		return time.Time{}
	}
	return t.Time()
}

// submit sends the file in batches that are cut in the same places whoever sends
// it, so that a batch has the same name each time.
func (s *submitter) submit() error {
	c, err := s.app.client(s.cmd)
	if err != nil {
		return err
	}
	bar := newProgress(s.cmd.ErrOrStderr(), s.lines)
	defer bar.end()
	var batch []sdk.TaskSpec
	var numbers []int // the line of each
	var size int
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		err := s.send(c, batch, numbers)
		bar.show(s.done + s.refused)
		batch, numbers, size = nil, nil, 0
		return err
	}
	err = s.each(func(number int, line []byte) error {
		spec, err := s.spec(line)
		if err != nil {
			return fmt.Errorf("line %d has changed while the file was read: %w", number, err)
		}
		if len(batch) == submitTasksMax || size+len(line) > submitBytesMax {
			if err := flush(); err != nil {
				return err
			}
		}
		batch, numbers, size = append(batch, spec), append(numbers, number), size+len(line)+128
		return nil
	})
	if err == nil {
		err = flush()
	}
	bar.end()
	if err != nil {
		fmt.Fprintf(s.cmd.ErrOrStderr(), "%s of %s submitted. Run the same command again to go on; nothing is submitted twice.\n", commas(s.done), commas(s.lines))
		return err
	}
	return s.report()
}

func (s *submitter) send(c *sdk.Client, batch []sdk.TaskSpec, numbers []int) error {
	limit := submitTry
	if t := time.Duration(s.app.conn.timeout); t > 0 {
		limit = t
	}
	ctx, cancel := context.WithTimeout(s.cmd.Context(), limit)
	defer cancel()
	items, err := c.SubmitBatch(ctx, s.queue, batch, sdk.WithNote(s.app.note), sdk.WithIdempotencyKey(fmt.Sprintf("file-%s/%d", s.name, numbers[0])))
	for i, item := range items {
		switch {
		case item.Err != nil:
			if s.refused++; s.refused <= submitErrors {
				fmt.Fprintf(s.cmd.ErrOrStderr(), "\rline %d: %s", numbers[i], s.app.explainItem(nil, item.Err))
			}
		case item.Task.Duplicate:
			s.duplicates++
			s.done++
		default:
			s.done++
		}
	}
	return err
}

func (s *submitter) report() error {
	text := fmt.Sprintf("%s of %s tasks submitted", commas(s.done), commas(s.lines))
	if s.duplicates > 0 {
		text += fmt.Sprintf(", %s of them known under their business key", commas(s.duplicates))
	}
	if s.refused > 0 {
		text += fmt.Sprintf("; %s refused", commas(s.refused))
	}
	if err := s.app.done(s.cmd, s.answer(), "%s.", text); err != nil {
		return err
	}
	if s.refused > 0 {
		return errSilent
	}
	return nil
}
