package console

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"pulse/sdk"
	"pulse/sdk/pulsetest"
)

// patience bounds one step in the browser: long, because the machine may be
// busy with other tests.
const patience = 60 * time.Second

// chromium is the browser, or why there is none.
var chromium = sync.OnceValues(func() (string, error) {
	for _, name := range []string{"chromium", "chromium-headless-shell", "chromium-browser", "google-chrome", "headless-shell"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("chromium is not installed")
})

// desk is a person in front of the console of a node of her own.
type desk struct {
	t    *testing.T
	node *pulsetest.Server // nil at a cluster, see sitAtThree
	url  string            // of the node whose console it is
	c    *sdk.Client
	ctx  context.Context // the browser's tab; it lives as long as the test

	mu     sync.Mutex
	faults []string // what the browser complained of
	away   bool     // the node does not run
}

// browser is shared, and so is its one tab: starting takes longer than most tests,
// and a tab in the background gets little of the processor. So the tests run one
// after the other.
var browser struct {
	sync.Once
	ctx  context.Context
	stop func()
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if browser.stop != nil {
		browser.stop()
	}
	os.Exit(code)
}

func sit(t *testing.T) *desk {
	t.Helper()
	needChromium(t)
	node := pulsetest.Start(t) // ends after the browser has left it
	d := seat(t)
	d.node, d.c, d.url = node, node.Client(), node.Addr()
	return d
}

func needChromium(t *testing.T) {
	t.Helper()
	if _, err := chromium(); err != nil {
		if os.Getenv("PULSE_CHROMIUM") == "must" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// seat is a desk in front of nothing.
func seat(t *testing.T) *desk {
	t.Helper()
	browser.Do(func() {
		path, _ := chromium()
		options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.WSURLReadTimeout(2*time.Minute),
			chromedp.NoSandbox, chromedp.DisableGPU, chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("force-color-profile", "srgb"))
		alloc, stopAlloc := chromedp.NewExecAllocator(context.Background(), options...)
		ctx, stopBrowser := chromedp.NewContext(alloc)
		browser.ctx, browser.stop = ctx, func() { stopBrowser(); stopAlloc() } //nolint:fatcontext // one browser for all tests, made once
		browser.err = chromedp.Run(ctx)
	})
	if browser.err != nil {
		t.Fatalf("chromium does not start: %v", browser.err)
	}
	d := &desk{t: t}
	ctx, stop := context.WithCancel(browser.ctx) // ends what listens, not the tab
	t.Cleanup(stop)
	d.ctx = ctx
	chromedp.ListenTarget(ctx, func(event any) {
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			d.complain("exception: " + e.ExceptionDetails.Error())
		case *log.EventEntryAdded:
			if e.Entry.Level == log.LevelError && !strings.Contains(e.Entry.Text, "with a status of") {
				d.complain(string(e.Entry.Source) + ": " + e.Entry.Text)
			}
		case *page.EventJavascriptDialogOpening:
			d.complain("a dialog opened: " + e.Message)
			go func() { _ = chromedp.Run(ctx, page.HandleJavaScriptDialog(true)) }()
		}
	})
	t.Cleanup(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, fault := range d.faults {
			t.Errorf("the browser says: %s", fault)
		}
	})
	d.do(log.Enable())
	d.looks("light", 1440)
	return d
}

func (d *desk) complain(text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.away && strings.HasSuffix(text, "net::ERR_CONNECTION_REFUSED") {
		return // what a page asks then is refused
	}
	if !slices.Contains(d.faults, text) {
		d.faults = append(d.faults, text)
	}
}

// nodeIsAway says that the node does not run for a while, or that it does again.
func (d *desk) nodeIsAway(away bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.away = away
}

// set fills in a field. It is found and filled in one step: the page may put
// another element in its place at any time.
func (d *desk) set(selector, value string) {
	d.t.Helper()
	find, _ := json.Marshal(selector)
	text, _ := json.Marshal(value)
	d.until(fmt.Sprintf(`((e) => { if (!e) return false; e.value = %s; return true })(document.querySelector(%s))`, text, find))
}

// do acts in the browser. What it waits for and does not come ends the test,
// with a picture of what there is instead.
func (d *desk) do(actions ...chromedp.Action) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.ctx, patience)
	defer cancel()
	if err := chromedp.Run(ctx, actions...); err != nil {
		d.fail(err)
	}
}

func (d *desk) fail(err error) {
	d.t.Helper()
	d.shoot("failed")
	var text string
	ctx, cancel := context.WithTimeout(d.ctx, 10*time.Second)
	defer cancel()
	_ = chromedp.Run(ctx, chromedp.Evaluate(`location.href + "\n" + document.body.innerText`, &text))
	d.t.Fatalf("%v\nThe page says:\n%s", err, text)
}

// open goes to a page of the console, below its namespace unless it begins with
// a slash.
func (d *desk) open(path string) {
	d.t.Helper()
	if !strings.HasPrefix(path, "/") {
		path = "/console/ns/default/" + path
	}
	d.do(chromedp.Navigate(d.url+path), chromedp.WaitReady("main"))
}

// until waits for an expression to become true of a page that has sent no form
// off: what the page before an answer says is not the answer. A page that is
// just being left cannot answer; the next one can.
func (d *desk) until(expression string) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.ctx, patience)
	defer cancel()
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	for {
		ok := false
		err := chromedp.Run(ctx, chromedp.Evaluate("!window.sentOff && !!("+expression+")", &ok))
		if err == nil && ok {
			return
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			d.t.Helper()
			d.fail(fmt.Errorf("%s did not come true (%v)", expression, err))
		}
	}
}

// sees waits until the page's text has all of these. Capitals do not matter.
func (d *desk) sees(texts ...string) {
	d.t.Helper()
	for _, text := range texts {
		want, _ := json.Marshal(strings.ToLower(text))
		d.until(fmt.Sprintf(`document.body.innerText.toLowerCase().replace(/\s+/g, " ").includes(%s)`, want))
	}
}

// at waits until the address has a path.
func (d *desk) at(path string) {
	d.t.Helper()
	want, _ := json.Marshal(path)
	d.until(fmt.Sprintf(`location.pathname === %s && document.readyState === "complete"`, want))
}

// click finds something by its text and clicks where it is: the page may put
// another element in its place at any time.
func (d *desk) click(tag, text string) {
	d.t.Helper()
	d.until(fmt.Sprintf(`document.readyState === "complete" && (() => {
		const e = [...document.querySelectorAll(%q)].find((e) => e.innerText.replace(/\s+/g, " ").trim().startsWith(%q) && e.getClientRects().length);
		if (!e) return false;
		e.scrollIntoView({ block: "center" });
		const r = e.getClientRects()[0];
		if (window.sentOff === undefined) {
			window.sentOff = false;
			addEventListener("submit", (e) => { window.sentOff = !e.defaultPrevented; });
		}
		window.clickAt = [r.left + r.width / 2, r.top + r.height / 2];
		return document.elementFromPoint(...window.clickAt) && e.contains(document.elementFromPoint(...window.clickAt));
	})()`, tag, text))
	var at []float64
	d.do(chromedp.Evaluate(`window.clickAt`, &at))
	d.do(chromedp.MouseClickXY(at[0], at[1]))
}

// keys presses keys, once the page listens.
func (d *desk) keys(keys ...string) {
	d.t.Helper()
	d.until(`document.readyState === "complete"`)
	for _, key := range keys {
		d.do(chromedp.KeyEvent(key))
	}
}

// text is the text of an element.
func (d *desk) text(what string) (text string) {
	d.t.Helper()
	d.do(chromedp.Evaluate(fmt.Sprintf(`document.querySelector(%q).textContent`, what), &text))
	return text
}

// shoot takes a picture, if somebody wants pictures.
func (d *desk) shoot(name string) {
	dir := os.Getenv("PULSE_SCREENSHOTS")
	if dir == "" {
		return
	}
	var png []byte
	ctx, cancel := context.WithTimeout(d.ctx, patience)
	defer cancel()
	if err := chromedp.Run(ctx, chromedp.FullScreenshot(&png, 100)); err != nil {
		d.t.Logf("no picture of %s: %v", name, err)
		return
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		d.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o600); err != nil {
		d.t.Fatal(err)
	}
}

// looks changes how the browser shows pages.
func (d *desk) looks(scheme string, width int64) {
	d.t.Helper()
	d.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}),
		chromedp.EmulateViewport(width, 1000))
}

func (d *desk) submit(spec sdk.TaskSpec) *sdk.TaskInfo {
	d.t.Helper()
	task, err := d.c.Submit(d.t.Context(), spec)
	if err != nil {
		d.t.Fatal(err)
	}
	return task
}

func (d *desk) read(id string) *sdk.TaskInfo {
	d.t.Helper()
	task, err := d.c.Get(d.t.Context(), id)
	if err != nil {
		d.t.Fatal(err)
	}
	return task
}

func escaped(text string) string { return url.QueryEscape(text) }
