package adopt

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// before is a claim of another driver that can be adopted.
func before() *facts {
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("8Mi")}
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data", UID: "c1", ResourceVersion: "10", Finalizers: []string{"kubernetes.io/pvc-protection"}},
		Spec: corev1.PersistentVolumeClaimSpec{
			VolumeName: "pv-1", AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: size}, StorageClassName: ptr.To("fast"),
			VolumeMode: ptr.To(corev1.PersistentVolumeFilesystem),
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-1", UID: "v1", ResourceVersion: "20", Finalizers: []string{"kubernetes.io/pv-protection", "external-provisioner.volume.kubernetes.io/finalizer"}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, ClaimRef: &corev1.ObjectReference{Namespace: "shop", Name: "data", UID: "c1"}, StorageClassName: "fast",
			AccessModes: c.Spec.AccessModes, VolumeMode: c.Spec.VolumeMode, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d.example.org", VolumeHandle: "h", FSType: "ext4"}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}
	return &facts{
		key: types.NamespacedName{Namespace: "shop", Name: "data"}, claim: c, volume: pv,
		class:  &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}},
		driver: &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "d.example.org"}},
		self:   &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}},
	}
}

// during is the same once the manifests are saved and the PersistentVolume is on Retain.
func during() *facts {
	f := before()
	f.journal = newJournal(f, Want{})
	f.journal.object = &corev1.ConfigMap{}
	f.volume.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	f.front = f.journal.frontVolume()
	return f
}

// replaced is the same with the claim gone and the PersistentVolume Released.
func replaced() *facts {
	f := during()
	f.claim, f.volume.Status.Phase = nil, corev1.VolumeReleased
	return f
}

// after is the same once all is made, and the claim is bound.
func after() *facts {
	f := replaced()
	f.journal.order("c1")
	f.journal.order("v1")
	f.volume, f.block = nil, f.journal.blockVolume("origins")
	f.block.UID = "b1"
	f.claim = f.journal.claimFor(f.front.Name)
	f.claim.UID, f.claim.Status.Phase = "c2", corev1.ClaimBound
	f.front.Spec.ClaimRef.UID = "c2"
	return f
}

func attachment(pv string) storagev1.VolumeAttachment {
	return storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "va"},
		Spec:       storagev1.VolumeAttachmentSpec{NodeName: "n", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}},
	}
}

// decision is a row: what is different from the facts of a state, and what is decided.
type decision struct {
	facts  func() *facts
	change func(*facts)
	want   kind
	// err and until are parts of the error and of what is waited for.
	err, until string
}

func check(t *testing.T, table map[string]decision, decide func(*facts) (step, error)) {
	t.Helper()
	for name, tc := range table {
		t.Run(name, func(t *testing.T) {
			f := tc.facts()
			if tc.change != nil {
				tc.change(f)
			}
			got, err := decide(f)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("%s, error %v; want %q", got.kind, err, tc.err)
				}
				return
			}
			if err != nil || got.kind != tc.want || !strings.Contains(got.until, tc.until) {
				t.Errorf("%s (%q), %v; want %s (%q)", got.kind, got.until, err, tc.want, tc.until)
			}
		})
	}
}

// gone marks an object as being deleted.
func gone(o metav1.Object) { o.SetDeletionTimestamp(ptr.To(metav1.Now())) }

// TestDecideAdopt is the first table "Adoption" of states.md.
func TestDecideAdopt(t *testing.T) {
	check(t, map[string]decision{
		"not begun":                  {facts: before, want: save},
		"a pod":                      {facts: before, change: func(f *facts) { f.pods = make([]corev1.Pod, 1); f.pods[0].Name = "p" }, err: "pod p"},
		"a StatefulSet":              {facts: before, change: func(f *facts) { f.owners = []owner{{"StatefulSet db", "kubectl scale x"}} }, err: "StatefulSet db makes pods with the claim: stop it with `kubectl scale x`"},
		"attached":                   {facts: before, change: func(f *facts) { f.attachments = []storagev1.VolumeAttachment{attachment("pv-1")} }, err: "attached to node n"},
		"saved":                      {facts: during, change: func(f *facts) { f.front = nil; f.volume.Spec.PersistentVolumeReclaimPolicy = "Delete" }, want: keep},
		"kept":                       {facts: during, change: func(f *facts) { f.front = nil }, want: makeFront},
		"kept, and a pod came":       {facts: during, change: func(f *facts) { f.pods = make([]corev1.Pod, 1) }, err: "uses the claim"},
		"reserved":                   {facts: during, want: orderClaim},
		"somebody's front":           {facts: during, change: func(f *facts) { f.front.Spec.CSI.VolumeHandle = "x" }, err: "was not made by this command"},
		"an older front":             {facts: during, change: func(f *facts) { f.front.Spec.CSI.VolumeAttributes["cacheMode"] = "old" }, err: "kubectl delete pv adopted-c1"},
		"one of another filesystem":  {facts: during, change: func(f *facts) { f.front.Spec.CSI.FSType = "xfs" }, err: "of an adoption before"},
		"ordered":                    {facts: during, change: func(f *facts) { f.journal.order("c1") }, want: deleteClaim},
		"ordered, policy taken back": {facts: during, change: func(f *facts) { f.journal.order("c1"); f.volume.Spec.PersistentVolumeReclaimPolicy = "Delete" }, want: keep},
		"ordered, claim changed":     {facts: during, change: func(f *facts) { f.journal.order("c1"); f.claim = f.claim.DeepCopy(); f.claim.ResourceVersion = "11" }, want: orderClaim},
		"claim leaves":               {facts: during, change: func(f *facts) { gone(f.claim) }, want: wait, until: "claim data is gone"},
		"volume gone below claim":    {facts: during, change: func(f *facts) { f.volume = nil }, err: "was not deleted by this command"},
		"another volume below claim": {facts: during, change: func(f *facts) { f.volume = f.volume.DeepCopy(); f.volume.UID = "v2" }, err: "was not deleted by this command"},

		"claim gone":                   {facts: replaced, want: orderVolume},
		"journal deleted by somebody":  {facts: after, change: func(f *facts) { f.journal.object.DeletionTimestamp = ptr.To(metav1.Now()) }, err: "kubectl nearflash release -n shop data"},
		"claim gone, not Released":     {facts: replaced, change: func(f *facts) { f.volume.Status.Phase = corev1.VolumeBound }, want: wait, until: "Released"},
		"claim gone, Failed":           {facts: replaced, change: func(f *facts) { f.volume.Status.Phase = corev1.VolumeFailed }, err: "whether volume h is there"},
		"claim gone, attached":         {facts: replaced, change: func(f *facts) { f.attachments = []storagev1.VolumeAttachment{attachment("pv-1")} }, want: wait, until: "detached from node n"},
		"claim gone, policy changed":   {facts: replaced, change: func(f *facts) { f.volume.Spec.PersistentVolumeReclaimPolicy = "Delete" }, want: keep},
		"claim gone, front gone":       {facts: replaced, change: func(f *facts) { f.front = nil }, want: makeFront},
		"claim gone, an older front":   {facts: replaced, change: func(f *facts) { f.front.Spec.CSI.VolumeAttributes["cacheMode"] = "old" }, err: "of an adoption before"},
		"volume gone, an older front":  {facts: after, change: func(f *facts) { f.front.Spec.CSI.VolumeAttributes["cacheMode"] = "old"; f.claim = nil }, err: "of an adoption before"},
		"changed by hand since":        {facts: after, change: func(f *facts) { f.front.Spec.CSI.VolumeAttributes["cacheMode"] = "new" }, want: done},
		"volume ordered":               {facts: replaced, change: func(f *facts) { f.journal.order("v1") }, want: deleteOld},
		"volume ordered, and changed":  {facts: replaced, change: func(f *facts) { f.journal.order("v1"); f.volume = f.volume.DeepCopy(); f.volume.ResourceVersion = "21" }, want: orderVolume},
		"volume leaves":                {facts: replaced, change: func(f *facts) { gone(f.volume) }, want: wait, until: "PersistentVolume pv-1 is gone"},
		"volume gone without an order": {facts: replaced, change: func(f *facts) { f.volume = nil }, err: "release -n shop data"},
		"volume gone":                  {facts: replaced, change: func(f *facts) { f.journal.order("v1"); f.volume = nil }, want: makeBlock},
		"volume made again":            {facts: replaced, change: func(f *facts) { f.journal.order("v1"); f.volume = f.volume.DeepCopy(); f.volume.UID = "v2" }, err: "made again by somebody"},
		"a twin":                       {facts: replaced, change: func(f *facts) { f.journal.order("v1"); f.volume = nil; f.twins = []string{"pv-2"} }, err: "PersistentVolume pv-2 is of the same volume"},

		"all made":               {facts: after, want: done},
		"no claim":               {facts: after, change: func(f *facts) { f.claim = nil; f.front.Spec.ClaimRef.UID = "" }, want: makeClaim},
		"no claim, bound before": {facts: after, change: func(f *facts) { f.claim = nil }, want: reserve},
		"claim of before leaves": {facts: after, change: func(f *facts) { gone(f.claim) }, want: wait, until: "is gone"},
		"not bound yet":          {facts: after, change: func(f *facts) { f.claim.Status.Phase = corev1.ClaimPending }, want: wait, until: "is bound"},
		"a claim that fits":      {facts: after, change: func(f *facts) { f.claim.Spec.VolumeName = ""; f.front.Spec.ClaimRef.UID = "" }, want: wait, until: "is bound"},
		"one that is too large": {facts: after, change: func(f *facts) {
			f.claim.Spec.VolumeName = ""
			f.front.Spec.ClaimRef.UID = ""
			f.claim.Spec.Resources.Requests = corev1.ResourceList{"storage": resource.MustParse("9Mi")}
		}, err: "asks for what PersistentVolume"},
		"one of another mode": {facts: after, change: func(f *facts) {
			f.claim.Spec.VolumeName = ""
			f.front.Spec.ClaimRef.UID = ""
			f.claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
		}, err: "asks for what PersistentVolume"},
		"one that is bound elsewhere":  {facts: after, change: func(f *facts) { f.claim.Spec.VolumeName = "pv-3"; f.front.Spec.ClaimRef.UID = "" }, err: "kubectl delete pvc -n shop data"},
		"the old name of the volume":   {facts: after, change: func(f *facts) { f.claim.Spec.VolumeName = "pv-1"; f.front.Spec.ClaimRef.UID = "" }, err: "is for PersistentVolume pv-1"},
		"no reservation":               {facts: after, change: func(f *facts) { f.front.Spec.ClaimRef = nil }, want: reserve},
		"reserved for somebody else":   {facts: after, change: func(f *facts) { f.front.Spec.ClaimRef.Name = "x" }, err: "is for claim shop/x now"},
		"front leaves":                 {facts: after, change: func(f *facts) { gone(f.front) }, want: wait, until: "is made again"},
		"origin on Delete":             {facts: after, change: func(f *facts) { f.block.Spec.PersistentVolumeReclaimPolicy = "Delete" }, want: keep},
		"somebody's origin":            {facts: after, change: func(f *facts) { f.block.Spec.CSI.VolumeHandle = "x" }, err: "was not made by this command"},
		"its release was begun":        {facts: after, change: func(f *facts) { f.journal.Direction = toOriginal }, err: "kubectl nearflash release -n shop data"},
		"its release has ended almost": {facts: after, change: func(f *facts) { f.journal.Direction = givenBack; gone(f.journal.object) }, err: "kubectl nearflash release -n shop data"},
	}, func(f *facts) (step, error) { return decideAdopt(f, Want{}) })
}

// released is an adopted claim whose release was begun.
func released() *facts {
	f := after()
	f.journal.Direction = toOriginal
	f.record = &v1alpha1.CachedVolume{ObjectMeta: metav1.ObjectMeta{Name: f.front.Name}}
	return f
}

// bare is the same with nothing left of nearflash, and the original not made yet.
func bare() *facts {
	f := released()
	f.front, f.record, f.block, f.claim = nil, nil, nil, nil
	return f
}

// original is the same with the original volume made again, and its claim bound.
func original() *facts {
	f := bare()
	f.volume = f.journal.originalVolume()
	f.claim = f.journal.claimFor("pv-1")
	f.claim.UID, f.claim.Status.Phase = "c3", corev1.ClaimBound
	f.volume.Spec.ClaimRef.UID = "c3"
	return f
}

// TestDecideRelease is the second table "Adoption" of states.md.
func TestDecideRelease(t *testing.T) {
	dirty := func(f *facts) {
		f.record = &v1alpha1.CachedVolume{Status: v1alpha1.CachedVolumeStatus{DirtyState: v1alpha1.DirtyStatePossiblyDirty, OwnerNode: "n1"}}
	}
	published := func(f *facts) {
		f.record = &v1alpha1.CachedVolume{Status: v1alpha1.CachedVolumeStatus{Publication: v1alpha1.PublicationPublished, OwnerNode: "n1"}}
	}
	check(t, map[string]decision{
		"not adopted":         {facts: before, want: done},
		"nothing of the name": {facts: before, change: func(f *facts) { f.claim = nil }, err: "none of the name was adopted"},
		"adopted":             {facts: after, want: turn},
		"unflushed writes":    {facts: after, change: dirty, err: "node n1 may hold unflushed writes"},
		"published":           {facts: after, change: published, err: "published to node n1"},
		"a pod":               {facts: after, change: func(f *facts) { f.pods = make([]corev1.Pod, 1) }, err: "uses the claim"},
		"attached":            {facts: after, change: func(f *facts) { f.attachments = []storagev1.VolumeAttachment{attachment(f.front.Name)} }, err: "attached to node n"},
		"being expanded": {facts: after, change: func(f *facts) {
			f.claim.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue}}
		}, err: "is being expanded"},
		"a pod of somebody's claim": {facts: after, change: func(f *facts) { f.claim.Spec.VolumeName = "pv-3"; f.pods = make([]corev1.Pod, 1) }, want: turn},
		"an adoption just begun":    {facts: during, want: turn},

		"begun":                        {facts: released, want: deleteFront},
		"front on Delete":              {facts: released, change: func(f *facts) { f.front.Spec.PersistentVolumeReclaimPolicy = "Delete" }, want: keep},
		"front leaves":                 {facts: released, change: func(f *facts) { gone(f.front) }, want: deleteClaim},
		"front leaves, a pod came":     {facts: released, change: func(f *facts) { gone(f.front); f.pods = make([]corev1.Pod, 1); f.pods[0].Name = "p" }, want: wait, until: "used by pod p"},
		"claim leaves":                 {facts: released, change: func(f *facts) { gone(f.front); gone(f.claim) }, want: wait, until: "claim data is gone"},
		"claim gone":                   {facts: released, change: func(f *facts) { gone(f.front); f.claim = nil }, want: wait, until: "is gone; its finalizers"},
		"front gone, claim left":       {facts: released, change: func(f *facts) { f.front = nil }, want: deleteClaim},
		"front gone":                   {facts: released, change: func(f *facts) { f.front, f.claim = nil, nil }, want: wait, until: "has ended CachedVolume"},
		"front gone, unflushed":        {facts: released, change: func(f *facts) { f.front, f.claim = nil, nil; dirty(f) }, want: wait, until: "node n1 may hold unflushed writes"},
		"record gone, claim of origin": {facts: released, change: func(f *facts) { f.front, f.claim, f.record = nil, nil, nil; f.inner = &corev1.PersistentVolumeClaim{} }, err: "restore the CachedVolume"},
		"record lost":                  {facts: after, change: func(f *facts) { f.record, f.inner = nil, &corev1.PersistentVolumeClaim{} }, err: "run a pod with the claim once"},
		"record lost since":            {facts: released, change: func(f *facts) { f.record, f.inner = nil, &corev1.PersistentVolumeClaim{} }, err: "restore the CachedVolume"},
		"record gone":                  {facts: released, change: func(f *facts) { f.front, f.claim, f.record = nil, nil, nil }, want: orderBlock},
		"record gone, origin Bound":    {facts: released, change: func(f *facts) { f.front, f.claim, f.record = nil, nil, nil; f.block.Status.Phase = corev1.VolumeBound }, want: wait, until: "not Bound"},
		"record gone, origin attached": {facts: released, change: func(f *facts) {
			f.front, f.claim, f.record = nil, nil, nil
			f.attachments = []storagev1.VolumeAttachment{attachment(f.block.Name)}
		}, want: wait, until: "detached from node n"},
		"record gone, origin on Delete": {facts: released, change: func(f *facts) {
			f.front, f.claim, f.record = nil, nil, nil
			f.block.Spec.PersistentVolumeReclaimPolicy = "Delete"
		}, want: keep},
		"record gone, origin Failed": {facts: released, change: func(f *facts) { f.front, f.claim, f.record = nil, nil, nil; f.block.Status.Phase = corev1.VolumeFailed }, err: "whether volume h is there"},
		"origin ordered":             {facts: released, change: func(f *facts) { f.front, f.claim, f.record = nil, nil, nil; f.journal.order("b1") }, want: deleteBlock},
		"origin leaves":              {facts: released, change: func(f *facts) { f.front, f.claim, f.record = nil, nil, nil; gone(f.block) }, want: wait, until: "is gone"},

		"nothing left":           {facts: bare, want: makeOriginal},
		"nothing left, no order": {facts: bare, change: func(f *facts) { f.journal.Ordered = nil }, err: "add --volume-exists"},
		"nothing left, seen":     {facts: bare, change: func(f *facts) { f.journal.Ordered, f.exists = nil, true }, want: makeOriginal},
		"original is being reclaimed": {facts: original, change: func(f *facts) {
			f.claim = nil
			f.volume.Spec.PersistentVolumeReclaimPolicy, f.volume.Status.Phase = "Delete", corev1.VolumeReleased
		}, err: "may be deleted at this moment"},
		"nothing left, a twin":      {facts: bare, change: func(f *facts) { f.twins = []string{"pv-2"} }, err: "PersistentVolume pv-2"},
		"the name is taken":         {facts: bare, change: func(f *facts) { f.volume = f.journal.originalVolume(); f.volume.Spec.CSI.VolumeHandle = "x" }, err: "of another volume"},
		"original made":             {facts: original, change: func(f *facts) { f.claim = nil; f.volume.Spec.ClaimRef.UID = "" }, want: makeClaim},
		"original made, not Retain": {facts: original, change: func(f *facts) { f.claim = nil; f.volume.Spec.PersistentVolumeReclaimPolicy = "Delete" }, want: keep},
		"original leaves":           {facts: original, change: func(f *facts) { gone(f.volume) }, want: wait, until: "is made again"},
		"claim of somebody":         {facts: original, change: func(f *facts) { f.claim.Spec.VolumeName = "pv-3" }, err: "was made again by somebody"},
		"claim bound":               {facts: original, want: end},
		"journal leaves":            {facts: original, change: func(f *facts) { gone(f.journal.object) }, want: end},
		"ended":                     {facts: original, change: func(f *facts) { f.journal.Direction = givenBack }, want: restore},
		"ended, policy restored": {facts: original, change: func(f *facts) {
			f.journal.Direction, f.volume.Spec.PersistentVolumeReclaimPolicy = givenBack, "Delete"
		}, want: forget},
		"ended, deleted by its owner": {facts: original, change: func(f *facts) {
			f.journal.Direction, f.volume, f.claim = givenBack, nil, nil
		}, want: forget},
		"ended, the claim is another one": {facts: original, change: func(f *facts) {
			f.journal.Direction, f.claim.UID = givenBack, "other"
		}, want: forget},
		"begun, and the claim stayed":                {facts: during, change: func(f *facts) { f.journal.Direction = toOriginal }, want: deleteFront},
		"the claim stayed, its deletion was ordered": {facts: during, change: func(f *facts) { f.journal.Direction = toOriginal; f.journal.order("c1") }, want: touchClaim},
		"the claim stayed, and was changed since":    {facts: during, change: func(f *facts) { f.journal.Direction, f.claim.ResourceVersion = toOriginal, "11"; f.journal.order("c1") }, want: deleteFront},
		"the claim stayed, front gone":               {facts: during, change: func(f *facts) { f.journal.Direction, f.front = toOriginal, nil }, want: end},
	}, decideRelease)
}
