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

// failure returns the last event of a reason on a claim, and how often any of them has said that
// there is no space. known is how often events had come before, which does not count.
func (b *Backend) failure(ctx context.Context, claim *corev1.PersistentVolumeClaim, reason string, known map[types.UID]int32) (last string, exhausted int32, err error) {
	list, err := b.events(ctx, claim, reason)
	if err != nil {
		return "", 0, err
	}
	var latest *corev1.Event
	for i := range list {
		e := &list[i]
		fresh := timesOf(e) - known[e.UID]
		if fresh <= 0 {
			continue
		}
		if isExhausted(e.Message) {
			exhausted += fresh
		}
		if latest == nil || latest.LastTimestamp.Before(&e.LastTimestamp) {
			latest = e
		}
	}
	if latest == nil {
		return "", 0, nil
	}
	return latest.Message, exhausted, nil
}

// timesOf is how often an event has come: recorders count the same ones in one object.
func timesOf(e *corev1.Event) int32 {
	n := max(e.Count, 1)
	if e.Series != nil {
		n = max(n, e.Series.Count)
	}
	return n
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
