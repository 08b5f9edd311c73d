package node

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	"pulse/cluster"
	"pulse/cluster/pki"
)

const (
	// peerHandshakesMax bounds what one address may have under way at a port
	// for nodes; others then still get their turn.
	peerHandshakesMax = 16
	// certsEvery is how often the files are looked at while nobody shakes hands.
	certsEvery = time.Minute
	// endsSoonEvery is how often somebody is reminded of a certificate that ends
	// soon, which is in the last fifth of its life.
	endsSoonEvery = 24 * time.Hour
	lifeParts     = 5
)

// certs are what this node shows to others and by what it judges them.
type certs struct {
	dir    string
	node   *pki.Identity
	http   *pki.HTTPIdentity
	logger *slog.Logger
}

var _ cluster.Secure = (*certs)(nil)

// openCerts reads the certificates, if the node has any.
func (n *Node) openCerts() (err error) {
	if n.cfg.Certs == "" {
		return nil
	}
	c := &certs{dir: n.cfg.Certs, logger: n.logger}
	c.node, err = pki.Open(pki.Options{
		Files: pki.NodeFiles(c.dir), NodeID: n.dir.Node.NodeID, OnReload: c.reloaded("nodes"),
	})
	if err != nil {
		return fmt.Errorf("node: Certs: %w", err)
	}
	switch {
	case c.node.Gateway() && !n.cfg.gateway():
		return fmt.Errorf("node: Certs: %s has the certificate of a gateway, and this is a server: make its own with 'pulse cluster add-node'", c.dir)
	case !c.node.Gateway() && n.cfg.gateway():
		return fmt.Errorf("node: Certs: %s has the certificate of a server, with which this gateway could vote: withdraw it with 'pulse cluster revoke' and make the gateway's own with 'pulse cluster add-node --gateway'", c.dir)
	}
	c.http, err = pki.OpenHTTP(pki.HTTPOptions{
		Files: pki.HTTPFiles(c.dir), Cluster: c.node.Cluster(), OnReload: c.reloaded("clients"),
	})
	if err != nil {
		return fmt.Errorf("node: Certs: %w", err)
	}
	n.certs = c
	n.background("certificates", c.watch)
	return nil
}

// reloaded says in the log what was found in files that have changed.
func (c *certs) reloaded(toward string) func(pki.Reload) {
	return func(r pki.Reload) {
		if r.Err != nil {
			c.logger.Error("certificates are not taken up", "shown_to", toward, "certs", c.dir, "not_after", r.NotAfter, "error", r.Err)
			return
		}
		c.logger.Info("certificates taken up", "shown_to", toward, "certs", c.dir, "not_after", r.NotAfter)
	}
}

// watch looks at the files while nobody shakes hands, and reminds of the end.
func (c *certs) watch(ctx context.Context) {
	reminded := map[string]time.Time{}
	tick := time.NewTicker(certsEvery)
	defer tick.Stop()
	for {
		for toward, validity := range map[string]func() (time.Time, time.Time){"nodes": c.node.Validity, "clients": c.http.Validity} {
			begin, end := validity()
			if time.Until(end) > end.Sub(begin)/lifeParts || time.Since(reminded[toward]) < endsSoonEvery {
				continue
			}
			reminded[toward] = time.Now()
			c.logger.Warn("the certificate ends soon: make new ones with 'pulse cluster renew' and copy them here", "shown_to", toward, "certs", c.dir, "not_after", end)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Listen implements cluster.Secure: it lets in servers of this cluster alone.
func (c *certs) Listen(l net.Listener) (net.Listener, error) { return c.listen(l, c.node.Voters()) }

// listenForNodes lets in gateways, too.
func (c *certs) listenForNodes(l net.Listener) (net.Listener, error) { return c.listen(l, c.node) }

// listen says in the log who was refused.
func (c *certs) listen(l net.Listener, as *pki.Identity) (net.Listener, error) {
	config := as.ServerConfig()
	config.NextProtos = []string{"h2"} // gRPC insists; raft does not ask
	return pki.NewListener(l, pki.ListenerConfig{TLS: config, MaxPerHost: peerHandshakesMax, Logger: c.logger})
}

// Client implements cluster.Secure.
func (c *certs) Client(serverID string) (*tls.Config, error) {
	return c.node.Voters().ClientConfig(serverID)
}

// secretIn is the cluster secret in a directory of certificates.
func secretIn(dir string) string { return filepath.Join(dir, pki.SecretFile) }
