package httpapi

import (
	"net/http"
	"slices"
	"strings"
)

// mux finds the route of a request. It exists because the patterns of the API are
// not those of http.ServeMux: a verb follows a variable in the same segment
// (tasks/{id}:cancel), a key may contain an escaped slash, and neither a missing
// slash nor a wrong method is answered with a redirect or plain text.
//
// It matches the path as it was sent, segment by segment, before unescaping; no
// segment is ever cleaned or joined. It is built once and read by all requests.
type mux struct {
	bySegments [segmentsMax + 1][]*route
}

const (
	// segmentsMax is the length of the longest pattern; longer paths are
	// nowhere.
	segmentsMax = 7
	// varsMax is the number of variables of the longest pattern.
	varsMax = 2
)

// segment is one part of a pattern: a literal, or a variable and what follows
// it.
type segment struct {
	literal string
	name    string // of the variable; empty for a literal
	suffix  string // e.g. ":cancel"
}

func parsePattern(path string) []segment {
	var out []segment
	for _, part := range strings.Split(strings.TrimPrefix(path, "/"), "/") {
		s := segment{literal: part}
		if rest, ok := strings.CutPrefix(part, "{"); ok {
			name, suffix, _ := strings.Cut(rest, "}")
			s = segment{name: name, suffix: suffix}
		}
		out = append(out, s)
	}
	return out
}

// add makes a route findable. A request may fit two patterns of one method only
// if one of them has a suffix; that one wins.
func (m *mux) add(r *route) {
	r.segments = parsePattern(r.path)
	list := append(m.bySegments[len(r.segments)], r)
	slices.SortStableFunc(list, func(a, b *route) int { return b.special() - a.special() })
	m.bySegments[len(r.segments)] = list
}

// special counts what makes a pattern win over another.
func (r *route) special() (n int) {
	for _, s := range r.segments {
		if s.name == "" || s.suffix != "" {
			n++
		}
	}
	return n
}

// vars are the escaped values of a pattern's variables, in order.
type vars [varsMax]string

// find returns the route of a request and the values of its variables. If there
// is none, allow lists the methods of routes that the path fits.
func (m *mux) find(method, escapedPath string) (r *route, values vars, allow []string) {
	var parts [segmentsMax]string
	n := split(escapedPath, &parts)
	if n == 0 {
		return nil, vars{}, nil
	}
	for _, candidate := range m.bySegments[n] {
		values, ok := candidate.match(parts[:n])
		if !ok {
			continue
		}
		if candidate.method == method || method == http.MethodHead && candidate.method == http.MethodGet && !candidate.waits {
			return candidate, values, nil
		}
		if !slices.Contains(allow, candidate.method) {
			allow = append(allow, candidate.method)
			if candidate.method == http.MethodGet && !candidate.waits {
				allow = append(allow, http.MethodHead)
			}
		}
	}
	return nil, vars{}, allow
}

// split cuts a path into its segments; 0 means that no pattern can fit.
func split(path string, parts *[segmentsMax]string) (n int) {
	if path == "" || path[0] != '/' {
		return 0
	}
	for rest := path[1:]; ; {
		if n == segmentsMax {
			return 0
		}
		part, behind, more := strings.Cut(rest, "/")
		parts[n] = part
		n++
		if !more {
			return n
		}
		rest = behind
	}
}

func (r *route) match(parts []string) (values vars, ok bool) {
	n := 0
	for i, s := range r.segments {
		if s.name == "" {
			if parts[i] != s.literal {
				return vars{}, false
			}
			continue
		}
		value, fits := strings.CutSuffix(parts[i], s.suffix)
		if !fits || value == "" || s.suffix == "" && s.name != "key" && strings.Contains(value, ":") {
			return vars{}, false // a verb that there is not; only a key may contain a colon
		}
		values[n] = value
		n++
	}
	return values, true
}
