package schema

import (
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the generated pages instead of comparing with them")

func TestEveryCodeIsInTheCatalogueOnce(t *testing.T) {
	t.Parallel()
	declared := declaredCodes(t)
	if len(declared) < 30 {
		t.Fatalf("only %d codes found in code.go", len(declared))
	}
	listed := map[Code]bool{}
	for _, info := range Codes() {
		if listed[info.Code] {
			t.Errorf("%s is listed twice", info.Code)
		}
		listed[info.Code] = true
		if found, ok := Lookup(info.Code); !ok || found != info {
			t.Errorf("Lookup(%s) = %+v, %v", info.Code, found, ok)
		}
		if !ValidName(string(info.Code), ErrorCodeCharsMax) {
			t.Errorf("%s does not fit an error frame", info.Code)
		}
		if info.HTTPStatus < 400 || info.HTTPStatus > 599 || !strings.HasSuffix(info.Meaning, ".") {
			t.Errorf("%s is incomplete: %+v", info.Code, info)
		}
	}
	for name, code := range declared {
		if !listed[code] {
			t.Errorf("%s (%s) is not in the catalogue", name, code)
		}
		delete(listed, code)
	}
	for code := range listed {
		t.Errorf("%s is in the catalogue but not in code.go", code)
	}
}

// declaredCodes reads the constants of type Code from the source.
func declaredCodes(t *testing.T) map[string]Code {
	file, err := parser.ParseFile(token.NewFileSet(), "code.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	codes := map[string]Code{}
	ast.Inspect(file, func(node ast.Node) bool {
		spec, ok := node.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); !ok || kind.Name != "Code" {
			return true
		}
		text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		codes[spec.Names[0].Name] = Code(text)
		return true
	})
	return codes
}

// The statuses are promised in section 9 of the semantics, stated here again.
func TestStatusesAreAsPromised(t *testing.T) {
	t.Parallel()
	for status, codes := range map[int]string{
		400: "invalid_argument unsupported_version invalid_frame",
		401: "unauthenticated",
		403: "forbidden",
		404: "not_found",
		409: "conflict operation_conflict identity_conflict revision_conflict not_started already_started cancel_not_requested drain_is_final stale_epoch stale_sequence lease_lost session_required session_superseded session_expired",
		413: "too_large",
		429: "queue_full rate_limited",
		500: "internal",
		503: "no_leader not_leader unavailable unknown_command",
		504: "deadline_expired result_unknown",
	} {
		for _, code := range strings.Fields(codes) {
			if got := Code(code).HTTPStatus(); got != status {
				t.Errorf("%s: status %d, want %d", code, got, status)
			}
		}
	}
}

func TestACodeOfANewerServerCountsAsInternal(t *testing.T) {
	t.Parallel()
	const code Code = "invented_later"
	info, found := Lookup(code)
	if found || info.Code != code || code.HTTPStatus() != 500 || code.Retryable() || code.Fatal() {
		t.Errorf("got %+v, %v", info, found)
	}
}

// What is made of the catalogue: the page for people, and the codes as the
// TypeScript SDK knows them.
func TestErrorsPageIsCurrent(t *testing.T) {
	t.Parallel()
	for path, page := range map[string]string{
		"../docs/errors.md":      renderErrorsPage(),
		"../sdk/ts/src/codes.ts": renderTypeScriptCodes(),
	} {
		if *update {
			if err := os.WriteFile(path, []byte(page), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != page {
			t.Errorf("%s is not current: run go generate ./schema", path)
		}
	}
}

func renderTypeScriptCodes() string {
	var b strings.Builder
	b.WriteString(`// Generated from schema/catalogue.go by "go generate ./schema"; do not edit.

/** What a code means beside its name. */
interface Info {
  /** The same request, with the same id, may succeed later. */
  readonly retryable: boolean;
  /** As an error frame it ends the worker's connection. */
  readonly fatal: boolean;
}

/** The stable error codes of the cluster. */
export const catalogue = {
`)
	for _, info := range Codes() {
		fmt.Fprintf(&b, "  /** %s */\n  %s: { retryable: %t, fatal: %t },\n", info.Meaning, info.Code, info.Retryable, info.Fatal == FatalAlways)
	}
	b.WriteString(`} as const satisfies Record<string, Info>;

/** A code of the catalogue. A newer cluster may send one that is not in it. */
export type KnownCode = keyof typeof catalogue;

/** Looks a code up; one that is not known counts as neither retryable nor fatal. */
export function infoOf(code: string): Info {
  return Object.hasOwn(catalogue, code) ? catalogue[code as KnownCode] : { retryable: false, fatal: false };
}
`)
	return b.String()
}

func renderErrorsPage() string {
	var b strings.Builder
	b.WriteString(`# Error codes

<!-- Generated from schema/catalogue.go by "go generate ./schema"; do not edit. -->

Decide by the code: the message beside it is for people and may change. The same codes stand in the
` + "`error` frame of `pulse.worker.v1`, in `application/problem+json` (`type` is `urn:pulse:error:<code>`)" + ` and in the
details of calls between nodes.

*Ends the connection* is about the worker connection an error frame is sent on. "If it names no frame" means: a frame
whose message id can be trusted is answered with ` + "`reply_to`" + ` and the connection stays open; any other bad frame ends it,
with close code 1003 for a binary frame, 1007 for bad UTF-8, 1009 for size and 1008 for the rest.

*Retry* means that the same request, with the same message id or Idempotency-Key, may succeed later. Every code but
` + "`result_unknown`" + ` promises that the request has changed nothing.

| code | meaning | retry | ends the connection | HTTP |
|---|---|---|---|---|
`)
	for _, info := range Codes() {
		retry := "no"
		if info.Retryable {
			retry = "yes"
		}
		ends := map[Fatal]string{FatalNever: "no", FatalUnanswered: "if it names no frame", FatalAlways: "yes"}[info.Fatal]
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %d |\n", info.Code, info.Meaning, retry, ends, info.HTTPStatus)
	}
	return b.String()
}

func TestErrorsDecideByCode(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("outer: %w", Errorf(QueueFull, "queue %s holds %d tasks", "default", 3))
	if !errors.Is(err, QueueFull) || errors.Is(err, NotFound) || err.Error() != "outer: queue_full: queue default holds 3 tasks" {
		t.Errorf("got %v", err)
	}
}
