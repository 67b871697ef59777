// Package pki makes the keys and certificates of one lab. They live as long as
// the lab and are worth nothing outside of its network namespace.
package pki

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
	"time"
)

// validity is longer than any lab is meant to live.
const validity = 365 * 24 * time.Hour

// Pair is a certificate and its private key, both PEM.
type Pair struct {
	Cert []byte
	Key  []byte
}

// CA signs certificates.
type CA struct {
	Pair
	cert *x509.Certificate
	key  crypto.Signer
}

// Subject says whom a certificate is for.
type Subject struct {
	// Name is the common name: to Kubernetes, the user.
	Name string
	// Groups are the organisations: to Kubernetes, the groups.
	Groups []string
	IPs    []string
	DNS    []string
	// Server and Client are the uses the certificate allows.
	Server, Client bool
}

// NewCA makes a self-signed authority.
func NewCA(name string) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("key of %s: %w", name, err)
	}
	tmpl, err := template(Subject{Name: name})
	if err != nil {
		return nil, err
	}
	tmpl.IsCA, tmpl.BasicConstraintsValid = true, true
	tmpl.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("certificate of %s: %w", name, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("certificate of %s: %w", name, err)
	}
	pair, err := encode(der, key)
	if err != nil {
		return nil, err
	}
	return &CA{Pair: pair, cert: cert, key: key}, nil
}

// Issue makes a key and a certificate signed by the authority.
func (c *CA) Issue(s Subject) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("key of %s: %w", s.Name, err)
	}
	tmpl, err := template(s)
	if err != nil {
		return Pair{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, c.cert, key.Public(), c.key)
	if err != nil {
		return Pair{}, fmt.Errorf("certificate of %s: %w", s.Name, err)
	}
	return encode(der, key)
}

// NewSigningKey makes the key pair with which service account tokens are signed
// and checked. Cert holds the public key.
func NewSigningKey() (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("signing key: %w", err)
	}
	pub, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return Pair{}, fmt.Errorf("signing key: %w", err)
	}
	priv, err := encodeKey(key)
	if err != nil {
		return Pair{}, err
	}
	return Pair{Cert: pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: pub}), Key: priv}, nil
}

func template(s Subject) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("serial number: %w", err)
	}
	t := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: s.Name, Organization: s.Groups},
		// Guests and host share a clock, but a guest's may lag by a moment.
		NotBefore: time.Now().Add(-time.Hour),
		NotAfter:  time.Now().Add(validity),
		KeyUsage:  x509.KeyUsageDigitalSignature,
		DNSNames:  s.DNS,
	}
	for _, ip := range s.IPs {
		addr := net.ParseIP(ip)
		if addr == nil {
			return nil, fmt.Errorf("certificate of %s: %q is not an address", s.Name, ip)
		}
		t.IPAddresses = append(t.IPAddresses, addr)
	}
	if s.Server {
		t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	if s.Client {
		t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	}
	return t, nil
}

func encode(der []byte, key *ecdsa.PrivateKey) (Pair, error) {
	k, err := encodeKey(key)
	if err != nil {
		return Pair{}, err
	}
	return Pair{Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), Key: k}, nil
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	// The SEC 1 form is the one that Kubernetes' key readers expect of EC keys.
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}
