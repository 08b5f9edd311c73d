package node

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"pulse/cluster"
	"pulse/fsm"
	"pulse/fsm/state"
)

// RestoreConfig says from what, and as what, a new cluster is made.
type RestoreConfig struct {
	// Source is a backup file, or the data directory of a stopped server whose
	// cluster is lost. It is not changed.
	Source string
	// DataDir becomes the data directory of the new cluster's first server. It
	// must be empty or not there.
	DataDir string
	NodeID  string // of that server; empty: the one of a source directory, or DefaultNodeID

	// The cluster secret, as in Config.
	ClusterSecret     []byte
	ClusterSecretFile string

	// FenceBase is what the new cluster's fencing numbers are above; 0: computed
	// from the backup's and the time.
	FenceBase uint64
	// TrustWaiting says that the lost cluster has run nothing that the source
	// shows as not started.
	TrustWaiting bool

	Logger *slog.Logger
	// Progress is written what is read of a source file, as it is read; nil: nobody
	// looks.
	Progress io.Writer
}

// Restored is what a restore has made.
type Restored struct {
	NodeID      string
	ClusterID   string // of the new cluster, hex
	LostCluster string // hex
	Index       uint64 // as clients saw it: what the lost cluster did up to here is there
	Clock       time.Time
	FenceBase   uint64
	Rows        uint64
	StateHash   string // of the restored state, hex
}

const (
	restoreWork = "restore.tmp"
	lostFound   = "lost+found" // of a new file system
)

// Restore makes a new cluster of one server out of what a lost one has left. All
// that the lost one handed out is void in it; see fsm. It does not start the
// server. After an error DataDir is as it was.
func Restore(ctx context.Context, cfg RestoreConfig) (_ Restored, err error) {
	if cfg.Source == "" || cfg.DataDir == "" {
		return Restored{}, errors.New("restore: give both a source and a data directory")
	}
	if cfg.NodeID != "" && !nodeIDPattern.MatchString(cfg.NodeID) {
		return Restored{}, fmt.Errorf("restore: the node's name is %q: give a letter or digit, then up to 62 of letters, digits, _ . -", cfg.NodeID)
	}
	source, err := os.Stat(cfg.Source)
	if err != nil {
		return Restored{}, fmt.Errorf("restore: %w", err)
	}
	made, err := emptyDir(cfg.DataDir)
	if err != nil {
		return Restored{}, err
	}
	r := &restore{cfg: cfg, dir: &Dir{path: cfg.DataDir}, work: filepath.Join(cfg.DataDir, restoreWork)}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.undo(made))
		}
	}()
	if err := os.Mkdir(r.work, 0o700); err != nil {
		return Restored{}, fmt.Errorf("restore: %w", err)
	}
	if err := r.dir.loadSecret(Config{
		DataDir: cfg.DataDir, ClusterSecret: cfg.ClusterSecret, ClusterSecretFile: cfg.ClusterSecretFile, Logger: cfg.Logger,
	}); err != nil {
		return Restored{}, err
	}
	if source.IsDir() {
		err = r.fromDir(ctx)
	} else {
		err = r.fromFile(ctx)
	}
	if err != nil {
		return Restored{}, err
	}
	return r.found(ctx)
}

// emptyDir makes sure that nothing is overwritten. made says that it was not
// there.
func emptyDir(path string) (made bool, err error) {
	entries, err := os.ReadDir(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := os.MkdirAll(path, 0o700); err != nil {
			return false, fmt.Errorf("restore: %w", err)
		}
		return true, nil
	case err != nil:
		return false, fmt.Errorf("restore: %w", err)
	}
	for _, e := range entries {
		if e.Name() != lostFound {
			return false, fmt.Errorf("restore: %s is not empty: a restore makes a new server and overwrites none; give a new directory", path)
		}
	}
	return false, os.Chmod(path, 0o700)
}

// restore is one under way. Everything is made below work, but for what the new
// server is to have; its node.json comes last, and without it the directory is
// nobody's.
type restore struct {
	cfg    RestoreConfig
	dir    *Dir
	work   string
	header state.Header // of the source
}

func (r *restore) store() string { return filepath.Join(r.work, "store") }

func (r *restore) undo(made bool) error {
	if made {
		return os.RemoveAll(r.dir.path)
	}
	var err error
	for _, name := range []string{r.work, r.dir.raftDir(), filepath.Join(r.dir.path, secretFile), filepath.Join(r.dir.path, identityFile), r.dir.owedFile()} {
		err = errors.Join(err, os.RemoveAll(name))
	}
	return err
}

// fromFile builds the store from a backup, which is checked as it is read.
func (r *restore) fromFile(ctx context.Context) error {
	f, err := os.Open(r.cfg.Source)
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	defer f.Close() // read only
	var source io.Reader = f
	if r.cfg.Progress != nil {
		source = io.TeeReader(f, r.cfg.Progress)
	}
	if r.header, err = state.ReadStream(&contextReader{ctx, source}, r.store()); err != nil {
		return fmt.Errorf("restore: %s: %w", r.cfg.Source, err)
	}
	return nil
}

type contextReader struct {
	ctx context.Context //nolint:containedctx // it lives as long as one call
	r   io.Reader
}

func (r *contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// fromDir takes over everything that a stopped server has, its log included.
// The server's files are copied first, so that they can still be looked at, and
// tried again with.
func (r *restore) fromDir(ctx context.Context) (err error) {
	lock, err := takeLock(filepath.Join(r.cfg.Source, lockFile))
	if err != nil {
		return fmt.Errorf("restore: %s: %w", r.cfg.Source, err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	id, err := readIdentity(filepath.Join(r.cfg.Source, identityFile))
	if err != nil {
		return fmt.Errorf("restore: %s is no data directory: %w", r.cfg.Source, err)
	}
	if r.cfg.NodeID == "" {
		r.cfg.NodeID = id.NodeID
	}
	copied := &Dir{path: filepath.Join(r.work, "source")}
	old := &Dir{path: r.cfg.Source}
	for from, to := range map[string]string{old.raftDir(): copied.raftDir(), old.stateDir(): copied.stateDir()} {
		if err := copyDir(ctx, from, to); err != nil {
			return fmt.Errorf("restore: copy %s: %w", from, err)
		}
	}
	if err := r.takeOwed(old); err != nil {
		return fmt.Errorf("restore: what is to go on record: %w", err)
	}
	m, err := fsm.Open(fsm.Options{Dir: copied.stateDir(), NodeID: id.NodeID})
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	cfg := cluster.Config{ID: id.NodeID, Dir: copied.raftDir(), Machine: m, Logger: r.cfg.Logger, LogStore: cluster.LogStoreOf(copied.raftDir())}
	if err := cluster.Replay(cfg); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	r.header, err = m.Checkpoint(r.store())
	return err
}

// takeOwed has what was done without a leader go on record in the new cluster.
func (r *restore) takeOwed(old *Dir) error {
	data, err := os.ReadFile(old.owedFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return writeOnce(r.dir.owedFile(), data)
}

func copyDir(ctx context.Context, from, to string) error {
	return filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		inside, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, inside)
		if e.IsDir() {
			return os.MkdirAll(target, 0o700)
		}
		return copyFile(path, target)
	})
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close() // read only
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// found turns the store into the first snapshot of a new cluster.
func (r *restore) found(ctx context.Context) (Restored, error) {
	base, err := r.fenceBase()
	if err != nil {
		return Restored{}, err
	}
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		return Restored{}, fmt.Errorf("restore: make a cluster id: %w", err)
	}
	if r.cfg.NodeID == "" {
		r.cfg.NodeID = DefaultNodeID
	}
	in := state.Incarnation{
		ClusterID: id, FenceBase: base, Index: r.header.AppliedIndex + 1, Term: cluster.FoundTerm, TrustWaiting: r.cfg.TrustWaiting,
	}
	if _, err := state.BeginIncarnation(r.store(), in); err != nil {
		return Restored{}, fmt.Errorf("restore: %w", err)
	}
	var header state.Header
	// The server tells its address when it starts.
	self := cluster.Server{ID: r.cfg.NodeID, Address: r.cfg.NodeID}
	err = cluster.Found(r.dir.raftDir(), self, in.Index, cluster.Config{Logger: r.cfg.Logger}, func(w io.Writer) (err error) {
		header, err = state.WriteStream(r.store(), &contextWriter{ctx, w})
		return err
	})
	if err != nil {
		return Restored{}, fmt.Errorf("restore: %w", err)
	}
	r.dir.Node = Identity{Format: identityFormat, NodeID: r.cfg.NodeID, FenceBase: base}
	if err := errors.Join(os.RemoveAll(r.work), r.dir.decide(hex.EncodeToString(id), nil)); err != nil {
		return Restored{}, err
	}
	return Restored{
		NodeID: r.cfg.NodeID, ClusterID: hex.EncodeToString(id), LostCluster: r.header.ClusterID,
		Index: r.header.FenceBase + r.header.AppliedIndex, Clock: time.UnixMicro(r.header.ClockUs).UTC(),
		FenceBase: base, Rows: header.Rows, StateHash: hex.EncodeToString(header.StateHash[:]),
	}, nil
}

type contextWriter struct {
	ctx context.Context //nolint:containedctx // it lives as long as one call
	w   io.Writer
}

func (w *contextWriter) Write(p []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	return w.w.Write(p)
}

// fenceBase is the one that was given, or the one of this moment.
func (r *restore) fenceBase() (uint64, error) {
	base, err := state.FenceBaseAfter(r.header, wallClock())
	switch given := r.cfg.FenceBase; {
	case given == 0 && err != nil:
		return 0, fmt.Errorf("restore: %w", err)
	case given != 0 && err == nil && given < base:
		return 0, fmt.Errorf("restore: the fence base %d is below %d, which is what the backup and the time ask for: give a larger one, or none", given, base)
	case given != 0:
		return given, nil // checked against the backup's by BeginIncarnation
	}
	return base, nil
}
