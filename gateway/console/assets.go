package console

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strings"
)

//go:embed static
var staticFiles embed.FS

// asset is a file that pages use. Its name carries a hash of its content, so
// that a browser may keep it for ever and never has a wrong one.
type asset struct {
	url   string
	media string
	body  []byte
}

var media = map[string]string{".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}

// loadAssets finds the files by their name without directory.
func loadAssets() (map[string]asset, error) {
	out := map[string]asset{}
	err := fs.WalkDir(staticFiles, "static", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || media[path.Ext(file)] == "" {
			return err
		}
		body, err := staticFiles.ReadFile(file)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(body)
		name := path.Base(file)
		ext := path.Ext(name)
		url := root + "static/" + strings.TrimSuffix(name, ext) + "." + hex.EncodeToString(sum[:6]) + ext
		out[name] = asset{url: url, media: media[ext], body: body}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	return out, nil
}

// static serves an asset under its full name alone.
func (h *Handler) static(w http.ResponseWriter, r *http.Request) {
	for _, a := range h.assets {
		if a.url == r.URL.Path {
			w.Header().Set("Content-Type", a.media)
			w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
			_, _ = w.Write(a.body) // it fails with its reader
			return
		}
	}
	http.NotFound(w, r)
}
