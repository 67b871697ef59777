package kubectl

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// checkVolumes looks for volumes that will not go on by themselves.
func checkVolumes(d *diagnosis, f *clusterFacts, now time.Time) {
	since := len(d.Findings)
	known := map[string]bool{}
	for _, v := range f.volumes {
		known[v.Name] = true
		checkVolume(d, f, v, now)
	}
	for _, id := range slices.Sorted(maps.Keys(f.pvs)) {
		attributes := f.pvs[id].Spec.CSI.VolumeAttributes
		if _, static := attributes["iqn"]; !known[id] && !static && attributes["adopt"] != "true" {
			d.add(sevError, "pv/"+f.pvs[id].Name, "restore the CachedVolume from a backup of the cluster, or have it made anew (docs/how-to/recover-a-lost-cluster.md)", "its CachedVolume %s is missing: it cannot be attached", id)
		}
	}
	if !d.bad(since) {
		d.ok("volumes", "%s, none is stuck", count(len(f.volumes), "volume"))
	}
}

// objectName names a volume in a report, as commands take it.
func objectName(v *volume) string {
	if v.Claim != "" {
		return fmt.Sprintf("pvc/%s (namespace %s)", v.Claim, v.ClaimNamespace)
	}
	return "cvol/" + v.Name
}

func checkVolume(d *diagnosis, f *clusterFacts, v *volume, now time.Time) {
	object, owner := objectName(v), v.Status.OwnerNode
	state := stateOf(f.nodes[owner])
	switch {
	case owner == "":
	case v.byMany():
		for _, reader := range v.Status.Readers {
			if stateOf(f.nodes[reader]).gone {
				d.add(sevWarning, object, "delete the pods that were on that node and its VolumeAttachments: kubectl get volumeattachments", "read by node %s, which is not in the cluster", reader)
			}
		}
	case v.possiblyDirty() && !state.ready:
		d.add(sevError, object,
			fmt.Sprintf("bring %s back, its plugin flushes by itself; if it is lost for good: %s abandon %s --accept-data-loss", owner, name, v.argument()),
			"node %s may hold unflushed writes (generation %s) and is %s", owner, number(v.Status.Generation), unready(state))
	case v.attached() && state.gone:
		d.add(sevError, object, "delete the pods that were on that node and its VolumeAttachments: kubectl get volumeattachments", "published to node %s, which is not in the cluster", owner)
	case v.possiblyDirty() && !v.attached():
		d.add(sevWarning, object, "wait; if it does not end, see the log of the node plugin on "+owner, "released, and node %s has not reported its flush yet", owner)
	}
	if target := v.Spec.Target; target != "" && f.reportsNo(target) {
		d.add(sevError, object, "add the server to targets of the chart again", "lies on storage server %s, which no controller reports: it is not attached, detached, expanded or deleted", target)
	}
	if v.torn() {
		d.add(sevWarning, object, "make its data anew (docs/troubleshooting.md)", "%s", v.condition(v1alpha1.ConditionConsistent).Message)
	}
	checkApplied(d, object, v, now)
	checkCache(d, object, v)
	if t := v.DeletionTimestamp; t != nil && now.Sub(t.Time) > stuckAfter {
		d.add(sevWarning, object, "delete the claim and the PersistentVolume; the object goes with them", "deleted %s ago and waits for %s", ago(now, *t), strings.Join(v.Finalizers, ", "))
	}
}

func unready(s nodeState) string {
	if s.gone {
		return "not in the cluster"
	}
	return "not Ready"
}

// checkApplied reports a change of the spec that does not come about.
func checkApplied(d *diagnosis, object string, v *volume, now time.Time) {
	c := v.condition(v1alpha1.ConditionApplied)
	if c == nil || c.Status != metav1.ConditionFalse || !v.attached() {
		return
	}
	waited := now.Sub(c.LastTransitionTime.Time)
	switch {
	case c.Reason == v1alpha1.ReasonRejected:
		d.add(sevWarning, object, fmt.Sprintf("ask for something that is possible with %[1]s mode or %[1]s resize", name), "node %s refuses what is asked for: %s", v.Status.OwnerNode, c.Message)
	case waited > stuckAfter:
		d.add(sevWarning, object, "see the log of the node plugin on "+v.Status.OwnerNode, "a change waits for %s (%s): %s", ago(now, c.LastTransitionTime), c.Reason, readable(c.Message))
	}
}

// checkCache reports a cache that is ill or missing.
func checkCache(d *diagnosis, object string, v *volume) {
	owner := v.Status.OwnerNode
	if h := v.Status.Cache.Health; v.reported() && h != "" && h != v1alpha1.CacheHealthy {
		bad := sevWarning
		if h == v1alpha1.CacheFailed {
			bad = sevError
		}
		d.add(bad, object, fmt.Sprintf("check the SSD on %s (kernel log, %s pools); %s drop %s takes the cache away", owner, name, name, v.argument()), "its cache is %s", h)
	}
	c := v.condition(v1alpha1.ConditionCached)
	if c == nil || c.Status != metav1.ConditionFalse || !v.attached() {
		return
	}
	switch c.Reason {
	case v1alpha1.ReasonPoolMissing, v1alpha1.ReasonPoolFull, v1alpha1.ReasonNamespaceShareFull, v1alpha1.ReasonKernelTargetMissing, v1alpha1.ReasonCacheDeviceError, v1alpha1.ReasonBlockSizeTooLarge, v1alpha1.ReasonNotMirrored, v1alpha1.ReasonDeviceEvacuated:
		d.add(sevWarning, object, remedyFor(c.Reason, owner), "works without a cache on %s (%s): %s", owner, c.Reason, c.Message)
	}
}

// remedyFor says what helps when a volume has no cache.
func remedyFor(reason, node string) string {
	switch reason {
	case v1alpha1.ReasonPoolMissing:
		return fmt.Sprintf("give node %s a blank SSD; `%s pools %s` says what is wrong with its pool", node, name, node)
	case v1alpha1.ReasonPoolFull:
		return fmt.Sprintf("make room on node %s: more SSDs, or smaller caches with `%s resize`", node, name)
	case v1alpha1.ReasonNamespaceShareFull:
		return fmt.Sprintf("make caches of its namespace on node %s smaller with `%s resize`, give some back with `%s drop`, or raise the share (node.namespaceSharePercent of the chart)", node, name, name)
	case v1alpha1.ReasonKernelTargetMissing:
		return fmt.Sprintf("load or install dm_cache and dm_cache_smq on node %s", node)
	case v1alpha1.ReasonCacheDeviceError:
		return fmt.Sprintf("see the kernel log and the node plugin's log on node %s; the SSD may be failing", node)
	case v1alpha1.ReasonBlockSizeTooLarge:
		return fmt.Sprintf("give node %s an SSD whose logical blocks are not larger than the volume's (blockdev --getss), or format the SSD so (nvme format)", node)
	case v1alpha1.ReasonNotMirrored:
		return fmt.Sprintf("give the pool of node %s a second SSD, or take redundancy mirror from the volume with a VolumeAttributesClass", node)
	case v1alpha1.ReasonDeviceEvacuated:
		return fmt.Sprintf("make room on the devices that stay in the pool of node %s, or put one in; `%s pools %s` shows them", node, name, node)
	case v1alpha1.ReasonDropped:
		return fmt.Sprintf("`%s mode` gives it a cache again", name)
	}
	return "see the log of the node plugin on " + node
}
