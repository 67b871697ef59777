// Package keyagreement derives passwords that two parties know and nobody sends: X25519
// (RFC 7748) between two keys, and HKDF with SHA-256 (RFC 5869) of what they agree on.
package keyagreement

import (
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
)

// ErrKey says that a text is no key, or one that nothing may be agreed with.
var ErrKey = errors.New("no X25519 key")

// passwordBytes are 96 bits, what RFC 3720, 8.2.1, asks of a CHAP secret. They become
// 16 characters, which every initiator and target takes.
const passwordBytes = 12

// alphabet is that of base64 for URLs with the dot for the N: the kernel's target takes a
// secret that begins with NULL for none.
const alphabet = "ABCDEFGHIJKLM.OPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

// Key is the private half of a key. It never prints, in no format.
type Key struct{ private *ecdh.PrivateKey }

// New makes a key.
func New() (*Key, error) {
	private, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	return &Key{private}, nil
}

// Parse is the inverse of Text; white space at the ends does not count. Errors: ErrKey, which
// does not show the text.
func Parse(text string) (*Key, error) {
	b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	if err != nil {
		return nil, fmt.Errorf("%w: private half: it is not base64", ErrKey)
	}
	private, err := ecdh.X25519().NewPrivateKey(b)
	if err != nil {
		return nil, fmt.Errorf("%w: private half: %d bytes", ErrKey, len(b))
	}
	return &Key{private}, nil
}

// Text is the private half: 32 bytes in base64.
func (k *Key) Text() string { return base64.StdEncoding.EncodeToString(k.private.Bytes()) }

// Public is the public half, in the form that objects of the API carry: 32 bytes in base64.
func (k *Key) Public() string {
	return base64.StdEncoding.EncodeToString(k.private.PublicKey().Bytes())
}

// Password derives what k and the owner of the public half peer agree on: 16 printable
// characters. It is another one for each info, which names the purpose first. Errors: ErrKey.
func (k *Key) Password(peer, info string) (string, error) {
	b, err := base64.StdEncoding.DecodeString(peer)
	if err != nil {
		return "", fmt.Errorf("%w: public half: %w", ErrKey, err)
	}
	public, err := ecdh.X25519().NewPublicKey(b)
	if err != nil {
		return "", fmt.Errorf("%w: public half: %w", ErrKey, err)
	}
	shared, err := k.private.ECDH(public)
	if err != nil { // a point of low order
		return "", fmt.Errorf("%w: public half: %w", ErrKey, err)
	}
	secret, err := hkdf.Key(sha256.New, shared, nil, info, passwordBytes)
	if err != nil {
		return "", fmt.Errorf("derive a password: %w", err)
	}
	return base64.NewEncoding(alphabet).EncodeToString(secret), nil
}

// Format implements fmt.Formatter for every verb.
func (*Key) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("[redacted]")) }

// MarshalJSON keeps keys out of structured logs.
func (*Key) MarshalJSON() ([]byte, error) { return []byte(`"[redacted]"`), nil }
