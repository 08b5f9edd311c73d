package pki

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	// DefaultValidity of certificates. A year, so that renewing them is done
	// often enough to be remembered and seldom enough to be bearable.
	DefaultValidity = 365 * 24 * time.Hour
	validityMin     = time.Hour
	validityMax     = authorityYears * 365 * 24 * time.Hour

	nodesMax = 1000
)

// NodeSpec is a node that gets certificates.
type NodeSpec struct {
	ID string
	// Hosts are the names and addresses it is reached at, without ports. A
	// balancer's name belongs here too if it passes TLS through.
	Hosts []string
}

// InitOptions of a new cluster.
type InitOptions struct {
	// Cluster is its name in every certificate, a DNS label. Empty: one is drawn,
	// so that two clusters are never taken for each other.
	Cluster  string
	Nodes    []NodeSpec
	Gateways []NodeSpec    // nodes without a vote
	Clients  []string      // names of clients that get a certificate too
	Validity time.Duration // of the certificates; 0: DefaultValidity
	// Keep takes a directory that is there for what it is: only nodes and
	// clients that it does not have are made. So a start script may say the same
	// thing each time.
	Keep bool
}

// Issued is a certificate that was made.
type Issued struct {
	Path     string
	For      string // a node's id or a client's name
	NotAfter time.Time
}

// Init makes the directory of a secure cluster: its secret, its authorities, and
// the certificates of its first nodes. A directory that holds anything is left
// alone, unless Keep is set.
func Init(dir string, o InitOptions) ([]Issued, error) {
	validity, err := o.check()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("pki: %w", err)
	case len(entries) > 0 && o.Keep:
		return complete(dir, o, validity)
	case len(entries) > 0:
		return nil, fmt.Errorf("pki: %s is not empty and nothing in it is overwritten: give a new directory, or add-node to enlarge the cluster it holds", dir)
	}
	if o.Cluster == "" {
		o.Cluster = "c" + newSerial().Text(36)[:12]
	}
	v := &vault{dir: dir, manifest: manifest{
		Format: manifestFormat, Cluster: o.Cluster, CreatedAt: time.Now().UTC().Truncate(time.Second), Authorities: map[kind]lineage{},
	}}
	if err := v.found(); err != nil {
		return nil, err
	}
	issued, err := v.addMissing(o, validity)
	if err != nil {
		return nil, err
	}
	// Last: a directory without it is an unfinished one, and says so.
	return issued, v.saveManifest()
}

// check says whether the options make sense, and how long certificates last.
func (o InitOptions) check() (validity time.Duration, err error) {
	if o.Cluster != "" && !clusterPattern.MatchString(o.Cluster) {
		return 0, fmt.Errorf("pki: cluster name %q: give up to 63 of a-z, 0-9 and -, no - at the ends", o.Cluster)
	}
	if len(o.Nodes) == 0 || len(o.Nodes)+len(o.Gateways) > nodesMax {
		return 0, fmt.Errorf("pki: %d nodes and %d gateways are given: give 1 to %d in all, and one node at least", len(o.Nodes), len(o.Gateways), nodesMax)
	}
	seen := map[string]string{}
	for _, n := range slices.Concat(o.Nodes, o.Gateways) {
		if err := errors.Join(checkNodeID(n.ID), checkHosts(n.ID, n.Hosts)); err != nil {
			return 0, err
		}
		if was, taken := seen[strings.ToLower(n.ID)]; taken {
			return 0, fmt.Errorf("pki: nodes %s and %s have one name for a file system that does not tell A from a: give each its own", was, n.ID)
		}
		seen[strings.ToLower(n.ID)] = n.ID
	}
	for _, id := range o.Clients {
		if err := checkClientID(id); err != nil {
			return 0, err
		}
	}
	return checkValidity(o.Validity)
}

// complete makes what a directory that is there does not have.
func complete(dir string, o InitOptions, validity time.Duration) ([]Issued, error) {
	v, err := openVault(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("pki: %s is not empty and holds no whole cluster: empty it if an interrupted init-tls has left it so: %w", dir, err)
	}
	if err != nil {
		return nil, err
	}
	if o.Cluster != "" && o.Cluster != v.manifest.Cluster {
		return nil, fmt.Errorf("pki: %s is of cluster %s, not of %s: give another directory", dir, v.manifest.Cluster, o.Cluster)
	}
	return v.addMissing(o, validity)
}

// addMissing makes the nodes and clients that are not there.
func (v *vault) addMissing(o InitOptions, validity time.Duration) (issued []Issued, err error) {
	if issued, err = v.addMissingNodes(o.Nodes, nodeRole, validity); err != nil {
		return issued, err
	}
	made, err := v.addMissingNodes(o.Gateways, gatewayRole, validity)
	if issued = append(issued, made...); err != nil {
		return issued, err
	}
	for _, id := range o.Clients {
		if _, err := os.Stat(v.path(clientsDir, id, ClientCertFile)); err == nil {
			continue
		}
		made, err := v.addClient(id, validity)
		if err != nil {
			return issued, err
		}
		issued = append(issued, made...)
	}
	return issued, nil
}

func (v *vault) addMissingNodes(nodes []NodeSpec, role string, validity time.Duration) (issued []Issued, err error) {
	for _, n := range nodes {
		there, err := v.hosts(n, role)
		if err != nil {
			return issued, err
		}
		if there {
			continue
		}
		made, err := v.addNode(n, role, validity)
		if err != nil {
			return issued, err
		}
		issued = append(issued, made...)
	}
	return issued, nil
}

// hosts says whether a node is there, and refuses to take one for there whose
// certificate lacks a host or is of another role.
func (v *vault) hosts(n NodeSpec, role string) (there bool, err error) {
	if _, err := os.Stat(v.path(n.ID, NodeCertFile)); err != nil {
		return false, nil //nolint:nilerr // then it is made, which says what is wrong
	}
	for _, k := range []kind{nodeKind, httpKind} {
		cert, was, err := v.leafIn(v.path(n.ID), k, n.ID)
		if err != nil {
			return false, err
		}
		if k == nodeKind && was != role {
			return false, fmt.Errorf("pki: %s has the certificate of a %s, and that of a %s is asked for: revoke it and add it again", n.ID, was, role)
		}
		for _, h := range n.Hosts {
			if !named(cert, h) {
				return false, fmt.Errorf("pki: the %s certificate of node %s is not for %s: revoke the node and add it with all its hosts, or leave that host out", k, n.ID, h)
			}
		}
	}
	return true, nil
}

// named says whether a certificate has exactly this name or address.
func named(cert *x509.Certificate, host string) bool {
	if ip := net.ParseIP(host); ip != nil {
		return slices.ContainsFunc(cert.IPAddresses, ip.Equal)
	}
	return slices.Contains(cert.DNSNames, host)
}

func checkValidity(d time.Duration) (time.Duration, error) {
	if d == 0 {
		return DefaultValidity, nil
	}
	if d < validityMin || d > validityMax {
		return 0, fmt.Errorf("pki: a validity of %v is given: give %v to %v, or nothing for %v", d, validityMin, validityMax, DefaultValidity)
	}
	return d, nil
}

// found makes the secret and the authorities.
func (v *vault) found() error {
	for _, d := range []string{v.dir, v.path(caDir), v.path(clientsDir)} {
		if err := os.MkdirAll(d, dirMode); err != nil {
			return fmt.Errorf("pki: %w", err)
		}
	}
	if err := createFile(v.path(SecretFile), newSecret(), secretMode); err != nil {
		return err
	}
	for _, k := range kinds {
		if err := v.makeAuthority(k, 1); err != nil {
			return err
		}
		v.manifest.Authorities[k] = lineage{Signs: 1, Believed: []int{1}}
		if err := v.withdraw(k, nil); err != nil {
			return err
		}
	}
	return nil
}

// AddNode makes the directory of one more node.
func AddNode(dir string, n NodeSpec, validity time.Duration) ([]Issued, error) {
	return addTo(dir, n, nodeRole, validity)
}

// AddGateway makes the directory of one more node without a vote. Its certificate
// is good wherever a node's is, but for where servers vote.
func AddGateway(dir string, n NodeSpec, validity time.Duration) ([]Issued, error) {
	return addTo(dir, n, gatewayRole, validity)
}

func addTo(dir string, n NodeSpec, role string, validity time.Duration) ([]Issued, error) {
	v, err := openVault(dir)
	if err != nil {
		return nil, err
	}
	validity, err = checkValidity(validity)
	if err := errors.Join(err, checkNodeID(n.ID), checkHosts(n.ID, n.Hosts)); err != nil {
		return nil, err
	}
	return v.addNode(n, role, validity)
}

// AddClient makes the directory of a client: a certificate that says at the HTTP
// port who it is.
func AddClient(dir, id string, validity time.Duration) ([]Issued, error) {
	v, err := openVault(dir)
	if err != nil {
		return nil, err
	}
	validity, err = checkValidity(validity)
	if err != nil {
		return nil, err
	}
	if err := checkClientID(id); err != nil {
		return nil, err
	}
	return v.addClient(id, validity)
}

func (v *vault) addClient(id string, validity time.Duration) ([]Issued, error) {
	return v.addHolder(v.path(clientsDir, id), id, clientRole, []kind{clientKind}, nil, validity)
}

func (v *vault) addNode(n NodeSpec, role string, validity time.Duration) ([]Issued, error) {
	return v.addHolder(v.path(n.ID), n.ID, role, []kind{nodeKind, httpKind}, n.Hosts, validity)
}

// addHolder makes a new directory with certificates and all that goes with them.
// When something fails, the directory is taken away again.
func (v *vault) addHolder(dir, id, role string, of []kind, hosts []string, validity time.Duration) (issued []Issued, err error) {
	if err := os.Mkdir(dir, dirMode); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("pki: %s is there already and is not overwritten: renew it, or revoke it first to start anew: %w", dir, err)
		}
		return nil, fmt.Errorf("pki: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	for _, k := range of {
		made, err := v.issueTo(dir, k, v.leafOf(k, id, role, hosts), id, validity)
		if err != nil {
			return nil, err
		}
		issued = append(issued, made)
	}
	if slices.Contains(of, nodeKind) {
		secret, err := readFile(v.path(SecretFile))
		if err != nil {
			return nil, err
		}
		if err := createFile(filepath.Join(dir, SecretFile), secret, secretMode); err != nil {
			return nil, err
		}
	}
	for _, k := range kinds {
		// A client needs to know the HTTP port, and no more.
		if k != httpKind && !slices.Contains(of, nodeKind) {
			continue
		}
		if err := v.stockDir(dir, k); err != nil {
			return nil, err
		}
	}
	return issued, syncDir(filepath.Dir(dir))
}

// leafOf says what the certificate of a node or client is good for.
func (v *vault) leafOf(k kind, id, role string, hosts []string) leaf {
	switch k {
	case nodeKind:
		// A node calls and is called.
		return leaf{id, nameOf(v.manifest.Cluster, role, id), hosts,
			[]x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	case httpKind:
		// Health checks and the operator's verbs on the node itself call
		// localhost.
		all := slices.Clone(hosts)
		for _, h := range []string{"localhost", "127.0.0.1", "::1"} {
			if !slices.Contains(all, h) {
				all = append(all, h)
			}
		}
		return leaf{id, nil, all, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	default:
		return leaf{id, nameOf(v.manifest.Cluster, clientRole, id), nil, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	}
}

// issueTo puts a new certificate and its key into a directory, over the ones
// that are there.
func (v *vault) issueTo(dir string, k kind, l leaf, id string, validity time.Duration) (Issued, error) {
	a, err := v.signer(k)
	if err != nil {
		return Issued{}, err
	}
	serial, now := newSerial(), time.Now()
	until := now.Add(validity)
	certPEM, keyPEM, err := a.issue(l, serial, now, until)
	if err != nil {
		return Issued{}, err
	}
	err = v.record(entry{Kind: k, ID: id, Authority: v.manifest.Authorities[k].Signs, Serial: serial.Text(16), NotAfter: until.UTC()})
	if err != nil {
		return Issued{}, err
	}
	if err := replaceFile(filepath.Join(dir, k.keyFile()), keyPEM, secretMode); err != nil {
		return Issued{}, err
	}
	path := filepath.Join(dir, k.certFile())
	return Issued{Path: path, For: id, NotAfter: until}, replaceFile(path, certPEM, publicMode)
}
