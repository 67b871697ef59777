package kubectl

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/adopt"
)

// originLabel has the ID of the volume, on the claims and the VolumeAttachments that the
// controller makes of volumes of other CSI drivers.
const originLabel = "nearflash.io/volume"

// remedyNoRecord is for an origin without a record: no volume of another driver can be adopted by
// an attribute of its PersistentVolume, as one of the storage server can.
const remedyNoRecord = "restore the CachedVolume from a backup (docs/how-to/recover-a-lost-cluster.md, Volumes over other drivers; adopt is not for them)"

// defaultOrigins is the chart's namespace of origins.
const defaultOrigins = "nearflash-origins"

// originFacts are those claims and VolumeAttachments. Problem says why they could not be read.
// Volumes are all PersistentVolumes, none for an account that may not read them.
type originFacts struct {
	volumes     []corev1.PersistentVolume
	claims      []corev1.PersistentVolumeClaim
	attachments []storagev1.VolumeAttachment
	// adoptions are the journals of claims that were adopted, none for an account that may not read them.
	adoptions []corev1.ConfigMap
	problem   error
}

// origins reads them. An account that may not is told so, and of all the rest.
func (s *session) origins(ctx context.Context) originFacts {
	var claims corev1.PersistentVolumeClaimList
	var attachments storagev1.VolumeAttachmentList
	for _, list := range []client.ObjectList{&claims, &attachments} {
		if err := s.client.List(ctx, list, client.HasLabels{originLabel}); err != nil {
			return originFacts{problem: err}
		}
	}
	var volumes corev1.PersistentVolumeList
	var adoptions corev1.ConfigMapList
	var problem error
	for _, err := range []error{
		s.client.List(ctx, &volumes), s.client.List(ctx, &adoptions, client.HasLabels{adopt.LabelAdoption}),
	} {
		if err != nil && !apierrors.IsForbidden(err) {
			problem = err
		}
	}
	return originFacts{claims: claims.Items, attachments: attachments.Items, volumes: volumes.Items, adoptions: adoptions.Items, problem: problem}
}

// checkOrigins looks at what lies below volumes of backend csi. What no record claims is
// shown and left alone, for it may be all that is left of somebody's data.
func checkOrigins(d *diagnosis, f *clusterFacts, now time.Time) {
	var csi []*volume
	known := map[string]bool{}
	for _, v := range f.volumes {
		known[v.Name] = true
		if v.Spec.Origin != nil {
			csi = append(csi, v)
		}
	}
	if err := f.origins.problem; err != nil {
		if len(csi) > 0 {
			d.add(sevWarning, "origins", "run doctor with an account that may list claims and VolumeAttachments in all namespaces", "cannot be read: %v", err)
		}
		return
	}
	since := len(d.Findings)
	checkLeftOrigins(d, f.origins)
	checkAdoptions(d, f.origins, now)
	if len(csi) == 0 && len(f.origins.claims) == 0 && len(f.origins.attachments) == 0 {
		return
	}
	claims := map[string]*corev1.PersistentVolumeClaim{}
	for i := range f.origins.claims {
		claim := &f.origins.claims[i]
		id := claim.Labels[originLabel]
		claims[id] = claim
		if !known[id] {
			d.add(sevWarning, claimName(claim), remedyNoRecord+"; nothing deletes the data without it",
				"is the origin of volume %s, which has no CachedVolume; its data are on PersistentVolume %s", id, orNone(claim.Spec.VolumeName))
		}
	}
	for _, v := range csi {
		checkOrigin(d, v, claims[v.Name], now)
	}
	for i := range f.origins.attachments {
		checkAttachment(d, &f.origins.attachments[i], known)
	}
	if !d.bad(since) {
		d.ok("origins", "%s, none is stuck", count(len(claims), "claim"))
	}
}

// checkLeftOrigins finds disks that were made for origins and have no claim any more: one that was
// given up while its driver still made it, in a class whose reclaimPolicy is Retain. What was there
// before it was an origin is left on Retain too, and is its owner's.
func checkLeftOrigins(d *diagnosis, f originFacts) {
	namespaces, claims := []string{defaultOrigins}, map[types.UID]bool{}
	for i := range f.claims {
		claims[f.claims[i].UID] = true
		namespaces = append(namespaces, f.claims[i].Namespace)
	}
	for i := range f.volumes {
		pv := &f.volumes[i]
		ref := pv.Spec.ClaimRef
		if ref == nil || claims[ref.UID] || !slices.Contains(namespaces, ref.Namespace) || pv.Annotations["pv.kubernetes.io/provisioned-by"] == "" {
			continue
		}
		if pv.Status.Phase == corev1.VolumeReleased && pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain {
			d.add(sevWarning, "pv/"+pv.Name, "if nobody wants its data, set its reclaim policy to Delete, which has its driver delete the disk",
				"was made as the origin of volume %s, and has no claim any more: nearflash does not use it, and nothing deletes it", ref.Name)
		}
	}
}

// checkAdoptions finds claims whose adoption or release was begun and not ended. Meanwhile a claim may be
// gone, or be bound to nothing.
func checkAdoptions(d *diagnosis, f originFacts, now time.Time) {
	if len(f.volumes) == 0 {
		return // whether a claim has its cache is not known
	}
	for i := range f.adoptions {
		journal := &f.adoptions[i]
		object := "configmap/" + journal.Name + " (namespace " + journal.Namespace + ")"
		claim, command, err := adopt.Unfinished(journal, f.volumes)
		switch {
		case errors.Is(err, adopt.ErrNewer):
			d.add(sevWarning, object, "use "+name+" of the version that began it", "is the journal of an adoption: %v", err)
		case err != nil:
			d.add(sevWarning, object, "restore it as it was written: it alone knows what the claim was before", "is the journal of an adoption, and makes no sense: %v", err)
		case command != "" && now.Sub(journal.CreationTimestamp.Time) > stuckAfter:
			d.add(sevWarning, object, "kubectl nearflash "+command+" -n "+claim.Namespace+" "+claim.Name+" goes on with it; the data are where they were",
				"the %s of claim %s has not ended", map[string]string{"adopt": "adoption", "release": "release"}[command], claim)
		}
	}
}

func claimName(c *corev1.PersistentVolumeClaim) string {
	return "pvc/" + c.Name + " (namespace " + c.Namespace + ")"
}

// checkOrigin looks at the claim below one volume.
func checkOrigin(d *diagnosis, v *volume, claim *corev1.PersistentVolumeClaim, now time.Time) {
	object := objectName(v)
	switch {
	case claim == nil && v.DeletionTimestamp != nil, claim == nil && v.Spec.Origin.PersistentVolumeName != "" && v.Status.OwnerNode == "":
		// Deleted with the volume, or not made yet: a static one is claimed at the first publication.
	case claim == nil && now.Sub(v.CreationTimestamp.Time) > stuckAfter:
		d.add(sevError, object, "find the PersistentVolume of the other driver, which has the data, before you delete anything", "the claim of its origin is gone: it cannot be attached")
	case claim == nil:
	case claim.Status.Phase == corev1.ClaimLost:
		d.add(sevError, object, "restore the PersistentVolume; its data may still be with the other driver", "PersistentVolume %s of its origin is gone", claim.Spec.VolumeName)
	case claim.Status.Phase != corev1.ClaimBound && now.Sub(claim.CreationTimestamp.Time) > stuckAfter:
		d.add(sevWarning, object, "kubectl describe pvc -n "+claim.Namespace+" "+claim.Name+" says what its driver answers", "the claim of its origin has waited for %s", ago(now, claim.CreationTimestamp))
	}
}

// checkAttachment looks at one attachment of an origin.
func checkAttachment(d *diagnosis, a *storagev1.VolumeAttachment, known map[string]bool) {
	object, id := "volumeattachment/"+a.Name, a.Labels[originLabel]
	remedy := "see the log of " + a.Spec.Attacher + "'s controller"
	if e := a.Status.AttachError; e != nil {
		d.add(sevWarning, object, remedy, "the origin of volume %s cannot be attached to node %s: %s", id, a.Spec.NodeName, e.Message)
	}
	if e := a.Status.DetachError; e != nil {
		d.add(sevWarning, object, remedy, "the origin of volume %s cannot be detached from node %s: %s", id, a.Spec.NodeName, e.Message)
	}
	if !known[id] {
		d.add(sevWarning, object, remedyNoRecord,
			"has the origin of volume %s attached to node %s, and the volume has no CachedVolume; unflushed writes may be on that node", id, a.Spec.NodeName)
	}
}

// originClassProblems are those of a class of backend csi that its parameters alone do not show.
func originClassProblems(f *clusterFacts, params map[string]string) []string {
	origin := params["originStorageClass"]
	if params["backend"] != "csi" || origin == "" {
		return nil
	}
	provisioner, there := f.provisioners[origin]
	switch {
	case !there:
		return []string{"originStorageClass " + origin + " is not in the cluster"}
	case provisioner == driverName:
		return []string{"originStorageClass " + origin + " is of this driver, accepted is one of another CSI driver"}
	}
	return nil
}
