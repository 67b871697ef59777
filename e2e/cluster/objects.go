package cluster

import (
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// Paths in a workload pod.
const (
	// MountPath is where a filesystem volume is mounted.
	MountPath = "/data"
	// DevicePath is where a raw block volume appears.
	DevicePath = "/dev/volume"
)

// ClassSpec describes a StorageClass of the driver.
type ClassSpec struct {
	Name string
	Mode v1alpha1.CacheMode
	// FSType is "", "ext4" or "xfs".
	FSType string
	// CacheSize is a quantity or a percentage; empty means "50%" unless Mode is
	// none.
	CacheSize    string
	MountOptions []string
	// Delayed makes the volume when its first pod has a node.
	Delayed bool
	// Parameters are added to the others or replace them; an empty value removes
	// one.
	Parameters map[string]string
}

// Class builds the StorageClass of a spec.
func (c *Cluster) Class(s ClassSpec) *storagev1.StorageClass {
	params := map[string]string{"backend": "iscsi", "cacheMode": string(s.Mode)}
	maps.Copy(params, c.SecretParameters)
	if s.Mode != v1alpha1.CacheModeNone {
		params["cacheSize"] = "50%"
	}
	if s.CacheSize != "" {
		params["cacheSize"] = s.CacheSize
	}
	if s.Mode == v1alpha1.CacheModeWriteback {
		params["acceptDirtyLoss"] = string(v1alpha1.DirtyLossNodeLoss)
	}
	if s.FSType != "" {
		params["fsType"] = s.FSType
	}
	for k, v := range s.Parameters {
		params[k] = v
		if v == "" {
			delete(params, k)
		}
	}
	binding := storagev1.VolumeBindingImmediate
	if s.Delayed {
		binding = storagev1.VolumeBindingWaitForFirstConsumer
	}
	return &storagev1.StorageClass{
		ObjectMeta:           metav1.ObjectMeta{Name: s.Name},
		VolumeBindingMode:    &binding,
		Provisioner:          DriverName,
		Parameters:           params,
		MountOptions:         s.MountOptions,
		AllowVolumeExpansion: new(true),
	}
}

// ClaimSpec describes a PersistentVolumeClaim.
type ClaimSpec struct {
	Namespace, Name, Class string
	Size                   string
	Block                  bool
	// AccessMode is ReadWriteOnce when empty.
	AccessMode corev1.PersistentVolumeAccessMode
	// VolumeName binds the claim to a volume made by hand.
	VolumeName string
	// AttributesClass is a VolumeAttributesClass; empty means none.
	AttributesClass string
}

// Claim builds the claim of a spec.
func Claim(s ClaimSpec) *corev1.PersistentVolumeClaim {
	if s.AccessMode == "" {
		s.AccessMode = corev1.ReadWriteOnce
	}
	var attributes *string
	if s.AttributesClass != "" {
		attributes = &s.AttributesClass
	}
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{s.AccessMode},
			StorageClassName: new(s.Class),
			VolumeMode:       new(volumeMode(s.Block)),
			VolumeName:       s.VolumeName,

			VolumeAttributesClassName: attributes,
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(s.Size)},
			},
		},
	}
}

func volumeMode(block bool) corev1.PersistentVolumeMode {
	if block {
		return corev1.PersistentVolumeBlock
	}
	return corev1.PersistentVolumeFilesystem
}

// PodSpec describes a workload pod: it does nothing until something is run in
// it.
type PodSpec struct {
	Namespace, Name string
	// Node pins the pod; empty leaves it to the scheduler.
	Node  string
	Claim string
	Block bool
	// User and FSGroup are for the pod's security context; 0 means unset.
	User, FSGroup int64
	// Tolerant pods are not evicted by any taint.
	Tolerant bool
}

// idle ends at once on SIGTERM, which a plain sleep as process 1 would ignore.
const idle = `trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done`

// Pod builds the pod of a spec.
func (c *Cluster) Pod(s PodSpec) *corev1.Pod {
	container := corev1.Container{
		Name: "work", Image: c.WorkloadImage, ImagePullPolicy: corev1.PullIfNotPresent,
		Command: []string{"bash", "-c", idle},
	}
	if s.Block {
		container.VolumeDevices = []corev1.VolumeDevice{{Name: "volume", DevicePath: DevicePath}}
	} else {
		container.VolumeMounts = []corev1.VolumeMount{{Name: "volume", MountPath: MountPath}}
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name},
		Spec: corev1.PodSpec{
			Containers:                    []corev1.Container{container},
			TerminationGracePeriodSeconds: new(int64(1)),
			AutomountServiceAccountToken:  new(false),
			EnableServiceLinks:            new(false),
			SecurityContext:               &corev1.PodSecurityContext{},
			Volumes: []corev1.Volume{{Name: "volume", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: s.Claim},
			}}},
		},
	}
	if s.Node != "" {
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: s.Node}
	}
	if s.User != 0 {
		pod.Spec.SecurityContext.RunAsUser = new(s.User)
	}
	if s.FSGroup != 0 {
		pod.Spec.SecurityContext.FSGroup = new(s.FSGroup)
	}
	if s.Tolerant {
		pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	}
	return pod
}

// PodReady reports whether a pod runs and its containers are ready.
func PodReady(p *corev1.Pod) bool {
	for _, cond := range p.Status.Conditions {
		if cond.Type == corev1.PodReady {
			return cond.Status == corev1.ConditionTrue
		}
	}
	return false
}

// podProblem says in a few words why a pod does not run.
func podProblem(p *corev1.Pod) string {
	parts := []string{"pod " + p.Name + " is " + string(p.Status.Phase)}
	for _, cond := range p.Status.Conditions {
		if cond.Status != corev1.ConditionTrue && cond.Message != "" {
			parts = append(parts, string(cond.Type)+": "+cond.Message)
		}
	}
	for _, cs := range p.Status.ContainerStatuses {
		if cs.State.Waiting != nil {
			parts = append(parts, cs.State.Waiting.Reason+" "+cs.State.Waiting.Message)
		}
	}
	return strings.Join(parts, "; ")
}
