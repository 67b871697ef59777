package moves

import (
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"

	"github.com/nearflash/nearflash/pkg/volume"
)

// secretBytes are 96 bits, what RFC 3720, 8.2.1, asks of a CHAP secret. They become
// 16 characters, which every initiator and target takes.
const secretBytes = 12

// secretAlphabet is that of base64 for URLs with the dot for the N: the kernel's
// target takes a secret that begins with NULL for none.
const secretAlphabet = "ABCDEFGHIJKLM.OPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

// secretPurpose separates what is derived here from whatever else might be derived
// from the same keys one day.
const secretPurpose = "nearflash.io CacheMigration CHAP secret v1"

func newKey() (*ecdh.PrivateKey, error) {
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("key of the move: %w", err)
	}
	return key, nil
}

// encodeKey is the form that the API carries.
func encodeKey(key *ecdh.PublicKey) string { return base64.StdEncoding.EncodeToString(key.Bytes()) }

func decodeKey(text string) (*ecdh.PublicKey, error) {
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("%w: public key: %w", volume.ErrInvalid, err)
	}
	key, err := ecdh.X25519().NewPublicKey(b)
	if err != nil {
		return nil, fmt.Errorf("%w: public key: %w", volume.ErrInvalid, err)
	}
	return key, nil
}

// agree derives the credentials of a move from the own key and the peer's public
// half. destination and source are both public halves as the object shows them.
// Errors: ErrInvalid for a half that is none.
func agree(own *ecdh.PrivateKey, peer string, m volume.MoveID, destination, source string) (volume.Credentials, error) {
	key, err := decodeKey(peer)
	if err != nil {
		return volume.Credentials{}, err
	}
	shared, err := own.ECDH(key)
	if err != nil { // a point of low order
		return volume.Credentials{}, fmt.Errorf("%w: public key: %w", volume.ErrInvalid, err)
	}
	// All parts but the last have a fixed length or end at the zero byte.
	info := secretPurpose + "\x00" + m.UID + "\x00" + destination + "\x00" + source
	secret, err := hkdf.Key(sha256.New, shared, nil, info, secretBytes)
	if err != nil {
		return volume.Credentials{}, fmt.Errorf("secret of the move: %w", err)
	}
	return volume.Credentials{
		Username: m.Name, // at most 83 lower-case letters, digits and hyphens
		Password: base64.NewEncoding(secretAlphabet).EncodeToString(secret),
	}, nil
}
