package access

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"pulse/schema"
)

var update = flag.Bool("update", false, "rewrite the golden matrix")

// The matrix is read by people before it changes: it says for every method which
// role may use it. It is kept as text so that no rule of this package decides what
// is right about itself.
func TestTheMatrixIsAsItWasAgreed(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	fmt.Fprintf(&b, "%-36s", "method")
	for _, r := range Roles {
		fmt.Fprintf(&b, " %-9s", r)
	}
	b.WriteString(" scope\n")
	for _, part := range []struct {
		name  string
		table map[string]Rule
	}{{"http ", HTTP}, {"connect ", map[string]Rule{"/v1/worker": Connect}}, {"frame ", Frames}, {"rpc ", RPC}} {
		for _, name := range slices.Sorted(maps.Keys(part.table)) {
			rule := part.table[name]
			fmt.Fprintf(&b, "%-36s", part.name+name[strings.LastIndex(name, "/")+1:])
			for _, r := range Roles {
				mark := "."
				if rule.Permission == Open || r.Contains(rule.Permission) {
					mark = "yes"
				}
				fmt.Fprintf(&b, " %-9s", mark)
			}
			scope := map[Scope]string{Namespaced: "its namespace", Filtered: "item by item", Clusterwide: "all namespaces"}[rule.Scope]
			if rule.Permission == Open || rule.Permission == Node {
				scope = string(rule.Permission)
			}
			b.WriteString(" " + scope + "\n")
		}
	}
	const path = "testdata/matrix.txt"
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("who may do what has changed; look at it, and -update:\n%s", b.String())
	}
}

func TestGrantsHoldWhereTheyAreGiven(t *testing.T) {
	t.Parallel()
	mine := Grants{{Role: Submitter, Namespace: "mine"}}
	queue := Grants{{Role: Worker, Namespace: "mine", Queues: []string{"q"}}}
	admin := Grants{{Role: Admin, Namespace: "mine"}}
	submit, work, command, list := HTTP["submit-task"], Frames["worker.hello"], HTTP["backup-cluster"], HTTP["list-namespaces"]
	for _, c := range []struct {
		name      string
		rule      Rule
		grants    Grants
		ns, queue string
		allowed   bool
	}{
		{"its namespace", submit, mine, "mine", "q", true},
		{"another namespace", submit, mine, "theirs", "q", false},
		{"a namespace that begins alike", submit, mine, "mine2", "q", false},
		{"no namespace at all", submit, mine, "", "", false},
		{"a namespace called like everywhere", submit, mine, Everywhere, "q", false},
		{"nobody", submit, nil, "mine", "q", false},
		{"a role that is none", submit, Grants{{Role: "root", Namespace: Everywhere}}, "mine", "q", false},
		{"a worker's queue", work, queue, "mine", "q", true},
		{"another queue", work, queue, "mine", "r", false},
		{"no queue", work, queue, "mine", "", false},
		{"a queue of another namespace", work, queue, "theirs", "q", false},
		{"an admin of a namespace in it", submit, admin, "mine", "q", true},
		{"an admin of a namespace over the cluster", command, admin, "", "", false},
		{"an admin of everything over the cluster", command, All, "", "", true},
		{"command inside a namespace", Rule{Command, Namespaced}, All, "mine", "", false},
		{"a list of several", list, mine, "", "", true},
		{"a list of several for nobody", list, nil, "", "", false},
		{"a line that is missing", HTTP["no such method"], All, "mine", "q", false},
		{"a line for nodes", RPC["/pulse.v1.NodeService/Backup"], All, "", "", false},
		{"what is open", HTTP["healthz"], nil, "", "", true},
	} {
		refusal := c.rule.Allows(c.grants, c.ns, c.queue)
		if (refusal == nil) != c.allowed || refusal != nil && refusal.Code != schema.Forbidden {
			t.Errorf("%s: %v", c.name, refusal)
		}
	}
}

func TestARefusalSaysWhatToAskFor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rule   Rule
		grants Grants
		want   []string
	}{
		{HTTP["submit-task"], Grants{{Role: Reader, Namespace: "mine"}}, []string{"submitter or admin in namespace \"mine\"", "has reader@mine", "--grant submitter@mine'"}},
		{Frames["worker.hello"], Grants{{Role: Worker, Namespace: "mine", Queues: []string{"a"}}}, []string{"for queue \"q\"", "--grant worker@mine/q'"}},
		{HTTP["remove-server"], nil, []string{"admin in all namespaces", "has none", "--grant admin@*'"}},
	} {
		message := c.rule.Allows(c.grants, "mine", "q").Message
		for _, want := range c.want {
			if !strings.Contains(message, want) {
				t.Errorf("%q lacks %q", message, want)
			}
		}
	}
}

func TestNobodyGivesWhatHeDoesNotHave(t *testing.T) {
	t.Parallel()
	mine, everything := Grants{{Role: Admin, Namespace: "mine"}}, All
	for _, c := range []struct {
		giver, given Grants
		may          bool
	}{
		{mine, Grants{{Role: Worker, Namespace: "mine", Queues: []string{"q"}}}, true},
		{mine, Grants{{Role: Admin, Namespace: "mine"}}, true},
		{mine, Grants{{Role: Reader, Namespace: "mine"}, {Role: Reader, Namespace: "theirs"}}, false},
		{mine, Grants{{Role: Reader, Namespace: Everywhere}}, false},
		{mine, nil, false},
		{Grants{{Role: Operator, Namespace: Everywhere}}, Grants{{Role: Reader, Namespace: "mine"}}, false},
		{everything, Grants{{Role: Admin, Namespace: Everywhere}}, true},
		{everything, Grants{{Role: Reader, Namespace: "mine"}}, true},
	} {
		if c.giver.Cover(c.given) != c.may {
			t.Errorf("%v gives %v: %v", c.giver, c.given, !c.may)
		}
	}
}

func TestGrantsAreWrittenAsTheyAreRead(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"reader@billing", "admin@*", "worker@billing/a,b", "worker@*/a"} {
		g, err := ParseGrant(text)
		if err != nil || g.String() != text {
			t.Errorf("%q is read as %+v and written as %q: %v", text, g, g, err)
		}
	}
	for _, text := range []string{"", "reader", "reader@", "root@billing", "reader@billing/q", "worker@billing/", "@billing"} {
		if g, err := ParseGrant(text); err == nil {
			t.Errorf("%q is read as %+v", text, g)
		}
	}
}
