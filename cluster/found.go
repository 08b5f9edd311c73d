package cluster

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
)

// FoundTerm is the term in which a log that Found begins stands at first.
const FoundTerm = 1

// currentTermKey is where raft keeps its term in the stable store.
var currentTermKey = []byte("CurrentTerm")

// Found makes dir, which is empty or not there, the raft directory of the first
// and only server of a new cluster that begins with a state and no log: other
// servers join it empty. write writes the state's stream, whose applied index
// has to be index. The caller removes dir after an error.
func Found(dir string, self Server, index uint64, cfg Config, write func(io.Writer) error) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	stable, err := openBolt(filepath.Join(dir, stableFile))
	if err != nil {
		return err
	}
	if err := errors.Join(newSealedStable(stable).SetUint64(currentTermKey, FoundTerm), stable.Close()); err != nil {
		return fmt.Errorf("cluster: write the term: %w", err)
	}
	snaps, err := openSnapshotStore(filepath.Join(dir, snapshotsDir), cfg.Logger, &Counters{})
	if err != nil {
		return err
	}
	servers := raft.Configuration{Servers: []raft.Server{{
		Suffrage: raft.Voter, ID: raft.ServerID(self.ID), Address: raft.ServerAddress(self.Address),
	}}}
	sink, err := snaps.Create(raft.SnapshotVersionMax, index, FoundTerm, servers, 1, nil)
	if err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	if err := write(sink); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	if err := sink.Close(); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	if _, header, _ := snaps.newest(); header.AppliedIndex != index {
		return fmt.Errorf("cluster: the state stands at %d, not at %d", header.AppliedIndex, index)
	}
	return syncTree(dir)
}

// Replay brings the machine to the end of the log in cfg.Dir, for a server whose
// cluster is lost. Entries that the others may never have agreed on are applied
// too: whether they did is not to be found out any more, and what they
// acknowledged must not be missing. The directory and the machine's store change,
// so both have to be copies.
func Replay(cfg Config) (err error) {
	if err := cfg.Validate(); err != nil {
		return err
	}
	cfg = cfg.withDefaults()
	n := &Node{cfg: cfg, logger: cfg.Logger}
	// There is nobody to take over: an error is told and ends nothing else.
	n.watchdog = NewWatchdog(WatchdogConfig{Limit: time.Hour, Exit: func(int) {}, Logger: slog.New(slog.DiscardHandler)})
	defer func() {
		n.watchdog.Stop()
		if n.stores != nil {
			err = errors.Join(err, n.stores.close())
		}
	}()
	if err := n.openStorage(raftLogger(n.logger)); err != nil {
		return err
	}
	meta, _, _ := n.snaps.newest()
	for index := max(cfg.Machine.AppliedIndex(), meta.Index) + 1; index <= n.applier.replayTo; index++ {
		var log raft.Log
		if err := n.stores.logs.GetLog(index, &log); err != nil {
			return fmt.Errorf("cluster: read log entry %d: %w", index, err)
		}
		if err := n.replay(&log); err != nil {
			return err
		}
	}
	return nil
}

// replay applies one entry. The machine panics at one that is damaged.
func (n *Node) replay(log *raft.Log) (err error) {
	defer func() {
		if why := recover(); why != nil {
			err = fmt.Errorf("cluster: log entry %d cannot be applied: %v", log.Index, why)
		}
	}()
	n.applier.Apply(log)
	return nil
}
