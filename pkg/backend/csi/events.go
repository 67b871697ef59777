package csi

import (
	"context"
	"errors"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Reasons of events on a claim: of sig-storage-lib-external-provisioner, and of
// external-resizer.
const (
	reasonProvisioningFailed = "ProvisioningFailed"
	reasonResizeFailed       = "VolumeResizeFailed"
)

// failure returns the last event of a reason on a claim, and whether any of them says that
// there is no space. known are versions of events that were there before, and do not count.
func (b *Backend) failure(ctx context.Context, claim *corev1.PersistentVolumeClaim, reason string, known map[types.UID]string) (last string, exhausted bool, err error) {
	list, err := b.events(ctx, claim, reason)
	if err != nil {
		return "", false, err
	}
	var latest *corev1.Event
	for i := range list {
		e := &list[i]
		if known[e.UID] == e.ResourceVersion {
			continue
		}
		exhausted = exhausted || isExhausted(e.Message)
		if latest == nil || latest.LastTimestamp.Before(&e.LastTimestamp) {
			latest = e
		}
	}
	if latest == nil {
		return "", false, nil
	}
	return latest.Message, exhausted, nil
}

// events lists the events of a reason on a claim.
func (b *Backend) events(ctx context.Context, claim *corev1.PersistentVolumeClaim, reason string) ([]corev1.Event, error) {
	list := &corev1.EventList{}
	err := b.api.List(ctx, list, client.InNamespace(claim.Namespace), client.MatchingFields{"involvedObject.uid": string(claim.UID), "reason": reason})
	return list.Items, records.Error("list events of claim "+claim.Name, err)
}

// isExhausted recognises the gRPC code in the words of a sidecar, which keeps nothing else of
// it ("rpc error: code = ResourceExhausted desc = ...").
func isExhausted(message string) bool { return strings.Contains(message, "ResourceExhausted") }

// conflict reports whether somebody else wrote first: to look again is all it takes.
func conflict(err error) bool {
	return err != nil && (errors.Is(err, volume.ErrBusy) || errors.Is(err, volume.ErrNotFound) || errors.Is(err, volume.ErrExists))
}
