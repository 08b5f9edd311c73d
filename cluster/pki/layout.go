package pki

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// The files in a node's directory. A client's has ClientCertFile, ClientKeyFile
// and HTTPCAFile.
const (
	SecretFile     = "cluster.secret"
	NodeCAFile     = "node-ca.pem"
	NodeCertFile   = "node.pem"
	NodeKeyFile    = "node.key"
	NodeCRLFile    = "node.crl" // what Revoke has withdrawn
	HTTPCAFile     = "http-ca.pem"
	HTTPCertFile   = "http.pem"
	HTTPKeyFile    = "http.key"
	ClientCAFile   = "client-ca.pem"
	ClientCRLFile  = "client.crl" // what RevokeClient has withdrawn
	ClientCertFile = "client.pem"
	ClientKeyFile  = "client.key"
)

const (
	manifestFile   = "cluster.json"
	manifestFormat = 1
	caDir          = "ca"
	clientsDir     = "clients"
	revokedDir     = "revoked"

	// fileBytesMax is far above what any file of ours holds. A longer one is
	// something else and is not read into memory.
	fileBytesMax = 1 << 20
)

// Files says where the certificates of one door are.
type Files struct {
	CA   string // whom to believe; a bundle of several while a CA is replaced
	Cert string // what to show
	Key  string
	// CRL lists what is no longer believed. The file may be missing until there
	// is one; empty: none is looked for.
	CRL string
}

// NodeFiles are the files for other nodes in a node's directory.
func NodeFiles(dir string) Files {
	return Files{
		CA: filepath.Join(dir, NodeCAFile), Cert: filepath.Join(dir, NodeCertFile),
		Key: filepath.Join(dir, NodeKeyFile), CRL: filepath.Join(dir, NodeCRLFile),
	}
}

// HTTPFiles are the files for clients, workers and browsers in a node's directory.
func HTTPFiles(dir string) Files {
	return Files{
		CA: filepath.Join(dir, ClientCAFile), Cert: filepath.Join(dir, HTTPCertFile),
		Key: filepath.Join(dir, HTTPKeyFile), CRL: filepath.Join(dir, ClientCRLFile),
	}
}

// kind is one of the three authorities.
type kind string

const (
	nodeKind   kind = "node"
	httpKind   kind = "http"
	clientKind kind = "client"
)

var kinds = []kind{nodeKind, httpKind, clientKind}

func (k kind) caFile() string   { return string(k) + "-ca.pem" }
func (k kind) certFile() string { return string(k) + ".pem" }
func (k kind) keyFile() string  { return string(k) + ".key" }
func (k kind) crlFile() string  { return string(k) + ".crl" }

// manifest is cluster.json.
type manifest struct {
	Format      int              `json:"format"`
	Cluster     string           `json:"cluster"`
	CreatedAt   time.Time        `json:"created_at"`
	Authorities map[kind]lineage `json:"authorities"`
}

// vault is the operator's directory.
type vault struct {
	dir      string
	manifest manifest
}

// openVault reads the directory that Init made.
func openVault(dir string) (*vault, error) {
	path := filepath.Join(dir, manifestFile)
	data, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("pki: %s is not there: give the directory that init-tls made: %w", path, err)
	}
	if err != nil {
		return nil, err
	}
	v := &vault{dir: dir}
	if err := json.Unmarshal(data, &v.manifest); err != nil {
		return nil, fmt.Errorf("pki: %s is damaged: put back the copy you keep: %w", path, err)
	}
	if v.manifest.Format != manifestFormat {
		return nil, fmt.Errorf("pki: %s has format %d, this version reads %d: use the version that wrote it", path, v.manifest.Format, manifestFormat)
	}
	for _, k := range kinds {
		if n := len(v.manifest.Authorities[k].Believed); n < 1 || n > 2 {
			return nil, fmt.Errorf("pki: %s names %d %s CAs, want one or two: put back the copy you keep", path, n, k)
		}
	}
	return v, nil
}

func (v *vault) path(elements ...string) string {
	return filepath.Join(append([]string{v.dir}, elements...)...)
}

func (v *vault) saveManifest() error {
	data, err := json.MarshalIndent(v.manifest, "", "  ")
	if err != nil {
		return fmt.Errorf("pki: write %s: %w", manifestFile, err)
	}
	return replaceFile(v.path(manifestFile), append(data, '\n'), publicMode)
}

// nodes lists the node ids that have a directory, sorted.
func (v *vault) nodes() ([]string, error) { return v.holders(v.dir, NodeCertFile) }

// clients lists the client names that have a directory, sorted.
func (v *vault) clients() ([]string, error) {
	ids, err := v.holders(v.path(clientsDir), ClientCertFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return ids, err
}

// holders lists the directories in parent that have a certificate.
func (v *vault) holders(parent, cert string) ([]string, error) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	var ids []string
	for _, e := range entries {
		if !e.IsDir() || !idPattern.MatchString(e.Name()) {
			continue
		}
		if _, err := os.Stat(filepath.Join(parent, e.Name(), cert)); err == nil {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// stock says which directories hold which authority's certificate.
func (v *vault) stock(k kind) ([]string, error) {
	nodes, err := v.nodes()
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, id := range nodes {
		dirs = append(dirs, v.path(id))
	}
	if k != httpKind {
		return dirs, nil
	}
	clients, err := v.clients()
	for _, id := range clients {
		dirs = append(dirs, v.path(clientsDir, id))
	}
	return dirs, err
}

const (
	secretMode fs.FileMode = 0o600
	publicMode fs.FileMode = 0o644
	dirMode    fs.FileMode = 0o700
)

// readFile reads a file that is not too long.
func readFile(path string) ([]byte, error) { return readFileUpTo(path, fileBytesMax) }

func readFileUpTo(path string, bytesMax int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, bytesMax+1))
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	if int64(len(data)) > bytesMax {
		return nil, fmt.Errorf("pki: %s has more than %d bytes: is it the right file?", path, bytesMax)
	}
	return data, nil
}

// createFile writes a file that is not there yet, and makes it durable.
func createFile(path string, data []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("pki: %s is there already and is not overwritten: move it away first: %w", path, err)
	}
	if err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(mode) // whatever the umask says
	}
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	return syncDir(filepath.Dir(path))
}

// replaceFile writes a file whole or not at all, over the one that is there.
func replaceFile(path string, data []byte, mode fs.FileMode) error {
	tmp := path + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("pki: %w", err)
	}
	if err := createFile(tmp, data, mode); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	return nil
}
