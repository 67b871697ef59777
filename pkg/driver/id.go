package driver

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/nearflash/nearflash/pkg/volume"
)

// volumeIDFor derives the ID of a volume from its CSI name: the name itself
// where it may serve as an ID, else a digest of it. Being a function of the
// name, it makes CreateVolume find what an earlier call made.
func volumeIDFor(name string) (volume.ID, error) {
	if name == "" {
		return "", fmt.Errorf("%w: name is missing", volume.ErrInvalid)
	}
	if id, err := volume.ParseID(name); err == nil {
		return id, nil
	}
	sum := sha256.Sum256([]byte(name))
	return volume.ID("v-" + hex.EncodeToString(sum[:])[:32]), nil
}

// parseVolumeID checks the volume_id of a request.
func parseVolumeID(s string) (volume.ID, error) {
	if s == "" {
		return "", fmt.Errorf("%w: volume_id is missing", volume.ErrInvalid)
	}
	return volume.ParseID(s)
}

// required reports a missing string field.
func required(field, value string) error {
	if value == "" {
		return fmt.Errorf("%w: %s is missing", volume.ErrInvalid, field)
	}
	return nil
}
