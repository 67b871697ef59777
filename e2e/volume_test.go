//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
	"github.com/nearflash/nearflash/e2e/hoststate"
)

// kind is how a pod sees a volume.
type kind string

const (
	ext4  kind = "ext4"
	xfs   kind = "xfs"
	block kind = "block"
)

// volumeSpec describes a volume with a class of its own.
type volumeSpec struct {
	name string
	mode v1alpha1.CacheMode
	kind kind
	// size is the volume's, 320Mi when empty: mkfs.xfs wants 300 MiB.
	size      string
	cacheSize string
	// mountOptions and accessMode are the defaults of Kubernetes when empty.
	mountOptions []string
	accessMode   corev1.PersistentVolumeAccessMode
	// parameters are added to those of the class.
	parameters map[string]string
}

// vol is a volume of a space and the pod that uses it.
type vol struct {
	cluster.Volume
	space       *space
	claim       string
	block       bool
	user, group int64
	// set is the working set in MiB, if it is larger than usual.
	set int

	// patience bounds how long the start and the end of a pod may take, late if it is 0.
	patience time.Duration

	// pod and node are where the volume is in use; starts counts the pods.
	pod, node string
	starts    int
}

// volume makes a class and a claim, and waits until the claim is bound.
func (s *space) volume(ctx context.Context, spec volumeSpec) (*vol, error) {
	class := cluster.ClassSpec{Mode: spec.mode, CacheSize: spec.cacheSize, MountOptions: spec.mountOptions, Parameters: spec.parameters}
	if spec.kind != block {
		class.FSType = string(spec.kind)
	}
	name, err := s.class(ctx, spec.name, class)
	if err != nil {
		return nil, err
	}
	if spec.size == "" {
		spec.size = "320Mi"
	}
	v := &vol{space: s, claim: spec.name, block: spec.kind == block}
	return v, s.claim(ctx, v, cluster.ClaimSpec{Class: name, Size: spec.size, AccessMode: spec.accessMode})
}

// claim makes the claim of a volume and waits until it is bound.
func (s *space) claim(ctx context.Context, v *vol, spec cluster.ClaimSpec) error {
	spec.Namespace, spec.Name, spec.Block = s.name, v.claim, v.block
	if err := k.API.Create(ctx, cluster.Claim(spec)); err != nil {
		return fmt.Errorf("claim %s: %w", v.claim, err)
	}
	return s.awaitBound(ctx, v)
}

// awaitBound waits until the claim of a volume is bound, and makes it one of the space.
func (s *space) awaitBound(ctx context.Context, v *vol) error {
	var err error
	if v.Volume, err = k.AwaitBound(ctx, s.name, v.claim, soon); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.volumes = append(s.volumes, v)
	remember(v.Volume)
	return nil
}

// begin creates a pod with the volume on a node and does not wait for it.
func (v *vol) begin(ctx context.Context, node string) error {
	v.starts++
	v.pod, v.node = fmt.Sprintf("%s-%d", v.claim, v.starts), node
	pod := k.Pod(cluster.PodSpec{
		Namespace: v.space.name, Name: v.pod, Node: node, Claim: v.claim, Block: v.block, User: v.user, FSGroup: v.group, Tolerant: true,
	})
	if err := k.API.Create(ctx, pod); err != nil {
		return fmt.Errorf("pod %s: %w", v.pod, err)
	}
	return nil
}

// start runs a pod with the volume on a node.
func (v *vol) start(ctx context.Context, node string) error {
	if err := v.begin(ctx, node); err != nil {
		return err
	}
	return v.awaitReady(ctx)
}

func (v *vol) awaitReady(ctx context.Context) error {
	return k.AwaitPodReady(ctx, v.space.name, v.pod, cmp.Or(v.patience, late))
}

// stop deletes the pod and waits until the volume is detached.
func (v *vol) stop(ctx context.Context) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: v.space.name, Name: v.pod}}
	if err := k.DeleteAndWait(ctx, pod, cmp.Or(v.patience, late)); err != nil {
		return err
	}
	return k.AwaitDetached(ctx, v.Volume, cmp.Or(v.patience, late))
}

// restart ends the pod and runs another on the node.
func (v *vol) restart(ctx context.Context, node string) error {
	if err := v.stop(ctx); err != nil {
		return err
	}
	return v.start(ctx, node)
}

// deleteClaim ends the pod and deletes the claim.
func (v *vol) deleteClaim(ctx context.Context) error {
	if err := v.stop(ctx); err != nil {
		return err
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: v.space.name, Name: v.claim}}
	return k.DeleteAndWait(ctx, claim, soon)
}

// run runs a bash script in the pod.
func (v *vol) run(ctx context.Context, script string) (string, error) {
	out, err := k.Exec(ctx, v.space.name, v.pod, "", "set -euo pipefail\n"+script)
	return strings.TrimSpace(out), err
}

// path is what data are written to in the pod.
func (v *vol) path() string {
	if v.block {
		return cluster.DevicePath
	}
	return cluster.MountPath + "/blob"
}

// fillWhole writes all of a raw block device.
func (v *vol) fillWhole(ctx context.Context) error {
	_, err := v.run(ctx, "fio --name=fill --filename="+v.path()+" --rw=write --bs=1m --direct=1 --ioengine=libaio --iodepth=4 --minimal >/dev/null")
	return err
}

// write writes mib MiB of random data at an offset in MiB, past the page cache
// and with an fsync, and returns their checksum.
func (v *vol) write(ctx context.Context, offset, mib int) (string, error) {
	return v.run(ctx, fmt.Sprintf(`
head -c %[3]dM /dev/urandom >/tmp/blob
dd if=/tmp/blob of=%[1]s bs=1M seek=%[2]d oflag=direct conv=notrunc,fsync status=none
sha256sum </tmp/blob
rm /tmp/blob`, v.path(), offset, mib))
}

// verify compares what write wrote with what is read past the page cache.
func (v *vol) verify(ctx context.Context, offset, mib int, want string) error {
	got, err := v.run(ctx, fmt.Sprintf("dd if=%s bs=1M skip=%d count=%d iflag=direct status=none | sha256sum", v.path(), offset, mib))
	if err != nil {
		return fmt.Errorf("read volume %s back: %w", v.claim, err)
	}
	if got != want {
		return fmt.Errorf("volume %s (%s): MiB %d to %d changed: checksum %s, wrote %s", v.claim, v.Handle, offset, offset+mib, got, want)
	}
	return nil
}

// size returns the bytes that the pod sees: of the device, or of the filesystem.
func (v *vol) size(ctx context.Context) (int64, error) {
	script := "df -B1 --output=size " + cluster.MountPath + " | tail -n 1"
	if v.block {
		script = "blockdev --getsize64 " + cluster.DevicePath
	}
	out, err := v.run(ctx, script)
	if err != nil {
		return 0, err
	}
	var n int64
	if _, err := fmt.Sscan(out, &n); err != nil {
		return 0, fmt.Errorf("size of volume %s: %q: %w", v.claim, out, err)
	}
	return n, nil
}

// expectTable fails unless the node's device for the volume is what the mode
// asks for. A stream that is under way is awaited: until it ends, the upper one
// of its two levels is in passthrough mode whatever is asked for.
func (v *vol) expectTable(ctx context.Context, mode v1alpha1.CacheMode) error {
	var table string
	if err := cluster.Await(ctx, late, func(ctx context.Context) (pending string, err error) {
		if table, err = hoststate.Table(ctx, k.Host, v.node, v.Handle); err == nil && strings.Contains(table, " passthrough ") {
			pending = fmt.Sprintf("volume %s on %s is filled by a stream: %s", v.Handle, v.node, table)
		}
		return pending, err
	}); err != nil {
		return err
	}
	f := strings.Fields(table)
	want := "linear"
	if mode != v1alpha1.CacheModeNone {
		want = "cache"
	}
	if len(f) < 3 || f[2] != want {
		return fmt.Errorf("volume %s on %s has the table %q, want target %s", v.Handle, v.node, table, want)
	}
	if want == "cache" && !strings.Contains(table, " "+string(mode)+" ") {
		return fmt.Errorf("volume %s on %s has the table %q, want mode %s", v.Handle, v.node, table, mode)
	}
	return nil
}

// awaitTable waits for what expectTable wants.
func (v *vol) awaitTable(ctx context.Context, mode v1alpha1.CacheMode) error {
	return cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		return "", v.expectTable(ctx, mode)
	})
}

// cacheUUID returns the identity of the volume's cache on a node, "" for none.
func (v *vol) cacheUUID(ctx context.Context, node string) (string, error) {
	return hoststate.CacheUUID(ctx, k.Host, node, v.Handle)
}

// awaitRecord waits until the driver's record of the volume satisfies ok, which
// returns what is still missing.
func (v *vol) awaitRecord(ctx context.Context, ok func(*v1alpha1.CachedVolume) string) error {
	return cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		cv, err := k.CachedVolume(ctx, v.Volume)
		if err != nil {
			return "", err
		}
		if missing := ok(cv); missing != "" {
			return fmt.Sprintf("CachedVolume %s: %s; status %+v", v.Handle, missing, cv.Status), nil
		}
		return "", nil
	})
}

// awaitOwner waits for an owner of a generation.
func (v *vol) awaitOwner(ctx context.Context, node string, generation int64) error {
	return v.awaitRecord(ctx, func(cv *v1alpha1.CachedVolume) string {
		if g := cv.Status.Generation; cv.Status.OwnerNode != node || g == nil || *g != generation {
			return fmt.Sprintf("owner and generation are not %s, %d", node, generation)
		}
		return ""
	})
}

// awaitCondition waits for the reason of the condition Cached.
func (v *vol) awaitCondition(ctx context.Context, reason string) error {
	return v.awaitRecord(ctx, func(cv *v1alpha1.CachedVolume) string {
		c := meta.FindStatusCondition(cv.Status.Conditions, v1alpha1.ConditionCached)
		wantStatus := metav1.ConditionFalse
		if reason == v1alpha1.ReasonCacheActive {
			wantStatus = metav1.ConditionTrue
		}
		if c == nil || c.Reason != reason || c.Status != wantStatus {
			return "condition Cached is not " + reason
		}
		return ""
	})
}

// expectUncached waits for the event on the claim and for the condition that tell
// why the volume is attached without its cache.
func (v *vol) expectUncached(ctx context.Context, reason string) error {
	if err := v.awaitCondition(ctx, reason); err != nil {
		return err
	}
	_, err := k.AwaitEvent(ctx, v.claim, soon, func(e cluster.Event) bool {
		return e.Reason == reason && e.Type == corev1.EventTypeWarning && e.Object == "PersistentVolumeClaim/"+v.claim
	})
	if err != nil {
		return fmt.Errorf("warning %s on claim %s: %w", reason, v.claim, err)
	}
	return v.expectTable(ctx, v1alpha1.CacheModeNone)
}
