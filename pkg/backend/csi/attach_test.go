package csi

import (
	"errors"
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/pkg/volume"
)

func TestAttachError(t *testing.T) {
	now := metav1.NewTime(time.Unix(1, 0))
	for tc, c := range map[string]struct {
		err    *storagev1.VolumeError
		before *metav1.Time
		want   error
	}{
		"none":                  {},
		"attached elsewhere":    {err: &storagev1.VolumeError{Time: now, Message: "rpc error: code = FailedPrecondition desc = in use"}, want: volume.ErrInUse},
		"no room on the node":   {err: &storagev1.VolumeError{Time: now, Message: "rpc error: code = ResourceExhausted desc = 127 disks"}, want: volume.ErrNoSpace},
		"by its code":           {err: &storagev1.VolumeError{Time: now, Message: "no room", ErrorCode: ptr.To[int32](8)}, want: volume.ErrNoSpace},
		"the code is the truth": {err: &storagev1.VolumeError{Time: now, Message: "after code = ResourceExhausted", ErrorCode: ptr.To[int32](13)}, want: volume.ErrUnavailable},
		"the text has the word": {err: &storagev1.VolumeError{Time: now, Message: "rpc error: code = Internal desc = not FailedPrecondition"}, want: volume.ErrUnavailable},
		"of before":             {err: &storagev1.VolumeError{Time: now, Message: "rpc error: code = Internal desc = x"}, before: &now},
	} {
		t.Run(tc, func(t *testing.T) {
			va := &storagev1.VolumeAttachment{Status: storagev1.VolumeAttachmentStatus{AttachError: c.err}}
			if err := attachError(va, c.before); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}
