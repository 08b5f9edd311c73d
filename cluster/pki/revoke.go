package pki

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/big"
	"os"
	"slices"
	"time"
)

// Revoke withdraws every certificate that a node was ever given and puts its
// directory away; AddNode may then make a new one under the same id. The others
// refuse the node from the moment that the list has been copied to them.
// Browsers and workers know no such list: they believe the node's HTTP
// certificate until the HTTP CA has been replaced, so do that too if its key was
// stolen. And the node knew the cluster secret.
func Revoke(dir, id string) error {
	v, err := openVault(dir)
	if err != nil {
		return err
	}
	if err := checkNodeID(id); err != nil {
		return err
	}
	return v.revoke(nodeKind, v.path(id), id)
}

// RevokeClient withdraws every certificate that a client was ever given and puts
// its directory away.
func RevokeClient(dir, id string) error {
	v, err := openVault(dir)
	if err != nil {
		return err
	}
	if err := checkClientID(id); err != nil {
		return err
	}
	return v.revoke(clientKind, v.path(clientsDir, id), id)
}

func (v *vault) revoke(k kind, dir, id string) error {
	given, err := v.recorded(k, id)
	if err != nil {
		return err
	}
	if len(given) == 0 {
		return fmt.Errorf("pki: no certificate was ever made for %s %q here", k, id)
	}
	if err := v.withdraw(k, given); err != nil {
		return err
	}
	// Out of the way before the rest is brought up to date.
	if err := os.MkdirAll(v.path(revokedDir), dirMode); err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	away := v.path(revokedDir, fmt.Sprintf("%s-%s-%s", k, id, given[len(given)-1].Serial))
	if err := os.Rename(dir, away); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("pki: %w", err)
	}
	return v.stockAll(k)
}

// withdraw signs new lists, one for each authority that is still believed: what
// others have issued is refused without one. There is one from the beginning, an
// empty one, because other programs refuse everybody for want of it. Nobody is
// told of servers' certificates that were withdrawn, so those have none.
func (v *vault) withdraw(k kind, given []entry) error {
	if k == httpKind {
		return nil
	}
	path := v.path(caDir, k.crlFile())
	lists := map[string]*x509.RevocationList{} // by the id of the key that signed it
	data, err := readFile(path)
	if err == nil {
		parsed, err := parseLists(data)
		if err != nil {
			return fmt.Errorf("pki: %s: %w", path, err)
		}
		for _, list := range parsed {
			lists[string(list.AuthorityKeyId)] = list
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var signed []byte
	for _, number := range v.manifest.Authorities[k].Believed {
		a, err := v.authority(k, number)
		if err != nil {
			return err
		}
		serials := map[string]bool{}
		old := lists[string(a.cert.SubjectKeyId)]
		if old != nil {
			for _, e := range old.RevokedCertificateEntries {
				serials[e.SerialNumber.Text(16)] = true
			}
		}
		for _, e := range given {
			if e.Authority == number {
				serials[e.Serial] = true
			}
		}
		list, err := a.list(old, slices.Sorted(maps.Keys(serials)), time.Now())
		if err != nil {
			return err
		}
		signed = append(signed, list...)
	}
	return replaceFile(path, signed, publicMode)
}

// list signs the authority's list of withdrawn certificates.
func (a authority) list(old *x509.RevocationList, serials []string, now time.Time) ([]byte, error) {
	list := &x509.RevocationList{
		Number:     big.NewInt(1),
		ThisUpdate: now.Add(-backdate),
		// Nodes do not ask for a fresher list: an operator copies them.
		NextUpdate: a.cert.NotAfter,
	}
	if old != nil {
		list.Number.Add(old.Number, big.NewInt(1))
	}
	for _, s := range serials {
		serial, ok := new(big.Int).SetString(s, 16)
		if !ok {
			return nil, fmt.Errorf("pki: %q in %s is no serial number", s, ledgerFile)
		}
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries,
			x509.RevocationListEntry{SerialNumber: serial, RevocationTime: now})
	}
	der, err := x509.CreateRevocationList(rand.Reader, list, a.cert, a.key)
	if err != nil {
		return nil, fmt.Errorf("pki: sign the list of withdrawn certificates: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: crlBlock, Bytes: der}), nil
}
