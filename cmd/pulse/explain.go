package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"pulse/schema"
	"pulse/sdk"
)

// explain is an error as a person wants to read it, with what to do about it. The
// members of a request that a refusal names are named as the flags and arguments of
// cmd; without a cmd they keep their names, for whoever wrote them himself.
func (a *app) explain(ctx context.Context, cmd *cobra.Command, err error) string {
	var b strings.Builder
	refusal, refused := errors.AsType[*sdk.Error](err)
	switch {
	case ctx.Err() != nil:
		return "pulse: interrupted\n"
	case unserved(err, refusal):
		return a.explainUnserved(ctx, err, refusal)
	case refused:
		spoken{cmd}.refusal(&b, refusal)
	case unreachable(err) != nil:
		fmt.Fprintf(&b, "pulse: no answer: %v\n", unreachable(err))
	default:
		fmt.Fprintf(&b, "pulse: %s\n", strings.TrimPrefix(err.Error(), "pulse: "))
	}
	if errors.Is(err, context.DeadlineExceeded) && refused {
		fmt.Fprintf(&b, "  given up; --timeout waits longer\n")
	}
	if hint := a.hint(err, refusal); hint != "" {
		fmt.Fprintf(&b, "  %s\n", hint)
	}
	return b.String()
}

// explainItem is explain for one of many, after its name: about the answer for it
// alone, since the call had one.
func (a *app) explainItem(cmd *cobra.Command, err error) string {
	refusal, refused := errors.AsType[*sdk.Error](err)
	if fault := unreachable(err); !refused && fault != nil {
		return "no answer: " + fault.Error() + "\n"
	}
	if !refused {
		return strings.TrimPrefix(err.Error(), "pulse: ") + "\n"
	}
	var b strings.Builder
	spoken{cmd}.refusal(&b, refusal)
	if hint := a.hint(err, refusal); hint != "" {
		fmt.Fprintf(&b, "  %s\n", hint)
	}
	return strings.TrimPrefix(b.String(), "pulse: ")
}

// unreachable is the network's own word on why there is no answer.
func unreachable(err error) error {
	if fault, ok := errors.AsType[*net.OpError](err); ok && fault.Op != "listen" {
		return fault
	}
	return nil
}

func (a *app) hint(err error, refusal *sdk.Error) string {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return a.nobodyListens()
	case refusal == nil:
		return ""
	case refusal.ExistingTaskID != "":
		return "The other task: pulse task get " + refusal.ExistingTaskID
	case refusal.Code == schema.Unauthenticated:
		return "A token is taken from PULSE_TOKEN or the file that 'pulse context set NAME --token-file FILE' names, a client certificate " +
			"from PULSE_CLIENT_CERT and PULSE_CLIENT_KEY. 'pulse token --help' says how to get the first one."
	case refusal.Code == schema.ResultUnknown:
		return maybeDone
	case refusal.Code == schema.RevisionConflict:
		return fmt.Sprintf("It is at revision %d now.", refusal.CurrentRevision)
	}
	return ""
}

const maybeDone = "It may or may not have been done: look before you repeat it."

// cutShort says that a change may have reached a node that answers, and that nobody
// knows what became of it.
func cutShort(err error, answered bool) bool {
	call, ok := errors.AsType[*url.Error](err)
	return ok && call.Op != "Get" && (answered || !errors.Is(err, syscall.ECONNREFUSED))
}

func (a *app) nobodyListens() string {
	if a.conn.context != "" {
		return "Nobody listens at " + a.conn.addr + "; the context in force is " + a.conn.context + ". 'pulse context list' shows the others, --addr goes elsewhere for once."
	}
	return "Nobody listens at " + a.conn.addr + ". Start a node with 'pulse dev', or say where one is with --addr, PULSE_ADDR or 'pulse context set'."
}

// spoken tells refusals in the words of the command line.
type spoken struct{ cmd *cobra.Command } // nil: in those of the API

func (s spoken) refusal(b *strings.Builder, e *sdk.Error) {
	var faults []string
	for _, v := range e.Violations {
		if text := s.violation(v); !slices.Contains(faults, text) {
			faults = append(faults, text)
		}
	}
	switch {
	case len(faults) == 0:
		fmt.Fprintf(b, "pulse: %s (%s)\n", cmp.Or(s.text(e.Message), "refused"), e.Code)
		return
	case !strings.Contains(e.Message, e.Violations[0].Message): // else it says the same once more
		fmt.Fprintf(b, "pulse: %s (%s)\n", cmp.Or(s.text(e.Message), "refused"), e.Code)
	case len(faults) == 1:
		fmt.Fprintf(b, "pulse: %s (%s)\n", faults[0], e.Code)
		return
	default:
		fmt.Fprintf(b, "pulse: %d things are wrong (%s)\n", len(faults), e.Code)
	}
	for _, fault := range faults {
		fmt.Fprintf(b, "  %s\n", fault)
	}
}

// violation is a sentence about a member of the request.
func (s spoken) violation(v schema.Violation) string {
	if name, missing := strings.CutSuffix(v.Message, " is missing"); missing {
		if name, ok := strings.CutPrefix(name, "the member "); ok {
			return s.member(v.Path+"/"+name) + " is missing"
		}
	}
	text, subject := s.text(v.Message), s.member(v.Path)
	if inMillis(v.Path, v.Message) {
		text = spans(text)
	}
	first, _, _ := strings.Cut(text, " ")
	switch {
	case first == subject:
		return text
	case slices.Contains(predicates, first):
		return subject + " " + text
	}
	return subject + ": " + text
}

// predicates begin a message whose subject is the member. Others are sentences.
var predicates = []string{"must", "is", "has", "belongs", "appears", "needs", "may", "cannot", "holds", "names"}

// memberName matches what only the API calls so; wholeNumber a number of a range.
var (
	memberName  = regexp.MustCompile(`\b[a-z]+(_[a-z]+)+\b`)
	wholeNumber = regexp.MustCompile(`\b\d+\b`)
)

// text is a message with flags in place of members.
func (s spoken) text(message string) string {
	return memberName.ReplaceAllStringFunc(message, func(name string) string {
		if flag := s.flag(name); flag != "" {
			return flag
		}
		return name
	})
}

// inMillis says that the numbers in a message about a member are milliseconds, which
// nobody has typed: flags take lengths of time.
func inMillis(path, message string) bool {
	return strings.HasSuffix(path, "_ms") && !strings.Contains(message, "character")
}

func spans(text string) string {
	text = strings.Replace(text, "must be a whole number from", "must be a length of time from", 1)
	return wholeNumber.ReplaceAllStringFunc(text, func(digits string) string {
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil {
			return digits
		}
		return spellMillis(n)
	})
}

// memberFlags are the flags of members, where they do not follow from the name:
// the first that the verb has.
var memberFlags = map[string][]string{
	"lease_duration_ms":  {"lease"},
	"offer_duration_ms":  {"offer"},
	"available_at":       {"at", "delay"},
	"concurrency_key":    {"key"},
	"recovery_safety":    {"reconcile-only"},
	"waiting_reason":     {"reason"},
	"grants":             {"grant"},
	"expires_at":         {"expires-in"},
	"from":               {"from", "since"},
	"limit":              {"limit", "count"},
	"ns":                 {"namespace"},
	"Idempotency-Key":    {"idempotency-key"},
	"X-Pulse-Note":       {"note"},
	"created_from":       {"created-from"},
	"catch_up_window_ms": {"catch-up-window"},
}

// flag is the flag that a member was made of, or "".
func (s spoken) flag(member string) string {
	if s.cmd == nil {
		return ""
	}
	names := memberFlags[member]
	if names == nil {
		name := strings.ReplaceAll(member, "_", "-")
		names = []string{name, strings.TrimSuffix(strings.TrimSuffix(name, "-ms"), "-at")}
	}
	for _, name := range names {
		if s.cmd.Flags().Lookup(name) != nil {
			return "--" + name
		}
	}
	return ""
}

// member is what a JSON Pointer of the API points at: an argument of the verb, a
// flag, or else the pointer itself.
func (s spoken) member(pointer string) string {
	parts := strings.Split(strings.TrimPrefix(pointer, "/"), "/")
	if s.cmd != nil && len(parts) > 0 {
		inPath := parts[0] == "path"
		for _, part := range parts {
			if argument := s.argument(part, inPath); argument != "" {
				return argument
			}
			if flag := s.flag(part); flag != "" {
				return flag
			}
		}
	}
	return cmp.Or(pointer, "the request")
}

// argument is the argument that a member was made of, or "".
func (s spoken) argument(member string, inPath bool) string {
	use := strings.Fields(s.cmd.Use)
	has := func(name string) bool {
		return slices.ContainsFunc(use, func(word string) bool { return strings.Trim(word, "[].") == name })
	}
	noun := ""
	if s.cmd.HasParent() {
		noun = s.cmd.Parent().Name()
	}
	switch member {
	case "payload":
		if has("JSON") {
			return "the payload"
		}
	case "handler":
		if has("HANDLER") {
			return "HANDLER"
		}
	case "ns":
		member = "namespace"
	case "id", "instance_id":
		member = noun // the thing that the verb is about
	case "name", "node_id", "level":
		inPath, member = true, noun
	}
	if inPath && member == noun && len(use) > 1 {
		if name := strings.Trim(use[1], "[]."); name == strings.ToUpper(name) && !strings.HasPrefix(name, "-") {
			return name
		}
	}
	return ""
}
