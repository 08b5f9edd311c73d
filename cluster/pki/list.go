package pki

import (
	"fmt"
	"path/filepath"
	"time"
)

// Certificate is one that an operator's directory holds.
type Certificate struct {
	Path     string
	For      string // a node's id, a client's name, or "CA"
	Use      string // "node", "http" or "client": the authority that signs it
	Hosts    []string
	NotAfter time.Time
}

// Listing is what an operator's directory holds.
type Listing struct {
	Cluster string
	// Rotations are the authorities that are being replaced, with the step that
	// RotateCA took last: Begun or Switched.
	Rotations map[string]string
	// Certificates are the authorities' that are believed, and then those of
	// nodes and clients. Withdrawn ones are not listed.
	Certificates []Certificate
}

// List says what an operator's directory holds.
func List(dir string) (Listing, error) {
	v, err := openVault(dir)
	if err != nil {
		return Listing{}, err
	}
	l := Listing{Cluster: v.manifest.Cluster, Rotations: map[string]string{}}
	for _, k := range kinds {
		line := v.manifest.Authorities[k]
		if len(line.Believed) == 2 {
			l.Rotations[string(k)] = Begun
			if line.Signs == line.Believed[1] {
				l.Rotations[string(k)] = Switched
			}
		}
		for _, number := range line.Believed {
			a, err := v.authority(k, number)
			if err != nil {
				return Listing{}, err
			}
			l.Certificates = append(l.Certificates, Certificate{
				Path: v.authorityPath(k, number, ".pem"), For: "CA", Use: string(k), NotAfter: a.cert.NotAfter,
			})
		}
	}
	nodes, err := v.nodes()
	if err != nil {
		return Listing{}, err
	}
	for _, id := range nodes {
		for _, k := range []kind{nodeKind, httpKind} {
			if err := v.listOne(&l, v.path(id), k, id); err != nil {
				return Listing{}, err
			}
		}
	}
	clients, err := v.clients()
	if err != nil {
		return Listing{}, err
	}
	for _, id := range clients {
		if err := v.listOne(&l, v.path(clientsDir, id), clientKind, id); err != nil {
			return Listing{}, err
		}
	}
	return l, nil
}

func (v *vault) listOne(l *Listing, dir string, k kind, id string) error {
	cert, _, err := v.leafIn(dir, k, id)
	if err != nil {
		return err
	}
	c := Certificate{Path: filepath.Join(dir, k.certFile()), For: id, Use: string(k), NotAfter: cert.NotAfter}
	c.Hosts = append(c.Hosts, cert.DNSNames...)
	for _, ip := range cert.IPAddresses {
		c.Hosts = append(c.Hosts, fmt.Sprint(ip))
	}
	l.Certificates = append(l.Certificates, c)
	return nil
}
