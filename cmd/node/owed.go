package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"pulse/gateway/httpapi"
	"pulse/gateway/session"
	pb "pulse/proto/pulse/v1"
	"pulse/schema"
)

// owed is what was done while there was no leader, and is to go on record when there
// is one: a backup of a cluster that has lost its quorum is what an operator makes
// first. It is a file in the data directory, or memory alone without one, and outlives
// the process. What is in it goes on record at least once.
type owed struct {
	path    string // "" = memory alone
	backend session.Backend
	logger  *slog.Logger
	more    chan struct{} // holds one signal at most

	mu   sync.Mutex
	list []*pb.Command
}

var _ httpapi.Owed = (*owed)(nil)

const (
	// owedMax bounds the list: whoever does a thousand things to a cluster without
	// a leader is told by the log what is not on record.
	owedMax    = 1000
	owedWithin = 10 * time.Second
	owedPause  = time.Second
)

// openOwed reads what an earlier process left.
func openOwed(path string, backend session.Backend, logger *slog.Logger) (*owed, error) {
	o := &owed{path: path, backend: backend, logger: logger, more: make(chan struct{}, 1)}
	if path == "" {
		return o, nil
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return o, nil
	}
	left := new(pb.Entry)
	if err == nil {
		err = proto.Unmarshal(data, left)
	}
	if err != nil {
		return nil, fmt.Errorf("what is to go on record: %s: %w", path, err)
	}
	if o.list = left.Commands; len(o.list) > 0 {
		o.more <- struct{}{}
	}
	return o, nil
}

// Keep implements httpapi.Owed.
func (o *owed) Keep(c *pb.Command) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.list) >= owedMax {
		return fmt.Errorf("%d things are to go on record already", owedMax)
	}
	if err := o.write(append(o.list[:len(o.list):len(o.list)], c)); err != nil {
		return err
	}
	select {
	case o.more <- struct{}{}:
	default:
	}
	return nil
}

// write makes list the list. Called with mu held.
func (o *owed) write(list []*pb.Command) error {
	if o.path != "" {
		data, err := proto.Marshal(&pb.Entry{Commands: list})
		if err == nil {
			err = writeOnce(o.path, data)
		}
		if err != nil {
			return fmt.Errorf("what is to go on record: %w", err)
		}
	}
	o.list = list
	return nil
}

// run puts on record what is owed, the oldest first, until ctx ends.
func (o *owed) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-o.more:
		}
		for o.pay(ctx) {
			continue
		}
	}
}

// pay puts the oldest on record, and says whether there is another.
func (o *owed) pay(ctx context.Context) bool {
	o.mu.Lock()
	if len(o.list) == 0 {
		o.mu.Unlock()
		return false
	}
	c := o.list[0]
	o.mu.Unlock()
	if err := o.tell(ctx, c); err != nil {
		o.logger.Debug("what was done is not on record yet", "action", c.GetRecordAction().GetAction(), "error", err)
		select {
		case <-ctx.Done():
			return false
		case <-time.After(owedPause):
			return true
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.write(o.list[1:]); err != nil {
		o.logger.Warn("the list of what is to go on record cannot be shortened; it goes on record again after a restart", "error", err)
		o.list = o.list[1:]
	}
	return true
}

func (o *owed) tell(ctx context.Context, c *pb.Command) error {
	ctx, cancel := context.WithTimeout(ctx, owedWithin)
	defer cancel()
	for {
		results, err := o.backend.Submit(ctx, []*pb.Command{c})
		if err != nil || len(results) != 1 {
			return errors.Join(err, ctx.Err())
		}
		switch r := results[0]; {
		case r.Code == "":
			return nil
		case schema.Code(r.Code) == schema.Unauthenticated && len(c.GetCaller().GetTokenId()) > 0:
			// The token was good then. Its id is in the principal.
			c = proto.CloneOf(c)
			c.Caller.TokenId = nil
		case schema.Code(r.Code) == schema.NotFound:
			// Its namespace is gone, and it is about the cluster all the same.
			if c.Namespace == "" {
				return fmt.Errorf("refused: %s: %s", r.Code, r.Message)
			}
			c = proto.CloneOf(c)
			c.Namespace = ""
		default:
			return fmt.Errorf("refused: %s: %s", r.Code, r.Message)
		}
	}
}
