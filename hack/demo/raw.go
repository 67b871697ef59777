package main

import (
	"context"
	"errors"
	"fmt"
	"math"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
)

const rawPod = "raw"

// errNoPool is returned when the measured node has no volume group to make a
// scratch volume in.
var errNoPool = errors.New("the node has no cache pool")

// rawSSD measures the SSD itself: a logical volume of the node's pool, in a pod
// like those of the other cases but for its rights on the node's devices.
func (d *demo) rawSSD(ctx context.Context) (row, error) {
	r := row{name: "raw SSD, read", hits: math.NaN()}
	err := d.jobs(ctx, rawPod, "randread", d.device(), &r)
	if err == nil {
		d.say("%s: %.0f IOPS, p50 %s", r.name, r.deep.IOPS, micros(r.single.P50))
	}
	return r, err
}

func (d *demo) device() string { return "/dev/" + d.scratch }

// makeScratch makes the logical volume, writes all of it and starts its pod.
func (d *demo) makeScratch(ctx context.Context) error {
	var pool v1alpha1.CachePool
	if err := d.API.Get(ctx, client.ObjectKey{Name: d.node}, &pool); err != nil {
		return fmt.Errorf("pool of %s: %w", d.node, err)
	}
	if pool.Status.VolumeGroup == "" {
		return fmt.Errorf("%w: %s", errNoPool, d.node)
	}
	d.scratch = pool.Status.VolumeGroup + "/" + d.name
	_, err := d.Host.Run(ctx, d.node, fmt.Sprintf("lvcreate --yes --wipesignatures n --size %dM --name %s %s",
		d.workingSet, d.name, pool.Status.VolumeGroup))
	if err != nil {
		return fmt.Errorf("scratch volume: %w", err)
	}
	pod := d.Pod(cluster.PodSpec{Namespace: d.name, Name: rawPod, Node: d.node})
	pod.Spec.Volumes = []corev1.Volume{{Name: "volume", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/dev"}}}}
	pod.Spec.Containers[0].VolumeMounts[0].MountPath = "/dev"
	pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
	if err := d.API.Create(ctx, pod); err != nil {
		return fmt.Errorf("pod %s: %w", rawPod, err)
	}
	if err := d.AwaitPodReady(ctx, d.name, rawPod, waitLimit); err != nil {
		return err
	}
	if _, err := d.Exec(ctx, d.name, rawPod, "", fioScript("write", d.device(), d.workingSet)); err != nil {
		return fmt.Errorf("fill the scratch volume: %w", err)
	}
	return nil
}

// removeScratch removes the logical volume after its pod.
func (d *demo) removeScratch(ctx context.Context) error {
	if d.scratch == "" {
		return nil
	}
	err := d.DeleteAndWait(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: d.name, Name: rawPod}}, waitLimit)
	if err != nil {
		return err
	}
	// Not there is fine: an interrupted demo may not have made it.
	_, err = d.Host.Run(ctx, d.node, fmt.Sprintf("lvs %[1]s >/dev/null 2>&1 || exit 0; lvremove --yes %[1]s", d.scratch))
	if err != nil {
		return fmt.Errorf("remove the scratch volume: %w", err)
	}
	d.scratch = ""
	return nil
}
