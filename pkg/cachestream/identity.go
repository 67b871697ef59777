package cachestream

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"time"

	"github.com/nearflash/nearflash/pkg/durable"
)

// protocol is what both sides say that they speak (RFC 7301): a node of another release that
// speaks another is told apart at once.
const protocol = "nearflash-stream/2"

// validity is that of a certificate, which nobody looks at: the key is what counts.
const validity = 20 * 365 * 24 * time.Hour

// keyLength is that of the text of a hash; base64 may have line feeds in it.
var keyLength = base64.StdEncoding.EncodedLen(sha256.Size)

// loadKey reads the key of a server of before, and makes one in its place if there is none, or
// none that can be read: who pulls knows the server by it, also after a restart. Without a file
// it is that of this process.
func loadKey(file string) (*ecdsa.PrivateKey, error) {
	if file != "" {
		if b, err := os.ReadFile(file); err == nil {
			if key, err := x509.ParseECPrivateKey(b); err == nil && key.Curve == elliptic.P256() {
				return key, nil
			}
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil || file == "" {
		return key, err
	}
	b, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, durable.WriteFile(file, b)
}

// newIdentity makes a certificate around a key, as TLS wants one.
func newIdentity(file string) (tls.Certificate, string, error) {
	key, err := loadKey(file)
	if err != nil {
		return tls.Certificate{}, "", fmt.Errorf("key of the stream: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()),
		Subject:      pkix.Name{CommonName: Audience},
		NotBefore:    now.Add(-time.Hour), NotAfter: now.Add(validity),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, "", fmt.Errorf("certificate of the stream: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return tls.Certificate{}, "", fmt.Errorf("certificate of the stream: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, keyOf(leaf), nil
}

// keyOf names a certificate's public key: the SHA-256 of its SubjectPublicKeyInfo, in base64.
func keyOf(c *x509.Certificate) string {
	sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return base64.StdEncoding.EncodeToString(sum[:])
}

// serverTLS wants a client to have a key, of which the gate looks whose it is.
func serverTLS(cert tls.Certificate) *tls.Config {
	return &tls.Config{
		ClientAuth:             tls.RequireAnyClientCert,
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{cert},
		SessionTicketsDisabled: true,
		NextProtos:             []string{protocol},
		// Nobody waits for a first byte.
		DynamicRecordSizingDisabled: true,
		// TLS keeps what it was shown as long as the connection lasts, and anybody may show it.
		VerifyConnection: func(cs tls.ConnectionState) error {
			if n := len(cs.PeerCertificates); n != 1 {
				return fmt.Errorf("the caller shows %d certificates: accepted is one", n)
			}
			return checkProtocol(cs)
		},
	}
}

// clientTLS shows a certificate, and accepts the server that has a key, and no other. TLS itself makes the server prove
// that it has the key, also where the certificate is not verified. refused is called for a
// server with another key.
func clientTLS(cert tls.Certificate, key string, refused func()) (*tls.Config, error) {
	if sum, err := base64.StdEncoding.Strict().DecodeString(key); err != nil || len(sum) != sha256.Size || len(key) != keyLength {
		return nil, fmt.Errorf("the public key %.64q of the source node is no SHA-256 in base64", key)
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{cert},
		NextProtos:   []string{protocol},
		// No authority and no name: the key alone counts.
		InsecureSkipVerify: true,
		VerifyConnection: func(cs tls.ConnectionState) error {
			if len(cs.PeerCertificates) == 0 || subtle.ConstantTimeCompare([]byte(keyOf(cs.PeerCertificates[0])), []byte(key)) != 1 {
				refused()
				return errors.New("the server's key is not that of the source node")
			}
			return checkProtocol(cs)
		},
	}, nil
}

// checkProtocol refuses who speaks another protocol, or does not say which: TLS itself lets the latter
// pass.
func checkProtocol(cs tls.ConnectionState) error {
	if cs.NegotiatedProtocol != protocol {
		return fmt.Errorf("the other side speaks %.64q: accepted is %s", cs.NegotiatedProtocol, protocol)
	}
	return nil
}
