package kubectl_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// fleet is a cluster with a volume of each sort.
func fleet() []client.Object {
	var objs []client.Object
	objs = append(objs, bound("shop", "data", "pvc-1", on("node-a"))...)
	objs = append(objs, bound("shop", "logs", "pvc-2", writeback, on("node-b"), dirty(512*mib), func(v *v1alpha1.CachedVolume) {
		v.Status.Cache.HitRate.ReadPercent = ptr(int32(40))
		v.Status.Cache.Performance.ReadIOPS = ptr(int64(9000))
		v.Status.Cache.Performance.Volume.P99Micros = ptr(int64(900))
	})...)
	objs = append(objs, bound("shop", "lost", "pvc-3", writeback, released("node-c"))...)
	objs = append(objs, bound("shop", "small", "pvc-4", on("node-a"), func(v *v1alpha1.CachedVolume) {
		v.Status.Cache = v1alpha1.CacheStatus{}
		condition(v, v1alpha1.ConditionCached, metav1.ConditionFalse, v1alpha1.ReasonPoolFull, "no room for 10Gi")
	})...)
	objs = append(objs, bound("shop", "tune", "pvc-5", on("node-a"), func(v *v1alpha1.CachedVolume) {
		v.Spec.CacheMode, v.Generation = v1alpha1.CacheModeNone, 2
	})...)
	objs = append(objs, bound("web", "site", "pvc-6", released("node-b"), func(v *v1alpha1.CachedVolume) {
		v.Status.RetainedCaches = []v1alpha1.RetainedCache{
			{NodeName: "node-b", Generation: 3, SizeBytes: ptr(10 * gib), LastUsedTime: before(time.Hour)},
			{NodeName: "node-c", Generation: 2, SizeBytes: ptr(10 * gib), LastUsedTime: before(30 * time.Hour)},
		}
	})...)
	// A volume that nobody has claimed.
	lun := &v1alpha1.CachedVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "lun-7"},
		Spec:       v1alpha1.CachedVolumeSpec{Backend: "iscsi", CacheMode: v1alpha1.CacheModeNone, Static: &v1alpha1.ISCSISource{IQN: "iqn.2026-11.com.example:lun7", Portals: []string{"192.0.2.10:3260"}}},
	}
	return append(objs, lun)
}

func TestList(t *testing.T) {
	for tc, c := range map[string]struct {
		args             []string
		objs             []client.Object
		wantOut, wantErr string
		wantCode         int
	}{
		"namespace": {
			args: []string{"list", "-n", "shop"}, objs: append(fleet(), node("node-b", true), node("node-c", false)),
			wantOut: `
CLAIM   MODE                 SIZE   NODE     CACHED     HIT%   DIRTY     USED    WAITS-FOR
data    writethrough         10Gi   node-a   yes        94     0         8.2Gi   -
logs    writeback            10Gi   node-b   yes        40     512Mi     8.2Gi   -
lost    writeback            10%    node-c   Detached   -      unknown   -       node-c, not Ready
small   writethrough         10%    node-a   PoolFull   -      -         -       -
tune    writethrough->none   10Gi   node-a   yes        94     0         8.2Gi   -
`,
		},
		"all namespaces, wide": {
			args: []string{"list", "-A", "-o", "wide"}, objs: append(fleet(), node("node-b", true), node("node-c", true)),
			wantOut: `
NAMESPACE   CLAIM        MODE                 SIZE   NODE     CACHED     HIT%   DIRTY     USED    WAITS-FOR         VOLUME   STATE       HEALTH    GEN   WARM-ON   MOVE   APPLIED       TOTAL-HIT%   SEEN
-           cvol/lun-7   none                 -      -        -          -      -         -       -                 lun-7    -           -         -     -         -      -             -            -
shop        data         writethrough         10Gi   node-a   yes        94     0         8.2Gi   -                 pvc-1    Published   Healthy   3     -         -      Applied       91           12s
shop        logs         writeback            10Gi   node-b   yes        40     512Mi     8.2Gi   -                 pvc-2    Published   Healthy   3     -         -      Applied       91           12s
shop        lost         writeback            10%    node-c   Detached   -      unknown   -       node-c to flush   pvc-3    Released    -         3     -         -      NotAttached   -            -
shop        small        writethrough         10%    node-a   PoolFull   -      -         -       -                 pvc-4    Published   -         3     -         -      Applied       -            -
shop        tune         writethrough->none   10Gi   node-a   yes        94     0         8.2Gi   -                 pvc-5    Published   Healthy   3     -         -      Pending       91           12s
web         site         writethrough         10%    -        Detached   -      -         -       -                 pvc-6    Released    -         3     node-b    -      NotAttached   -            -
`,
		},
		"named in every way": {
			args: []string{"list", "-n", "shop", "data", "pvc/logs", "pv/pvc-3", "cvol/pvc-4", "cachedvolume.nearflash.io/pvc-6"}, objs: fleet(),
			wantOut: `
CLAIM   MODE           SIZE   NODE     CACHED     HIT%   DIRTY     USED    WAITS-FOR
data    writethrough   10Gi   node-a   yes        94     0         8.2Gi   -
logs    writeback      10Gi   node-b   yes        40     512Mi     8.2Gi   node-b, not in the cluster
lost    writeback      10%    node-c   Detached   -      unknown   -       node-c, not in the cluster
small   writethrough   10%    node-a   PoolFull   -      -         -       -
site    writethrough   10%    -        Detached   -      -         -       -
`,
		},
		"names": {
			args: []string{"list", "-n", "shop", "-o", "name"}, objs: fleet(),
			wantOut: `
cachedvolume.nearflash.io/pvc-1
cachedvolume.nearflash.io/pvc-2
cachedvolume.nearflash.io/pvc-3
cachedvolume.nearflash.io/pvc-4
cachedvolume.nearflash.io/pvc-5
`,
		},
		"yaml": {
			args: []string{"list", "cvol/lun-7", "-o", "yaml"}, objs: fleet(),
			wantOut: `
apiVersion: v1
items:
- apiVersion: nearflash.io/v1alpha1
  kind: CachedVolume
  metadata:
    name: lun-7
    resourceVersion: "999"
  spec:
    backend: iscsi
    cacheMode: none
    static:
      iqn: iqn.2026-11.com.example:lun7
      portals:
      - 192.0.2.10:3260
kind: List
metadata: {}
`,
		},
		"jsonpath": {
			args: []string{"list", "-n", "shop", "-o", "jsonpath={.items[*].status.ownerNode}"}, objs: fleet(),
			wantOut: "node-a node-b node-c node-a node-a",
		},
		"nothing here":     {args: []string{"list"}, objs: fleet(), wantErr: "No volumes found in namespace default.\n"},
		"nothing anywhere": {args: []string{"list", "-A"}, wantErr: "No volumes found.\n"},
	} {
		t.Run(tc, func(t *testing.T) {
			code, out, errOut := newRig(t, c.objs...).run(c.args...)
			expect(t, "output", out, c.wantOut)
			expect(t, "errors", errOut, c.wantErr)
			if code != c.wantCode {
				t.Errorf("exit status %d, want %d", code, c.wantCode)
			}
		})
	}
}

func TestTop(t *testing.T) {
	for tc, c := range map[string]struct {
		args    []string
		wantOut string
		wantErr string
	}{
		"attached volumes by name": {
			args: []string{"top", "-n", "shop"},
			wantOut: `
CLAIM   NODE     HIT%   READ/S   WRITE/S   P99     HIT-P50   HIT-P99   MISS-P50   MISS-P99   DIRTY   USED    SEEN
data    node-a   94     1200     310       4.2ms   120us     500us     2.1ms      15ms       0       8.2Gi   12s
logs    node-b   40     9000     310       900us   120us     500us     2.1ms      15ms       512Mi   8.2Gi   12s
small   node-a   -      -        -         -       -         -         -          -          -       -       -
tune    node-a   94     1200     310       4.2ms   120us     500us     2.1ms      15ms       0       8.2Gi   12s
`,
		},
		"sorted, unknown last, wide": {
			args: []string{"top", "-A", "--sort-by", "iops", "-o", "wide"},
			wantOut: `
NAMESPACE   CLAIM   NODE     HIT%   READ/S   WRITE/S   P99     HIT-P50   HIT-P99   MISS-P50   MISS-P99   DIRTY   USED    SEEN   MODE                 P50     WRITE-HIT%   TOTAL-HIT%   SIZE
shop        logs    node-b   40     9000     310       900us   120us     500us     2.1ms      15ms       512Mi   8.2Gi   12s    writeback            250us   99           91           10Gi
shop        data    node-a   94     1200     310       4.2ms   120us     500us     2.1ms      15ms       0       8.2Gi   12s    writethrough         250us   99           91           10Gi
shop        tune    node-a   94     1200     310       4.2ms   120us     500us     2.1ms      15ms       0       8.2Gi   12s    writethrough->none   250us   99           91           10Gi
shop        small   node-a   -      -        -         -       -         -         -          -          -       -       -      writethrough         -       -            -            10%
`,
		},
		"hit":  {args: []string{"top", "-n", "shop", "--sort-by=hit", "-o", "name"}, wantOut: names("pvc-1", "pvc-5", "pvc-2", "pvc-4")},
		"p99":  {args: []string{"top", "-n", "shop", "--sort-by=p99", "-o", "name"}, wantOut: names("pvc-1", "pvc-5", "pvc-2", "pvc-4")},
		"none": {args: []string{"top", "-n", "web"}, wantErr: "No attached volumes found in namespace web.\n"},
		"named, though detached": {
			args: []string{"top", "-n", "web", "site"},
			wantOut: `
CLAIM   NODE   HIT%   READ/S   WRITE/S   P99   HIT-P50   HIT-P99   MISS-P50   MISS-P99   DIRTY   USED   SEEN
site    -      -      -        -         -     -         -         -          -          -       -      -
`,
		},
	} {
		t.Run(tc, func(t *testing.T) {
			code, out, errOut := newRig(t, fleet()...).run(append(c.args, "--reported")...)
			expect(t, "output", out, c.wantOut)
			expect(t, "errors", errOut, c.wantErr)
			if code != 0 {
				t.Errorf("exit status %d", code)
			}
		})
	}
}

func names(ids ...string) string {
	out := ""
	for _, id := range ids {
		out += "cachedvolume.nearflash.io/" + id + "\n"
	}
	return out
}

// The screen shows what has changed meanwhile, until the user has enough.
func TestTopWatch(t *testing.T) {
	r := newRig(t, bound("default", "data", "pvc-1", on("node-a"))...)
	r.terminal = true
	r.tick("pvc-1", func(v *v1alpha1.CachedVolume) { v.Status.Cache.HitRate.ReadPercent = ptr(int32(50)) })
	run := make(chan struct{})
	r.clock.stop = func() { close(run) }
	code, out, errOut := r.runUntil(run, "top", "--reported", "--watch", "--interval", "10s")
	expect(t, "output", out, ""+
		"\x1b[H\x1b[2JEvery 10s: 12:00:00 UTC\n\n"+
		"CLAIM   NODE     HIT%   READ/S   WRITE/S   P99     HIT-P50   HIT-P99   MISS-P50   MISS-P99   DIRTY   USED    SEEN\n"+
		"data    node-a   94     1200     310       4.2ms   120us     500us     2.1ms      15ms       0       8.2Gi   12s\n"+
		"\x1b[H\x1b[2JEvery 10s: 12:00:10 UTC\n\n"+
		"CLAIM   NODE     HIT%   READ/S   WRITE/S   P99     HIT-P50   HIT-P99   MISS-P50   MISS-P99   DIRTY   USED    SEEN\n"+
		"data    node-a   50     1200     310       4.2ms   120us     500us     2.1ms      15ms       0       8.2Gi   22s\n")
	if code != 0 || errOut != "" {
		t.Errorf("exit status %d, errors %q", code, errOut)
	}
}
