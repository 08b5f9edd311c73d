package pki

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// lineage is the succession of one authority. Its members have numbers, and at
// most two are believed at a time.
type lineage struct {
	Signs    int   `json:"signs"`
	Believed []int `json:"believed"` // oldest first
}

// Steps of RotateCA.
const (
	// Begun: nodes believe the new CA beside the old.
	Begun = "begun"
	// Switched: certificates are of the new CA, the old one is still believed.
	Switched = "switched"
	// Finished: the old CA is believed no more.
	Finished = "finished"
)

func (v *vault) authorityPath(k kind, number int, ending string) string {
	return v.path(caDir, fmt.Sprintf("%s-ca-%d%s", k, number, ending))
}

// authority is the one of a number.
func (v *vault) authority(k kind, number int) (authority, error) {
	certPath, keyPath := v.authorityPath(k, number, ".pem"), v.authorityPath(k, number, ".key")
	certPEM, errCert := readFile(certPath)
	keyPEM, errKey := readFile(keyPath)
	if err := errors.Join(errCert, errKey); err != nil {
		return authority{}, err
	}
	certs, err := parseAuthorities(certPEM)
	if err != nil {
		return authority{}, fmt.Errorf("pki: %s: %w", certPath, err)
	}
	key, err := parseKey(keyPEM)
	if err != nil {
		return authority{}, fmt.Errorf("pki: %s: %w", keyPath, err)
	}
	return authority{certs[0], key}, nil
}

// signer is the one that signs now.
func (v *vault) signer(k kind) (authority, error) {
	return v.authority(k, v.manifest.Authorities[k].Signs)
}

// makeAuthority writes an authority, over an unfinished one of its number.
func (v *vault) makeAuthority(k kind, number int) error {
	certPEM, keyPEM, err := newAuthority(k, v.manifest.Cluster, time.Now())
	if err != nil {
		return err
	}
	if err := replaceFile(v.authorityPath(k, number, ".key"), keyPEM, secretMode); err != nil {
		return err
	}
	return replaceFile(v.authorityPath(k, number, ".pem"), certPEM, publicMode)
}

// bundle is every authority of a kind that is to be believed now.
func (v *vault) bundle(k kind) ([]byte, error) {
	var all []byte
	for _, number := range v.manifest.Authorities[k].Believed {
		certPEM, err := readFile(v.authorityPath(k, number, ".pem"))
		if err != nil {
			return nil, err
		}
		all = append(all, certPEM...)
	}
	return all, nil
}

// stockDir brings a directory's copies of what is believed up to date.
func (v *vault) stockDir(dir string, k kind) error {
	bundle, err := v.bundle(k)
	if err != nil {
		return err
	}
	if err := replaceFile(filepath.Join(dir, k.caFile()), bundle, publicMode); err != nil {
		return err
	}
	lists, err := readFile(v.path(caDir, k.crlFile()))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return replaceFile(filepath.Join(dir, k.crlFile()), lists, publicMode)
}

func (v *vault) stockAll(k kind) error {
	dirs, err := v.stock(k)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := v.stockDir(dir, k); err != nil {
			return err
		}
	}
	return nil
}

// RenewOptions say what to renew.
type RenewOptions struct {
	Nodes    []string // empty with Clients empty: everything
	Clients  []string
	Validity time.Duration // 0: DefaultValidity
}

// Renew makes new keys and certificates with the names of the old ones, in
// place. Running nodes take them up within a second of being copied there.
func Renew(dir string, o RenewOptions) ([]Issued, error) {
	v, err := openVault(dir)
	if err != nil {
		return nil, err
	}
	validity, err := checkValidity(o.Validity)
	if err != nil {
		return nil, err
	}
	nodes, errNodes := v.nodes()
	clients, errClients := v.clients()
	if err := errors.Join(errNodes, errClients); err != nil {
		return nil, err
	}
	if len(o.Nodes) > 0 || len(o.Clients) > 0 {
		for _, id := range o.Nodes {
			if !slices.Contains(nodes, id) {
				return nil, fmt.Errorf("pki: there is no node %q in %s: it has %v", id, dir, nodes)
			}
		}
		for _, id := range o.Clients {
			if !slices.Contains(clients, id) {
				return nil, fmt.Errorf("pki: there is no client %q in %s: it has %v", id, dir, clients)
			}
		}
		nodes, clients = o.Nodes, o.Clients
	}
	var issued []Issued
	for _, k := range kinds {
		made, err := v.renew(k, nodes, clients, validity)
		if err != nil {
			return issued, err
		}
		issued = append(issued, made...)
	}
	return issued, nil
}

// renew makes the certificates of one kind anew.
func (v *vault) renew(k kind, nodes, clients []string, validity time.Duration) ([]Issued, error) {
	ids, parent := nodes, v.dir
	if k == clientKind {
		ids, parent = clients, v.path(clientsDir)
	}
	var issued []Issued
	for _, id := range ids {
		dir := filepath.Join(parent, id)
		was, role, err := v.leafIn(dir, k, id)
		if err != nil {
			return issued, err
		}
		hosts := slices.Clone(was.DNSNames)
		for _, ip := range was.IPAddresses {
			hosts = append(hosts, ip.String())
		}
		made, err := v.issueTo(dir, k, v.leafOf(k, id, role, hosts), id, validity)
		if err != nil {
			return issued, err
		}
		issued = append(issued, made)
	}
	return issued, nil
}

// leafIn reads a certificate of ours, with the role that it names, and makes sure
// that it is.
func (v *vault) leafIn(dir string, k kind, id string) (_ *x509.Certificate, role string, err error) {
	path := filepath.Join(dir, k.certFile())
	data, err := readFile(path)
	if err != nil {
		return nil, "", err
	}
	certs, err := parseCerts(data)
	if err != nil {
		return nil, "", fmt.Errorf("pki: %s: %w", path, err)
	}
	if k == httpKind {
		return certs[0], "", nil // it names hosts alone
	}
	got, err := nameIn(certs[0])
	if err != nil {
		return nil, "", fmt.Errorf("pki: %s: %w", path, err)
	}
	want := v.leafOf(k, id, got.role, nil).uri
	if got.String() != want.String() || (got.role == clientRole) != (k == clientKind) {
		return nil, "", fmt.Errorf("pki: %s is the certificate of %s, not of %s: put back the right one", path, got, want)
	}
	return certs[0], got.role, nil
}

// CAs that RotateCA takes.
var CAs = []string{string(nodeKind), string(httpKind), string(clientKind)}

// RotateCA takes the next of three steps in the replacement of one authority,
// "node", "http" or "client", and says which it was. After each, the
// directories are copied to their nodes (and clients), all of them, before the
// next is taken: a node has to believe the new authority before anybody shows a
// certificate of it, and all have to show one before the old is forgotten.
func RotateCA(dir, which string, validity time.Duration) (step string, issued []Issued, err error) {
	k := kind(which)
	if !slices.Contains(kinds, k) {
		return "", nil, fmt.Errorf("pki: there is no %q CA: give one of %v", which, CAs)
	}
	v, err := openVault(dir)
	if err != nil {
		return "", nil, err
	}
	validity, err = checkValidity(validity)
	if err != nil {
		return "", nil, err
	}
	switch line := v.manifest.Authorities[k]; {
	case len(line.Believed) == 1:
		return Begun, nil, v.beginRotation(k)
	case line.Signs == line.Believed[0]:
		issued, err = v.switchRotation(k, validity)
		return Switched, issued, err
	default:
		return Finished, nil, v.finishRotation(k)
	}
}

// Each step does its work first and saves last that it is done: one that was
// interrupted is taken again, whole.

func (v *vault) beginRotation(k kind) error {
	line := v.manifest.Authorities[k]
	successor := line.Signs + 1
	if err := v.makeAuthority(k, successor); err != nil {
		return err
	}
	v.manifest.Authorities[k] = lineage{Signs: line.Signs, Believed: []int{line.Signs, successor}}
	if err := v.withdraw(k, nil); err != nil {
		return err
	}
	if err := v.stockAll(k); err != nil {
		return err
	}
	return v.saveManifest()
}

func (v *vault) switchRotation(k kind, validity time.Duration) ([]Issued, error) {
	line := v.manifest.Authorities[k]
	v.manifest.Authorities[k] = lineage{Signs: line.Believed[1], Believed: line.Believed}
	nodes, errNodes := v.nodes()
	clients, errClients := v.clients()
	if err := errors.Join(errNodes, errClients); err != nil {
		return nil, err
	}
	issued, err := v.renew(k, nodes, clients, validity)
	if err != nil {
		return issued, err
	}
	return issued, v.saveManifest()
}

func (v *vault) finishRotation(k kind) error {
	line := v.manifest.Authorities[k]
	v.manifest.Authorities[k] = lineage{Signs: line.Signs, Believed: []int{line.Signs}}
	if err := v.withdraw(k, nil); err != nil {
		return err
	}
	if err := v.stockAll(k); err != nil {
		return err
	}
	if err := v.saveManifest(); err != nil {
		return err
	}
	// A key that signs nothing any more is only good for being stolen.
	for _, ending := range []string{".key", ".pem"} {
		if err := os.Remove(v.authorityPath(k, line.Believed[0], ending)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("pki: the old CA is out of use, but take it away yourself: %w", err)
		}
	}
	return nil
}
