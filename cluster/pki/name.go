package pki

import (
	"crypto/x509"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strings"
)

var (
	// A cluster's name is a DNS label: it stands where a URI has its host, and
	// anything else is not parsed back alike by every library.
	clusterPattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	idPattern      = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`)
	hostPattern    = regexp.MustCompile(`^(\*\.)?[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*$`)
)

const (
	nodeRole    = "node"
	gatewayRole = "gateway" // a node without a vote: no server takes it for one
	clientRole  = "client"
)

// nameOf is the URI of a node or a client.
func nameOf(cluster, role, id string) *url.URL {
	return &url.URL{Scheme: "pulse", Host: cluster, Path: "/" + role + "/" + id}
}

// name is what a certificate calls its owner.
type name struct{ cluster, role, id string }

func (n name) String() string { return nameOf(n.cluster, n.role, n.id).String() }

// isNode says that it is one of the cluster's own processes, with a vote or without.
func (n name) isNode() bool { return n.role == nodeRole || n.role == gatewayRole }

// nameIn reads the name in a certificate. One with two names is nobody's.
func nameIn(cert *x509.Certificate) (name, error) {
	if len(cert.URIs) != 1 {
		return name{}, fmt.Errorf("it has %d URI names, one is wanted", len(cert.URIs))
	}
	u := cert.URIs[0]
	parts := strings.Split(u.Path, "/")
	if len(parts) != 3 {
		return name{}, fmt.Errorf("its name is %s, want pulse://<cluster>/node/<id>", u)
	}
	n := name{cluster: u.Host, role: parts[1], id: parts[2]}
	// Written out again it has to be the same text: no user, port, query or
	// escape may hide in it.
	if u.String() != n.String() || !clusterPattern.MatchString(n.cluster) || !idPattern.MatchString(n.id) {
		return name{}, fmt.Errorf("its name is %s, want pulse://<cluster>/node/<id>", u)
	}
	return n, nil
}

// reserved are directories beside those of the nodes.
var reserved = []string{caDir, clientsDir, revokedDir}

func checkNodeID(id string) error {
	if !idPattern.MatchString(id) {
		return fmt.Errorf("pki: node id %q: give a letter or digit, then up to 62 of letters, digits, _ . -", id)
	}
	for _, r := range append([]string{manifestFile, SecretFile}, reserved...) {
		// A file system may not tell A from a.
		if strings.EqualFold(id, r) {
			return fmt.Errorf("pki: node id %q is the name of a directory or file of ours: give another", id)
		}
	}
	return nil
}

func checkClientID(id string) error {
	if !idPattern.MatchString(id) {
		return fmt.Errorf("pki: client name %q: give a letter or digit, then up to 62 of letters, digits, _ . -", id)
	}
	return nil
}

func checkHosts(id string, hosts []string) error {
	if len(hosts) == 0 {
		return fmt.Errorf("pki: node %s has no host: give the names and addresses it is reached at", id)
	}
	for _, h := range hosts {
		if net.ParseIP(h) == nil && (len(h) > 253 || !hostPattern.MatchString(h)) {
			return fmt.Errorf("pki: node %s: %q is no host name and no address: give it without scheme and port", id, h)
		}
	}
	return nil
}
