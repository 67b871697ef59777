package adopt

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestRefuse: what cannot be adopted is refused with the reason and what is accepted.
func TestRefuse(t *testing.T) {
	attribute := func(k, v string) func(*facts) {
		return func(f *facts) { f.volume.Spec.CSI.VolumeAttributes = map[string]string{k: v} }
	}
	parameter := func(driver, k, v string) func(*facts) {
		return func(f *facts) {
			f.volume.Spec.CSI.Driver = driver
			f.class.Parameters = map[string]string{k: v}
		}
	}
	onDelete := func(pv *corev1.PersistentVolume) {
		pv.Finalizers = append(pv.Finalizers, "kubernetes.io/pv-controller")
	}
	inTree := func(fs string) func(*facts) {
		return func(f *facts) { f.volume.Spec.PersistentVolumeSource = ebsDisk(fs) }
	}
	for name, tc := range map[string]struct {
		change func(*facts)
		want   Want
		err    string // "" is accepted
	}{
		"as it is":         {},
		"no nearflash":     {change: func(f *facts) { f.self = nil }, err: "there is no CSIDriver csi.nearflash.io"},
		"no claim":         {change: func(f *facts) { f.claim = nil }, err: "there is no claim data in namespace shop"},
		"not bound":        {change: func(f *facts) { f.claim.Status.Phase = corev1.ClaimPending }, err: "is not bound (Pending)"},
		"claim leaves":     {change: func(f *facts) { gone(f.claim) }, err: "is being deleted"},
		"volume leaves":    {change: func(f *facts) { gone(f.volume) }, err: "is being deleted"},
		"of another claim": {change: func(f *facts) { f.volume.Spec.ClaimRef.UID = "x" }, err: "does not belong to claim shop/data"},
		"of no driver": {change: func(f *facts) {
			f.volume.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{}}
		}, err: "is of kind nfs: accepted as an origin is a volume of a CSI driver (spec.csi), or of an in-tree kind"},
		"in-tree":             {change: inTree("ext4")},
		"in-tree, btrfs":      {change: inTree("btrfs"), err: "fsType btrfs"},
		"in-tree, not fenced": {change: func(f *facts) { inTree("")(f); f.driver.Spec.AttachRequired = ptr.To(false) }, want: Want{Attributes: map[string]string{"cacheMode": "writeback"}}, err: "a detach by driver ebs.csi.aws.com"},
		"in-tree, on Delete": {change: func(f *facts) {
			inTree("")(f)
			onDelete(f.volume)
			f.volume.Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": "kubernetes.io/aws-ebs"}
		}},
		"in-tree, made by hand with the finalizer": {change: func(f *facts) { inTree("")(f); onDelete(f.volume) }, err: "finalizer kubernetes.io/pv-controller"},
		"in-tree, of no form of a driver": {change: func(f *facts) {
			kind := corev1.AzureDedicatedBlobDisk
			f.volume.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{AzureDisk: &corev1.AzureDiskVolumeSource{DiskName: "d", DataDiskURI: "u", Kind: &kind}}
		}, err: "kind(Dedicated) is not supported"},
		"in-tree, class of it":   {change: func(f *facts) { inTree("")(f); f.class.Parameters = map[string]string{"encrypted": "true"} }},
		"of nearflash":           {change: func(f *facts) { f.volume.Spec.CSI.Driver = driverName }, err: "has a volume of nearflash already"},
		"many nodes":             {change: func(f *facts) { f.claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{"ReadWriteMany"} }, err: "access mode ReadWriteMany: a volume over another CSI driver's is attached to one node at a time; accepted are ReadWriteOnce, ReadWriteOncePod"},
		"many readers":           {change: func(f *facts) { f.claim.Spec.AccessModes = append(f.claim.Spec.AccessModes, "ReadOnlyMany") }, err: "access mode ReadOnlyMany"},
		"one pod":                {change: func(f *facts) { f.claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{"ReadWriteOncePod"} }},
		"btrfs":                  {change: func(f *facts) { f.volume.Spec.CSI.FSType = "btrfs" }, err: "fsType btrfs of PersistentVolume pv-1: nearflash cannot mount it; accepted are ext4, xfs"},
		"xfs":                    {change: func(f *facts) { f.volume.Spec.CSI.FSType = "xfs" }},
		"no fsType":              {change: func(f *facts) { f.volume.Spec.CSI.FSType = "" }, want: Want{FSType: "xfs"}},
		"two fsTypes":            {want: Want{FSType: "xfs"}, err: "--fs-type xfs contradicts fsType ext4"},
		"raw block":              {change: func(f *facts) { f.volume.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) }},
		"raw block, fsType":      {change: func(f *facts) { f.volume.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) }, want: Want{FSType: "xfs"}, err: "contradicts volumeMode Block"},
		"read-only":              {change: func(f *facts) { f.volume.Spec.CSI.ReadOnly = true }, err: "readOnly"},
		"publish secret":         {change: func(f *facts) { f.volume.Spec.CSI.NodePublishSecretRef = &corev1.SecretReference{Name: "s"} }, err: "nodePublishSecretRef"},
		"encrypted, ceph":        {change: attribute("encrypted", "true"), err: `volumeAttribute encrypted="true"`},
		"not encrypted":          {change: attribute("encrypted", "false")},
		"key management":         {change: attribute("encryptionKMSID", "vault"), err: `encryptionKMSID="vault"`},
		"luks, prefixed":         {change: attribute("example.com/luks-encrypted", "true"), err: "decrypts"},
		"partition":              {change: attribute("partition", "1"), err: "nearflash mounts whole devices"},
		"no partition":           {change: attribute("partition", "0")},
		"directory":              {change: attribute("subDir", "a"), err: "it names a directory"},
		"pool":                   {change: attribute("pool", "p")},
		"class that encrypts":    {change: parameter("d.example.org", "encrypted", "true"), err: "parameter of StorageClass fast encrypted"},
		"encrypted storage":      {change: parameter("ebs.csi.aws.com", "encrypted", "true")},
		"class with a secret":    {change: parameter("d.example.org", "csi.storage.k8s.io/node-publish-secret-name", "s"), err: "cannot pass that secret on"},
		"files":                  {change: func(f *facts) { f.volume.Spec.CSI.Driver = "rook-ceph.cephfs.csi.ceph.com" }, err: "serves filesystems"},
		"tokens":                 {change: func(f *facts) { f.driver.Spec.TokenRequests = make([]storagev1.TokenRequest, 1) }, err: "asks for tokens of pods"},
		"no fence":               {change: func(f *facts) { f.driver.Spec.AttachRequired = ptr.To(false) }, want: Want{Attributes: map[string]string{"cacheMode": "writeback"}}, err: "keeps no lost node from writing"},
		"no fence, consented":    {change: func(f *facts) { f.driver.Spec.AttachRequired = ptr.To(false) }, want: Want{Attributes: map[string]string{"cacheMode": "writeback", "withoutFence": "AcceptTwoWriters"}}},
		"an empty detach":        {change: func(f *facts) { f.volume.Spec.CSI.Driver = "rook-ceph.rbd.csi.ceph.com" }, want: Want{Attributes: map[string]string{"cacheMode": "writeback"}}, err: "a detach by driver rook-ceph.rbd.csi.ceph.com"},
		"no fence, no writeback": {change: func(f *facts) { f.driver.Spec.AttachRequired = ptr.To(false) }, want: Want{Attributes: map[string]string{"cacheMode": "writethrough"}}},
		"no fence, through":      {change: func(f *facts) { f.driver.Spec.AttachRequired = ptr.To(false) }},
		"attributes class":       {change: func(f *facts) { f.claim.Spec.VolumeAttributesClassName = ptr.To("gold") }, err: "VolumeAttributesClass gold"},
		"expanding": {change: func(f *facts) {
			f.claim.Spec.Resources.Requests = corev1.ResourceList{"storage": resource.MustParse("9Mi")}
		}, err: "is being expanded: wait until its capacity is 9Mi"},
		"somebody's finalizer": {change: func(f *facts) { f.claim.Finalizers = append(f.claim.Finalizers, "example.org/keep") }, err: "finalizer example.org/keep of claim data"},
		"a twin":               {change: func(f *facts) { f.twins = []string{"pv-2"} }, err: "PersistentVolume pv-2 is of the same volume as pv-1"},
	} {
		t.Run(name, func(t *testing.T) {
			f := before()
			if tc.change != nil {
				tc.change(f)
			}
			err := refuseClaim(f, tc.want)
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("error %v, want %q", err, tc.err)
			}
		})
	}
	f := before()
	f.volume.Spec.CSI.FSType, f.volume.Spec.CSI.ReadOnly = "btrfs", true
	if err := refuseClaim(f, Want{}); err == nil || !strings.Contains(err.Error(), "btrfs") || !strings.Contains(err.Error(), "readOnly") {
		t.Errorf("not all reasons are named: %v", err)
	}
}

// TestRunningOf: what makes pods with the claim is named with the command that stops it.
func TestRunningOf(t *testing.T) {
	meta := metav1.ObjectMeta{Namespace: "shop", Name: "db"}
	spec := corev1.PodSpec{Volumes: []corev1.Volume{{Name: "d", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-db-0"}}}}}
	pod := corev1.PodTemplateSpec{Spec: spec}
	other := *pod.DeepCopy()
	other.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = "x"
	templates := []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}}}
	set := func(replicas *int32, template corev1.PodTemplateSpec, claims []corev1.PersistentVolumeClaim) client.ObjectList {
		return &appsv1.StatefulSetList{Items: []appsv1.StatefulSet{{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Replicas: replicas, Template: template, VolumeClaimTemplates: claims}}}}
	}
	job := func(change func(*batchv1.Job)) client.ObjectList {
		j := batchv1.Job{ObjectMeta: meta, Spec: batchv1.JobSpec{Template: pod}}
		change(&j)
		return &batchv1.JobList{Items: []batchv1.Job{j}}
	}
	for name, tc := range map[string]struct {
		list client.ObjectList
		want string // "" is nobody
	}{
		"StatefulSet by template": {set(ptr.To(int32(1)), corev1.PodTemplateSpec{}, templates), "kubectl scale -n shop statefulset/db --replicas=0"},
		"StatefulSet by pod":      {set(nil, pod, nil), "kubectl scale -n shop statefulset/db --replicas=0"},
		"StatefulSet of 0":        {set(ptr.To(int32(0)), pod, templates), ""},
		"StatefulSet that deletes its claims": {&appsv1.StatefulSetList{Items: []appsv1.StatefulSet{{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{
			Replicas: ptr.To(int32(0)), VolumeClaimTemplates: templates,
			PersistentVolumeClaimRetentionPolicy: &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{WhenScaled: appsv1.DeletePersistentVolumeClaimRetentionPolicyType},
		}}}}, `kubectl patch -n shop statefulset/db -p '{"spec":{"persistentVolumeClaimRetentionPolicy":{"whenScaled":"Retain"}}}'`},
		"StatefulSet of others":      {set(nil, other, nil), ""},
		"Deployment":                 {&appsv1.DeploymentList{Items: []appsv1.Deployment{{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Template: pod}}}}, "kubectl scale -n shop deployment/db --replicas=0"},
		"ReplicaSet":                 {&appsv1.ReplicaSetList{Items: []appsv1.ReplicaSet{{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Template: pod}}}}, "kubectl scale -n shop replicaset/db --replicas=0"},
		"ReplicationController of 0": {&corev1.ReplicationControllerList{Items: []corev1.ReplicationController{{ObjectMeta: meta, Spec: corev1.ReplicationControllerSpec{Template: &pod, Replicas: ptr.To(int32(0))}}}}, ""},
		"DaemonSet":                  {&appsv1.DaemonSetList{Items: []appsv1.DaemonSet{{ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Template: pod}}}}, "kubectl delete -n shop daemonset/db"},
		"Job":                        {job(func(*batchv1.Job) {}), `kubectl patch -n shop job/db -p '{"spec":{"suspend":true}}'`},
		"Job that has ended": {job(func(j *batchv1.Job) {
			j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
		}), ""},
		"Job that is suspended": {job(func(j *batchv1.Job) { j.Spec.Suspend = ptr.To(true) }), ""},
		"CronJob": {
			&batchv1.CronJobList{Items: []batchv1.CronJob{{ObjectMeta: meta, Spec: batchv1.CronJobSpec{JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: pod}}}}}},
			`kubectl patch -n shop cronjob/db -p '{"spec":{"suspend":true}}'`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := runningOf(tc.list, types.NamespacedName{Namespace: "shop", Name: "data-db-0"})
			if tc.want == "" {
				if len(got) > 0 {
					t.Errorf("%+v", got)
				}
				return
			}
			if len(got) != 1 || got[0].remedy != tc.want {
				t.Errorf("%+v, want %q", got, tc.want)
			}
		})
	}
}
