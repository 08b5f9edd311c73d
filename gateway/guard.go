package gateway

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"pulse/schema"
)

// guard refuses what only a browser sends that was led here by a page it should
// not trust. There is no CORS: another origin is never given an answer.
type guard struct {
	api     API // answers what is refused
	next    http.Handler
	auth    Authenticator
	hosts   []string
	origins []string
}

func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !g.hostAllowed(r.Host) {
		g.api.Refuse(w, r, http.StatusForbidden, schema.Errorf(schema.Forbidden, "this node is not reached under that name"))
		return
	}
	if !g.originAllowed(r) {
		g.api.Refuse(w, r, http.StatusForbidden, schema.Errorf(schema.Forbidden, "pages of this origin may not call here"))
		return
	}
	g.next.ServeHTTP(w, r)
}

// hostAllowed holds a node that asks for no credential to names that cannot be pointed at it
// by others. HTTP/1.0 may leave the name out; no browser speaks it.
func (g *guard) hostAllowed(hostport string) bool {
	if g.auth.DemandsCredential() || hostport == "" {
		return true
	}
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	if host == "localhost" || slices.Contains(g.hosts, host) {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

// originAllowed lets requests without an Origin pass, those of the server's own
// pages, and those that are listed.
func (g *guard) originAllowed(r *http.Request) bool {
	sent := r.Header["Origin"]
	if len(sent) == 0 {
		return true
	}
	origin, ok := originOf(sent[0])
	if !ok || len(sent) > 1 {
		return false
	}
	own := "http://"
	if r.TLS != nil {
		own = "https://"
	}
	return origin == own+strings.ToLower(r.Host) || slices.Contains(g.origins, origin)
}

// originOf is an origin in one spelling; "null" and what is not of the form
// scheme://host[:port] is none.
func originOf(text string) (origin string, ok bool) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" ||
		u.Path != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return "", false
	}
	return u.Scheme + "://" + strings.ToLower(u.Host), true
}
