package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"pulse/schema"
)

func decode[T any](t *testing.T, text []byte) T {
	t.Helper()
	var out T
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return out
}

// spec is the OpenAPI document as its readers see it, closed: a member that it
// does not name is a fault in our own answers.
type spec struct {
	root     map[string]any
	compiler *jsonschema.Compiler
	mu       sync.Mutex
	compiled map[string]*jsonschema.Schema
}

var theSpec = sync.OnceValues(func() (*spec, error) {
	h, err := New(Options{
		Backend: newBackend(), Logger: discard, Authenticate: nobody, Metrics: http.NotFoundHandler(),
	})
	if err != nil {
		return nil, err
	}
	made, err := h.spec()
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(made.json))
	decoder.UseNumber()
	var root map[string]any
	if err := decoder.Decode(&root); err != nil {
		return nil, err
	}
	closeShapes(root)
	s := &spec{root: root, compiler: jsonschema.NewCompiler(), compiled: map[string]*jsonschema.Schema{}}
	s.compiler.DefaultDraft(jsonschema.Draft2020)
	s.compiler.AssertFormat()
	return s, s.compiler.AddResource("mem:openapi.json", root)
})

// closeShapes forbids members that a shape does not name.
func closeShapes(node any) {
	switch n := node.(type) {
	case map[string]any:
		if _, object := n["properties"].(map[string]any); object && n["additionalProperties"] == nil {
			n["additionalProperties"] = false
		}
		for _, v := range n {
			closeShapes(v)
		}
	case []any:
		for _, v := range n {
			closeShapes(v)
		}
	}
}

func (s *spec) schemaAt(pointer string) (*jsonschema.Schema, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.compiled[pointer]; c != nil {
		return c, nil
	}
	c, err := s.compiler.Compile("mem:openapi.json#" + pointer)
	if err == nil {
		s.compiled[pointer] = c
	}
	return c, err
}

func escapePointer(s string) string {
	return strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D").Replace(s)
}

// conforms holds an answer to the document: its operation, its status, its media
// type, its headers and its body.
func (r *rig) conforms(req *http.Request, w *httptest.ResponseRecorder) {
	r.t.Helper()
	s, err := theSpec()
	if err != nil {
		r.t.Fatal(err)
	}
	route, _, _ := r.handler.mux.find(req.Method, req.URL.EscapedPath())
	if route == nil {
		return // 404 and 405 have no operation
	}
	pointer := "/paths/" + escapePointer(route.path) + "/" + strings.ToLower(route.method) + "/responses/" + strconv.Itoa(w.Code)
	described, ok := at(s.root, "paths", route.path, strings.ToLower(route.method), "responses", strconv.Itoa(w.Code)).(map[string]any)
	if !ok {
		r.t.Errorf("%s answers %d, which is not in the document", route.pattern, w.Code)
		return
	}
	r.checkHeaders(route, described, w)
	content, _ := described["content"].(map[string]any)
	media, _, _ := strings.Cut(w.Header().Get("Content-Type"), ";")
	shape, ok := content[media].(map[string]any)
	switch {
	case len(content) == 0:
		if w.Body.Len() > 0 {
			r.t.Errorf("%s answers %d with a body, the document has none", route.pattern, w.Code)
		}
		return
	case !ok:
		r.t.Errorf("%s answers %d as %q, the document has %v", route.pattern, w.Code, media, slices.Collect(maps.Keys(content)))
		return
	case shape["schema"] == nil || req.Method == http.MethodHead || !strings.HasSuffix(media, "json"):
		return
	}
	compiled, err := s.schemaAt(pointer + "/content/" + escapePointer(media) + "/schema")
	if err != nil {
		r.t.Fatalf("%s: %v", pointer, err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(w.Body.Bytes()))
	if err != nil {
		r.t.Fatalf("%s answers what is no JSON: %v: %s", route.pattern, err, w.Body)
	}
	if err := compiled.Validate(value); err != nil {
		r.t.Errorf("%s answers %d not as documented: %v\n%s", route.pattern, w.Code, err, w.Body)
	}
	if err := schema.CheckJSON(w.Body.Bytes(), schema.Limits{Depth: 80}); err != nil {
		r.t.Errorf("%s answers what we would refuse ourselves: %v", route.pattern, err)
	}
}

func (r *rig) checkHeaders(route *route, described map[string]any, w *httptest.ResponseRecorder) {
	r.t.Helper()
	documented, _ := described["headers"].(map[string]any)
	if w.Header().Get("X-Content-Type-Options") != "nosniff" {
		r.t.Errorf("%s answers without nosniff", route.pattern)
	}
	if strings.HasPrefix(route.path, "/v1/") && w.Header().Get("X-Pulse-Index") == "" {
		r.t.Errorf("%s answers %d without X-Pulse-Index", route.pattern, w.Code)
	}
	for name := range w.Header() {
		if special := strings.HasPrefix(name, "X-Pulse") || name == "Retry-After" || name == "Idempotency-Replayed"; special && documented[name] == nil && !route.public() {
			r.t.Errorf("%s answers %d with %s, which is not in the document", route.pattern, w.Code, name)
		}
	}
	if documented["Retry-After"] != nil && w.Header().Get("Retry-After") == "" {
		r.t.Errorf("%s answers %d without Retry-After", route.pattern, w.Code)
	}
}

func at(node any, path ...string) any {
	for _, name := range path {
		object, ok := node.(map[string]any)
		if !ok {
			return nil
		}
		node = object[name]
	}
	return node
}

func TestTheDocumentIsWhole(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.do(http.MethodGet, "/openapi.json", "")
	if w.Code != http.StatusOK {
		t.Fatalf("status %d", w.Code)
	}
	s, err := theSpec()
	if err != nil {
		t.Fatal(err)
	}
	if s.root["openapi"] != "3.1.0" || at(s.root, "info", "title") != "Pulse" || at(s.root, "info", "version") == "" {
		t.Errorf("head: %v %v", s.root["openapi"], s.root["info"])
	}
	for name := range at(s.root, "components", "schemas").(map[string]any) {
		if _, err := s.schemaAt("/components/schemas/" + name); err != nil {
			t.Errorf("shape %s: %v", name, err)
		}
	}
	r.everyRouteIsDescribed(s)
	r.everyReferenceLeads(s, s.root, "")
}

func (r *rig) everyRouteIsDescribed(s *spec) {
	r.t.Helper()
	ids := map[string]bool{}
	routes := r.handler.routes()
	count := 0
	for _, route := range routes {
		op, ok := at(s.root, "paths", route.path, strings.ToLower(route.method)).(map[string]any)
		if !ok {
			r.t.Errorf("%s is not in the document", route.pattern)
			continue
		}
		opID, _ := op["operationId"].(string)
		if opID == "" || ids[opID] || op["summary"] == "" {
			r.t.Errorf("%s has operationId %q and summary %q", route.pattern, opID, op["summary"])
		}
		ids[opID] = true
		r.variablesAreDescribed(route, op)
	}
	for _, item := range at(s.root, "paths").(map[string]any) {
		count += len(item.(map[string]any))
	}
	if count != len(routes) {
		r.t.Errorf("the document has %d operations, the mux %d", count, len(routes))
	}
}

func (r *rig) variablesAreDescribed(route *route, op map[string]any) {
	r.t.Helper()
	var named []string
	parameters, _ := op["parameters"].([]any)
	for _, p := range parameters {
		if at(p, "in") == "path" {
			named = append(named, at(p, "name").(string))
			if at(p, "required") != true {
				r.t.Errorf("%s: a path parameter is not required", route.pattern)
			}
		}
	}
	for _, segment := range parsePattern(route.path) {
		if segment.name != "" && !slices.Contains(named, segment.name) {
			r.t.Errorf("%s: the variable %s is not described", route.pattern, segment.name)
		}
	}
}

// everyReferenceLeads looks for references into nothing.
func (r *rig) everyReferenceLeads(s *spec, node any, where string) {
	r.t.Helper()
	switch n := node.(type) {
	case map[string]any:
		if ref, ok := n["$ref"].(string); ok {
			path, found := strings.CutPrefix(ref, "#/")
			if !found || at(s.root, strings.Split(path, "/")...) == nil {
				r.t.Errorf("%s refers to %s, which is not there", where, ref)
			}
		}
		for name, v := range n {
			r.everyReferenceLeads(s, v, where+"/"+name)
		}
	case []any:
		for i, v := range n {
			r.everyReferenceLeads(s, v, fmt.Sprintf("%s/%d", where, i))
		}
	}
}

func TestThePageNeedsNothingFromElsewhere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.do(http.MethodGet, "/docs", "")
	page := w.Body.String()
	for _, bad := range []string{"<script", "http://", "https://", "@import", "url(", "onclick", "ZgotmplZ"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	_, style, _ := strings.Cut(page, "<style>")
	style, _, _ = strings.Cut(style, "</style>")
	if style != pageStyle {
		t.Errorf("the style in the page is not the one its policy allows:\n%q\n%q", style, pageStyle)
	}
	if policy := w.Header().Get("Content-Security-Policy"); !strings.HasPrefix(policy, "default-src 'none'; style-src 'sha256-") {
		t.Errorf("policy %q", policy)
	}
	for _, route := range r.handler.routes() {
		if !strings.Contains(page, `id="op-`+route.id+`"`) {
			t.Errorf("%s is not on the page", route.pattern)
		}
	}
}
