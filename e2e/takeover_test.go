//go:build e2e

// A cluster whose etcd was restored is refused by the storage server, as a second cluster
// that was made from a copy is, until an administrator says that the server is its own.

package e2e

import (
	"context"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
	"github.com/nearflash/nearflash/pkg/backend/epoch"
)

var _ = Describe("A cluster whose etcd was restored", Label("crash", "takeover", "lab"), Serial, func() {
	It("is refused by the storage server, below pods that work, until an administrator takes it over", Label("turn-3"), func(ctx SpecContext) {
		const backup = "takeover"
		s := newSpace(ctx)
		v, err := s.volume(ctx, volumeSpec{name: "kept", mode: v1alpha1.CacheModeWritethrough, kind: block, size: "64Mi", cacheSize: "32Mi"})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.start(ctx, nodeA)).To(Succeed())
		sum, err := v.write(ctx, 0, 8)
		Expect(err).NotTo(HaveOccurred())

		By("restoring a backup that is older than the storage server's epoch")
		Expect(k.Lab.SaveEtcd(ctx, backup)).To(Succeed())
		Expect(recovered(ctx)).To(Succeed())
		Expect(swapEpoch(ctx, cluster.StorageMachine)).To(Succeed())
		Expect(k.Lab.RestoreEtcd(ctx, backup)).To(Succeed())
		Expect(recovered(ctx)).To(Succeed())

		By("being refused")
		Expect(awaitRefused(ctx, cluster.StorageMachine)).To(Succeed())
		out, _, status, err := plugin(ctx, "doctor")
		Expect(err).NotTo(HaveOccurred())
		Expect(status).To(Equal(1))
		Expect(out).To(And(ContainSubstring("has refused this cluster"), ContainSubstring("kubectl nearflash takeover")))
		Expect(v.verify(ctx, 0, 8, sum)).To(Succeed(), "the pod goes on")

		By("taking it over")
		_, errOut, status, err := plugin(ctx, "takeover")
		Expect(err).NotTo(HaveOccurred())
		Expect(status).To(Equal(1))
		Expect(errOut).To(ContainSubstring("add --accept-cutoff"))
		Expect(shown(ctx, "takeover", "--accept-cutoff")).To(ContainSubstring("takes the orders of this cluster"))
		Expect(v.restart(ctx, nodeB)).To(Succeed())
		Expect(v.verify(ctx, 0, 8, sum)).To(Succeed())
		Expect(v.awaitOwner(ctx, nodeB, 2)).To(Succeed())
	}, NodeTimeout(specLimit))
})

// epochRecord reads what the cluster knows of a storage server's epoch. It keeps that under the
// server's own name, which is its machine's.
func epochRecord(ctx context.Context, server string) (*corev1.ConfigMap, epoch.Record, error) {
	obj := &corev1.ConfigMap{}
	if err := k.API.Get(ctx, client.ObjectKey{Namespace: k.Namespace, Name: epoch.RecordName}, obj); err != nil {
		return nil, epoch.Record{}, err
	}
	if obj.Data[server] == "" {
		return nil, epoch.Record{}, fmt.Errorf("%s has no storage server %s", epoch.RecordName, server)
	}
	rec, err := epoch.Decode(obj, server)
	return obj, rec, err
}

// swapEpoch makes the controller put another epoch on a storage server, which it does
// when its record is not as it has left it.
func swapEpoch(ctx context.Context, server string) error {
	before := ""
	return cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		obj, rec, err := epochRecord(ctx, server)
		if err != nil {
			return err.Error(), nil
		}
		if before != "" && rec.Current != before && rec.Pending == "" && rec.Takeover == nil {
			return "", nil
		}
		if rec.Pending == "" && rec.Takeover == nil && rec.Current != "" {
			before = rec.Current
			rec.Takeover = &epoch.Takeover{Epoch: "none", Time: metav1.Now()}
			if err := epoch.Encode(obj, server, rec); err != nil {
				return "", err
			}
			if err := k.API.Update(ctx, obj); err != nil {
				return err.Error(), nil
			}
		}
		return fmt.Sprintf("the controller has not swapped the epoch: %+v", rec), nil
	})
}

// awaitRefused waits until the controller has met another epoch on a storage server.
func awaitRefused(ctx context.Context, server string) error {
	return cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		_, rec, err := epochRecord(ctx, server)
		if err != nil {
			return err.Error(), nil
		}
		if rec.Refused == nil {
			return fmt.Sprintf("the controller was not refused: %+v", rec), nil
		}
		return "", nil
	})
}

// takeOver is what an administrator does after etcd was restored.
func takeOver(ctx context.Context) error {
	if err := awaitRefused(ctx, cluster.StorageMachine); err != nil {
		return err
	}
	_, err := shown(ctx, "takeover", "--accept-cutoff")
	return err
}
