package pki

import (
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// Why a certificate is not believed.
var (
	ErrExpired     = errors.New("the certificate has ended")
	ErrNotYetValid = errors.New("the certificate is not good yet")
	ErrWrongCA     = errors.New("the certificate is of another authority")
	ErrWrongUse    = errors.New("the certificate is for another use")
	ErrWrongName   = errors.New("the certificate has another name")
	ErrRevoked     = errors.New("the certificate was withdrawn")
)

// verify says whether a chain, the leaf first, ends in an authority that is
// believed, at this time and for this use, and was not withdrawn.
func (p *papers) verify(chain []*x509.Certificate, usage x509.ExtKeyUsage, now time.Time) error {
	if len(chain) == 0 {
		return fmt.Errorf("%w: none was shown: give the other side its certificate", ErrWrongCA)
	}
	cert := chain[0]
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	chains, err := cert.Verify(x509.VerifyOptions{
		Roots: p.pool, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage},
	})
	if err != nil {
		return explain(cert, err, now)
	}
	for _, c := range chains {
		for i := range c[:len(c)-1] {
			if p.withdrawn[string(c[i+1].Raw)+c[i].SerialNumber.Text(16)] {
				return fmt.Errorf("%w (serial %x): make a new one with add-node", ErrRevoked, cert.SerialNumber)
			}
		}
	}
	return nil
}

// explain says what is wrong and what to do.
func explain(cert *x509.Certificate, err error, now time.Time) error {
	var invalid x509.CertificateInvalidError
	// The library says "expired" for both ends, and of any certificate in the
	// chain.
	if errors.As(err, &invalid) && invalid.Reason == x509.Expired {
		bad := cert
		if invalid.Cert != nil {
			bad = invalid.Cert
		}
		if now.Before(bad.NotBefore) {
			return fmt.Errorf("%w: %q begins at %s and it is %s here: set the clocks right", ErrNotYetValid,
				bad.Subject.CommonName, bad.NotBefore.Format(time.RFC3339), now.UTC().Format(time.RFC3339))
		}
		return fmt.Errorf("%w: %q ended at %s and it is %s here: renew it and copy it to its node (or set the clocks right)", ErrExpired,
			bad.Subject.CommonName, bad.NotAfter.Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	if errors.As(err, &invalid) && invalid.Reason == x509.IncompatibleUsage {
		return fmt.Errorf("%w: %q may not be used here: give each port and client the certificate made for it", ErrWrongUse, cert.Subject.CommonName)
	}
	if errors.As(err, new(x509.UnknownAuthorityError)) {
		return fmt.Errorf("%w: %q was issued by %q, which the CA file does not have: give both sides certificates of one cluster; while a CA is replaced, every node needs the bundle of both (%w)",
			ErrWrongCA, cert.Subject.CommonName, cert.Issuer.CommonName, err)
	}
	return fmt.Errorf("the certificate of %q is no good: %w", cert.Subject.CommonName, err)
}
