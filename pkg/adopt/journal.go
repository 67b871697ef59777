package adopt

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

const (
	// LabelAdoption is on the ConfigMap of an adoption, and has the name of the volume in
	// front: of its CachedVolume and its PersistentVolume.
	LabelAdoption = "nearflash.io/adoption"
	// Finalizer keeps that ConfigMap until the claim is released: it alone knows the originals.
	Finalizer = "nearflash.io/adoption"
	// annotationFrom is on the PersistentVolumes that are made, with the name of the original.
	annotationFrom = "nearflash.io/adopted-from"
	// annotationTouched is on a claim whose deletion was ordered, and was given back before. It
	// has the UID of the journal.
	annotationTouched = "nearflash.io/release-of"
)

// Keys of the ConfigMap. The originals are manifests, for people too.
const (
	keyState  = "state.yaml"
	keyClaim  = "claim.yaml"
	keyVolume = "persistentvolume.yaml"
	// keyFormat has the number of the format, beside the rest, which is read strictly: versions
	// before know no such key, and leave it out when they write.
	keyFormat = "format"
)

// format is that of the journals that this version writes, and the only one that it reads. Journals
// of the versions before have no number and are of format 1.
const format = "1"

// ErrNewer says that a journal was written by a newer version, in a format that this one does not
// know: to act on half of it could lose the originals.
var ErrNewer = errors.New("it was written by a newer version of nearflash")

// direction is where a journal leads to.
type direction string

const (
	toCache    direction = "adopt"
	toOriginal direction = "release"
	// givenBack says that the claim is bound to its original again, which is its owner's since.
	givenBack direction = "ended"
)

// state is the part of a journal that is no manifest.
type state struct {
	Direction direction `json:"direction"`
	// ReclaimPolicy is that of the original PersistentVolume, which is on Retain since.
	ReclaimPolicy corev1.PersistentVolumeReclaimPolicy `json:"reclaimPolicy"`
	// Attributes are the volumeAttributes of the volume in front, but for its origin.
	Attributes map[string]string `json:"attributes"`
	// FSType is the filesystem, "" for a raw block volume.
	FSType string `json:"fsType,omitempty"`
	// Ordered are the objects whose deletion was ordered; each is written before the order.
	Ordered []types.UID `json:"ordered,omitempty"`
	// Capacity is the size that the volume has got while it was adopted; empty if unknown.
	Capacity *resource.Quantity `json:"capacity,omitempty"`
	// Labels, Annotations, Owners and Request are those of the adopted claim when its release
	// began: what was changed meanwhile is kept.
	Labels      map[string]string       `json:"labels,omitempty"`
	Annotations map[string]string       `json:"annotations,omitempty"`
	Owners      []metav1.OwnerReference `json:"owners,omitempty"`
	Request     *resource.Quantity      `json:"request,omitempty"`
}

// journal is what makes an adoption resumable, and its release possible.
type journal struct {
	state
	// Claim and Volume are the originals, as they were last seen.
	Claim  *corev1.PersistentVolumeClaim
	Volume *corev1.PersistentVolume

	object *corev1.ConfigMap
}

// front is the name of the volume in front: of its record and its PersistentVolume. The UID
// of the claim makes it one that no volume has had, so that no node has a cache under it.
func (j *journal) front() string { return "adopted-" + string(j.Claim.UID) }

// origin is the name of the raw block PersistentVolume below.
func (j *journal) origin() string { return j.front() + "-origin" }

// ordered reports whether the deletion of an object was ordered.
func (j *journal) ordered(uid types.UID) bool { return slices.Contains(j.Ordered, uid) }

// order notes that the deletion of an object is ordered.
func (j *journal) order(uid types.UID) {
	if !j.ordered(uid) {
		j.Ordered = append(j.Ordered, uid)
	}
}

// journalKey is where the journal of a claim is. There is one at most.
func (a *Adopter) journalKey(claim types.NamespacedName) client.ObjectKey {
	sum := sha256.Sum256([]byte(claim.String()))
	return client.ObjectKey{Namespace: a.origins, Name: "adoption-" + hex.EncodeToString(sum[:8])}
}

// load reads the journal of a claim; nil if there is none.
func (a *Adopter) load(ctx context.Context, claim types.NamespacedName) (*journal, error) {
	key := a.journalKey(claim)
	obj := &corev1.ConfigMap{}
	err := a.api.Get(ctx, key, obj)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read ConfigMap %s, the journal of the adoption: %w", key, err)
	}
	j, err := decode(obj)
	if errors.Is(err, ErrNewer) {
		return nil, fmt.Errorf("ConfigMap %s, the journal of the adoption of claim %s: %w", key, claim, err)
	}
	if err != nil {
		return nil, fmt.Errorf("ConfigMap %s, the journal of the adoption of claim %s: %w: restore it as it was written", key, claim, err)
	}
	if j.Claim.Namespace != claim.Namespace || j.Claim.Name != claim.Name {
		return nil, fmt.Errorf("ConfigMap %s is the journal of claim %s/%s, not of %s: restore it as it was written", key, j.Claim.Namespace, j.Claim.Name, claim)
	}
	return j, nil
}

func decode(obj *corev1.ConfigMap) (*journal, error) {
	if f, has := obj.Data[keyFormat]; has && f != format {
		return nil, fmt.Errorf("%w: format %s, known is %s: use kubectl nearflash of that version", ErrNewer, f, format)
	}
	j := &journal{Claim: &corev1.PersistentVolumeClaim{}, Volume: &corev1.PersistentVolume{}, object: obj}
	for key, into := range map[string]any{keyState: &j.state, keyClaim: j.Claim, keyVolume: j.Volume} {
		if err := yaml.UnmarshalStrict([]byte(obj.Data[key]), into); err != nil {
			return nil, fmt.Errorf("key %s: %w", key, err)
		}
	}
	if !slices.Contains([]direction{toCache, toOriginal, givenBack}, j.Direction) {
		return nil, fmt.Errorf("key %s: direction %q: accepted are %s, %s, %s", keyState, j.Direction, toCache, toOriginal, givenBack)
	}
	if j.Claim.UID == "" || j.Volume.UID == "" || source(j.Volume) == nil || j.ReclaimPolicy == "" {
		return nil, fmt.Errorf("it lacks the UID of the claim or of the PersistentVolume, its CSI source, or its reclaim policy")
	}
	return j, nil
}

func (j *journal) encode() (map[string]string, error) {
	out := map[string]string{keyFormat: format}
	for key, from := range map[string]any{keyState: j.state, keyClaim: manifestOf(j.Claim), keyVolume: manifestOf(j.Volume)} {
		text, err := yaml.Marshal(from)
		if err != nil {
			return nil, fmt.Errorf("journal of the adoption: %w", err)
		}
		out[key] = string(text)
	}
	return out, nil
}

// manifestOf is an object with its kind, which typed clients leave out, and without what the API
// server keeps of its writers.
func manifestOf(o client.Object) client.Object {
	o, _ = o.DeepCopyObject().(client.Object) // a copy is of the same type
	o.SetManagedFields(nil)
	kind := "PersistentVolume"
	if _, claim := o.(*corev1.PersistentVolumeClaim); claim {
		kind = "PersistentVolumeClaim"
	}
	o.GetObjectKind().SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
	return o
}

// create makes the journal, and sees to it that what is stored is what was meant.
func (a *Adopter) create(ctx context.Context, j *journal) error {
	data, err := j.encode()
	if err != nil {
		return err
	}
	key := a.journalKey(client.ObjectKeyFromObject(j.Claim))
	j.object = &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace, Name: key.Name, Finalizers: []string{Finalizer}, Labels: map[string]string{LabelAdoption: j.front()},
		},
		Data: data,
	}
	if err := a.api.Create(ctx, j.object); err != nil {
		return fmt.Errorf("save the manifests in ConfigMap %s: %w", key, err)
	}
	if !slices.Contains(j.object.Finalizers, Finalizer) {
		return fmt.Errorf("ConfigMap %s was stored without its finalizer %s: is there an admission policy that changes it? nothing else was changed", key, Finalizer)
	}
	stored, err := decode(j.object)
	if err == nil && (stored.Claim.UID != j.Claim.UID || stored.Volume.UID != j.Volume.UID) {
		err = fmt.Errorf("other manifests were stored")
	}
	if err != nil {
		return fmt.Errorf("ConfigMap %s was not stored as it was written: %w: is there an admission policy that changes it? nothing else was changed", key, err)
	}
	return nil
}

// note changes the journal, on the version that was read.
func (a *Adopter) note(ctx context.Context, j *journal, change func(*journal)) error {
	change(j)
	data, err := j.encode()
	if err != nil {
		return err
	}
	base := j.object.DeepCopy()
	j.object.Data = data
	if err := a.api.Patch(ctx, j.object, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("write ConfigMap %s/%s, the journal of the adoption: %w", base.Namespace, base.Name, err)
	}
	return nil
}

// forget deletes the journal. Killed between the two writes, it is a journal still.
func (a *Adopter) forget(ctx context.Context, j *journal) error {
	obj := j.object
	if obj.DeletionTimestamp == nil {
		if err := a.api.Delete(ctx, obj, client.Preconditions{UID: &obj.UID, ResourceVersion: &obj.ResourceVersion}); err != nil {
			return fmt.Errorf("delete ConfigMap %s/%s, the journal of the adoption: %w", obj.Namespace, obj.Name, err)
		}
		return nil
	}
	base := obj.DeepCopy()
	obj.Finalizers = slices.DeleteFunc(obj.Finalizers, func(f string) bool { return f == Finalizer })
	if err := a.api.Patch(ctx, obj, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("end ConfigMap %s/%s, the journal of the adoption: %w", obj.Namespace, obj.Name, err)
	}
	return nil
}
