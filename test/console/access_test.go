package console

import (
	"errors"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"pulse/schema"
	"pulse/sdk"
)

// Somebody signs in with a token, gives rights to others and takes them away, and
// finds out afterwards who did what; those others see and do what their role allows
// and are told why not what it does not.
func TestWhoMayDoWhatIsGivenShownAndTakenAway(t *testing.T) {
	d, c := sitAtThree(t)
	ctx := t.Context()

	t.Log("nobody is let in without a token, and whoever has one gets where she wanted to")
	d.open("tasks?state=WAITING")
	d.sees("Sign in", "pulse token create")
	d.both("login")
	d.signIn("pulse_" + strings.Repeat("0", 32) + "_" + strings.Repeat("0", 64))
	d.sees("This token is not known, or has been revoked or is over")
	d.both("login-wrong")
	d.signIn(c.admin)
	d.until(`location.pathname + location.search === "/console/ns/default/tasks?state=WAITING"`)
	d.sees("Sign out")

	t.Log("any node knows her: the session is sealed with a key of the cluster's")
	d.over(c, "node-b")
	d.open("/console/cluster")
	d.sees("node-a", "node-b", "node-c", "This node, node-b", "Sign out")

	t.Log("a token is made, shown once, and in force on every node")
	d.open("/console/access")
	d.click("summary", "New token…")
	d.set(`[name=name]`, "first shift")
	d.set(`[name=grants]`, "reader@default")
	d.click("button", "Make it")
	d.sees("Token first shift is made", "Copy it now")
	d.both("token-made")
	reader := d.text("#secret")
	for id := range c.nodes {
		if _, err := c.client(id, reader).Queue(ctx, "default"); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	d.open("/console/access")
	d.sees("first shift", "reader@default")
	d.until(`!document.documentElement.outerHTML.includes(` + "`" + reader[len(reader)-64:] + "`" + `)`)
	d.click("summary", "New token…")
	d.set(`[name=name]`, "nothing")
	d.set(`[name=grants]`, "king@default")
	d.click("button", "Make it")
	d.sees("/grants/0/role must be one of reader, submitter, operator, worker, admin")
	d.both("token-refused")

	t.Log("what she does is on record, with her reason")
	task := d.submit(sdk.TaskSpec{Handler: "resize", BusinessKey: "image/9"})
	d.open("tasks/" + task.ID)
	d.click("summary", "Cancel…")
	d.do(chromedp.SendKeys(`details[open] [name=note]`, "the image was withdrawn"))
	d.click("button", "Cancel the task")
	d.sees("It is cancelled")
	d.open("/console/access")
	d.until(`[...document.querySelectorAll("tr")].some((r) => ["bootstrap", "pulse.task.Cancel", "` + task.ID + `", "the image was withdrawn"].every((x) => r.innerText.includes(x)))`)
	d.both("access")

	t.Log("signed out, the browser is nobody again")
	d.click("button", "Sign out")
	d.at("/console/login")
	d.open("tasks")
	d.at("/console/login")

	t.Log("a reader looks at everything, may change nothing, and is told who may")
	d.signIn(reader)
	d.at("/console/ns/default/tasks")
	d.sees("image/9", "Sign out")
	d.open("queues/default")
	d.sees("Lease", "30s")
	d.both("reader-queue")
	d.until(`!document.querySelector("main form[method=post]")`) // nothing to press
	d.open("/console/access")
	d.sees("reader@default", "Tokens are shown to admins", "Changes are shown to operators and admins")
	d.both("reader-access")
	d.open("/console/ns/elsewhere/")
	d.sees("needs the role reader", "elsewhere", "the caller has reader@default")
	d.both("reader-refused")

	t.Log("her token is revoked while she looks at a page: it leads to the sign-in by itself")
	d.open("tasks")
	d.sees("image/9")
	tokens := map[string]string{}
	for token, err := range d.c.Tokens(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		tokens[token.Name] = token.ID
	}
	if _, err := d.c.RevokeToken(ctx, tokens["first shift"]); err != nil {
		t.Fatal(err)
	}
	d.at("/console/login")
	d.sees("Sign in")

	t.Log("in the browser, too, a token is taken away for ever")
	d.signIn(c.admin)
	d.at("/console/ns/default/tasks")
	second, err := d.c.CreateToken(ctx, sdk.TokenSpec{Name: "second shift", Grants: []sdk.Grant{{Role: "operator", Namespace: "default"}}})
	if err != nil {
		t.Fatal(err)
	}
	d.open("/console/access")
	d.sees("second shift") // it comes by itself
	row := `[...document.querySelectorAll("tr")].find((r) => r.innerText.includes("second shift"))`
	d.do(chromedp.Evaluate(row+`.querySelector("summary").click()`, nil))
	d.both("revoke")
	d.do(chromedp.SendKeys(`details[open] [name=why]`, "the shift is over"))
	d.click("details[open] button", "Revoke it")
	d.sees("The token is revoked", "the shift is over")
	d.both("revoked")
	if _, err := c.client("node-c", second.Secret).Caller(ctx); !errors.Is(err, schema.Unauthenticated) {
		t.Errorf("a token that was revoked in the browser: %v", err)
	}
}
