package node

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Dir is a data directory that this process holds alone:
//
//	lock            held as long as the process lives
//	node.json       whose directory this is
//	cluster.secret  the secret made here, if none was given
//	members.json    where the other servers were last seen
//	owed            what is to go on record when there is a leader
//	raft/           log, votes and snapshots
//	state/          the machine's store
//
// Its mode is 0700: what tasks carry is nobody else's.
type Dir struct {
	path   string
	lock   *os.File
	Node   Identity
	secret []byte
}

// Identity is node.json. It is written once.
type Identity struct {
	Format      int      `json:"format"`
	NodeID      string   `json:"node_id"`
	ClusterID   string   `json:"cluster_id"`             // hex
	FirstVoters []string `json:"first_voters,omitempty"` // sorted; the cluster id is made of them
	// SecretCheck ties the directory of a server that joined later, and so
	// knows no first voters, to the secret.
	SecretCheck string `json:"secret_check,omitempty"`
	// FenceBase is that of a cluster made by a restore, on its first server.
	FenceBase uint64    `json:"fence_base,string,omitempty"`
	CreatedAt time.Time `json:"created_at"`
}

const (
	identityFormat = 1
	identityFile   = "node.json"
	secretFile     = "cluster.secret"
	lockFile       = "lock"
)

// ErrInUse says that another process holds the data directory.
var ErrInUse = errors.New("data directory is in use")

// openDir takes the directory for this process, making it if it is not there,
// and checks that it belongs to the node and the secret of the config.
func openDir(cfg Config) (*Dir, error) {
	if cfg.DataDir == "" {
		d := &Dir{Node: Identity{Format: identityFormat, NodeID: cfg.NodeID}}
		return d, d.loadSecret(cfg)
	}
	if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	// A directory that was there before may be open to others.
	if err := os.Chmod(cfg.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	lock, err := takeLock(filepath.Join(cfg.DataDir, lockFile))
	if err != nil {
		return nil, err
	}
	d := &Dir{path: cfg.DataDir, lock: lock}
	if err := errors.Join(d.loadSecret(cfg), d.loadIdentity(cfg), d.checkUse(cfg)); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// Close gives the directory up.
func (d *Dir) Close() error {
	if d.lock == nil {
		return nil
	}
	return d.lock.Close()
}

// membersFile is empty for a gateway without a directory.
func (d *Dir) membersFile() string {
	if d.path == "" {
		return ""
	}
	return filepath.Join(d.path, "members.json")
}

// owedFile is empty like membersFile.
func (d *Dir) owedFile() string {
	if d.path == "" {
		return ""
	}
	return filepath.Join(d.path, "owed")
}

func (d *Dir) raftDir() string  { return filepath.Join(d.path, "raft") }
func (d *Dir) stateDir() string { return filepath.Join(d.path, "state") }

// bytes is the size of the files below a directory of this one, without what
// lies in the excepted ones. Files come and go meanwhile: it is a moment's number.
func (d *Dir) bytes(under string, except ...string) (sum float64) {
	if d == nil || d.path == "" {
		return 0
	}
	root := filepath.Join(d.path, filepath.FromSlash(under))
	_ = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // what is gone has no size
		}
		if entry.IsDir() {
			if path != root && slices.Contains(except, entry.Name()) {
				return fs.SkipDir
			}
			return nil
		}
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() {
			sum += float64(info.Size())
		}
		return nil
	})
	return sum
}

// isNew says whether nothing was ever written to raft's log here.
func (d *Dir) isNew() (bool, error) {
	entries, err := os.ReadDir(d.raftDir())
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return len(entries) == 0, err
}

// checkUse refuses a gateway a server's directory: to serve under its name would
// take its place among the others.
func (d *Dir) checkUse(cfg Config) error {
	if !cfg.gateway() {
		return nil
	}
	if empty, err := d.isNew(); err != nil || !empty {
		return errors.Join(fmt.Errorf("data directory: %s holds a server's log: give a gateway a directory of its own, or none", d.path), err)
	}
	return nil
}

// loadSecret takes the secret from where the config says, or makes one.
func (d *Dir) loadSecret(cfg Config) error {
	if len(cfg.ClusterSecret) > 0 {
		d.secret = bytes.Clone(cfg.ClusterSecret)
		return nil
	}
	path := cfg.ClusterSecretFile
	if path == "" {
		path = filepath.Join(d.path, secretFile)
		if err := makeSecret(path); err != nil {
			return err
		}
	}
	secret, err := readSecret(path, cfg.Logger)
	if err != nil {
		return err
	}
	d.secret = secret
	return nil
}

// makeSecret writes a new secret unless there is one.
func makeSecret(path string) error {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	raw := make([]byte, secretBytesMin)
	if _, err := rand.Read(raw); err != nil {
		return fmt.Errorf("cluster secret: %w", err)
	}
	return writeOnce(path, []byte(hex.EncodeToString(raw)+"\n"))
}

func readSecret(path string, logger *slog.Logger) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("cluster secret: %w", err)
	}
	if info.Size() > secretBytesMax {
		return nil, fmt.Errorf("cluster secret: %s has %d bytes, at most %d are expected: is it the right file?", path, info.Size(), secretBytesMax)
	}
	if info.Mode().Perm()&0o077 != 0 {
		logger.Warn("others may read the cluster secret; chmod 600 it", "file", path, "mode", info.Mode().Perm().String())
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cluster secret: %w", err)
	}
	secret := bytes.TrimSpace(data)
	if len(secret) < secretBytesMin {
		return nil, fmt.Errorf("cluster secret: %s holds %d bytes, at least %d are needed", path, len(secret), secretBytesMin)
	}
	return secret, nil
}

// loadIdentity reads whose directory this is, or writes that it is ours.
func (d *Dir) loadIdentity(cfg Config) error {
	if d.secret == nil {
		return nil // loadSecret has failed and says why
	}
	id, err := readIdentity(filepath.Join(d.path, identityFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return d.newIdentity(cfg)
	case err != nil:
		return fmt.Errorf("data directory: %w", err)
	case cfg.NodeID != "" && cfg.NodeID != id.NodeID:
		return fmt.Errorf("data directory: %s belongs to node %q, not %q: give each node a directory of its own", d.path, id.NodeID, cfg.NodeID)
	case len(id.FirstVoters) > 0 && id.ClusterID != clusterID(d.secret, id.FirstVoters),
		len(id.FirstVoters) == 0 && id.SecretCheck != secretCheck(d.secret, id.ClusterID):
		return fmt.Errorf("data directory: %s was made with another cluster secret: give the one its cluster has", d.path)
	}
	d.Node = id
	return nil
}

func readIdentity(path string) (id Identity, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return id, err
	}
	if err := json.Unmarshal(data, &id); err != nil {
		return id, fmt.Errorf("%s is damaged: %w", path, err)
	}
	if id.Format != identityFormat {
		return id, fmt.Errorf("%s has format %d, this version reads %d: use the version that wrote it, or upgrade step by step", path, id.Format, identityFormat)
	}
	return id, nil
}

func (d *Dir) newIdentity(cfg Config) error {
	// Log without identity: somebody has moved or removed node.json. Going on
	// under a new name could give one log two owners.
	if empty, err := d.isNew(); err != nil || !empty {
		return errors.Join(fmt.Errorf("data directory: %s holds a log but %s is missing: put it back", d.path, identityFile), err)
	}
	nodeID := cfg.NodeID
	if nodeID == "" {
		nodeID = DefaultNodeID
	}
	d.Node = Identity{Format: identityFormat, NodeID: nodeID}
	if cfg.Cluster != nil {
		return nil // gossip will tell which cluster: decide writes the file
	}
	return d.decide("", []string{nodeID})
}

// decide writes, once, which cluster the directory belongs to: the one these
// voters found, or one that is there already.
func (d *Dir) decide(existing string, founders []string) error {
	d.Node.CreatedAt = time.Now().UTC().Truncate(time.Second)
	if existing != "" {
		d.Node.ClusterID, d.Node.SecretCheck = existing, secretCheck(d.secret, existing)
	} else {
		d.Node.FirstVoters = slices.Sorted(slices.Values(founders))
		d.Node.ClusterID = clusterID(d.secret, founders)
	}
	return d.write(d.Node)
}

// belongTo writes that the directory is of a gateway of this cluster. A gateway
// without a directory has nothing to write.
func (d *Dir) belongTo(cluster string, fenceBase uint64) error {
	if d.path == "" {
		return nil
	}
	id := d.Node
	id.CreatedAt = time.Now().UTC().Truncate(time.Second)
	id.ClusterID, id.SecretCheck, id.FenceBase = cluster, secretCheck(d.secret, cluster), fenceBase
	return d.write(id)
}

func (d *Dir) write(id Identity) error {
	path := filepath.Join(d.path, identityFile)
	data, err := json.MarshalIndent(id, "", "  ")
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	return writeOnce(path, append(data, '\n'))
}

// writeOnce writes a file whole or not at all, in the place of what was there, and
// makes it durable.
func writeOnce(path string, data []byte) error {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err == nil {
		err = syncDir(filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	return nil
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// secretCheck shows that a directory of this cluster was made with the secret.
func secretCheck(secret []byte, cluster string) string {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("pulse directory v1\x00" + cluster))
	return hex.EncodeToString(mac.Sum(nil)[:16])
}

// clusterID names a cluster by its secret and its first voters, so that two
// clusters that were set up alike still know each other apart.
func clusterID(secret []byte, firstVoters []string) string {
	voters := slices.Sorted(slices.Values(firstVoters))
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("pulse cluster id v1\x00" + strings.Join(voters, "\x00")))
	return hex.EncodeToString(mac.Sum(nil)[:16])
}
