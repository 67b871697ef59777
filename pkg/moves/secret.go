package moves

import (
	"errors"
	"fmt"

	"github.com/nearflash/nearflash/pkg/keyagreement"
	"github.com/nearflash/nearflash/pkg/volume"
)

// secretPurpose separates what is derived here from whatever else might be derived
// from the same keys one day.
const secretPurpose = "nearflash.io CacheMigration CHAP secret v1"

func newKey() (*keyagreement.Key, error) {
	key, err := keyagreement.New()
	if err != nil {
		return nil, fmt.Errorf("key of the move: %w", err)
	}
	return key, nil
}

// agree derives the credentials of a move from the own key and the peer's public
// half. destination and source are both public halves as the object shows them.
// Errors: ErrInvalid for a half that is none.
func agree(own *keyagreement.Key, peer string, m volume.MoveID, destination, source string) (volume.Credentials, error) {
	// All parts but the last have a fixed length or end at the zero byte.
	info := secretPurpose + "\x00" + m.UID + "\x00" + destination + "\x00" + source
	password, err := own.Password(peer, info)
	if errors.Is(err, keyagreement.ErrKey) {
		return volume.Credentials{}, fmt.Errorf("%w: %w", volume.ErrInvalid, err)
	}
	if err != nil {
		return volume.Credentials{}, fmt.Errorf("secret of the move: %w", err)
	}
	// The name has at most 83 lower-case letters, digits and hyphens.
	return volume.Credentials{Username: m.Name, Password: password}, nil
}
