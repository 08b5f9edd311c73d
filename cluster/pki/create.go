package pki

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
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
	Validity time.Duration // of the certificates; 0: DefaultValidity
}

// Issued is a certificate that was made.
type Issued struct {
	Path     string
	For      string // a node's id or a client's name
	NotAfter time.Time
}

// Init makes the directory of a secure cluster: its secret, its authorities, and
// the certificates of its first nodes. A directory that holds anything is left
// alone.
func Init(dir string, o InitOptions) ([]Issued, error) {
	if o.Cluster == "" {
		o.Cluster = "c" + newSerial().Text(36)[:12]
	}
	if !clusterPattern.MatchString(o.Cluster) {
		return nil, fmt.Errorf("pki: cluster name %q: give up to 63 of a-z, 0-9 and -, no - at the ends", o.Cluster)
	}
	if len(o.Nodes) == 0 || len(o.Nodes) > nodesMax {
		return nil, fmt.Errorf("pki: %d nodes are given: give 1 to %d", len(o.Nodes), nodesMax)
	}
	seen := map[string]string{}
	for _, n := range o.Nodes {
		if err := errors.Join(checkNodeID(n.ID), checkHosts(n.ID, n.Hosts)); err != nil {
			return nil, err
		}
		if was, taken := seen[strings.ToLower(n.ID)]; taken {
			return nil, fmt.Errorf("pki: nodes %s and %s have one name for a file system that does not tell A from a: give each its own", was, n.ID)
		}
		seen[strings.ToLower(n.ID)] = n.ID
	}
	validity, err := checkValidity(o.Validity)
	if err != nil {
		return nil, err
	}
	switch entries, err := os.ReadDir(dir); {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("pki: %w", err)
	case len(entries) > 0:
		return nil, fmt.Errorf("pki: %s is not empty and nothing in it is overwritten: give a new directory, or add-node to enlarge the cluster it holds", dir)
	}

	v := &vault{dir: dir, manifest: manifest{
		Format: manifestFormat, Cluster: o.Cluster, CreatedAt: time.Now().UTC().Truncate(time.Second), Authorities: map[kind]lineage{},
	}}
	if err := v.found(); err != nil {
		return nil, err
	}
	var issued []Issued
	for _, n := range o.Nodes {
		made, err := v.addNode(n, validity)
		if err != nil {
			return nil, err
		}
		issued = append(issued, made...)
	}
	// Last: a directory without it is an unfinished one, and says so.
	return issued, v.saveManifest()
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
	}
	return nil
}

// AddNode makes the directory of one more node.
func AddNode(dir string, n NodeSpec, validity time.Duration) ([]Issued, error) {
	v, err := openVault(dir)
	if err != nil {
		return nil, err
	}
	validity, err = checkValidity(validity)
	if err := errors.Join(err, checkNodeID(n.ID), checkHosts(n.ID, n.Hosts)); err != nil {
		return nil, err
	}
	return v.addNode(n, validity)
}

// AddClient makes the directory of a client: a certificate for the HTTP port,
// good beside a token and never instead of one.
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
	return v.addHolder(v.path(clientsDir, id), id, []kind{clientKind}, nil, validity)
}

func (v *vault) addNode(n NodeSpec, validity time.Duration) ([]Issued, error) {
	return v.addHolder(v.path(n.ID), n.ID, []kind{nodeKind, httpKind}, n.Hosts, validity)
}

// addHolder makes a new directory with certificates and all that goes with them.
// When something fails, the directory is taken away again.
func (v *vault) addHolder(dir, id string, of []kind, hosts []string, validity time.Duration) (issued []Issued, err error) {
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
		made, err := v.issueTo(dir, k, v.leafOf(k, id, hosts), id, validity)
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
func (v *vault) leafOf(k kind, id string, hosts []string) leaf {
	switch k {
	case nodeKind:
		// A node calls and is called.
		return leaf{id, nameOf(v.manifest.Cluster, nodeRole, id), hosts,
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
