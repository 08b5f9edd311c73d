package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"pulse/schema"
)

// document is what the API says of itself, made once.
type document struct {
	json []byte
	page []byte
}

// describe makes the OpenAPI document and its page from the routes.
//
// huma has the model of OpenAPI 3.1 and makes JSON Schema from Go types. Its
// routing and its reading of bodies are not used: the patterns of this API are
// not those of net/http, and its decoder cannot tell a name given twice, keep a
// number's text or hand a payload on byte for byte.
func describe(routes []*route, version string) (*document, error) {
	registry := huma.NewMapRegistry(schemaPrefix, huma.DefaultSchemaNamer)
	for name, s := range scalars() {
		registry.Map()[name] = s
	}
	api := &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{
			Title: "Pulse", Version: version, Description: intro,
			License: &huma.License{Name: "Apache-2.0", Identifier: "Apache-2.0"},
		},
		Components: &huma.Components{
			Schemas: registry,
			SecuritySchemes: map[string]*huma.SecurityScheme{
				"bearer": {Type: "http", Scheme: "bearer", Description: "An access token, pulse_<id>_<secret>, from POST /v1/tokens. A client certificate of the cluster does as well, and a node that serves its own machine alone asks for neither."},
			},
			Headers: commonHeaders(),
		},
		Tags: tags,
	}
	for _, r := range routes {
		api.AddOperation(operation(r, registry))
	}
	// A client must take members it does not know, in answers; requests are
	// strict. What only answers use is therefore left open.
	requests := requestShapes(routes, registry)
	for name, s := range registry.Map() {
		if !requests[name] && s.AdditionalProperties == false {
			s.AdditionalProperties = nil
		}
	}
	text, err := json.Marshal(api)
	if err != nil {
		return nil, fmt.Errorf("httpapi: the OpenAPI document cannot be encoded: %w", err)
	}
	page, err := renderPage(api)
	if err != nil {
		return nil, fmt.Errorf("httpapi: the documentation cannot be rendered: %w", err)
	}
	return &document{json: text, page: page}, nil
}

const intro = "A scheduler for tasks on a replicated log. Bodies are JSON in UTF-8, strict: no name twice, no unknown member, " +
	"at most 64 levels. 64-bit numbers are decimal strings, times RFC 3339 in UTC with at most microseconds, members that end in _ms are milliseconds. " +
	"Every error is application/problem+json with a stable code; any code but result_unknown means that nothing happened. " +
	"Workers connect to GET /v1/worker by WebSocket, subprotocol pulse.worker.v1."

var tags = []*huma.Tag{
	{Name: "tasks", Description: "Submit, follow and settle tasks."},
	{Name: "queues", Description: "Queues and their settings."},
	{Name: "schedules", Description: "Tasks submitted at set times."},
	{Name: "namespaces", Description: "Namespaces are apart from each other in everything."},
	{Name: "workers", Description: "Worker instances."},
	{Name: "keys", Description: "Concurrency keys."},
	{Name: "access", Description: "Access tokens, and the record of changes."},
	{Name: "cluster", Description: "The cluster as operators see it."},
	{Name: "node", Description: "This process."},
}

func commonHeaders() map[string]*huma.Header {
	text := func(about string) *huma.Header {
		return &huma.Header{Description: about, Schema: &huma.Schema{Type: huma.TypeString}}
	}
	return map[string]*huma.Header{
		"X-Pulse-Index":        text("The newest index this answer speaks of. It never goes back for one client that does not read stale; min_index waits for it."),
		"X-Pulse-Term":         text("The term of what was read."),
		"X-Pulse-Consistency":  text("linearizable or stale."),
		"X-Pulse-Age-Ms":       text("Of a stale answer: since this node last heard from the leader."),
		"Idempotency-Replayed": text("true if this is the remembered answer of an earlier request with the same Idempotency-Key."),
		"Retry-After":          text("Seconds."),
	}
}

// everyCodes are those any route of /v1 may answer with.
var everyCodes = []schema.Code{
	schema.InvalidArgument, schema.Unauthenticated, schema.Forbidden, schema.RateLimited, schema.NoLeader, schema.Unavailable,
	schema.DeadlineExpired, schema.Internal,
}

func operation(r *route, registry huma.Registry) *huma.Operation {
	op := &huma.Operation{
		Method: r.method, Path: r.path, OperationID: r.id, Tags: []string{r.tag}, Summary: r.title, Description: r.about,
		Parameters: parameters(r), Responses: map[string]*huma.Response{},
	}
	if r.body != nil {
		op.RequestBody = &huma.RequestBody{
			Required: r.bodyMust, Description: fmt.Sprintf("At most %d bytes.", r.bodyMax),
			Content: map[string]*huma.MediaType{mediaJSON: {Schema: registry.Schema(r.body, true, "")}},
		}
	}
	for _, a := range r.answers {
		op.Responses[strconv.Itoa(a.status)] = response(r, a, registry)
	}
	if r.public() {
		op.Security = []map[string][]string{}
		return op
	}
	op.Security = []map[string][]string{{"bearer": {}}, {}}
	addProblems(op, r, registry)
	return op
}

func response(r *route, a reply, registry huma.Registry) *huma.Response {
	out := &huma.Response{Description: a.about, Headers: headersOf(r, a.status)}
	media := a.media
	if media == "" {
		media = mediaJSON
	}
	switch {
	case media == mediaEvents:
		registry.Schema(a.body, true, "")
		out.Content = map[string]*huma.MediaType{media: {Schema: &huma.Schema{
			Type: huma.TypeString, Description: "Lines of id and data; data is a " + a.body.Name() + ".",
		}}}
	case a.body != nil:
		out.Content = map[string]*huma.MediaType{media: {Schema: registry.Schema(a.body, true, "")}}
	case a.media != "":
		out.Content = map[string]*huma.MediaType{media: {}}
	}
	return out
}

func headersOf(r *route, status int) map[string]*huma.Header {
	if r.public() {
		return nil
	}
	names := []string{"X-Pulse-Index"}
	switch {
	case status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
		names = append(names, "Retry-After")
	case r.keyed() && status < http.StatusBadRequest:
		names = append(names, "Idempotency-Replayed")
	case r.param("consistency") != nil && status < http.StatusInternalServerError:
		names = append(names, "X-Pulse-Term", "X-Pulse-Consistency", "X-Pulse-Age-Ms")
	}
	out := map[string]*huma.Header{}
	for _, name := range names {
		out[name] = &huma.Header{Ref: "#/components/headers/" + name}
	}
	return out
}

// addProblems describes the errors of a route, by status.
func addProblems(op *huma.Operation, r *route, registry huma.Registry) {
	codes := append(slices.Clone(everyCodes), r.codes...)
	if r.changes() {
		codes = append(codes, schema.ResultUnknown)
	}
	if r.body != nil {
		codes = append(codes, schema.TooLarge)
	}
	byStatus := map[int][]string{}
	for _, code := range codes {
		status := code.HTTPStatus()
		if word := string(code); !slices.Contains(byStatus[status], word) {
			byStatus[status] = append(byStatus[status], word)
		}
	}
	if r.body != nil {
		byStatus[http.StatusUnsupportedMediaType] = []string{string(schema.InvalidArgument)}
		byStatus[http.StatusRequestTimeout] = []string{string(schema.DeadlineExpired)}
	}
	for status, words := range byStatus {
		name := strconv.Itoa(status)
		if op.Responses[name] != nil {
			continue
		}
		op.Responses[name] = &huma.Response{
			Description: http.StatusText(status) + ": " + strings.Join(words, ", ") + ".",
			Headers:     headersOf(r, status),
			Content:     map[string]*huma.MediaType{mediaProblem: {Schema: registry.Schema(typeOf[Problem](), true, "")}},
		}
	}
}

// tokenID describes {id} in a path of tokens.
const tokenID = "id of a token"

// pathParams describes the variables of paths.
var pathParams = map[string]*huma.Param{
	"ns":          {Description: "The name of a namespace.", Schema: nameShape()},
	"queue":       {Description: "The name of a queue.", Schema: nameShape()},
	"schedule":    {Description: "The name of a schedule.", Schema: nameShape()},
	"id":          {Description: "The id of a task.", Schema: &huma.Schema{Ref: schemaPrefix + "ID"}},
	tokenID:       {Description: "The id of an access token: what stands between its two underscores.", Schema: &huma.Schema{Ref: schemaPrefix + "ID"}},
	"instance_id": {Description: "The id of a worker instance.", Schema: &huma.Schema{Ref: schemaPrefix + "ID"}},
	"profile":     {Description: "The name of a profile.", Schema: &huma.Schema{Type: huma.TypeString, Enum: anyOf(profiles)}},
	"key":         {Description: "A concurrency key, percent-encoded in full.", Schema: &huma.Schema{Type: huma.TypeString}},
}

func anyOf(words []string) (out []any) {
	for _, word := range words {
		out = append(out, word)
	}
	return out
}

func nameShape() *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Pattern: "^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"}
}

func parameters(r *route) []*huma.Param {
	var out []*huma.Param
	for _, s := range parsePattern(r.path) {
		if s.name != "" {
			about := s.name
			if s.name == "id" && strings.HasPrefix(r.path, "/v1/tokens/") {
				about = tokenID
			}
			p := *pathParams[about]
			p.Name, p.In, p.Required = s.name, "path", true
			out = append(out, &p)
		}
	}
	for _, q := range r.query {
		shape := &huma.Schema{Type: q.typ}
		for _, word := range q.enum {
			shape.Enum = append(shape.Enum, word)
		}
		p := &huma.Param{Name: q.name, In: "query", Description: q.about, Schema: shape}
		if q.many {
			p.Schema = &huma.Schema{Type: huma.TypeArray, Items: shape}
		}
		out = append(out, p)
	}
	if !r.public() && r.keyed() {
		longest := retryKeyBytesMax
		out = append(out, &huma.Param{
			Name: "Idempotency-Key", In: "header",
			Description: "1 to 255 visible ASCII characters. For 24 hours a repeat gets the first answer, marked by Idempotency-Replayed; other content under the same key is operation_conflict.",
			Schema:      &huma.Schema{Type: huma.TypeString, MaxLength: &longest},
		})
	}
	if r.id == opWatchTask || r.id == opWatchNamespace {
		out = append(out, &huma.Param{
			Name: "Last-Event-ID", In: "header", Description: "The id of the last event that arrived.", Schema: &huma.Schema{Type: huma.TypeString},
		})
	}
	return out
}

// requestShapes are the names of the shapes that request bodies are made of.
func requestShapes(routes []*route, registry huma.Registry) map[string]bool {
	names := map[string]bool{}
	var walk func(s *huma.Schema)
	walk = func(s *huma.Schema) {
		if s == nil {
			return
		}
		if name, ok := strings.CutPrefix(s.Ref, schemaPrefix); ok && !names[name] {
			names[name] = true
			walk(registry.Map()[name])
		}
		walk(s.Items)
		for _, list := range [][]*huma.Schema{s.OneOf, s.AnyOf, s.AllOf} {
			for _, part := range list {
				walk(part)
			}
		}
		for _, part := range s.Properties {
			walk(part)
		}
	}
	for _, r := range routes {
		if r.body != nil {
			walk(registry.Schema(r.body, true, ""))
		}
	}
	return names
}
