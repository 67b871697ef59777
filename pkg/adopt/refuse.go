package adopt

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/pvsource"
	"github.com/nearflash/nearflash/pkg/volume"
)

// problems collects all that is in the way, so that its reader learns of it at once.
type problems []error

func (p *problems) add(format string, args ...any) { *p = append(*p, fmt.Errorf(format, args...)) }

func (p *problems) err() error {
	if len(*p) == 0 {
		return nil
	}
	texts := make([]string, len(*p))
	for i, e := range *p {
		texts[i] = e.Error()
	}
	return errors.New(strings.Join(texts, "; "))
}

// refuseClaim reports why a claim cannot be adopted, whoever uses it (states.md, "Adoption").
func refuseClaim(f *facts, w Want) error {
	var p problems
	c, pv := f.claim, f.volume
	switch {
	case c == nil:
		return fmt.Errorf("there is no claim %s in namespace %s", f.key.Name, f.key.Namespace)
	case c.DeletionTimestamp != nil:
		return fmt.Errorf("claim %s is being deleted", c.Name)
	case c.Spec.VolumeName == "" || c.Status.Phase != corev1.ClaimBound:
		return fmt.Errorf("claim %s is not bound (%s)", c.Name, c.Status.Phase)
	case pv == nil:
		return fmt.Errorf("claim %s is bound to PersistentVolume %s, which does not exist", c.Name, c.Spec.VolumeName)
	case pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != c.UID:
		return fmt.Errorf("PersistentVolume %s does not belong to claim %s/%s", pv.Name, c.Namespace, c.Name)
	case pv.DeletionTimestamp != nil:
		return fmt.Errorf("PersistentVolume %s is being deleted: with its claim it would go", pv.Name)
	case source(pv) == nil:
		_, err := pvsource.Of(pv)
		return err
	case source(pv).Driver == driverName:
		return fmt.Errorf("claim %s has a volume of nearflash already", c.Name)
	}
	src := source(pv)
	refuseShape(&p, c, pv, w)
	refuseSource(&p, src, w)
	if f.class != nil {
		refuseParameters(&p, "parameter of StorageClass "+f.class.Name, src.Driver, f.class.Parameters)
	}
	refuseDriver(&p, f.driver)
	refuseFence(&p, src.Driver, f.driver, w)
	if f.self == nil {
		p.add("there is no CSIDriver %s: install nearflash, with origins.enabled, before", driverName)
	}
	if len(f.twins) > 0 {
		p.add("PersistentVolume %s is of the same volume as %s: accepted is the only one of it", strings.Join(f.twins, ", "), pv.Name)
	}
	return p.err()
}

// refuseShape judges the fields of claim and PersistentVolume.
func refuseShape(p *problems, c *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume, w Want) {
	for _, m := range c.Spec.AccessModes {
		if m != corev1.ReadWriteOnce && m != corev1.ReadWriteOncePod {
			p.add("access mode %s: a volume over another CSI driver's is attached to one node at a time; accepted are %s, %s", m, corev1.ReadWriteOnce, corev1.ReadWriteOncePod)
		}
	}
	if len(c.Spec.AccessModes) > 1 && slices.Contains(c.Spec.AccessModes, corev1.ReadWriteOncePod) {
		p.add("access modes %v: %s goes alone", c.Spec.AccessModes, corev1.ReadWriteOncePod)
	}
	if name := ptr.Deref(c.Spec.VolumeAttributesClassName, ""); name != "" {
		p.add("VolumeAttributesClass %s: it is of the other driver, and cannot be applied below a cache; accepted are claims without one", name)
	}
	if name := ptr.Deref(pv.Spec.VolumeAttributesClassName, ""); name != "" && ptr.Deref(c.Spec.VolumeAttributesClassName, "") == "" {
		p.add("VolumeAttributesClass %s of PersistentVolume %s: accepted are volumes without one", name, pv.Name)
	}
	want := requested(c)
	if pending(c) || want.Cmp(*pv.Spec.Capacity.Storage()) > 0 {
		p.add("the claim is being expanded: wait until its capacity is %s, for which a pod may have to start once", want.String())
	}
	block := ptr.Deref(pv.Spec.VolumeMode, corev1.PersistentVolumeFilesystem) == corev1.PersistentVolumeBlock
	switch fs := source(pv).FSType; {
	case block && w.FSType != "":
		p.add("--fs-type %s contradicts volumeMode Block, which has no filesystem: leave it out", w.FSType)
	case block:
	case fs != "" && !slices.Contains(FSTypes, strings.ToLower(fs)):
		p.add("fsType %s of PersistentVolume %s: nearflash cannot mount it; accepted are %s", fs, pv.Name, strings.Join(FSTypes, ", "))
	case fs != "" && w.FSType != "" && !strings.EqualFold(fs, w.FSType):
		p.add("--fs-type %s contradicts fsType %s of PersistentVolume %s: leave it out", w.FSType, fs, pv.Name)
	}
	for what, o := range map[string]metav1.Object{"claim " + c.Name: c, "PersistentVolume " + pv.Name: pv} {
		if foreign := foreignFinalizers(o); len(foreign) > 0 {
			p.add("finalizer %s of %s: it could not be deleted; accepted are those of Kubernetes and of CSI sidecars", strings.Join(foreign, ", "), what)
		}
	}
}

// pending reports whether the expansion of a claim has not ended.
func pending(c *corev1.PersistentVolumeClaim) bool {
	for _, cond := range c.Status.Conditions {
		resizing := cond.Type == corev1.PersistentVolumeClaimResizing || cond.Type == corev1.PersistentVolumeClaimFileSystemResizePending
		if resizing && cond.Status == corev1.ConditionTrue {
			return true
		}
	}
	return len(c.Status.AllocatedResourceStatuses) > 0
}

// refuseSource judges what the driver is told of the volume.
func refuseSource(p *problems, src *corev1.CSIPersistentVolumeSource, w Want) {
	if src.ReadOnly {
		p.add("readOnly of the PersistentVolume's CSI source: accepted are volumes that can be written")
	}
	if src.NodePublishSecretRef != nil {
		p.add("nodePublishSecretRef %s/%s: a driver that takes a secret with the mount may encrypt by it, and nearflash would read and cache what is encrypted; accepted are volumes without one",
			src.NodePublishSecretRef.Namespace, src.NodePublishSecretRef.Name)
	}
	if filesystemOnly(src.Driver) {
		p.add("driver %s serves filesystems, not block devices: accepted are drivers of block volumes", src.Driver)
	}
	refuseParameters(p, "volumeAttribute", src.Driver, src.VolumeAttributes)
}

// fileDrivers are known to have no block volumes. Of others only the attachment tells.
var fileDrivers = []string{
	"nfs.csi.k8s.io", "smb.csi.k8s.io", "file.csi.azure.com", "blob.csi.azure.com", "efs.csi.aws.com", "fsx.csi.aws.com", "s3.csi.aws.com",
	"filestore.csi.storage.gke.io", "gcsfuse.csi.storage.gke.io", "cephfs.csi.ceph.com", "nfs.csi.ceph.com", "hostpath.csi.k8s.io", "juicefs.com", "csi.juicefs.com",
}

// filesystemOnly reports whether a driver is one of those. Operators put a prefix before ceph-csi's names.
func filesystemOnly(driver string) bool {
	return slices.ContainsFunc(fileDrivers, func(d string) bool { return driver == d || strings.HasSuffix(driver, "."+d) })
}

// atRest are parameters that say encryption, and mean that of the storage: its block devices
// show plain data.
var atRest = map[string][]string{
	"ebs.csi.aws.com":       {"encrypted", "kmskeyid"},
	"pd.csi.storage.gke.io": {"disk-encryption-kms-key"},
	"disk.csi.azure.com":    {"diskencryptionsetid", "diskencryptiontype"},
}

// pathKeys name a part of a filesystem, or a server of one.
var pathKeys = []string{"share", "server", "subdir", "subpath", "path", "rootpath", "basepath", "fsname", "subvolumename", "export", "bucketname"}

// refuseParameters finds what only the driver's own mount gives: a mapping that decrypts, a
// partition, a directory.
func refuseParameters(p *problems, what, driver string, params map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(params)) {
		value := params[key]
		name := strings.ToLower(key)
		if i := strings.LastIndex(name, "/"); i >= 0 {
			name = name[i+1:]
		}
		off := slices.Contains([]string{"", "false", "none", "no", "0"}, strings.ToLower(value))
		switch {
		case off || slices.Contains(atRest[driver], name):
		case strings.Contains(name, "encrypt") || strings.Contains(name, "luks") || strings.Contains(name, "passphrase"):
			p.add("%s %s=%q: the other driver's mount decrypts, and a cache would be below it; accepted are volumes that are not encrypted on the node", what, key, value)
		case strings.Contains(name, "node-publish-secret"):
			p.add("%s %s=%q: nearflash cannot pass that secret on; accepted are volumes without one", what, key, value)
		case strings.Contains(name, "partition"):
			p.add("%s %s=%q: nearflash mounts whole devices; accepted are volumes without partitions", what, key, value)
		case slices.Contains(pathKeys, name):
			p.add("%s %s=%q: it names a directory or a server of files; accepted are volumes that are one block device", what, key, value)
		}
	}
}

// refuseDriver judges what Kubernetes does for the pods of the driver alone.
func refuseDriver(p *problems, d *storagev1.CSIDriver) {
	if d == nil {
		return
	}
	if ptr.Deref(d.Spec.RequiresRepublish, false) || len(d.Spec.TokenRequests) > 0 {
		p.add("CSIDriver %s asks for tokens of pods (tokenRequests, requiresRepublish), and an origin has no pod; accepted are drivers without", d.Name)
	}
}

// refuseFence is what the controller does when a volume is first published (checkFence).
func refuseFence(p *problems, driver string, d *storagev1.CSIDriver, w Want) {
	attaches := d == nil || ptr.Deref(d.Spec.AttachRequired, true)
	if attaches && !volume.EmptyDetach(driver) || !v1alpha1.CacheMode(w.Attributes["cacheMode"]).TakesWrites() ||
		w.Attributes["withoutFence"] == volume.AcceptTwoWriters {
		return
	}
	p.add("cacheMode %s: a detach by driver %s keeps no lost node from writing; accepted are none, writethrough, or withoutFence %s", w.Attributes["cacheMode"], driver, volume.AcceptTwoWriters)
}

// refuseUse reports who uses the claim, or is about to.
func refuseUse(f *facts) error {
	var p problems
	for _, o := range f.owners {
		p.add("%s makes pods with the claim: stop it with `%s`", o.what, o.remedy)
	}
	for i := range f.pods {
		p.add("pod %s (%s) uses the claim: stop it", f.pods[i].Name, f.pods[i].Status.Phase)
	}
	for i := range f.attachments {
		va := &f.attachments[i]
		p.add("PersistentVolume %s is attached to node %s (VolumeAttachment %s): wait until it is detached", ptr.Deref(va.Spec.Source.PersistentVolumeName, ""), va.Spec.NodeName, va.Name)
	}
	return p.err()
}

// refuseRecord reports why the volume in front cannot be taken away.
func refuseRecord(r *v1alpha1.CachedVolume) error {
	switch {
	case r == nil:
		return nil
	case r.Status.DirtyState == v1alpha1.DirtyStatePossiblyDirty:
		return fmt.Errorf("node %s may hold unflushed writes of CachedVolume %s: bring the node back, which flushes them; `kubectl nearflash describe cvol/%s` tells when it has", r.Status.OwnerNode, r.Name, r.Name)
	case r.Status.Publication == v1alpha1.PublicationPublished:
		return fmt.Errorf("CachedVolume %s is published to node %s: wait until it is detached", r.Name, r.Status.OwnerNode)
	}
	return nil
}
