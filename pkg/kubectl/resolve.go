package kubectl

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/quantity"
	domain "github.com/nearflash/nearflash/pkg/volume"
)

// volume is a CachedVolume and the names under which users know it.
type volume struct {
	*v1alpha1.CachedVolume

	// PV is the PersistentVolume; nil if there is none.
	PV *corev1.PersistentVolume
	// ClaimNamespace and Claim are "" for a volume that was never claimed.
	ClaimNamespace, Claim string
}

// title is what messages call the volume.
func (v *volume) title() string {
	if v.Claim != "" {
		return v.Claim
	}
	return "cvol/" + v.Name
}

// argument is how the volume is named on the command line, wherever one is.
func (v *volume) argument() string {
	if v.Claim != "" {
		return "-n " + v.ClaimNamespace + " " + v.Claim
	}
	return "cvol/" + v.Name
}

// attached reports whether a node is entitled to have the volume attached.
func (v *volume) attached() bool { return v.Status.Publication == v1alpha1.PublicationPublished }

// byMany reports whether many nodes have it attached to read it.
func (v *volume) byMany() bool { return v.attached() && v.Status.OwnerNode == domain.Readers }

// readersError refuses what is asked of one node's cache where many nodes have one.
func readersError(v *volume, done string) error {
	return fmt.Errorf("it is read by many nodes (%s), each with a cache of its own, and only the cache of a volume that one node has can be %s", domain.NamesOfReaders(v.Status.Readers), done)
}

// node returns where the volume is attached, "" if it is nowhere.
func (v *volume) node() string {
	if !v.attached() {
		return ""
	}
	return v.Status.OwnerNode
}

// possiblyDirty reports whether the owner's SSD may hold what the origin lacks.
func (v *volume) possiblyDirty() bool {
	return v.Status.DirtyState == v1alpha1.DirtyStatePossiblyDirty
}

// torn reports whether an unclean stop, in a time of dropped flushes, may have taken writes in any order.
func (v *volume) torn() bool {
	c := v.condition(v1alpha1.ConditionConsistent)
	return c != nil && c.Status == metav1.ConditionFalse
}

// reported reports whether the owner reports a cache.
func (v *volume) reported() bool { return v.attached() && v.Status.Cache.Mode != "" }

// lastSeen reports whether there is a report of a cache that the owner may still have.
func (v *volume) lastSeen() bool {
	return v.reported() || v.possiblyDirty() && v.Status.Cache.Mode != ""
}

// maxCache returns the most that the volume's cache has in bytes, 0 for no maximum.
func (v *volume) maxCache() int64 {
	n, err := quantity.Bytes(v.Spec.MaxCacheSize)
	if err != nil {
		return 0
	}
	return n
}

// capacity returns the size of the volume in bytes, 0 if it is not known.
func (v *volume) capacity() int64 {
	if c := v.Spec.CapacityBytes; c != nil && *c > 0 {
		return *c
	}
	if v.PV != nil {
		q := v.PV.Spec.Capacity[corev1.ResourceStorage]
		return q.Value()
	}
	return 0
}

func (v *volume) condition(kind string) *metav1.Condition {
	return meta.FindStatusCondition(v.Status.Conditions, kind)
}

// joined puts a record together with its PersistentVolume.
func joined(record *v1alpha1.CachedVolume, pv *corev1.PersistentVolume) *volume {
	v := &volume{CachedVolume: record, PV: pv}
	switch {
	case pv != nil && pv.Spec.ClaimRef != nil:
		v.ClaimNamespace, v.Claim = pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name
	case record.Spec.ClaimRef != nil:
		v.ClaimNamespace, v.Claim = record.Spec.ClaimRef.Namespace, record.Spec.ClaimRef.Name
	}
	return v
}

// handle returns the name of the CachedVolume of a PersistentVolume, "" if it is
// another driver's.
func handle(pv *corev1.PersistentVolume) string {
	if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != driverName {
		return ""
	}
	return pv.Spec.CSI.VolumeHandle
}

// The words before the slash of an argument, as kubectl knows the resources.
var (
	claimWords  = []string{"pvc", "persistentvolumeclaim", "persistentvolumeclaims"}
	volumeWords = []string{"pv", "persistentvolume", "persistentvolumes"}
	recordWords = []string{"cvol", "cachedvolume", "cachedvolumes", "cachedvolume." + v1alpha1.GroupName, "cachedvolumes." + v1alpha1.GroupName}
)

// checkReference refuses an argument that names no volume.
func checkReference(arg string) error {
	_, _, err := parseReference(arg)
	return err
}

// parseReference splits an argument; kind is the first of a list of words.
func parseReference(arg string) (kind, object string, err error) {
	kind, object, found := strings.Cut(arg, "/")
	if !found {
		kind, object = claimWords[0], arg
	}
	if object != "" && !strings.Contains(object, "/") {
		for _, words := range [][]string{claimWords, volumeWords, recordWords} {
			if slices.Contains(words, kind) {
				return words[0], object, nil
			}
		}
	}
	return "", "", fmt.Errorf("%q does not name a volume: write the name of a claim, pv/NAME or cvol/NAME", arg)
}

// resolve finds the volume that an argument names.
func (s *session) resolve(ctx context.Context, arg string) (*volume, error) {
	kind, object, err := parseReference(arg)
	if err != nil {
		return nil, err
	}
	switch kind {
	case claimWords[0]:
		return s.fromClaim(ctx, object)
	case volumeWords[0]:
		return s.fromPV(ctx, object)
	}
	record, err := s.record(ctx, object)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("there is no CachedVolume %s: `%s list -A` shows all volumes", object, name)
	}
	if err != nil {
		return nil, err
	}
	pv, err := s.pvOf(ctx, record)
	if err != nil {
		return nil, err
	}
	return joined(record, pv), nil
}

func (s *session) fromClaim(ctx context.Context, claim string) (*volume, error) {
	var pvc corev1.PersistentVolumeClaim
	err := s.client.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: claim}, &pvc)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("there is no claim %s in namespace %s: name its namespace with -n; `%s list -A` shows all volumes", claim, s.namespace, name)
	}
	if err != nil {
		return nil, fmt.Errorf("read claim %s: %w", claim, err)
	}
	if pvc.Spec.VolumeName == "" {
		return nil, fmt.Errorf("claim %s is not bound (%s): `kubectl describe pvc -n %s %s` says what it waits for", claim, pvc.Status.Phase, s.namespace, claim)
	}
	v, err := s.fromPV(ctx, pvc.Spec.VolumeName)
	if err != nil {
		return nil, err
	}
	if v.PV == nil {
		if v.ClaimNamespace != pvc.Namespace || v.Claim != pvc.Name {
			return nil, fmt.Errorf("claim %s names PersistentVolume %s, which is not known to belong to it: use an account that may read PersistentVolumes", claim, pvc.Spec.VolumeName)
		}
		return v, nil
	}
	if v.PV.Spec.ClaimRef == nil {
		return v, nil
	}
	if ref := v.PV.Spec.ClaimRef; ref.Namespace != pvc.Namespace || ref.Name != pvc.Name || ref.UID != "" && ref.UID != pvc.UID {
		// Of a manifest that was restored into another namespace, for example.
		return nil, fmt.Errorf("claim %s names PersistentVolume %s, which belongs to claim %s/%s", claim, pvc.Spec.VolumeName, ref.Namespace, ref.Name)
	}
	return v, nil
}

func (s *session) fromPV(ctx context.Context, pvName string) (*volume, error) {
	var pv corev1.PersistentVolume
	err := s.client.Get(ctx, client.ObjectKey{Name: pvName}, &pv)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("there is no PersistentVolume %s: `kubectl get pv` lists them; a claim bound to it has lost its data", pvName)
	}
	if apierrors.IsForbidden(err) {
		return s.fromRecords(ctx, pvName, err)
	}
	if err != nil {
		return nil, fmt.Errorf("read PersistentVolume %s: %w", pvName, err)
	}
	id := handle(&pv)
	if id == "" {
		return nil, fmt.Errorf("PersistentVolume %s is of %s, not of nearflash: name a claim whose StorageClass has the provisioner %s", pvName, source(&pv), driverName)
	}
	record, err := s.record(ctx, id)
	if apierrors.IsNotFound(err) {
		return nil, noRecord(&pv, id)
	}
	if err != nil {
		return nil, err
	}
	return joined(record, &pv), nil
}

// fromRecords finds the volume of a PersistentVolume that may not be read: refused says why.
func (s *session) fromRecords(ctx context.Context, pvName string, refused error) (*volume, error) {
	var records v1alpha1.CachedVolumeList
	if err := s.client.List(ctx, &records); err != nil {
		return nil, fmt.Errorf("read PersistentVolume %s: %w", pvName, refused)
	}
	for i := range records.Items {
		if r := &records.Items[i]; r.Status.PersistentVolumeName == pvName || r.Status.PersistentVolumeName == "" && r.Name == pvName {
			return joined(r, nil), nil
		}
	}
	return nil, fmt.Errorf("PersistentVolume %s may not be read, and no CachedVolume names it: %w", pvName, refused)
}

// noRecord says what a missing record means: one of an existing LUN, or of another driver's
// volume, is made when a pod first uses the volume, any other has been lost.
func noRecord(pv *corev1.PersistentVolume, id string) error {
	_, lun := pv.Spec.CSI.VolumeAttributes["iqn"]
	_, origin := pv.Spec.CSI.VolumeAttributes["originPersistentVolume"]
	if lun || origin {
		return fmt.Errorf("PersistentVolume %s has no CachedVolume %s yet: it is made when a pod first uses the volume", pv.Name, id)
	}
	return fmt.Errorf("CachedVolume %s of PersistentVolume %s is missing: run `%s doctor`; restore the object from a backup of the cluster", id, pv.Name, name)
}

// source names what is behind a PersistentVolume.
func source(pv *corev1.PersistentVolume) string {
	if pv.Spec.CSI != nil {
		return "the CSI driver " + pv.Spec.CSI.Driver
	}
	return "no CSI driver"
}

func (s *session) record(ctx context.Context, id string) (*v1alpha1.CachedVolume, error) {
	var record v1alpha1.CachedVolume
	err := s.client.Get(ctx, client.ObjectKey{Name: id}, &record)
	switch {
	case meta.IsNoMatchError(err):
		return nil, errNoCRD()
	case err != nil:
		return nil, fmt.Errorf("read CachedVolume %s: %w", id, err)
	}
	return &record, nil
}

// errNoCRD is what a cluster without the resources of nearflash gets for an answer.
func errNoCRD() error {
	return fmt.Errorf("this cluster does not know the resources of %s: install nearflash, or choose another cluster with --context", v1alpha1.GroupVersion)
}

// pvOf finds the PersistentVolume of a record, nil if there is none.
func (s *session) pvOf(ctx context.Context, record *v1alpha1.CachedVolume) (*corev1.PersistentVolume, error) {
	for _, candidate := range []string{record.Status.PersistentVolumeName, record.Name} {
		if candidate == "" {
			continue
		}
		var pv corev1.PersistentVolume
		err := s.client.Get(ctx, client.ObjectKey{Name: candidate}, &pv)
		if apierrors.IsForbidden(err) {
			return nil, nil
		}
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("read PersistentVolume %s: %w", candidate, err)
		}
		if err == nil && handle(&pv) == record.Name {
			return &pv, nil
		}
	}
	pvs, err := s.pvs(ctx)
	return pvs[record.Name], err
}

// pvs returns the driver's PersistentVolumes by handle; none for an account that may not
// read them. The records name their claims too.
func (s *session) pvs(ctx context.Context) (map[string]*corev1.PersistentVolume, error) {
	var list corev1.PersistentVolumeList
	err := s.client.List(ctx, &list)
	if apierrors.IsForbidden(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list PersistentVolumes: %w", err)
	}
	out := map[string]*corev1.PersistentVolume{}
	for i := range list.Items {
		if id := handle(&list.Items[i]); id != "" {
			out[id] = &list.Items[i]
		}
	}
	return out, nil
}

// all returns every volume, in the order of namespace, claim and name.
func (s *session) all(ctx context.Context) ([]*volume, error) {
	var records v1alpha1.CachedVolumeList
	if err := s.client.List(ctx, &records); err != nil {
		if meta.IsNoMatchError(err) {
			return nil, errNoCRD()
		}
		return nil, fmt.Errorf("list CachedVolumes: %w", err)
	}
	pvs, err := s.pvs(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]*volume, 0, len(records.Items))
	for i := range records.Items {
		out = append(out, joined(&records.Items[i], pvs[records.Items[i].Name]))
	}
	slices.SortFunc(out, byName)
	return out, nil
}

// byName orders volumes as lists show them.
func byName(a, b *volume) int {
	for _, pair := range [][2]string{{a.ClaimNamespace, b.ClaimNamespace}, {a.Claim, b.Claim}, {a.Name, b.Name}} {
		if c := strings.Compare(pair[0], pair[1]); c != 0 {
			return c
		}
	}
	return 0
}

// choose returns the volumes that a list shall show: those that are named, else
// those of the namespace, else all.
func (s *session) choose(ctx context.Context, args []string, everywhere bool) ([]*volume, error) {
	if len(args) == 0 {
		all, err := s.all(ctx)
		if err != nil || everywhere {
			return all, err
		}
		return slices.DeleteFunc(all, func(v *volume) bool { return v.ClaimNamespace != s.namespace }), nil
	}
	var out []*volume
	for _, arg := range args {
		v, err := s.resolve(ctx, arg)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}
