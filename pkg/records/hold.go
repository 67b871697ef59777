package records

import (
	"context"
	"errors"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/volume"
)

// hold reads what the API says of a hold.
func hold(h *v1alpha1.VolumeHold) *volume.Hold {
	if h == nil {
		return nil
	}
	return &volume.Hold{Name: volume.SnapshotID(h.Name), Token: h.Token, Since: h.Since.Time, Freeze: volume.FreezeRequest(h.Freeze)}
}

// ReportFreeze implements volume.Records.
func (r *Records) ReportFreeze(ctx context.Context, id volume.ID, f volume.Fence, rep volume.FreezeReport) error {
	return r.updateOwned(ctx, id, f, func(obj *v1alpha1.CachedVolume) error {
		obj.Status.Freeze = v1alpha1.FreezeStatus{Token: rep.Token, State: v1alpha1.FreezeState(rep.State), Message: truncate(rep.Message, maxEventNote)}
		return nil
	})
}

// freezeReport reads what ReportFreeze writes.
func freezeReport(s v1alpha1.FreezeStatus) volume.FreezeReport {
	return volume.FreezeReport{Token: s.Token, State: volume.FreezeState(s.State), Message: s.Message}
}

// parent reads what objectParent writes. Errors: ErrInvalid.
func parent(p *v1alpha1.VolumeParent) (*volume.Parent, error) {
	switch {
	case p == nil:
		return nil, nil
	case p.SnapshotHandle == "":
		return &volume.Parent{Volume: volume.ID(p.VolumeName)}, nil
	}
	h, err := volume.ParseSnapshotHandle(p.SnapshotHandle)
	if err != nil {
		return nil, err
	}
	return &volume.Parent{Snapshot: &h}, nil
}

// objectParent is the form of the API.
func objectParent(p *volume.Parent) *v1alpha1.VolumeParent {
	switch {
	case p == nil:
		return nil
	case p.Snapshot != nil:
		return &v1alpha1.VolumeParent{SnapshotHandle: p.Snapshot.String()}
	}
	return &v1alpha1.VolumeParent{VolumeName: string(p.Volume)}
}

// EndHold takes the hold of a volume away, if ended says that it is that one. A record that
// is gone has none.
func EndHold(ctx context.Context, c client.Client, id volume.ID, ended func(volume.Hold) bool) error {
	err := UpdateObject(ctx, c, id, func(obj *v1alpha1.CachedVolume) error {
		if h := hold(obj.Spec.Hold); h != nil && ended(*h) {
			obj.Spec.Hold = nil
		}
		return nil
	})
	if errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	return err
}
