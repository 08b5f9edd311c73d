package pki

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"
	"time"
)

// lookEvery is how often files are looked at while hands are shaken. They are
// read and compared whole: a modification time does not tell two copies made in
// the same tick apart, and they are small.
const lookEvery = time.Second

// Reload is what a node found when its files had changed.
type Reload struct {
	// Err says why the new files are not used; the last good ones are. nil: they
	// are in use now.
	Err error
	// NotAfter is when the certificate that is in use ends.
	NotAfter time.Time
}

// papers are the files of one door, understood.
type papers struct {
	raw         [4][]byte // CA, Cert, Key, CRL as they were read
	cert        *tls.Certificate
	authorities []*x509.Certificate
	pool        *x509.CertPool
	withdrawn   map[string]bool // authority and serial
	name        name            // of the certificate, where it has one
}

// desk holds the newest good papers. Its methods may be called from any
// goroutine.
type desk struct {
	files    Files
	check    func(*papers, time.Time) error // what makes papers good at this door
	onReload func(Reload)

	now atomic.Pointer[papers]

	mu       sync.Mutex // one looks at a time; guards what is below
	looked   time.Time
	reported string
}

// openDesk reads the papers. What is wrong with them at the start is an error.
func openDesk(files Files, check func(*papers, time.Time) error, onReload func(Reload)) (*desk, error) {
	if onReload == nil {
		onReload = func(Reload) {}
	}
	d := &desk{files: files, check: check, onReload: onReload, looked: time.Now()}
	raw, err := d.read()
	if err != nil {
		return nil, err
	}
	p, err := d.understand(raw)
	if err != nil {
		return nil, err
	}
	d.now.Store(p)
	return d, nil
}

// papers gives the newest good ones, looking at the files first if nobody has
// for a while. Whoever comes while another looks does not wait.
func (d *desk) papers() *papers {
	if d.mu.TryLock() {
		var news *Reload
		if time.Since(d.looked) >= lookEvery {
			news = d.look()
		}
		d.mu.Unlock()
		if news != nil {
			d.onReload(*news)
		}
	}
	return d.now.Load()
}

// validity is the life of the certificate that is in use.
func (d *desk) validity() (notBefore, notAfter time.Time) {
	leaf := d.papers().cert.Leaf
	return leaf.NotBefore, leaf.NotAfter
}

// look reads the files again and says what is new, if anything is. The caller
// holds mu.
func (d *desk) look() *Reload {
	d.looked = time.Now()
	old := d.now.Load()
	raw, err := d.read()
	if err == nil && same(raw, old.raw) {
		d.reported = ""
		return nil
	}
	var p *papers
	if err == nil {
		p, err = d.understand(raw)
	}
	if err == nil {
		d.now.Store(p)
		d.reported = ""
		return &Reload{NotAfter: p.cert.Leaf.NotAfter}
	}
	// Copying several files takes a moment in which they do not fit together:
	// say it once, and look again.
	if err.Error() == d.reported {
		return nil
	}
	d.reported = err.Error()
	return &Reload{
		Err:      fmt.Errorf("the new certificate files are not used, those read before stay in use until they end: %w", err),
		NotAfter: old.cert.Leaf.NotAfter,
	}
}

func same(a, b [4][]byte) bool {
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

func (d *desk) read() (raw [4][]byte, err error) {
	for i, path := range []string{d.files.CA, d.files.Cert, d.files.Key, d.files.CRL} {
		if path == "" {
			continue
		}
		data, err := readFile(path)
		if path == d.files.CRL && errors.Is(err, fs.ErrNotExist) {
			// Once there was a list, its absence must not make good again what
			// it withdrew.
			if old := d.now.Load(); old == nil || old.raw[i] == nil {
				continue
			}
		}
		if err != nil {
			return raw, err
		}
		raw[i] = data
	}
	return raw, nil
}

func (d *desk) understand(raw [4][]byte) (*papers, error) {
	p := &papers{raw: raw, pool: x509.NewCertPool(), withdrawn: map[string]bool{}}
	var err error
	if d.files.CA != "" {
		if p.authorities, err = parseAuthorities(raw[0]); err != nil {
			return nil, fmt.Errorf("pki: %s: %w", d.files.CA, err)
		}
	}
	for _, a := range p.authorities {
		p.pool.AddCert(a)
	}
	cert, err := tls.X509KeyPair(raw[1], raw[2])
	if err != nil {
		return nil, fmt.Errorf("pki: %s with %s: %w: give a certificate and its own key, both in PEM", d.files.Cert, d.files.Key, err)
	}
	p.cert = &cert
	if raw[3] != nil {
		if err := p.readLists(raw[3]); err != nil {
			return nil, fmt.Errorf("pki: %s: %w", d.files.CRL, err)
		}
	}
	if err := d.check(p, time.Now()); err != nil {
		return nil, fmt.Errorf("pki: %s: %w", d.files.Cert, err)
	}
	return p, nil
}

func (p *papers) readLists(data []byte) error {
	lists, err := parseLists(data)
	if err != nil {
		return err
	}
	for _, list := range lists {
		// One by an authority that is believed no more has nothing to say.
		for _, a := range p.authorities {
			if !bytes.Equal(list.AuthorityKeyId, a.SubjectKeyId) {
				continue
			}
			if err := list.CheckSignatureFrom(a); err != nil {
				return fmt.Errorf("its signature is not by %q: %w", a.Subject.CommonName, err)
			}
			for _, e := range list.RevokedCertificateEntries {
				p.withdrawn[string(a.Raw)+e.SerialNumber.Text(16)] = true
			}
		}
	}
	return nil
}
