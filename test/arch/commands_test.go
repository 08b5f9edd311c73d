package arch

import (
	"go/ast"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	pb "pulse/proto/pulse/v1"
)

// armsOf lists the Go names of a oneof's wrapper types: Command_SubmitTask.
func armsOf(m protoreflect.Message, oneof protoreflect.Name) []string {
	d := m.Descriptor()
	fields := d.Oneofs().ByName(oneof).Fields()
	var arms []string
	for i := range fields.Len() {
		name := ""
		for part := range strings.SplitSeq(string(fields.Get(i).Name()), "_") {
			name += strings.ToUpper(part[:1]) + part[1:]
		}
		arms = append(arms, string(d.Name())+"_"+name)
	}
	return arms
}

// typeSwitches returns, for each type switch that has a case of one of the
// arms, the arms it has cases for and the length of the longest case body.
func typeSwitches(files []source, arms []string) (found []switchOf) {
	for _, s := range files {
		ast.Inspect(s.file, func(n ast.Node) bool {
			sw, ok := n.(*ast.TypeSwitchStmt)
			if !ok {
				return true
			}
			here := switchOf{at: s.at(sw)}
			for _, c := range sw.Body.List {
				clause := c.(*ast.CaseClause)
				for _, e := range clause.List {
					star, ok := e.(*ast.StarExpr)
					if !ok {
						continue
					}
					if sel, ok := star.X.(*ast.SelectorExpr); ok && slices.Contains(arms, sel.Sel.Name) {
						here.arms = append(here.arms, sel.Sel.Name)
						if len(clause.Body) != 1 {
							here.long = append(here.long, sel.Sel.Name)
						}
					}
				}
			}
			if len(here.arms) > 0 {
				found = append(found, here)
			}
			return true
		})
	}
	return found
}

type switchOf struct {
	at   string
	arms []string
	long []string // arms whose case is not one statement
}

func fsmSources(t *testing.T) []source {
	t.Helper()
	var files []source
	for _, s := range sources(t) {
		if s.pkg.rel() == "fsm" && !s.test {
			files = append(files, s)
		}
	}
	return files
}

func TestEveryCommandHasOneCaseInTheDispatch(t *testing.T) {
	t.Parallel()
	arms := armsOf((&pb.Command{}).ProtoReflect(), "body")
	var dispatch *switchOf
	switches := typeSwitches(fsmSources(t), arms)
	for i := range switches {
		if dispatch == nil || len(switches[i].arms) > len(dispatch.arms) {
			dispatch = &switches[i]
		}
	}
	if dispatch == nil {
		t.Fatal("fsm has no switch over the commands")
	}
	t.Logf("dispatch at %s has %d of %d commands", dispatch.at, len(dispatch.arms), len(arms))
	for _, arm := range arms {
		if n := count(dispatch.arms, arm); n != 1 {
			t.Errorf("%s has %d cases in the dispatch at %s", arm, n, dispatch.at)
		}
	}
	for _, arm := range dispatch.long {
		t.Errorf("the case of %s in %s is more than one call", arm, dispatch.at)
	}
}

func TestEveryQueryIsAnswered(t *testing.T) {
	t.Parallel()
	arms := armsOf((&pb.Query{}).ProtoReflect(), "body")
	var all []string
	for _, sw := range typeSwitches(fsmSources(t), arms) {
		all = append(all, sw.arms...)
	}
	for _, arm := range arms {
		if !slices.Contains(all, arm) {
			t.Errorf("%s has no case in fsm", arm)
		}
	}
}

func TestArmsCarryTheNamesOfTheGeneratedTypes(t *testing.T) {
	t.Parallel()
	arms := armsOf((&pb.Command{}).ProtoReflect(), "body")
	// The generated type, spelled by the compiler.
	var generated any = (*pb.Command_SubmitTask)(nil)
	_ = generated
	if !slices.Contains(arms, "Command_SubmitTask") || !slices.Contains(arms, "Command_OpenTerm") {
		t.Errorf("arms %v", arms)
	}
}

func count(list []string, s string) (n int) {
	for _, e := range list {
		if e == s {
			n++
		}
	}
	return n
}
