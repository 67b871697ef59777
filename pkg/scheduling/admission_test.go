package scheduling

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/driver"
)

// makeWorld makes three nodes, whose hostnames are not their names, more pools of nodes that no
// pod can go to than a pod is given nodes, with more room than all others, and claims:
//
//	warm     bound, 4 GiB of cache, which node-a keeps
//	old      bound, 4 GiB of cache, which node-a keeps of an older generation
//	new      waits for its first pod
//	foreign  bound to another driver's volume
func (c *cluster) makeWorld(t *testing.T) {
	t.Helper()
	for node, free := range map[string]string{"node-a": "1Gi", "node-b": "10Gi", "node-c": "0"} {
		c.makeNode(t, node, nil)
		c.makePool(t, node, free)
	}
	for i := range MaxNodes {
		c.makePool(t, fmt.Sprintf("gone-%d", i), "1Ti")
		cordoned := fmt.Sprintf("node-cordoned-%d", i)
		c.makeNode(t, cordoned, func(n *corev1.Node) { n.Spec.Unschedulable = true })
		c.makePool(t, cordoned, "1Ti")
	}
	c.makeNode(t, "node-tainted", func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "example.com/for", Value: "others", Effect: corev1.TaintEffectNoSchedule}}
	})
	c.makePool(t, "node-tainted", "1Ti")
	late := storagev1.VolumeBindingWaitForFirstConsumer
	c.create(t, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "nearflash"}, Provisioner: driver.Name, VolumeBindingMode: &late,
		Parameters: map[string]string{"cacheSize": "2Gi"},
	})
	c.makeClaim(t, "warm", "pv-warm", driver.Name)
	c.makeClaim(t, "old", "pv-old", driver.Name)
	c.makeClaim(t, "foreign", "pv-foreign", "csi.example.com")
	c.makeClaim(t, "new", "", "")
	c.makeRecord(t, "warm", 7)
	c.makeRecord(t, "old", 8)
	c.makeRecord(t, "foreign", 7) // of the same handle, to no avail
}

// makeNode makes a node that is ready. The API server marks a new one as not ready, and no
// controller is there that would take that back.
func (c *cluster) makeNode(t *testing.T, name string, change func(*corev1.Node)) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: strings.Replace(name, "node", "host", 1)}}}
	c.create(t, node)
	node.Spec.Taints = nil
	if change != nil {
		change(node)
	}
	if err := c.api.Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) makePool(t *testing.T, node, free string) {
	t.Helper()
	pool := &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: node}}
	c.create(t, pool)
	pool.Status.Capacity, pool.Status.Free = resource.MustParse("10Gi"), resource.MustParse(free)
	pool.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: "True", Reason: v1alpha1.ReasonPoolReady, LastTransitionTime: metav1.Now()}}
	c.updateStatus(t, pool)
}

func (c *cluster) updateStatus(t *testing.T, obj client.Object) {
	t.Helper()
	if err := c.api.Status().Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
}

// makeClaim makes a claim and, if there is one, its PersistentVolume.
func (c *cluster) makeClaim(t *testing.T, claim, pv, provisioner string) {
	t.Helper()
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("20Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	c.create(t, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: claim},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, Resources: corev1.VolumeResourceRequirements{Requests: size},
			StorageClassName: ptr.To("nearflash"), VolumeName: pv,
		},
	})
	if pv == "" {
		return
	}
	c.create(t, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: pv},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: modes, Capacity: size, StorageClassName: "nearflash",
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: provisioner, VolumeHandle: claim}},
		},
	})
}

// makeRecord makes a volume with a retained cache of generation 7 on node-a.
func (c *cluster) makeRecord(t *testing.T, id string, generation int64) {
	t.Helper()
	record := &v1alpha1.CachedVolume{
		ObjectMeta: metav1.ObjectMeta{Name: id},
		Spec: v1alpha1.CachedVolumeSpec{
			Backend: "iscsi", CacheMode: v1alpha1.CacheModeWritethrough, CacheSize: "20%", CapacityBytes: ptr.To[int64](20 * gib),
		},
	}
	c.create(t, record)
	record.Status = v1alpha1.CachedVolumeStatus{
		Generation: &generation, OwnerNode: "node-a", Publication: v1alpha1.PublicationReleased,
		RetainedCaches: []v1alpha1.RetainedCache{{NodeName: "node-a", Generation: 7}},
	}
	c.updateStatus(t, record)
}

// testServing wants the pods that the real webhook changes to be as they should.
func (c *cluster) testServing(t *testing.T) {
	c.serve(t)
	eventually(t, "pods get preferences", func() bool {
		pod, _ := c.pod(t, "warm", nil)
		return pod.Spec.Affinity != nil
	})
	warm := []corev1.PreferredSchedulingTerm{term(80, "host-a"), term(20, "host-a", "host-b")}
	users := &corev1.Affinity{
		NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution:  &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term(1, "host-b").Preference}},
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{term(1, "host-c")},
		},
		PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{}}}},
	}
	both := users.DeepCopy()
	// It cannot go to the warm node.
	both.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution = append(both.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution, term(20, "host-b"))
	tolerates := func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Key: "example.com/for", Operator: corev1.TolerationOpExists}}
	}
	ephemeral := func(p *corev1.Pod) {
		p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: ptr.To("nearflash"),
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			},
		}}}
	}
	cases := map[string]struct {
		claim  string
		change func(*corev1.Pod)
		want   *corev1.Affinity
	}{
		"warm":                   {claim: "warm", want: &corev1.Affinity{NodeAffinity: preferring(warm)}},
		"a stale retained cache": {claim: "old", want: &corev1.Affinity{NodeAffinity: preferring([]corev1.PreferredSchedulingTerm{term(20, "host-b")})}},
		"not made yet":           {claim: "new", want: &corev1.Affinity{NodeAffinity: preferring([]corev1.PreferredSchedulingTerm{term(20, "host-b")})}},
		"ephemeral":              {claim: "new", change: ephemeral, want: &corev1.Affinity{NodeAffinity: preferring([]corev1.PreferredSchedulingTerm{term(20, "host-a", "host-b")})}},
		"user's terms stay":      {claim: "warm", change: func(p *corev1.Pod) { p.Spec.Affinity = users.DeepCopy() }, want: both},
		"tolerates a taint":      {claim: "new", change: tolerates, want: &corev1.Affinity{NodeAffinity: preferring([]corev1.PreferredSchedulingTerm{term(20, "host-b", "host-tainted")})}},
		"node selector":          {claim: "warm", change: func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "host-a"} }, want: &corev1.Affinity{NodeAffinity: preferring([]corev1.PreferredSchedulingTerm{term(80, "host-a"), term(20, "host-a")})}},
		"another driver":         {claim: "foreign"},
		"no such claim":          {claim: "missing"},
		"no claim":               {claim: "warm", change: func(p *corev1.Pod) { p.Spec.Volumes = nil }},
		"opted out":              {claim: "warm", change: func(p *corev1.Pod) { p.Annotations = map[string]string{Annotation: Off} }},
		"placed by hand":         {claim: "warm", change: func(p *corev1.Pod) { p.Spec.NodeName = "node-c" }},
		"of the control plane":   {claim: "warm", change: func(p *corev1.Pod) { p.Namespace = "kube-system" }},
		"of the driver":          {claim: "warm", change: func(p *corev1.Pod) { p.Namespace = namespace }},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pod, took := c.pod(t, tc.claim, tc.change)
			if diff := cmp.Diff(tc.want, pod.Spec.Affinity); diff != "" {
				t.Errorf("affinity (-want +got):\n%s", diff)
			}
			t.Logf("admitted in %v", took)
		})
	}
}
