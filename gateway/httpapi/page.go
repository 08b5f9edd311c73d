package httpapi

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"html/template"
	"maps"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// The documentation is one page without a script, made when the process starts:
// it needs nothing from anywhere, also where there is no network.

//go:embed page.css
var pageStyle string

//go:embed page.html
var pageTemplate string

// pagePolicy lets the page have its own style and nothing else.
var pagePolicy = func() string {
	sum := sha256.Sum256([]byte(pageStyle))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
}()

// pageGroup is the operations of one tag.
type pageGroup struct {
	Name, About string
	Operations  []*huma.Operation
}

// pageShape is one shape.
type pageShape struct {
	Name   string
	Schema *huma.Schema
}

func renderPage(api *huma.OpenAPI) ([]byte, error) {
	page, err := template.New("page").Funcs(template.FuncMap{
		"shape":    shapeText,
		"sorted":   sortedKeys[*huma.Response],
		"members":  sortedKeys[*huma.Schema],
		"required": func(s *huma.Schema, name string) bool { return slices.Contains(s.Required, name) },
		"anchor":   func(s string) string { return strings.ToLower(s) },
	}).Parse(pageTemplate)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = page.Execute(&out, map[string]any{
		"Info": api.Info, "Style": template.CSS(pageStyle), "Groups": groups(api), "Shapes": shapes(api),
	})
	return out.Bytes(), err
}

func groups(api *huma.OpenAPI) []pageGroup {
	var out []pageGroup
	for _, tag := range api.Tags {
		group := pageGroup{Name: tag.Name, About: tag.Description}
		for _, item := range api.Paths {
			for _, op := range []*huma.Operation{item.Get, item.Put, item.Post, item.Delete} {
				if op != nil && op.Tags[0] == tag.Name {
					group.Operations = append(group.Operations, op)
				}
			}
		}
		slices.SortFunc(group.Operations, func(a, b *huma.Operation) int {
			return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Method, b.Method))
		})
		out = append(out, group)
	}
	return out
}

func shapes(api *huma.OpenAPI) []pageShape {
	all := api.Components.Schemas.Map()
	var out []pageShape
	for _, name := range slices.Sorted(maps.Keys(all)) {
		out = append(out, pageShape{name, all[name]})
	}
	return out
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// shapeText is a shape in a word, with a link where it has a name.
func shapeText(s *huma.Schema) template.HTML {
	switch {
	case s == nil:
		return ""
	case s.Ref != "":
		name := strings.TrimPrefix(s.Ref, schemaPrefix)
		return template.HTML(`<a href="#` + template.HTMLEscapeString(strings.ToLower(name)) + `">` + template.HTMLEscapeString(name) + `</a>`)
	case s.Type == huma.TypeArray:
		return "list of " + shapeText(s.Items)
	case len(s.OneOf) > 0:
		parts := make([]string, len(s.OneOf))
		for i, part := range s.OneOf {
			parts[i] = string(shapeText(part))
		}
		return template.HTML(strings.Join(parts, " or "))
	case s.Type == "":
		return "any"
	}
	return template.HTML(template.HTMLEscapeString(s.Type))
}
