package console

import (
	"bytes"
	"crypto/rand"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Options of a Handler. API and Logger are required.
type Options struct {
	// API serves /v1. The console asks it as a browser would, in the name of
	// whoever asked the console.
	API    http.Handler
	Logger *slog.Logger
	// SessionKey seals the sessions of those who sign in. All nodes of a cluster
	// share it. Nil: a key of this process alone.
	SessionKey *[32]byte
}

// Handler serves the console. It is safe from any goroutine and keeps nothing
// between two requests.
type Handler struct {
	opt    Options
	sealer sealer
	mux    *http.ServeMux
	pages  map[string]*template.Template
	assets map[string]asset
}

//go:embed templates/*.html
var templateFiles embed.FS

// policy lets a page have its own files and nothing else: no script, no style
// and no image from elsewhere or in the page itself.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// New parses the templates.
func New(opt Options) (*Handler, error) {
	switch {
	case opt.API == nil:
		return nil, errors.New("console: API is missing: give the httpapi.Handler")
	case opt.Logger == nil:
		return nil, errors.New("console: Logger is missing: give one, slog.DiscardHandler for silence")
	}
	h := &Handler{opt: opt, mux: http.NewServeMux(), pages: map[string]*template.Template{}}
	key := opt.SessionKey
	if key == nil {
		key = new([32]byte)
		_, _ = rand.Read(key[:]) // it cannot fail
	}
	var err error
	if h.sealer, err = newSealer(*key); err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	if h.assets, err = loadAssets(); err != nil {
		return nil, err
	}
	if err := h.parse(); err != nil {
		return nil, err
	}
	h.routes()
	return h, nil
}

// parse makes a template of each page: the frame, the shared parts and itself.
func (h *Handler) parse() error {
	frame, err := template.New("frame").Funcs(funcs(h.assets)).ParseFS(templateFiles, "templates/_*.html")
	if err != nil {
		return fmt.Errorf("console: %w", err)
	}
	names, err := fs.Glob(templateFiles, "templates/[a-z]*.html")
	if err != nil {
		return fmt.Errorf("console: %w", err)
	}
	for _, name := range names {
		page, err := template.Must(frame.Clone()).ParseFS(templateFiles, name)
		if err != nil {
			return fmt.Errorf("console: %w", err)
		}
		h.pages[strings.TrimSuffix(strings.TrimPrefix(name, "templates/"), ".html")] = page
	}
	return nil
}

// routes is the console. Everything below /console/ns/{ns} is about one
// namespace.
func (h *Handler) routes() {
	h.mux.HandleFunc("GET "+root+"static/{name}", h.static)
	for pattern, page := range map[string]func(*visit) error{
		"GET /{$}":                                     (*visit).home,
		"GET /console":                                 (*visit).home,
		"GET " + root + "{$}":                          (*visit).home,
		"GET " + inNamespace + "{$}":                   (*visit).overview,
		"GET " + inNamespace + "tasks":                 (*visit).tasks,
		"GET " + inNamespace + "tasks/{id}":            (*visit).task,
		"GET " + inNamespace + "bulk":                  (*visit).bulk,
		"GET " + inNamespace + "review":                (*visit).review,
		"GET " + inNamespace + "workers":               (*visit).workers,
		"GET " + inNamespace + "workers/{id}":          (*visit).worker,
		"GET " + inNamespace + "keys":                  (*visit).keys,
		"GET " + inNamespace + "key":                   (*visit).key,
		"GET " + inNamespace + "queues":                (*visit).queues,
		"GET " + inNamespace + "queues/{queue}":        (*visit).queue,
		"GET " + inNamespace + "schedules":             (*visit).schedules,
		"GET " + inNamespace + "schedules/{schedule}":  (*visit).schedule,
		"GET " + inNamespace + "schedule":              (*visit).editSchedule,
		"POST " + inNamespace + "schedule":             (*visit).doEditSchedule,
		"GET " + root + "cluster":                      (*visit).cluster,
		"POST " + inNamespace + "bulk":                 (*visit).doBulk,
		"POST " + inNamespace + "tasks/{id}/{verb}":    (*visit).doTask,
		"POST " + inNamespace + "review":               (*visit).doReview,
		"POST " + inNamespace + "workers/{id}/drain":   (*visit).doDrain,
		"POST " + inNamespace + "key/free":             (*visit).doFree,
		"POST " + inNamespace + "queues/{queue}":       (*visit).doQueue,
		"POST " + inNamespace + "schedules/{schedule}": (*visit).doSchedule,
		"POST " + root + "cluster/transfer":            (*visit).doTransfer,
		"GET " + root + "access":                       (*visit).access,
		"POST " + root + "access":                      (*visit).doAccess,
		"GET " + root + "login":                        (*visit).login,
		"POST " + root + "login":                       (*visit).doLogin,
		"POST " + root + "logout":                      (*visit).doLogout,
		root:                                           (*visit).nowhere,
	} {
		h.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			h.serve(w, r, page)
		})
	}
}

const (
	root        = "/console/"
	inNamespace = root + "ns/{ns}/"
)

// ServeHTTP serves one request to its end.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", policy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "same-origin")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Cache-Control", "no-store")
	h.mux.ServeHTTP(w, r)
}

// visit is one request and its answer. It belongs to the request's goroutine.
type visit struct {
	h   *Handler
	w   http.ResponseWriter
	r   *http.Request
	ns  string
	now time.Time
	// behind is the newest index this visitor has seen a change at: what it
	// reads must not be older.
	behind  string
	session string // the access token of who has signed in
	frame   frame
}

// frame is what every page has around it.
type frame struct {
	Title     string
	Here      string // the entry of the menu
	Namespace string
	Token     string
	Theme     string
	Notice    *notice
	Live      bool // refreshes itself
	Node      string
	Stale     time.Duration // how old what is shown is, if it matters
	Review    uint64        // for the menu
	SignedIn  bool
	Menu      []menuItem
	Path      string
	Base      string // of this namespace's pages, with a slash at its end
	Page      any
	methods   []string // of the API, that the visitor may use in this namespace
	asked     bool
}

// May says whether to offer what a method of the API does. It only spares people
// what they would be refused; the API decides.
func (f *frame) May(method string) bool { return !f.asked || slices.Contains(f.methods, method) }

type menuItem struct {
	Key, Name, Path, Shortcut string
	Count                     uint64
}

func (h *Handler) serve(w http.ResponseWriter, r *http.Request, page func(*visit) error) {
	v := &visit{h: h, w: w, r: r, ns: r.PathValue("ns"), now: time.Now()}
	v.frame = frame{Namespace: v.ns, Path: r.URL.RequestURI()}
	if theme, err := r.Cookie(themeCookie); err == nil && (theme.Value == "light" || theme.Value == "dark") {
		v.frame.Theme = theme.Value
	}
	v.signedIn()
	v.takeNotice()
	v.frame.Token = v.token()
	err := error(nil)
	if r.Method == http.MethodPost {
		err = v.checkPost()
	}
	if err == nil {
		err = page(v)
	}
	if err != nil {
		v.fail(err)
	}
}

const themeCookie = "pulse_theme"

// render answers with a page. A page that cannot be made is an error page, not
// half of one.
func (v *visit) render(status int, name, title string, page any) error {
	f := &v.frame
	f.Title, f.Page, f.Namespace = title, page, v.ns
	f.Menu = v.menu()
	f.Base = f.Menu[0].Path
	if f.Here != "login" && f.Here != "error" {
		v.askWhatMay()
	}
	var out bytes.Buffer
	if err := v.h.pages[name].ExecuteTemplate(&out, "frame", f); err != nil {
		return fmt.Errorf("page %s: %w", name, err)
	}
	v.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	v.w.WriteHeader(status)
	if v.r.Method != http.MethodHead {
		_, _ = out.WriteTo(v.w) // it fails with its reader
	}
	return nil
}

// askWhatMay finds out what the visitor may do here. Without an answer everything is
// offered.
func (v *visit) askWhatMay() {
	var caller struct{ Methods []string }
	ns := v.ns
	if ns == "" {
		ns = defaultNamespace
	}
	if err := v.call(http.MethodGet, "/v1/caller", url.Values{"namespace": {ns}}, nil, &caller); err == nil {
		v.frame.methods, v.frame.asked = caller.Methods, caller.Methods != nil
	}
}

// menu is the screens, and the keys that lead to them after g.
func (v *visit) menu() []menuItem {
	ns := v.ns
	if ns == "" {
		ns = defaultNamespace
	}
	in := func(part string) string { return root + "ns/" + url.PathEscape(ns) + "/" + part }
	return []menuItem{
		{Key: "overview", Name: "Overview", Path: in(""), Shortcut: "o"},
		{Key: "tasks", Name: "Tasks", Path: in("tasks"), Shortcut: "t"},
		{Key: "review", Name: "Review", Path: in("review"), Shortcut: "r", Count: v.frame.Review},
		{Key: "workers", Name: "Workers", Path: in("workers"), Shortcut: "w"},
		{Key: "keys", Name: "Keys", Path: in("keys"), Shortcut: "k"},
		{Key: "queues", Name: "Queues", Path: in("queues"), Shortcut: "q"},
		{Key: "schedules", Name: "Schedules", Path: in("schedules"), Shortcut: "s"},
		{Key: "cluster", Name: "Cluster", Path: root + "cluster?ns=" + url.QueryEscape(ns), Shortcut: "c"},
		{Key: "access", Name: "Access", Path: root + "access?ns=" + url.QueryEscape(ns), Shortcut: "a"},
	}
}

const defaultNamespace = "default"

// home leads to the overview of the namespace that was asked for, or of the
// default one.
func (v *visit) home() error {
	ns := v.r.URL.Query().Get("ns")
	if ns == "" {
		ns = defaultNamespace
	}
	v.redirect(root + "ns/" + url.PathEscape(ns) + "/")
	return nil
}

func (v *visit) redirect(to string) { http.Redirect(v.w, v.r, to, http.StatusSeeOther) }

// path is a page of this namespace; parts are escaped.
func (v *visit) path(parts ...string) string {
	out := root + "ns/" + url.PathEscape(v.ns)
	for _, part := range parts {
		out += "/" + url.PathEscape(part)
	}
	return out
}

func (v *visit) nowhere() error {
	return &problem{Status: http.StatusNotFound, Title: "There is no such page", Detail: "The address leads to no screen of the console."}
}

// failure is what the error page shows.
type failure struct {
	Problem *problem
	Back    string
}

// fail shows an error. What has no meaning for the visitor goes to the log.
func (v *visit) fail(err error) {
	var p *problem
	if !errors.As(err, &p) {
		v.h.opt.Logger.Error("console page failed", "path", v.r.URL.Path, "error", err)
		p = &problem{Status: http.StatusInternalServerError, Title: "Internal error", Detail: "The node has met a fault of its own; its log has the details."}
	}
	if p.Status == http.StatusUnauthorized && v.r.Header.Get(refreshHeader) == "" && v.r.Header.Get("Authorization") == "" {
		to := root // where a form was sent to is no page
		if v.r.Method == http.MethodGet {
			to = v.r.URL.RequestURI()
		}
		v.redirect(root + "login?back=" + url.QueryEscape(to))
		return
	}
	v.frame.Here = "error"
	v.frame.Live = v.r.Method == http.MethodGet && p.Retryable
	back := ""
	if v.r.Method == http.MethodPost {
		back = v.back()
	}
	if err := v.render(p.Status, "error", p.Title, failure{Problem: p, Back: back}); err != nil {
		v.h.opt.Logger.Error("console error page failed", "error", err)
		http.Error(v.w, p.Title+"\n"+p.Detail, http.StatusInternalServerError)
	}
}

// back is the page a form was on: one of ours, or the overview.
func (v *visit) back() string {
	to := v.r.FormValue("back")
	if strings.HasPrefix(to, root) && !strings.ContainsAny(to, "\\\r\n") {
		return to
	}
	if v.ns == "" {
		return root
	}
	return v.path() + "/"
}
