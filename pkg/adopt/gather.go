package adopt

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/pvsource"
)

// listPage is the number of objects asked for at once.
const listPage = 500

// facts are what the API server says of a claim and of what its adoption has made. What is not
// there is nil.
type facts struct {
	key     types.NamespacedName
	journal *journal
	claim   *corev1.PersistentVolumeClaim
	// volume is the PersistentVolume with the name of the original.
	volume *corev1.PersistentVolume
	// front and block are the PersistentVolumes of nearflash and of the origin below it.
	front, block *corev1.PersistentVolume
	record       *v1alpha1.CachedVolume
	// inner is the claim of the origin.
	inner *corev1.PersistentVolumeClaim
	// class and driver are those of the original, self is nearflash's driver.
	class        *storagev1.StorageClass
	driver, self *storagev1.CSIDriver
	// twins are other PersistentVolumes of the same volume.
	twins []string
	// pods use the claim and have not ended; owners would make such pods.
	pods   []corev1.Pod
	owners []owner
	// exists is somebody's word that the volume of a PersistentVolume that is gone is there.
	exists bool
	// attachments are those of volume, front and block.
	attachments []storagev1.VolumeAttachment
}

// get reads an object; nil if it is not there.
func get[T any, P interface {
	*T
	client.Object
}](ctx context.Context, a *Adopter, kind string, key client.ObjectKey) (P, error) {
	obj := P(new(T))
	err := a.api.Get(ctx, key, obj)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s %s: %w", kind, key.Name, err)
	}
	return obj, nil
}

// named is the key of an object of the cluster; one without a name is not there.
func named(name string) client.ObjectKey { return client.ObjectKey{Name: name} }

// gather asks the API server itself for everything.
func (a *Adopter) gather(ctx context.Context, key types.NamespacedName) (f facts, err error) {
	f.key, f.exists = key, a.VolumeExists
	if f.journal, err = a.load(ctx, key); err != nil {
		return f, err
	}
	if f.claim, err = get[corev1.PersistentVolumeClaim](ctx, a, "claim", key); err != nil {
		return f, err
	}
	name := ""
	switch {
	case f.journal != nil:
		name = f.journal.Volume.Name
	case f.claim != nil:
		name = f.claim.Spec.VolumeName
	}
	if name != "" {
		if f.volume, err = get[corev1.PersistentVolume](ctx, a, "PersistentVolume", named(name)); err != nil {
			return f, err
		}
	}
	if f.journal != nil {
		err = a.gatherMade(ctx, &f)
	} else {
		err = a.gatherKind(ctx, &f)
	}
	return f, errors.Join(err, a.gatherUse(ctx, &f))
}

// gatherMade reads what an adoption has made.
func (a *Adopter) gatherMade(ctx context.Context, f *facts) (err error) {
	j := f.journal
	if f.front, err = get[corev1.PersistentVolume](ctx, a, "PersistentVolume", named(j.front())); err != nil {
		return err
	}
	if f.block, err = get[corev1.PersistentVolume](ctx, a, "PersistentVolume", named(j.origin())); err != nil {
		return err
	}
	if f.record, err = get[v1alpha1.CachedVolume](ctx, a, "CachedVolume", named(j.front())); err != nil {
		return err
	}
	f.inner, err = get[corev1.PersistentVolumeClaim](ctx, a, "claim", client.ObjectKey{Namespace: a.origins, Name: j.front()})
	if err == nil && f.inner != nil && f.record == nil {
		// A first publication may have made both in between.
		f.record, err = get[v1alpha1.CachedVolume](ctx, a, "CachedVolume", named(j.front()))
	}
	if err != nil || f.block != nil || f.volume != nil {
		return err
	}
	// About to make one of these.
	f.twins, err = a.twinsOf(ctx, j.Volume, j.Volume.Name, j.origin())
	return err
}

// gatherKind reads what decides whether a claim can be adopted.
func (a *Adopter) gatherKind(ctx context.Context, f *facts) (err error) {
	if f.volume == nil {
		return nil
	}
	if f.self, err = get[storagev1.CSIDriver](ctx, a, "CSIDriver", named(driverName)); err != nil {
		return err
	}
	if name := f.volume.Spec.StorageClassName; name != "" {
		if f.class, err = get[storagev1.StorageClass](ctx, a, "StorageClass", named(name)); err != nil {
			return err
		}
	}
	if src := source(f.volume); src != nil {
		if f.driver, err = get[storagev1.CSIDriver](ctx, a, "CSIDriver", named(src.Driver)); err != nil {
			return err
		}
		f.twins, err = a.twinsOf(ctx, f.volume, f.volume.Name)
	}
	return err
}

// twinsOf lists the PersistentVolumes of the same volume with other names.
func (a *Adopter) twinsOf(ctx context.Context, pv *corev1.PersistentVolume, but ...string) ([]string, error) {
	var out []string
	page := &corev1.PersistentVolumeList{}
	for {
		if err := a.api.List(ctx, page, client.Limit(listPage), client.Continue(page.Continue)); err != nil {
			return nil, fmt.Errorf("list PersistentVolumes: %w", err)
		}
		for i := range page.Items {
			if other := &page.Items[i]; maybeTwins(other, pv) && !slices.Contains(but, other.Name) {
				out = append(out, other.Name)
			}
		}
		if page.Continue == "" {
			return out, nil
		}
	}
}

// source is what a CSI driver knows of a PersistentVolume, nil of one that has none.
func source(pv *corev1.PersistentVolume) *corev1.CSIPersistentVolumeSource {
	src, _ := pvsource.Of(pv)
	return src
}

// sameSource reports whether two PersistentVolumes are certainly of one volume.
func sameSource(x, y *corev1.PersistentVolume) bool {
	p, q := source(x), source(y)
	return p != nil && q != nil && p.Driver == q.Driver && p.VolumeHandle == q.VolumeHandle
}

// maybeTwins reports whether two PersistentVolumes may be of one volume.
func maybeTwins(x, y *corev1.PersistentVolume) bool {
	p, q := source(x), source(y)
	return p != nil && q != nil && pvsource.Same(p, q)
}

// gatherUse reads who uses the claim, or is about to.
func (a *Adopter) gatherUse(ctx context.Context, f *facts) error {
	pods := &corev1.PodList{}
	if err := a.api.List(ctx, pods, client.InNamespace(f.key.Namespace)); err != nil {
		return fmt.Errorf("list pods of namespace %s: %w", f.key.Namespace, err)
	}
	for _, p := range pods.Items {
		ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		if !ended && uses(&p.Spec, p.Name, f.key.Name) {
			f.pods = append(f.pods, p)
		}
	}
	all := &storagev1.VolumeAttachmentList{}
	if err := a.api.List(ctx, all); err != nil {
		return fmt.Errorf("list VolumeAttachments: %w", err)
	}
	var names []string
	for _, pv := range []*corev1.PersistentVolume{f.volume, f.front, f.block} {
		if pv != nil {
			names = append(names, pv.Name)
		}
	}
	if f.journal != nil {
		// One that is gone may be attached all the same.
		names = append(names, f.journal.Volume.Name, f.journal.front(), f.journal.origin())
	}
	for _, va := range all.Items {
		if slices.Contains(names, ptr.Deref(va.Spec.Source.PersistentVolumeName, "")) {
			f.attachments = append(f.attachments, va)
		}
	}
	if !f.leads() {
		return nil
	}
	var err error
	f.owners, err = a.ownersOf(ctx, f.key)
	return err
}

// leads reports whether there is a claim whose users use the volume.
func (f *facts) leads() bool {
	return f.claim != nil && (f.journal == nil || f.claim.UID == f.journal.Claim.UID || onFront(f))
}

// uses reports whether a pod of a template names a claim, or has it made for itself.
func uses(spec *corev1.PodSpec, pod, claim string) bool {
	return slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim || v.Ephemeral != nil && pod+"-"+v.Name == claim
	})
}
