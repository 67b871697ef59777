// Package records keeps volumes as CachedVolume objects: the mapping between
// object and volume.Volume, the optimistic writes that the fence rests on, and
// volume.Records, the node's view.
//
// Every read goes to the API server. A client that reads from an informer must
// not be given to this package: a stale owner would break I1 and I2 of
// docs/design/states.md.
package records

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/quantity"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Values of spec.backend: an origin that is an iSCSI LUN, or a volume of another CSI driver.
const (
	BackendISCSI = "iscsi"
	BackendCSI   = "csi"
)

// NewObject returns the object that records a new volume. Its finalizer is
// there from the start, so that no moment exists in which it could be lost.
func NewObject(id volume.ID, spec volume.Spec) *v1alpha1.CachedVolume {
	return &v1alpha1.CachedVolume{
		ObjectMeta: metav1.ObjectMeta{Name: string(id), Finalizers: []string{v1alpha1.VolumeFinalizer}},
		Spec:       toObjectSpec(spec),
	}
}

func toObjectSpec(spec volume.Spec) v1alpha1.CachedVolumeSpec {
	out := v1alpha1.CachedVolumeSpec{
		Backend:        BackendISCSI,
		Target:         spec.Target,
		CapacityBytes:  ptr.To(spec.CapacityBytes),
		Provisioning:   spec.Provisioning,
		CacheMode:      v1alpha1.CacheMode(spec.ModeName()),
		CacheSize:      spec.Cache.String(),
		MaxCacheSize:   volume.Size{Bytes: spec.MaxCacheBytes}.String(),
		ChunkSizeBytes: ptr.To(spec.ChunkBytes),
		WarmStart:      ObjectWarmStart(spec.WarmStart),
	}
	SetDirtyLimit(&out, spec.DirtyLimit)
	if spec.Static != nil {
		out.Static = &v1alpha1.ISCSISource{
			Portals: slices.Clone(spec.Static.Portals),
			IQN:     spec.Static.IQN,
			LUN:     ptr.To(int32(spec.Static.LUN)), // the API bounds a LUN to 16383
		}
	}
	if spec.Origin != nil {
		out.Backend = BackendCSI
		out.Origin = &v1alpha1.OriginSource{StorageClassName: spec.Origin.StorageClass, PersistentVolumeName: spec.Origin.PV}
		if spec.Origin.AcceptTwoWriters {
			out.Origin.WithoutFence = v1alpha1.WithoutFenceAcceptTwoWriters
		}
	}
	out.Parent = objectParent(spec.Parent)
	out.AcceptDirtyLoss, out.Redundancy = Consent(spec), Redundancy(spec)
	if spec.Claim != nil {
		out.ClaimRef = &v1alpha1.ClaimReference{Namespace: spec.Claim.Namespace, Name: spec.Claim.Name}
	}
	return out
}

// Spec returns what the object asks for. Errors: ErrInvalid for a cache size
// that somebody has edited into nonsense.
func Spec(obj *v1alpha1.CachedVolume) (volume.Spec, error) {
	in := obj.Spec
	out := volume.Spec{
		Target:         in.Target,
		CapacityBytes:  ptr.Deref(in.CapacityBytes, 0),
		Provisioning:   in.Provisioning,
		ChunkBytes:     ptr.Deref(in.ChunkSizeBytes, 0),
		AcceptNodeLoss: in.AcceptDirtyLoss == v1alpha1.DirtyLossNodeLoss || in.AcceptDirtyLoss == v1alpha1.DirtyLossPowerLoss,
		WarmStart:      warmStart(in.WarmStart),
	}
	out.SetMode(string(in.CacheMode))
	out.Mirror = in.Redundancy == v1alpha1.RedundancyMirror
	if in.CacheSize != "" {
		size, err := quantity.Size(in.CacheSize)
		if err != nil {
			return volume.Spec{}, fmt.Errorf("spec.cacheSize of CachedVolume %s: %w", obj.Name, err)
		}
		out.Cache = size
	}
	if in.MaxCacheSize != "" {
		bytes, err := quantity.Bytes(in.MaxCacheSize)
		if err != nil {
			return volume.Spec{}, fmt.Errorf("spec.maxCacheSize of CachedVolume %s: %w", obj.Name, err)
		}
		out.MaxCacheBytes = bytes
	}
	limit, err := dirtyLimit(in)
	if err != nil {
		return volume.Spec{}, fmt.Errorf("spec.maxDirtyBytes of CachedVolume %s: %w", obj.Name, err)
	}
	out.DirtyLimit = limit
	if in.Static != nil {
		out.Static = &volume.ISCSI{Portals: slices.Clone(in.Static.Portals), IQN: in.Static.IQN, LUN: int(ptr.Deref(in.Static.LUN, 0))}
	}
	if in.Origin != nil {
		out.Origin = &volume.Origin{
			StorageClass: in.Origin.StorageClassName, PV: in.Origin.PersistentVolumeName,
			AcceptTwoWriters: in.Origin.WithoutFence == v1alpha1.WithoutFenceAcceptTwoWriters,
		}
	}
	if out.Parent, err = parent(in.Parent); err != nil {
		return volume.Spec{}, fmt.Errorf("spec.parent of CachedVolume %s: %w", obj.Name, err)
	}
	if in.ClaimRef != nil {
		out.Claim = &volume.Claim{Namespace: in.ClaimRef.Namespace, Name: in.ClaimRef.Name}
	}
	return out, nil
}

// Consent is spec.acceptDirtyLoss; "" says the same as none.
func Consent(spec volume.Spec) v1alpha1.DirtyLoss {
	switch {
	case spec.Unsafe:
		return v1alpha1.DirtyLossPowerLoss
	case spec.AcceptNodeLoss:
		return v1alpha1.DirtyLossNodeLoss
	}
	return ""
}

// Redundancy is spec.redundancy; "" says the same as none.
func Redundancy(spec volume.Spec) v1alpha1.Redundancy {
	if spec.Mirror {
		return v1alpha1.RedundancyMirror
	}
	return ""
}

// IsStatic reports whether a record is of a volume that was there before it, and whose data do
// not go with it.
func IsStatic(obj *v1alpha1.CachedVolume) bool {
	return obj.Spec.Static != nil || obj.Spec.Origin != nil && obj.Spec.Origin.PersistentVolumeName != ""
}

// SetDirtyLimit writes a limit in the form of the API, in which zero is absent.
func SetDirtyLimit(spec *v1alpha1.CachedVolumeSpec, b volume.DirtyLimit) {
	spec.MaxDirtyBytes, spec.MaxDirtyAgeSeconds = b.Max.String(), nil
	if b.Age != 0 {
		spec.MaxDirtyAgeSeconds = ptr.To(int32(b.Age / time.Second)) // the API bounds it to a week
	}
}

// dirtyLimit reads what SetDirtyLimit writes.
func dirtyLimit(in v1alpha1.CachedVolumeSpec) (volume.DirtyLimit, error) {
	b := volume.DirtyLimit{Age: time.Duration(ptr.Deref(in.MaxDirtyAgeSeconds, 0)) * time.Second}
	if in.MaxDirtyBytes == "" {
		return b, nil
	}
	var err error
	b.Max, err = quantity.Size(in.MaxDirtyBytes)
	return b, err
}

// ObjectWarmStart returns the form of a WarmStart in the API, in which zero is
// absent.
func ObjectWarmStart(w volume.WarmStart) v1alpha1.WarmStart {
	out := v1alpha1.WarmStart{From: v1alpha1.WarmStartFrom(w.From), Method: v1alpha1.WarmStartMethod(w.Method.Word())}
	if w.Preload {
		out.Preload = v1alpha1.WarmStartPreloadAll
	}
	if w.Bandwidth != 0 {
		out.BandwidthBytesPerSecond = ptr.To(w.Bandwidth)
	}
	if w.Deadline != 0 {
		out.DeadlineSeconds = ptr.To(int32(w.Deadline / time.Second)) // the API bounds it to a day
	}
	return out
}

// warmStart reads what ObjectWarmStart writes. Volumes that were made before there
// were warm starts name no source; theirs is the peer. A method that a later version
// wrote is left to the node.
func warmStart(in v1alpha1.WarmStart) volume.WarmStart {
	method, _ := volume.MethodOf(string(in.Method))
	return volume.WarmStart{
		From:      orPeer(volume.WarmFrom(in.From)),
		Method:    method,
		Preload:   in.Preload == v1alpha1.WarmStartPreloadAll,
		Bandwidth: ptr.Deref(in.BandwidthBytesPerSecond, 0),
		Deadline:  time.Duration(ptr.Deref(in.DeadlineSeconds, 0)) * time.Second,
	}
}

func orPeer(f volume.WarmFrom) volume.WarmFrom {
	if f == "" {
		return volume.WarmPeer
	}
	return f
}

// warmSource returns what the object's owner may start from, nil if there is nothing.
func warmSource(obj *v1alpha1.CachedVolume) *volume.WarmSource {
	in := obj.Status.WarmSource
	if in == (v1alpha1.WarmSource{}) {
		return nil
	}
	return &volume.WarmSource{Node: in.NodeName, Generation: in.Generation}
}

// Fence returns the ownership that the object shows.
func Fence(obj *v1alpha1.CachedVolume) volume.Fence {
	return volume.Fence{
		UID:        string(obj.UID),
		Generation: ptr.Deref(obj.Status.Generation, 0),
		Node:       obj.Status.OwnerNode,
	}
}

// FenceFor is Fence as a node has it: a reader's has its own name.
func FenceFor(obj *v1alpha1.CachedVolume, node string) volume.Fence {
	f := Fence(obj)
	if f.Node == volume.Readers {
		f.Node = node
	}
	return f
}

// published reports whether f is the ownership that the object shows, and its node may have the
// volume attached.
func published(obj *v1alpha1.CachedVolume, f volume.Fence) bool {
	return FenceFor(obj, f.Node) == f && obj.Status.Publication == v1alpha1.PublicationPublished &&
		(obj.Status.OwnerNode != volume.Readers || slices.Contains(obj.Status.Readers, f.Node))
}

// byMany reports whether many nodes read the volume, and none is its owner.
func byMany(obj *v1alpha1.CachedVolume) bool { return obj.Status.OwnerNode == volume.Readers }

// Volume returns the volume that the object records. Errors: as Spec.
func Volume(obj *v1alpha1.CachedVolume) (volume.Volume, error) {
	spec, err := Spec(obj)
	if err != nil {
		return volume.Volume{}, err
	}
	return volume.Volume{
		ID:            volume.ID(obj.Name),
		Spec:          spec,
		Fence:         Fence(obj),
		Readers:       slices.Clone(obj.Status.Readers),
		Published:     obj.Status.Publication == v1alpha1.PublicationPublished,
		PossiblyDirty: obj.Status.DirtyState == v1alpha1.DirtyStatePossiblyDirty,
		Deleting:      obj.DeletionTimestamp != nil,
		WarmSource:    warmSource(obj),

		PV:             obj.Status.PersistentVolumeName,
		SpecGeneration: obj.Generation,
		FlushRequest:   obj.Spec.FlushRequest,
		Preload:        preload(obj.Spec.Preload),
		Preloaded:      preloaded(obj.Status.Preload),
		Prewarm:        prewarmOf(obj.Spec),
		FlushDone:      obj.Status.Flush.Request,
		ScrubRequest:   obj.Spec.ScrubRequest,
		ScrubDone:      obj.Status.Scrub.Request,
		ScrubbedAt:     obj.Status.Scrub.CompletionTime.Time,
		Abandoned:      len(untold(obj)) > 0,
		GivenUp:        givenUp(obj),
		Filesystem:     Filesystem(obj.Status.Filesystem),
		Hold:           hold(obj.Spec.Hold),
		Freeze:         freezeReport(obj.Status.Freeze),
		Activation:     activation(obj.Status.Activation),
		Pending:        activation(obj.Status.PendingActivation),
	}, nil
}

// Difference names the first field, as the API spells it, in which two specs
// differ, or returns "". The claim does not count: it is a remark for humans,
// and a static volume may be claimed anew.
func Difference(a, b volume.Spec) string {
	switch {
	case a.CapacityBytes != b.CapacityBytes:
		return "capacityBytes"
	case a.Target != b.Target:
		return "target"
	case a.Provisioning != b.Provisioning:
		return "provisioning"
	case a.ModeName() != b.ModeName():
		return "cacheMode"
	case a.Cache != b.Cache:
		return "cacheSize"
	case a.MaxCacheBytes != b.MaxCacheBytes:
		return "maxCacheSize"
	case a.ChunkBytes != b.ChunkBytes:
		return "chunkSizeBytes"
	case a.AcceptNodeLoss != b.AcceptNodeLoss:
		return "acceptDirtyLoss"
	case a.Mirror != b.Mirror:
		return "redundancy"
	case a.DirtyLimit.Max != b.DirtyLimit.Max:
		return "maxDirtyBytes"
	case a.DirtyLimit.Age != b.DirtyLimit.Age:
		return "maxDirtyAgeSeconds"
	case orPeer(a.WarmStart.From) != orPeer(b.WarmStart.From):
		return "warmStart.from"
	case a.WarmStart.Method != b.WarmStart.Method:
		return "warmStart.method"
	case a.WarmStart.Preload != b.WarmStart.Preload:
		return "warmStart.preload"
	case a.WarmStart.Bandwidth != b.WarmStart.Bandwidth:
		return "warmStart.bandwidthBytesPerSecond"
	case a.WarmStart.Deadline != b.WarmStart.Deadline:
		return "warmStart.deadlineSeconds"
	case ptr.Deref(a.Origin, volume.Origin{}) != ptr.Deref(b.Origin, volume.Origin{}):
		return "origin"
	case !a.Parent.Equal(b.Parent):
		return "parent"
	case (a.Static == nil) != (b.Static == nil):
		return "static"
	case a.Static == nil:
		return ""
	case a.Static.IQN != b.Static.IQN:
		return "static.iqn"
	case a.Static.LUN != b.Static.LUN:
		return "static.lun"
	case !slices.Equal(a.Static.Portals, b.Static.Portals):
		return "static.portals"
	}
	return ""
}

// Filesystem reads what the API says; whatever is not known counts as formatted.
func Filesystem(s v1alpha1.FilesystemState) volume.Formatted {
	switch s {
	case v1alpha1.FilesystemNeverFormatted:
		return volume.FormatNever
	case v1alpha1.FilesystemFormatting:
		return volume.FormatBegun
	}
	return volume.FormatDone
}

// ObjectFilesystem is the form of the API.
func ObjectFilesystem(f volume.Formatted) v1alpha1.FilesystemState {
	if f == volume.FormatDone {
		return v1alpha1.FilesystemFormatted
	}
	return v1alpha1.FilesystemState(f)
}

// activation reads what objectActivation writes.
func activation(a v1alpha1.Activation) volume.Activation {
	return volume.Activation{ID: a.ID, Generation: a.Generation, Count: ptr.Deref(a.Count, 0)}
}

// objectActivation is the form of the API.
func objectActivation(a volume.Activation) v1alpha1.Activation {
	return v1alpha1.Activation{ID: a.ID, Generation: a.Generation, Count: ptr.To(a.Count)}
}

// prewarmOf is the request to prewarm the cache, nil if there is none.
func prewarmOf(s v1alpha1.CachedVolumeSpec) *volume.Prewarm {
	if s.PrewarmNode == "" {
		return nil
	}
	return &volume.Prewarm{Node: s.PrewarmNode, Request: s.PrewarmRequest}
}
