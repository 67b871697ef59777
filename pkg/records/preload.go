package records

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/volume"
)

// ReportPreload implements volume.Records.
func (r *Records) ReportPreload(ctx context.Context, id volume.ID, f volume.Fence, rep volume.PreloadReport) error {
	return r.updateOwned(ctx, id, f, func(obj *v1alpha1.CachedVolume) error {
		s := v1alpha1.PreloadStatus{
			Request: rep.Request, State: v1alpha1.PreloadState(rep.State), Message: truncate(rep.Message, maxEventNote), ObservedTime: metav1.NewTime(r.now()),
		}
		if rep.TotalBytes > 0 {
			s.TotalBytes, s.CachedBytes = ptr.To(rep.TotalBytes), ptr.To(rep.CachedBytes)
		}
		if !rep.Started.IsZero() {
			s.StartTime = metav1.NewTime(rep.Started)
		}
		obj.Status.Preload = s
		return nil
	})
}

func preload(in *v1alpha1.PreloadRequest) *volume.Preload {
	if in == nil {
		return nil
	}
	return &volume.Preload{Request: in.Request, Path: in.Path, Bandwidth: ptr.Deref(in.BandwidthBytesPerSecond, 0)}
}

// preloaded reads what ReportPreload writes.
func preloaded(s v1alpha1.PreloadStatus) volume.PreloadReport {
	return volume.PreloadReport{
		Request: s.Request, State: volume.PreloadState(s.State), Message: s.Message,
		TotalBytes: ptr.Deref(s.TotalBytes, 0), CachedBytes: ptr.Deref(s.CachedBytes, 0), Started: s.StartTime.Time,
	}
}
