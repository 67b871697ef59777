package moves

import (
	"encoding/base64"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/volume"
)

// answerTracked puts the record of writes into the source's answer.
func answerTracked(a *v1alpha1.MigrationSource, t *volume.Tracked) {
	if t == nil {
		return
	}
	a.Tracking, a.TrackedAreaBytes = t.ID, t.AreaBytes
	a.ChangedAreas = base64.StdEncoding.EncodeToString(t.Changed)
}

// trackedOf is the inverse. What cannot be read is no record: then everything counts
// as changed.
func trackedOf(a *v1alpha1.MigrationSource) *volume.Tracked {
	if a.Tracking == "" || a.TrackedAreaBytes <= 0 {
		return nil
	}
	t := &volume.Tracked{ID: a.Tracking, AreaBytes: a.TrackedAreaBytes}
	if a.ChangedAreas == "" {
		return t
	}
	var err error
	if t.Changed, err = base64.StdEncoding.DecodeString(a.ChangedAreas); err != nil {
		return nil
	}
	return t
}
