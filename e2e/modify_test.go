//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
)

var _ = Describe("A claim whose VolumeAttributesClass is changed", Label("modify"), func() {
	It("changes its cache below a running writer", Label("turn-3"), func(ctx SpecContext) {
		s := newSpace(ctx)
		through := s.attributes(ctx, "through", map[string]string{"cacheMode": "writethrough", "cacheSize": "50%"})
		back := s.attributes(ctx, "back", map[string]string{"cacheMode": "writeback", "acceptDirtyLoss": "node-loss"})
		wrong := s.attributes(ctx, "wrong", map[string]string{"cacheMode": "none", "cacheSize": "1Gi"})

		By("making the volume with the attributes of the class, which win over the StorageClass's")
		class, err := s.class(ctx, "uncached", cluster.ClassSpec{Mode: v1alpha1.CacheModeNone, FSType: string(ext4)})
		Expect(err).NotTo(HaveOccurred())
		v := &vol{space: s, claim: "modified"}
		Expect(s.claim(ctx, v, cluster.ClaimSpec{Class: class, Size: "320Mi", AttributesClass: through})).To(Succeed())
		Expect(v.start(ctx, nodeA)).To(Succeed())
		Expect(v.expectTable(ctx, v1alpha1.CacheModeWritethrough)).To(Succeed())
		Expect(v.awaitAttributes(ctx, through)).To(Succeed())

		// Until the node has said that it has the volume, a class is current at once.
		Expect(v.awaitApplied(ctx)).To(Succeed())
		stop := v.writeOn(ctx)
		By("changing it to writeback")
		v.changeTo(ctx, back, v1alpha1.CacheModeWriteback)
		Expect(v.awaitRecord(ctx, func(cv *v1alpha1.CachedVolume) string {
			if cv.Status.DirtyState != v1alpha1.DirtyStatePossiblyDirty {
				return "not marked dirty"
			}
			return ""
		})).To(Succeed())

		By("asking for what contradicts itself")
		Expect(v.setAttributes(ctx, wrong)).To(Succeed())
		_, err = k.AwaitEvent(ctx, v.claim, soon, func(e cluster.Event) bool {
			return e.Reason == "VolumeModifyFailed" && strings.Contains(e.Message, "cacheSize") && strings.Contains(e.Message, "contradicts cacheMode none")
		})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.expectTable(ctx, v1alpha1.CacheModeWriteback)).To(Succeed())

		By("changing it back")
		v.changeTo(ctx, through, v1alpha1.CacheModeWritethrough)
		Expect(v.awaitRecord(ctx, func(cv *v1alpha1.CachedVolume) string {
			switch {
			case cv.Status.DirtyState != v1alpha1.DirtyStateClean:
				return "not clean"
			case cv.Spec.AcceptDirtyLoss == v1alpha1.DirtyLossNodeLoss:
				return "the consent has outlived the mode"
			case !meta.IsStatusConditionTrue(cv.Status.Conditions, v1alpha1.ConditionApplied):
				return "the change is not applied"
			}
			return ""
		})).To(Succeed())
		Expect(stop()).To(Succeed())

		var pv corev1.PersistentVolume
		Expect(k.API.Get(ctx, client.ObjectKey{Name: v.PV}, &pv)).To(Succeed())
		Expect(pv.Spec.VolumeAttributesClassName).To(HaveValue(Equal(through)))
	}, NodeTimeout(specLimit))
})

// attributes makes a VolumeAttributesClass whose name begins with the namespace's.
// Kubernetes keeps it until no claim names it, so that its end is not waited for.
func (s *space) attributes(ctx context.Context, name string, parameters map[string]string) string {
	GinkgoHelper()
	class := &storagev1.VolumeAttributesClass{
		ObjectMeta: metav1.ObjectMeta{Name: s.name + "-" + name}, DriverName: cluster.DriverName, Parameters: parameters,
	}
	Expect(k.API.Create(ctx, class)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) {
		Expect(client.IgnoreNotFound(k.API.Delete(ctx, class))).To(Succeed())
	}, NodeTimeout(soon))
	return class.Name
}

// awaitApplied waits until the node has said that it has the volume as it is asked for.
func (v *vol) awaitApplied(ctx context.Context) error {
	return v.awaitRecord(ctx, func(cv *v1alpha1.CachedVolume) string {
		if !meta.IsStatusConditionTrue(cv.Status.Conditions, v1alpha1.ConditionApplied) {
			return "the node has not said that the volume is attached"
		}
		return ""
	})
}

// changeTo has the volume take another VolumeAttributesClass, by which its cache has that mode.
func (v *vol) changeTo(ctx context.Context, class string, mode v1alpha1.CacheMode) {
	GinkgoHelper()
	Expect(v.setAttributes(ctx, class)).To(Succeed())
	Expect(v.awaitAttributes(ctx, class)).To(Succeed())
	Expect(v.expectTable(ctx, mode)).To(Succeed())
}

// setAttributes asks for another VolumeAttributesClass.
func (v *vol) setAttributes(ctx context.Context, class string) error {
	pvc := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: v.space.name, Name: v.claim}}
	patch := fmt.Sprintf(`{"spec":{"volumeAttributesClassName":%q}}`, class)
	return k.API.Patch(ctx, pvc, client.RawPatch("application/merge-patch+json", []byte(patch)))
}

// awaitAttributes waits until the claim says that it has the class, and that no
// change is under way.
func (v *vol) awaitAttributes(ctx context.Context, class string) error {
	return cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		var pvc corev1.PersistentVolumeClaim
		if err := k.API.Get(ctx, client.ObjectKey{Namespace: v.space.name, Name: v.claim}, &pvc); err != nil {
			return "", err
		}
		if ptr.Deref(pvc.Status.CurrentVolumeAttributesClassName, "") == class && pvc.Status.ModifyVolumeStatus == nil {
			return "", nil
		}
		return fmt.Sprintf("claim %s has not got %s: current %q, modification %+v, conditions %+v", v.claim, class,
			ptr.Deref(pvc.Status.CurrentVolumeAttributesClassName, ""), pvc.Status.ModifyVolumeStatus, pvc.Status.Conditions), nil
	})
}

// writeOn writes and reads back all over the volume until the function that it
// returns is called, which tells what went wrong, or that nothing was written.
func (v *vol) writeOn(ctx context.Context) (stop func() error) {
	const mib, places = 8, 16
	var stopped atomic.Bool
	done := make(chan error, 1)
	go func() {
		written := 0
		for ; !stopped.Load(); written++ {
			at := mib * (written % places)
			sum, err := v.write(ctx, at, mib)
			if err == nil {
				err = v.verify(ctx, at, mib, sum)
			}
			if err != nil {
				done <- fmt.Errorf("write %d: %w", written, err)
				return
			}
		}
		if written < 2 {
			done <- fmt.Errorf("only %d writes beside the changes", written)
			return
		}
		done <- nil
	}()
	return func() error {
		stopped.Store(true)
		return <-done
	}
}
