package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulse/sdk"
)

const (
	// debugWithin bounds what one node may take for its part.
	debugWithin = 30 * time.Second
	// debugFileMax bounds one file of a node's part.
	debugFileMax = 256 << 20
)

// debugDone is what is printed about a bundle.
type debugDone struct {
	File    string            `json:"file"`
	Bytes   int64             `json:"bytes,string"`
	Nodes   []string          `json:"nodes"`
	Missing map[string]string `json:"missing"` // nodes that gave nothing, and why
}

func (a *app) clusterDebugCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "debug FILE",
		Short: "Collect what helps to find out what is wrong",
		Long: `Collect into FILE, a tar.gz, what helps to find out what is wrong with a cluster: of
each node its version, settings, status, alarms, members, raft's numbers, metrics, queue
counts, the newest log lines, goroutines and heap profile. Nodes that do not answer are
noted. No secret is in it and nothing of what tasks carry; names of nodes, hosts, queues
and namespaces are.`,
		Example: "  pulse cluster debug pulse-debug.tar.gz",
		Args:    exactly("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := os.Stat(args[0]); err == nil && !force {
				return fmt.Errorf("%s is there already; --force replaces it", args[0])
			}
			c, ctx, cancel, err := a.long(cmd)
			if err != nil {
				return err
			}
			defer cancel()
			done := debugDone{File: args[0], Nodes: []string{}, Missing: map[string]string{}}
			if err := a.writeDebug(ctx, cmd, c, &done); err != nil {
				return err
			}
			missing := ""
			for id, why := range done.Missing {
				missing += fmt.Sprintf("; nothing of %s: %s", id, why)
			}
			return a.done(cmd, done, "%s: %s, of %s%s.", done.File, size(uint64(done.Bytes)), strings.Join(done.Nodes, ", "), missing)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "replace FILE if it is there")
	return cmd
}

// writeDebug writes the bundle beside its place and then moves it there.
func (a *app) writeDebug(ctx context.Context, cmd *cobra.Command, c *sdk.Client, done *debugDone) (err error) {
	f, err := os.CreateTemp(filepath.Dir(done.File), filepath.Base(done.File)+".*.tmp")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}()
	zipped := gzip.NewWriter(f)
	files := tar.NewWriter(zipped)
	if err := a.collect(ctx, cmd, c, files, done); err != nil {
		return err
	}
	if err := errors.Join(files.Close(), zipped.Close()); err != nil {
		return err
	}
	if done.Bytes, err = f.Seek(0, io.SeekCurrent); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), done.File)
}

// collect asks each node for its part, one after the other: a cluster in trouble is
// not to be asked for everything at once.
func (a *app) collect(ctx context.Context, cmd *cobra.Command, c *sdk.Client, files *tar.Writer, done *debugDone) error {
	listed, cancel := context.WithTimeout(ctx, callTimeout)
	members, err := c.Members(listed)
	cancel()
	if err != nil {
		return err
	}
	scheme, _, _ := strings.Cut(a.conn.addrs()[0], "://")
	for _, m := range members {
		why := "it is not alive"
		if m.Alive && m.HTTP != "" {
			if err = a.collectFrom(ctx, cmd, scheme+"://"+m.HTTP, files); err == nil {
				done.Nodes = append(done.Nodes, m.ID)
				continue
			}
			if errors.Is(err, errBundle) {
				return err
			}
			why = err.Error()
		}
		done.Missing[m.ID] = why
		if err := addFile(files, m.ID+"/missing.txt", []byte(why+"\n")); err != nil {
			return err
		}
	}
	if len(done.Nodes) == 0 {
		return errors.New("no node gave its part")
	}
	return nil
}

// errBundle says that FILE cannot be written.
var errBundle = errors.New("the bundle cannot be written")

func (a *app) collectFrom(ctx context.Context, cmd *cobra.Command, addr string, files *tar.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, debugWithin)
	defer cancel()
	at := a.conn
	at.addr = addr
	one := *a
	one.conn = at
	c, err := one.client(cmd)
	if err != nil {
		return err
	}
	stream, err := c.Debug(ctx)
	if err != nil {
		return err
	}
	defer stream.Close()
	unzipped, err := gzip.NewReader(stream)
	if err != nil {
		return err
	}
	for part := tar.NewReader(unzipped); ; {
		head, err := part.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		data, err := io.ReadAll(io.LimitReader(part, debugFileMax))
		if err != nil {
			return err
		}
		if err := addFile(files, head.Name, data); err != nil {
			return err
		}
	}
}

func addFile(files *tar.Writer, name string, data []byte) error {
	err := files.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(data)), ModTime: time.Now()})
	if err == nil {
		_, err = files.Write(data)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errBundle, err)
	}
	return nil
}
