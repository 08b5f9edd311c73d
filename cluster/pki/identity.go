package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"
)

// Options of an Identity.
type Options struct {
	Files Files
	// NodeID is the node that this is. The certificate has to say the same.
	NodeID string
	// OnReload is told when the files have changed; nil is fine. It is called by
	// whoever shakes hands, so it does not block.
	OnReload func(Reload)
}

// Identity is what a node shows to other nodes and by what it judges them. It
// may be used from any goroutine, needs no closing, and follows its files.
type Identity struct {
	id     string
	desk   *desk
	voters bool // gateways are not believed
}

// Open reads a node's certificates and makes sure that others would believe
// them.
func Open(o Options) (*Identity, error) {
	if err := checkNodeID(o.NodeID); err != nil {
		return nil, err
	}
	if o.Files.CA == "" || o.Files.Cert == "" || o.Files.Key == "" {
		return nil, errors.New("pki: a node needs a CA file, a certificate and a key: give all three")
	}
	i := &Identity{id: o.NodeID}
	cluster := "" // fixed by the first certificate
	var err error
	i.desk, err = openDesk(o.Files, func(p *papers, now time.Time) error {
		if err := i.isOurs(p, cluster, now); err != nil {
			return err
		}
		cluster = p.name.cluster
		return nil
	}, o.OnReload)
	if err != nil {
		return nil, err
	}
	return i, nil
}

// isOurs says whether the papers are this node's and would be believed.
func (i *Identity) isOurs(p *papers, cluster string, now time.Time) (err error) {
	leaf := p.cert.Leaf
	if p.name, err = nameIn(leaf); err != nil {
		return fmt.Errorf("%w: %w", ErrWrongName, err)
	}
	if !p.name.isNode() || p.name.id != i.id {
		return fmt.Errorf("%w: it is of %s and this is node %s: copy this node's own directory here", ErrWrongName, p.name, i.id)
	}
	if cluster != "" && cluster != p.name.cluster {
		return fmt.Errorf("%w: it is of cluster %s and this node belongs to %s", ErrWrongName, p.name.cluster, cluster)
	}
	chain, err := parseChain(p.cert)
	if err != nil {
		return err
	}
	// A node calls and is called.
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if err := p.verify(chain, usage, now); err != nil {
			return err
		}
	}
	return nil
}

func parseChain(cert *tls.Certificate) ([]*x509.Certificate, error) {
	var chain []*x509.Certificate
	for _, der := range cert.Certificate {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, err
		}
		chain = append(chain, c)
	}
	return chain, nil
}

// Cluster is the cluster's name in the certificate.
func (i *Identity) Cluster() string { return i.desk.now.Load().name.cluster }

// Validity is the life of the certificate that is in use. Asking looks at the
// files, so that an owner who asks every minute hears of bad ones while nobody
// shakes hands.
func (i *Identity) Validity() (notBefore, notAfter time.Time) { return i.desk.validity() }

// Gateway says whether this is a node without a vote.
func (i *Identity) Gateway() bool { return i.desk.now.Load().name.role == gatewayRole }

// Voters is the same node where servers are among themselves: gateways are not
// let in, nor believed to be a server.
func (i *Identity) Voters() *Identity { return &Identity{id: i.id, desk: i.desk, voters: true} }

// ServerConfig lets in nodes of this cluster and nobody else. PeerID tells who
// came. The config is the caller's own, to add protocols to.
func (i *Identity) ServerConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		// A resumed session would skip a look at the list of the withdrawn.
		SessionTicketsDisabled: true,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return i.desk.papers().cert, nil
		},
		// Asked for here, judged in VerifyConnection, by the newest papers.
		ClientAuth: tls.RequireAnyClientCert,
		VerifyConnection: func(s tls.ConnectionState) error {
			return i.judge(s, "", x509.ExtKeyUsageClientAuth)
		},
	}
}

// ClientConfig is for calling one node, and believes nobody else to be it.
func (i *Identity) ClientConfig(peerID string) (*tls.Config, error) {
	if err := checkNodeID(peerID); err != nil {
		return nil, fmt.Errorf("pki: a node is called by its id: %w", err)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return i.desk.papers().cert, nil
		},
		// The library would compare a host name with fixed authorities. Here a
		// node's name is compared, with the newest ones, in VerifyConnection.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			return i.judge(s, peerID, x509.ExtKeyUsageServerAuth)
		},
	}, nil
}

// judge looks at what the other side has shown. An empty peerID is any node of
// this cluster.
func (i *Identity) judge(s tls.ConnectionState, peerID string, usage x509.ExtKeyUsage) error {
	p := i.desk.papers()
	if err := p.verify(s.PeerCertificates, usage, time.Now()); err != nil {
		return fmt.Errorf("pki: the other side is not believed: %w", err)
	}
	got, err := nameIn(s.PeerCertificates[0])
	if err != nil {
		return fmt.Errorf("pki: the other side is no node: %w: %w", ErrWrongName, err)
	}
	want := name{cluster: p.name.cluster, role: nodeRole, id: peerID}
	if peerID == "" {
		want.id = got.id
	}
	if !i.voters && got.role == gatewayRole {
		want.role = gatewayRole
	}
	if got != want {
		return fmt.Errorf("pki: %w: the other side is %s, wanted is %s: check the addresses, and that each node has its own directory", ErrWrongName, got, want)
	}
	return nil
}

// PeerID says which node is at the other end of a connection that was made with
// the config of an Identity and has shaken hands.
func PeerID(conn net.Conn) (string, error) {
	t, ok := conn.(interface{ ConnectionState() tls.ConnectionState })
	if !ok {
		return "", errors.New("pki: the connection is not encrypted")
	}
	s := t.ConnectionState()
	if !s.HandshakeComplete || len(s.PeerCertificates) == 0 {
		return "", errors.New("pki: the other side has shown no certificate yet")
	}
	n, err := nameIn(s.PeerCertificates[0])
	if err != nil || !n.isNode() {
		return "", fmt.Errorf("pki: the other side is no node: %w", errors.Join(err, ErrWrongName))
	}
	return n.id, nil
}
