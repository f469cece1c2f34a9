package cluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// An authority signs the cluster's certificates and keeps them in a directory.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  crypto.Signer
}

// newAuthority makes ca.crt, and the key pair for service accounts' tokens, sa.key
// and sa.pub.
func newAuthority(dir string) (*authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	a := &authority{dir: dir}
	template := certificate(pkix.Name{CommonName: "fairlead-cluster"})
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage |= x509.KeyUsageCertSign
	if err := a.issue("ca", template); err != nil {
		return nil, err
	}
	key, err := a.newKey("sa")
	if err != nil {
		return nil, err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, err
	}
	return a, a.write("sa.pub", "PUBLIC KEY", public)
}

// An identity is who a certificate says it is.
type identity struct {
	file   string
	name   string
	groups []string
	hosts  []string // names and addresses at which it serves
}

// sign makes an identity's certificate and key, as file.crt and file.key.
func (a *authority) sign(who identity) error {
	template := certificate(pkix.Name{CommonName: who.name, Organization: who.groups}) //nolint:misspell // the field's name
	for _, host := range who.hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return a.issue(who.file, template)
}

func certificate(subject pkix.Name) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()),
		Subject:      subject,
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.AddDate(1, 0, 0),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
}

// issue makes a certificate; the first one, signed by itself, is the authority's.
func (a *authority) issue(file string, template *x509.Certificate) error {
	key, err := a.newKey(file)
	if err != nil {
		return err
	}
	if a.cert == nil {
		a.cert, a.key = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return fmt.Errorf("cannot make the certificate %s: %w", file, err)
	}
	return a.write(file+".crt", "CERTIFICATE", der)
}

func (a *authority) newKey(file string) (crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, a.write(file+".key", "EC PRIVATE KEY", der)
}

func (a *authority) write(file, kind string, der []byte) error {
	return os.WriteFile(a.path(file), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

func (a *authority) path(file string) string { return filepath.Join(a.dir, file) }
