package docs

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"pulse/schema/workerv1"
)

// A page that shows frames marks each block of JSON as sent by the worker or by
// the node, and says whether it is answered, or started, as the page has shown
// before. The test is the worker: it sends the ones, and compares the others
// with what a real node sends. An id on the page stands for whatever the node
// gave in its place, from where it was first seen on; a time for any time.
var frameMark = regexp.MustCompile("(?ms)^<!-- (frame|run)(?:: ([a-z, ]+))? -->\n```(json|sh)\n(.*?)^```$")

// conversation is one connection, and what the ids on the page stand for on it.
type conversation struct {
	t      *testing.T
	ctx    context.Context //nolint:containedctx // the test's own
	ws     *websocket.Conn
	real   map[string]string // by what is on the page
	latest any               // the last frame of the node, as it came
}

func TestFramesOnThePageAreWhatANodeSays(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	page, err := os.ReadFile("../../docs/workers.md")
	if err != nil {
		t.Fatal(err)
	}
	url := startDev(ctx, t)
	c := &conversation{t: t, ctx: ctx, real: map[string]string{"019df4a2c0d27a1e8b3c000000000001": queueID(ctx, t, url)}}
	if c.ws, _, err = websocket.Dial(ctx, url+"/v1/worker", &websocket.DialOptions{Subprotocols: []string{workerv1.Subprotocol}}); err != nil {
		t.Fatal(err)
	}
	defer c.ws.CloseNow()
	c.ws.SetReadLimit(workerv1.FrameBytesMax)
	sent, got := 0, 0
	for _, m := range frameMark.FindAllSubmatch(page, -1) {
		kind, then, _ := strings.Cut(string(m[2]), ", ")
		switch {
		case string(m[1]) == "run":
			c.shell(url, string(m[4]))
		case kind == "worker":
			sent++
			c.send(m[4])
			if then == "answered" { // with what the page has shown before
				c.answered()
			}
		case kind == "node":
			got++
			c.expect(m[4])
			if then == "started" { // "start it as above"
				c.start()
			}
		default:
			t.Fatalf("whose frame is %q?", m[2])
		}
		if t.Failed() {
			t.Fatalf("at this block:\n%s", m[4])
		}
	}
	if sent < 8 || got < 10 {
		t.Errorf("only %d frames of the worker and %d of the node were found", sent, got)
	}
}

func queueID(ctx context.Context, t *testing.T, url string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/v1/namespaces/default/queues/default", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var queue struct {
		ID string `json:"id"`
	}
	if err := json.NewDecoder(answer.Body).Decode(&queue); err != nil || queue.ID == "" {
		t.Fatalf("queue default: %v", err)
	}
	return queue.ID
}

func (c *conversation) shell(url, text string) {
	c.t.Helper()
	shell := exec.CommandContext(c.ctx, "bash", "-euo", "pipefail", "-c", text)
	shell.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "PULSE_ADDR="+url)
	if out, err := shell.CombinedOutput(); err != nil {
		c.t.Errorf("%s: %v\n%s", text, err, out)
	}
}

// send replaces the ids that the node has chosen, and nothing else.
func (c *conversation) send(frame []byte) {
	c.t.Helper()
	text := string(frame)
	for page, real := range c.real {
		text = strings.ReplaceAll(text, `"`+page+`"`, `"`+real+`"`)
	}
	decoded, err := workerv1.DecodeClient([]byte(text))
	if err != nil {
		c.t.Errorf("the page's frame is not one of the schema: %v", err)
		return
	}
	id := decoded.MessageID.String()
	c.real[id] = id // an answer names it
	if err := c.ws.Write(c.ctx, websocket.MessageText, []byte(text)); err != nil {
		c.t.Error(err)
	}
}

func (c *conversation) read() []byte {
	c.t.Helper()
	for {
		_, text, err := c.ws.Read(c.ctx)
		if err != nil {
			c.t.Fatal(err)
		}
		var frame struct {
			Type string `json:"type"`
			Body struct {
				AttemptID string `json:"attempt_id"`
			} `json:"body"`
		}
		if err := json.Unmarshal(text, &frame); err != nil {
			c.t.Fatal(err)
		}
		repeat := false
		for _, real := range c.real {
			repeat = repeat || frame.Type == "task.assign" && frame.Body.AttemptID == real
		}
		if !repeat { // an offer comes again while nobody has started it
			return text
		}
	}
}

func (c *conversation) expect(page []byte) {
	c.t.Helper()
	if _, err := workerv1.DecodeServer(page); err != nil {
		c.t.Errorf("the page's frame is not one of the schema: %v", err)
	}
	text := c.read()
	c.latest = decodeExact(c.t, text)
	if fault := c.compare("", decodeExact(c.t, page), c.latest); fault != "" {
		c.t.Errorf("%s\nthe node says:\n%s", fault, text)
	}
}

// start starts the attempt of the latest assignment.
func (c *conversation) start() {
	c.t.Helper()
	frame := c.latest.(map[string]any)
	offer := frame["body"].(map[string]any)
	text := fmt.Sprintf(`{"protocol_version":"1","type":"task.start","message_id":"00000000000000000000000000000001","session_id":%q,"body":{"task_id":%q,"attempt_id":%q,"epoch":%q,"lease_secret":%q}}`,
		frame["session_id"], offer["task"].(map[string]any)["id"], offer["attempt_id"], offer["epoch"], offer["lease_secret"])
	if err := c.ws.Write(c.ctx, websocket.MessageText, []byte(text)); err != nil {
		c.t.Fatal(err)
	}
	c.answered()
}

// answered takes an ack that the page does not show.
func (c *conversation) answered() {
	c.t.Helper()
	text := c.read()
	frame, err := workerv1.DecodeServer(text)
	if err != nil {
		c.t.Fatal(err)
	}
	if ack, ok := frame.Body.(*workerv1.Ack); !ok || ack.Result == nil || ack.Result.Receipt.Disposition != workerv1.Applied {
		c.t.Errorf("the answer is %s", text)
	}
}

func decodeExact(t *testing.T, text []byte) (value any) {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber() // 12.50 has to be 12.50
	if err := decoder.Decode(&value); err != nil {
		t.Fatal(err)
	}
	return value
}

var (
	madeByNode = regexp.MustCompile(`^([0-9a-f]{32}|[A-Za-z0-9_-]{43})$`)
	anyTime    = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z$`)
)

// compare says where the node's frame is not what the page shows.
func (c *conversation) compare(path string, page, real any) string {
	switch page := page.(type) {
	case map[string]any:
		other, ok := real.(map[string]any)
		if !ok {
			return path + " is no object"
		}
		for name := range other {
			if _, shown := page[name]; !shown {
				return path + "/" + name + " is not on the page"
			}
		}
		for name, value := range page {
			got, there := other[name]
			if !there {
				return path + "/" + name + " is not in the node's frame"
			}
			if fault := c.compare(path+"/"+name, value, got); fault != "" {
				return fault
			}
		}
		return ""
	case string:
		got, ok := real.(string)
		epoch := strings.HasSuffix(path, "/epoch")
		switch {
		case ok && anyTime.MatchString(page) && anyTime.MatchString(got):
			return ""
		case ok && (epoch || madeByNode.MatchString(page) && madeByNode.MatchString(got) && len(page) == len(got)):
			if known, bound := c.real[page]; bound && known != got {
				return fmt.Sprintf("%s is %s, where %s has stood for %s", path, got, page, known)
			}
			c.real[page] = got
			return ""
		}
	}
	if page != real {
		return fmt.Sprintf("%s is %v, on the page %v", path, real, page)
	}
	return ""
}
