package bench

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/driver"
)

// Label is on everything that a run makes; its value is the run's identity.
const Label = "nearflash.io/bench"

// NamespaceLabel is on the StorageClasses of a run, which have no namespace; its value is that of the run.
const NamespaceLabel = "nearflash.io/bench-namespace"

const (
	prefix     = "nearflash-bench-"
	devicePath = "/dev/nearflash-bench"
	mountPath  = "/nearflash-bench"
	volumeName = "volume"
	// idle ends at once on SIGTERM, which a plain sleep as process 1 would ignore.
	idle = `trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done`
)

// Plan is what is measured, and how.
type Plan struct {
	// Run is the run's identity, a DNS label.
	Run       string
	Namespace string
	// Node is where everything is measured. Other is where volumes move to; "" has none move.
	Node, Other string
	// Image has fio and sh; with Database, PostgreSQL with pgbench, sh and su.
	Image    string
	Subjects []Subject
	// Profiles are empty with Database.
	Profiles []Profile
	Database *Database
	// Size is that of each volume.
	Size resource.Quantity
	// Runtime is how long each row is measured, WarmLimit the most that warming takes.
	Runtime, WarmLimit time.Duration
	// Depth is used instead of the profiles', unless it is 0.
	Depth int
	// Keep leaves everything that was made.
	Keep bool
}

// Subject is a volume that is measured.
type Subject struct {
	// Name is what the report calls it: a mode, a class, or a claim.
	Name string
	Mode v1alpha1.CacheMode
	// Class is the StorageClass of the claim that is made. Temporary is made for it before.
	Class     string
	Temporary *storagev1.StorageClass
	// Claim is one that exists, of which only is read; then nothing above is made. File is what is
	// read of it, below its root, "" if it is a block device.
	Claim, File string
}

func (s Subject) cached() bool { return s.Mode != v1alpha1.CacheModeNone }

// Modes are the cache modes of volumes, in the order in which they are measured: what has no cache
// comes first, because the others are compared with it.
func Modes() []string {
	return []string{string(v1alpha1.CacheModeNone), string(v1alpha1.CacheModeWritethrough), string(v1alpha1.CacheModeWriteback), string(v1alpha1.CacheModeWritebackUnsafe)}
}

// Parameters that belong to a cache, to writeback alone, or are changed here.
const (
	parameterMode = "cacheMode"
	parameterSize = "cacheSize"
	parameterLoss = "acceptDirtyLoss"
)

var (
	ofCache     = []string{parameterSize, "maxCacheSize", "chunkSize", "warmStart", "warmStartMethod", "warmStartBandwidth", "warmStartDeadline", "preload", "redundancy"}
	ofWriteback = []string{parameterLoss, "maxDirtyBytes", "maxDirtyAge", "withoutFence"}
)

// ModeOf is the cache mode of a class.
func ModeOf(class *storagev1.StorageClass) v1alpha1.CacheMode {
	if m := class.Parameters[parameterMode]; m != "" {
		return v1alpha1.CacheMode(m)
	}
	return v1alpha1.CacheModeWritethrough
}

// Derive makes a temporary class of another one, with another mode. The size of the cache is changed
// unless it is "". Its volumes are deleted with their claims, whatever the template says; unflushed
// writes may be lost, because nobody needs them.
func Derive(template *storagev1.StorageClass, namespace, run string, mode v1alpha1.CacheMode, cacheSize string) (*storagev1.StorageClass, error) {
	parameters := maps.Clone(template.Parameters)
	if parameters == nil {
		parameters = map[string]string{}
	}
	parameters[parameterMode] = string(mode)
	if cacheSize != "" {
		parameters[parameterSize] = cacheSize
	}
	var drop []string
	if !mode.TakesWrites() {
		drop = append(drop, ofWriteback...)
	} else {
		parameters[parameterLoss] = string(mode.Consent())
	}
	if mode == v1alpha1.CacheModeNone {
		drop = append(drop, ofCache...)
	}
	maps.DeleteFunc(parameters, func(key, _ string) bool { return slices.Contains(drop, key) })
	if err := driver.CheckClass(parameters); err != nil {
		return nil, fmt.Errorf("the parameters of StorageClass %s with cacheMode %s: %w", template.Name, mode, err)
	}
	reclaim := corev1.PersistentVolumeReclaimDelete
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: prefix + run + "-" + string(mode), Labels: map[string]string{Label: run, NamespaceLabel: namespace}},
		// What the template mounts with is of no use to a block device.
		Provisioner: template.Provisioner, Parameters: parameters, ReclaimPolicy: &reclaim,
		VolumeBindingMode: template.VolumeBindingMode, AllowedTopologies: template.AllowedTopologies,
	}, nil
}

// claim is that of a subject. It is a block device, because what a filesystem does is not what a cache
// does; but a database has a filesystem.
func (p *Plan) claim(s Subject) *corev1.PersistentVolumeClaim {
	mode := corev1.PersistentVolumeBlock
	if p.Database != nil {
		mode = corev1.PersistentVolumeFilesystem
	}
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: p.meta(s),
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &s.Class, VolumeMode: &mode,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: p.Size}},
		},
	}
}

// meta names an object of a subject by its number: names of classes may be too long.
func (p *Plan) meta(s Subject, suffix ...string) metav1.ObjectMeta {
	i := slices.IndexFunc(p.Subjects, func(o Subject) bool { return o.Name == s.Name })
	name := prefix + p.Run + "-" + strings.Join(append([]string{strconv.Itoa(i + 1)}, suffix...), "-")
	return metav1.ObjectMeta{Namespace: p.Namespace, Name: name, Labels: map[string]string{Label: p.Run}}
}

// pod is one that does nothing until fio is run in it. nth counts the pods of the subject.
func (p *Plan) pod(s Subject, node string, nth int) *corev1.Pod {
	no, grace, root := false, int64(1), int64(0)
	claim := s.Claim
	if claim == "" {
		claim = p.meta(s).Name
	}
	container := corev1.Container{
		Name: "fio", Image: p.Image, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"sh", "-c", idle},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: &no, RunAsUser: &root,
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"DAC_OVERRIDE"}},
		},
	}
	// Of a claim that exists only is read, which the kubelet sees to as well as fio.
	if s.File == "" {
		container.VolumeDevices = []corev1.VolumeDevice{{Name: volumeName, DevicePath: devicePath}}
	} else {
		container.VolumeMounts = []corev1.VolumeMount{{Name: volumeName, MountPath: mountPath, ReadOnly: true}}
	}
	pod := &corev1.Pod{
		ObjectMeta: p.meta(s, strconv.Itoa(nth)),
		Spec: corev1.PodSpec{
			Affinity:   onNode(node),
			Containers: []corev1.Container{container}, TerminationGracePeriodSeconds: &grace, AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
			RestartPolicy: corev1.RestartPolicyNever,
			Volumes: []corev1.Volume{{Name: volumeName, VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}},
		},
	}
	if p.Database != nil {
		p.databasePod(pod)
	}
	return pod
}

// programs are what an image is called for.
func (p *Plan) programs() string {
	if p.Database != nil {
		return "PostgreSQL with pgbench, a user postgres, sh, su and sleep"
	}
	return "sh and sleep"
}

// onNode has the scheduler choose a node by its name: a pod that is put there past the scheduler would
// leave a claim without a volume whose class waits for the first consumer.
func onNode(node string) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
		}}},
	}}}
}

// path is what fio reads and writes in the pod.
func (s Subject) path() string {
	if s.File != "" {
		return mountPath + "/" + s.File
	}
	return devicePath
}
