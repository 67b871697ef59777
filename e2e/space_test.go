//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/e2e/cluster"
)

// space is where one spec works: a namespace, and the classes made for it.
type space struct {
	name string

	// mu guards the rest: some specs work on several volumes at a time.
	mu      sync.Mutex
	classes []string
	volumes []*vol
	// retained are volumes that outlive their claims.
	retained []*corev1.PersistentVolume
}

// newSpace makes a namespace that is emptied, removed and searched for leaks
// when the spec ends.
func newSpace(ctx context.Context) *space {
	GinkgoHelper()
	s := &space{name: "e2e-" + utilrand.String(6)}
	Expect(k.API.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.name}})).To(Succeed())
	DeferCleanup(func(ctx SpecContext) {
		if CurrentSpecReport().Failed() {
			s.dump(ctx)
		}
		Expect(s.clean(ctx)).To(Succeed())
		Expect(s.awaitNoLeaks(ctx, late)).To(Succeed())
	}, NodeTimeout(specLimit))
	return s
}

// class makes a StorageClass whose name begins with the namespace's.
func (s *space) class(ctx context.Context, name string, spec cluster.ClassSpec) (string, error) {
	spec.Name = s.name + "-" + name
	if err := k.API.Create(ctx, k.Class(spec)); err != nil {
		return "", fmt.Errorf("class %s: %w", spec.Name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.classes = append(s.classes, spec.Name)
	return spec.Name, nil
}

// clean deletes everything in the space and waits until it is gone.
func (s *space) clean(ctx context.Context) error {
	var errs []error
	if err := s.deletePods(ctx); err != nil {
		errs = append(errs, err)
	}
	var claims corev1.PersistentVolumeClaimList
	errs = append(errs, k.API.List(ctx, &claims, client.InNamespace(s.name)))
	for i := range claims.Items {
		errs = append(errs, k.DeleteAndWait(ctx, &claims.Items[i], soon))
	}
	for _, pv := range s.retained {
		errs = append(errs, k.DeleteAndWait(ctx, pv, soon))
	}
	for _, v := range s.volumes {
		errs = append(errs, s.awaitVolumeGone(ctx, v))
	}
	for _, name := range s.classes {
		errs = append(errs, k.DeleteAndWait(ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}}, soon))
	}
	errs = append(errs, client.IgnoreNotFound(k.API.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.name}})))
	return errors.Join(errs...)
}

func (s *space) deletePods(ctx context.Context) error {
	var pods corev1.PodList
	if err := k.API.List(ctx, &pods, client.InNamespace(s.name)); err != nil {
		return err
	}
	var errs []error
	for i := range pods.Items {
		errs = append(errs, client.IgnoreNotFound(k.API.Delete(ctx, &pods.Items[i])))
	}
	for i := range pods.Items {
		errs = append(errs, k.DeleteAndWait(ctx, &pods.Items[i], late))
	}
	return errors.Join(errs...)
}

// awaitVolumeGone waits until neither Kubernetes nor the driver knows the volume.
func (s *space) awaitVolumeGone(ctx context.Context, v *vol) error {
	return cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		var pv corev1.PersistentVolume
		err := k.API.Get(ctx, client.ObjectKey{Name: v.PV}, &pv)
		if client.IgnoreNotFound(err) != nil {
			return "", err
		}
		if err == nil {
			return fmt.Sprintf("volume %s still exists: %s %s, finalizers %v", v.PV, pv.Status.Phase, pv.Status.Message, pv.Finalizers), nil
		}
		cv, err := k.CachedVolume(ctx, v.Volume)
		if client.IgnoreNotFound(err) != nil {
			return "", err
		}
		if err == nil {
			return fmt.Sprintf("CachedVolume %s still exists: finalizers %v, status %+v", v.Handle, cv.Finalizers, cv.Status), nil
		}
		return "", nil
	})
}
