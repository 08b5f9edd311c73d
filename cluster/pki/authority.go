package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"time"
)

const (
	certBlock = "CERTIFICATE"
	keyBlock  = "PRIVATE KEY"
	crlBlock  = "X509 CRL"

	// backdate lets a certificate be used at once by a node whose clock is a
	// little behind the operator's.
	backdate = 5 * time.Minute
	// authorityYears is how long an authority lives. RotateCA replaces it.
	authorityYears = 10
)

// authority is a certificate that signs, and its key.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("pki: make a key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("pki: write a key: %w", err)
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: keyBlock, Bytes: der}), nil
}

func newSerial() *big.Int {
	raw := make([]byte, 16)
	_, _ = rand.Read(raw) // it never fails: crypto/rand would end the program
	raw[0] &= 0x7f
	raw[15] |= 1 // never zero
	return new(big.Int).SetBytes(raw)
}

// newAuthority makes an authority that signs certificates and no authorities.
func newAuthority(k kind, cluster string, now time.Time) (certPEM, keyPEM []byte, err error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	serial := newSerial()
	template := &x509.Certificate{
		SerialNumber: serial,
		// The serial keeps an authority and its successor apart by name too.
		Subject:               pkix.Name{Organization: []string{"Pulse " + cluster}, CommonName: fmt.Sprintf("Pulse %s CA %x", k, serial.Bytes()[:4])},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.AddDate(authorityYears, 0, 0),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, nil, fmt.Errorf("pki: make the %s CA: %w", k, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: certBlock, Bytes: der}), keyPEM, nil
}

// leaf is a certificate to be: who it is for and where it is good.
type leaf struct {
	commonName string
	uri        *url.URL // nil for HTTP
	hosts      []string
	usage      []x509.ExtKeyUsage
}

// issue signs a new key for a leaf.
func (a authority) issue(l leaf, serial *big.Int, now, until time.Time) (certPEM, keyPEM []byte, err error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	if until.After(a.cert.NotAfter) {
		return nil, nil, fmt.Errorf("pki: %s ends at %s, before the certificate would: rotate the CA first, or ask for less validity",
			a.cert.Subject.CommonName, a.cert.NotAfter.Format(time.RFC3339))
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{Organization: a.cert.Subject.Organization, CommonName: l.commonName},
		NotBefore:    now.Add(-backdate),
		NotAfter:     until,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  l.usage,
		// Said out loud: this one signs nothing.
		BasicConstraintsValid: true,
	}
	if l.uri != nil {
		template.URIs = []*url.URL{l.uri}
	}
	for _, h := range l.hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("pki: sign the certificate of %s: %w", l.commonName, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: certBlock, Bytes: der}), keyPEM, nil
}

// blocksMax bounds how many certificates or lists one file holds: an authority
// and its successor, with room for a third party's intermediates.
const blocksMax = 16

// blocks reads the PEM blocks of one type. Anything else in the file is refused,
// so that a file in the wrong place is noticed.
func blocks(data []byte, blockType string) ([][]byte, error) {
	var out [][]byte
	for {
		block, rest := pem.Decode(data)
		if block == nil {
			break
		}
		if block.Type != blockType {
			return nil, fmt.Errorf("it holds a %q, want %q: is it the right file?", block.Type, blockType)
		}
		if len(out) == blocksMax {
			return nil, fmt.Errorf("it holds more than %d of %q", blocksMax, blockType)
		}
		out, data = append(out, block.Bytes), rest
	}
	if len(bytes.TrimSpace(data)) > 0 {
		return nil, errors.New("it holds something that is no PEM, or is cut off")
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("it holds no %q", blockType)
	}
	return out, nil
}

// parseCerts reads certificates, the leaf first.
func parseCerts(data []byte) ([]*x509.Certificate, error) {
	ders, err := blocks(data, certBlock)
	if err != nil {
		return nil, err
	}
	var out []*x509.Certificate
	for _, der := range ders {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, err
		}
		out = append(out, cert)
	}
	return out, nil
}

// parseAuthorities reads the certificates of authorities.
func parseAuthorities(data []byte) ([]*x509.Certificate, error) {
	certs, err := parseCerts(data)
	if err != nil {
		return nil, err
	}
	for _, c := range certs {
		if !c.IsCA || !c.BasicConstraintsValid {
			return nil, fmt.Errorf("%q is the certificate of no authority: give the CA's", c.Subject.CommonName)
		}
	}
	return certs, nil
}

func parseLists(data []byte) ([]*x509.RevocationList, error) {
	ders, err := blocks(data, crlBlock)
	if err != nil {
		return nil, err
	}
	var out []*x509.RevocationList
	for _, der := range ders {
		list, err := x509.ParseRevocationList(der)
		if err != nil {
			return nil, err
		}
		out = append(out, list)
	}
	return out, nil
}

func parseKey(data []byte) (crypto.Signer, error) {
	ders, err := blocks(data, keyBlock)
	if err != nil {
		return nil, err
	}
	key, err := x509.ParsePKCS8PrivateKey(ders[0])
	if err != nil {
		return nil, err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, errors.New("its key cannot sign")
	}
	return signer, nil
}
