package node

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"pulse/cluster"
	"pulse/gateway"
	"pulse/gateway/wsconn"
)

// Defaults of Config.
const (
	DefaultHTTPAddr = "127.0.0.1:7400"
	DefaultNodeID   = "node-1"
)

// Config of a Node. DataDir and Logger are required; the zero value of every
// other field means its default.
type Config struct {
	// NodeID names this node for the life of its data directory. Empty: the
	// name the directory has, or DefaultNodeID for a new one.
	NodeID string
	// DataDir holds everything that has to survive the process. See Dir. A
	// gateway may do without.
	DataDir string

	// HTTPAddr is where API, console and workers connect. Port 0 takes a free
	// one; Node.Addr tells which.
	HTTPAddr string
	// Certs is the node's directory of certificates, as pki.Init makes it. With
	// it every port speaks TLS: other nodes and clients are known by their
	// certificates, and the node may be reached from other machines.
	Certs string
	// Auth finds out who asks. Nil goes by client certificates if there are
	// Certs. Without them it lets in whoever is on this machine, and then
	// HTTPAddr must be a loopback address.
	Auth gateway.Authenticator
	// RequireToken refuses whoever shows neither an access token nor a client
	// certificate, on this machine too.
	RequireToken bool
	// BootstrapTokenFile holds the first admin token of a new cluster. A file that
	// is not there is made, readable by its owner alone. A cluster that has had a
	// token takes no other from a file.
	BootstrapTokenFile string
	// Hosts and Origins are names and pages that browsers may use, see
	// gateway.Config.
	Hosts   []string
	Origins []string
	// Limits hold single addresses to their share of connections, handshakes
	// and faults.
	Limits wsconn.Limits

	// RaftAddr is where other voters connect. Empty: no port, for a lone voter.
	RaftAddr string

	// Cluster makes the node one of several. nil: a lone voter.
	Cluster *ClusterConfig

	// The cluster secret, one of the two; a file holds it as text. Neither: it
	// is the one in Certs, or one is made on the first start and kept in the
	// data directory.
	ClusterSecret     []byte
	ClusterSecretFile string

	LogStore cluster.LogStore

	// ElectionTimeout is how long raft waits without a leader, and a leader for
	// most of the others before it gives up. A lone voter that starts waits that
	// long too, so tests shorten it; several servers of a test have it long enough
	// to keep their leader on a busy machine. Zero: as package cluster has it, where
	// a leader gives up in half the time.
	ElectionTimeout time.Duration
	// WriteLimit is how long one write may take before the disk counts as hung and
	// this node ends its process. Zero: cluster.DefaultWriteLimit. A node in a test's
	// process has it long: a disk that many tests write to stands still at times.
	WriteLimit time.Duration
	// SnapshotEntries is how many log entries gather before a snapshot.
	SnapshotEntries uint64
	// Version is what the node says of its build.
	Version string
	// CloseTimeout bounds a graceful stop when Close's context does not.
	CloseTimeout time.Duration

	Logger *slog.Logger

	// LogLevel is the level of Logger, for the API to change. Nil: it cannot.
	LogLevel *slog.LevelVar
	// Traces takes the spans of this node. Nil makes none.
	Traces trace.TracerProvider

	ownAuth bool // nobody gave Auth
}

const (
	defaultCloseTimeout = 15 * time.Second
	secretBytesMin      = 32
	secretBytesMax      = 4096
)

var nodeIDPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`)

// Validate names the field that is wrong and the fix.
func (c Config) Validate() error {
	switch {
	case c.DataDir == "" && !c.gateway():
		return errors.New("node: DataDir is empty: give a directory that survives restarts")
	case c.Logger == nil:
		return errors.New("node: Logger is missing: give one, slog.DiscardHandler for silence")
	case c.NodeID != "" && !nodeIDPattern.MatchString(c.NodeID):
		return fmt.Errorf("node: NodeID is %q: give a letter or digit, then up to 62 of letters, digits, _ . -", c.NodeID)
	case len(c.ClusterSecret) > 0 && c.ClusterSecretFile != "":
		return errors.New("node: both ClusterSecret and ClusterSecretFile are set: give one of them")
	case len(c.ClusterSecret) > 0 && len(c.ClusterSecret) < secretBytesMin:
		return fmt.Errorf("node: ClusterSecret has %d bytes: give at least %d", len(c.ClusterSecret), secretBytesMin)
	case c.ElectionTimeout < 0 || c.WriteLimit < 0 || c.CloseTimeout < 0:
		return errors.New("node: ElectionTimeout, WriteLimit and CloseTimeout must not be negative")
	}
	if err := checkAddr("HTTPAddr", c.HTTPAddr); err != nil {
		return err
	}
	if c.Cluster != nil {
		return c.Cluster.validate(c)
	}
	return checkAddr("RaftAddr", c.RaftAddr)
}

func checkAddr(field, addr string) error {
	if addr == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return fmt.Errorf("node: %s is %q: give HOST:PORT (%w)", field, addr, err)
	}
	return nil
}

// withDefaults is the config with its gaps filled.
func (c Config) withDefaults() Config {
	if c.HTTPAddr == "" {
		c.HTTPAddr = DefaultHTTPAddr
	}
	c.ownAuth = c.Auth == nil
	if c.Auth == nil && c.Certs == "" {
		c.Auth = gateway.Loopback{}
	}
	if c.Certs != "" && len(c.ClusterSecret) == 0 && c.ClusterSecretFile == "" {
		c.ClusterSecretFile = secretIn(c.Certs)
	}
	if c.Traces == nil {
		c.Traces = noop.NewTracerProvider()
	}
	if c.CloseTimeout == 0 {
		c.CloseTimeout = defaultCloseTimeout
	}
	return c
}
