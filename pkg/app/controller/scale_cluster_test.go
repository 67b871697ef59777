package controller

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/backend/backendtest"
	"github.com/nearflash/nearflash/pkg/driver"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	gib = 1 << 30
	// builders is how many objects are made at the same time.
	builders = 16
	shop     = "shop"
)

// ofVolumes is how many requests are about what there are many of; watches, which
// are renewed by the clock, and looks are not.
func ofVolumes(n map[string]int) int {
	sum := 0
	for request, times := range n {
		switch verb, kind, _ := strings.Cut(request, " "); kind {
		case "cachedvolumes", "cachemigrations", "cachepools", "persistentvolumes", "persistentvolumeclaims", "nodes", "events":
			if verb != "WATCH" && verb != "LOOK" {
				sum += times
			}
		}
	}
	return sum
}

// fleet is a cluster of objects: nodes without kubelets, and volumes that they have
// attached.
type fleet struct {
	t       testing.TB
	api     client.WithWatch
	storage *backendtest.Server
	nodes   int
	// owner is the node of each volume.
	owner []int
}

var chap = volume.Credentials{Username: "user", Password: "password-of-user"}

func nodeName(i int) string { return fmt.Sprintf("scale-node-%04d", i) }

func volumeName(i int) string { return fmt.Sprintf("pvc-scale-%05d", i) }

func initiator(i int) string { return fmt.Sprintf("iqn.1993-08.org.debian:01:scale-%d", i) }

// parallel does something for every number from first to last, not included.
func (f *fleet) parallel(workers, first, last int, do func(ctx context.Context, i int) error) {
	f.t.Helper()
	numbers := make(chan int)
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range numbers {
				if errs[w] == nil {
					errs[w] = do(f.t.Context(), i)
				}
			}
		})
	}
	for i := first; i < last; i++ {
		numbers <- i
	}
	close(numbers)
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			f.t.Fatal(err)
		}
	}
}

// grow makes nodes and volumes until there are that many. The nodes of new volumes
// take turns.
func (f *fleet) grow(nodes, volumes int) {
	f.t.Helper()
	f.parallel(builders, f.nodes, nodes, f.makeNode)
	f.nodes = nodes
	before := len(f.owner)
	for i := before; i < volumes; i++ {
		f.owner = append(f.owner, i%nodes)
	}
	f.parallel(builders, before, volumes, f.makeVolume)
}

func (f *fleet) makeNode(ctx context.Context, i int) error {
	name := nodeName(i)
	pool := &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: name}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	for _, obj := range []client.Object{
		node,
		&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{
			Drivers: []storagev1.CSINodeDriver{{Name: driver.Name, NodeID: name}},
		}},
		pool,
	} {
		if err := f.api.Create(ctx, obj); err != nil {
			return err
		}
	}
	// The API server marks a new node as not ready, and no controller is there that would take
	// that back.
	node.Spec.Taints = nil
	if err := f.api.Update(ctx, node); err != nil {
		return err
	}
	pool.Status.InitiatorIQN = initiator(i)
	pool.Status.Free = *resource.NewQuantity(int64(100+i%7)*gib, resource.BinarySI)
	pool.Status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionReady, "PoolReady")}
	return f.api.Status().Update(ctx, pool)
}

func condition(kind, reason string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reason, Message: "as it is", LastTransitionTime: metav1.Now()}
}

func (f *fleet) makeVolume(ctx context.Context, i int) error {
	name, node := volumeName(i), f.owner[i]
	spec := volume.Spec{
		CapacityBytes: 10 * gib, Mode: volume.ModeWritethrough, Cache: volume.Size{Percent: 10},
		Claim: &volume.Claim{Namespace: shop, Name: name},
	}
	record := records.NewObject(volume.ID(name), spec)
	for _, obj := range []client.Object{record, persistentVolume(name), claim(name), attachment(name, node, 1)} {
		if err := f.api.Create(ctx, obj); err != nil {
			return err
		}
	}
	// Under that of the controller that was here before, if there was one.
	e, err := f.storage.Epoch(ctx)
	if err != nil {
		return err
	}
	ctx = backend.WithEpoch(ctx, e.Value)
	if err := f.storage.Create(ctx, volume.ID(name), backend.Request{SizeBytes: spec.CapacityBytes}); err != nil {
		return err
	}
	grant := backend.Grant{Initiator: initiator(node), Generation: 1, Credentials: chap}
	if _, err := f.storage.Export(ctx, volume.ID(name), grant); err != nil {
		return err
	}
	s := &record.Status
	s.OwnerNode, s.Generation, s.Publication, s.DirtyState = nodeName(node), ptr.To[int64](1), v1alpha1.PublicationPublished, v1alpha1.DirtyStateClean
	s.PersistentVolumeName = name
	attached(s, 1)
	return f.api.Status().Update(ctx, record)
}

// attached is what a node reports of a volume that it has attached.
func attached(s *v1alpha1.CachedVolumeStatus, used int64) {
	s.Cache = v1alpha1.CacheStatus{
		Mode: v1alpha1.CacheModeWritethrough, Health: v1alpha1.CacheHealthy, ObservedTime: metav1.Now(),
		SizeBytes: ptr.To[int64](gib), UsedBytes: ptr.To(used), DirtyBytes: ptr.To[int64](0),
	}
	s.Conditions = []metav1.Condition{
		condition(v1alpha1.ConditionCached, v1alpha1.ReasonCacheActive), condition(v1alpha1.ConditionApplied, v1alpha1.ReasonApplied),
	}
}

func persistentVolume(name string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(10*gib, resource.BinarySI)},
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			ClaimRef:    &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: shop, Name: name},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: driver.Name, VolumeHandle: name, FSType: "ext4",
				VolumeAttributes: map[string]string{"storage.kubernetes.io/csiProvisionerIdentity": "1-1-" + driver.Name},
			}},
		},
	}
}

func claim(name string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			VolumeName: name, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(10*gib, resource.BinarySI)}},
		},
	}
}

// attachment is what the cluster's attach-detach controller makes; its name has a
// number because names of attachments that are gone are not used again here.
func attachment(name string, node, generation int) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("csi-%s-%d", name, generation)},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: driver.Name, NodeName: nodeName(node), Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To(name)},
		},
	}
}

// report writes the status of some volumes as their nodes do while they are used.
func (f *fleet) report(volumes int) {
	f.t.Helper()
	f.parallel(builders, 0, volumes, func(ctx context.Context, i int) error {
		return records.UpdateStatus(ctx, f.api, volume.ID(volumeName(i)), func(obj *v1alpha1.CachedVolume) error {
			attached(&obj.Status, time.Now().UnixNano()%gib)
			return nil
		})
	})
}
