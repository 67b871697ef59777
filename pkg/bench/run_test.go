package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

func TestDerive(t *testing.T) {
	for mode, want := range map[string]map[string]string{
		"none":         {"backend": "iscsi", "cacheMode": "none", "csi.storage.k8s.io/node-stage-secret-name": "chap"},
		"writethrough": {"backend": "iscsi", "cacheMode": "writethrough", "cacheSize": "20%", "warmStart": "peer", "preload": "all", "redundancy": "mirror", "csi.storage.k8s.io/node-stage-secret-name": "chap"},
		"writeback": {
			"backend": "iscsi", "cacheMode": "writeback", "cacheSize": "20%", "acceptDirtyLoss": "node-loss", "maxDirtyBytes": "1Gi", "warmStart": "peer", "preload": "all", "redundancy": "mirror",
			"csi.storage.k8s.io/node-stage-secret-name": "chap",
		},
	} {
		c, err := Derive(userClass(), "shop", "r1", v1alpha1.CacheMode(mode), "")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, c.Parameters); diff != "" {
			t.Errorf("%s: -want +got:\n%s", mode, diff)
		}
		if *c.ReclaimPolicy != corev1.PersistentVolumeReclaimDelete || *c.VolumeBindingMode != storagev1.VolumeBindingWaitForFirstConsumer || c.Labels[Label] != "r1" || c.Labels[NamespaceLabel] != "shop" || len(c.MountOptions) > 0 {
			t.Errorf("%s: %+v", mode, c)
		}
	}
	if c, err := Derive(userClass(), "shop", "r1", v1alpha1.CacheModeWritethrough, "50%"); err != nil || c.Parameters["cacheSize"] != "50%" {
		t.Errorf("%+v, %v", c, err)
	}
	wrong := userClass()
	wrong.Parameters["colour"] = "red"
	if _, err := Derive(wrong, "shop", "r1", v1alpha1.CacheModeNone, ""); err == nil || !strings.Contains(err.Error(), `unknown parameter "colour"`) {
		t.Errorf("got %v", err)
	}
}

// TestRun: two modes and a profile, in their order, each on a volume of its own that is deleted when
// the next is made.
func TestRun(t *testing.T) {
	w := newWorld(t, userClass())
	w.hits = []uint64{5, 5, 5, 5, 5, 1, 5, 7, 9}
	r, err := w.runner().Run(t.Context(), planned(t, "none", "writethrough"))
	if err != nil {
		t.Fatal(err)
	}
	const none, cached = "nearflash-bench-r1-1-1: ", "nearflash-bench-r1-2-1: "
	want := []string{
		none + "write 1m 8 /dev/nearflash-bench", none + "read 1m 16 /dev/nearflash-bench 5", none + "randread 1m 16 /dev/nearflash-bench 5",
		none + "randread 4k 1 /dev/nearflash-bench 5", none + "randread 4k 16 /dev/nearflash-bench 10",
		cached + "write 1m 8 /dev/nearflash-bench",
	}
	// Three windows that grow, then six that do not, of which the first is the last that grew.
	for range 8 {
		want = append(want, cached+"randread 4k 16 /dev/nearflash-bench 5")
	}
	want = append(want, cached+"randread 4k 1 /dev/nearflash-bench 5", cached+"randread 4k 16 /dev/nearflash-bench 10")
	if diff := cmp.Diff(want, w.jobs); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if len(r.Rows) != 2 || r.Link == nil || r.Link.SequentialBytesPerSecond == 0 || r.VolumeSize != "2Gi" || len(r.Notes) > 0 {
		t.Fatalf("report %+v", r)
	}
	row := r.Rows[1]
	if row.Volume != "writethrough" || row.Depth != 16 || row.WarmUp == nil || !row.WarmUp.Flat || len(row.WarmUp.Windows) != 8 || *row.WarmUp.Windows[0].HitPercent != 50 {
		t.Errorf("row %+v, warm-up %+v", row, row.WarmUp)
	}
	if row.Counted == nil || *row.Counted.ReadHitPercent != 90 || row.Counted.SSD.MeanMicros != 100 || row.Counted.Origin.MeanMicros != 2000 || row.Verdict.Limit == "" {
		t.Errorf("counted %+v", row.Counted)
	}
	if r.Rows[0].WarmUp != nil {
		t.Error("a volume without a cache was warmed")
	}
	if diff := cmp.Diff([]string{"class/fast"}, w.left()); diff != "" {
		t.Errorf("left -want +got:\n%s", diff)
	}
	if n, err := w.cleaner("r1").Clean(t.Context()); n != 0 || err != nil {
		t.Errorf("%d objects were left, %v", n, err)
	}
}

// TestPod: what is made has the label, asks for no rights, and is put on its node by the scheduler.
func TestPod(t *testing.T) {
	w := newWorld(t, userClass())
	p := planned(t, "none")
	p.Keep = true
	if _, err := w.runner().Run(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	var pod corev1.Pod
	if err := w.client.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "nearflash-bench-r1-1-1"}, &pod); err != nil {
		t.Fatal(err)
	}
	sc := pod.Spec.Containers[0].SecurityContext
	if pod.Spec.NodeName != "" || *pod.Spec.AutomountServiceAccountToken || *sc.AllowPrivilegeEscalation || sc.Privileged != nil || pod.Labels[Label] != "r1" {
		t.Errorf("pod %+v", pod.Spec)
	}
	values := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0].Values
	if !slices.Equal(values, []string{"node-a"}) {
		t.Errorf("the pod goes to %v", values)
	}
	want := []string{"pod/nearflash-bench-r1-1-1", "claim/nearflash-bench-r1-1", "pv/pv-nearflash-bench-r1-1", "class/fast", "class/nearflash-bench-r1-none"}
	if diff := cmp.Diff(want, w.left()); diff != "" {
		t.Errorf("kept -want +got:\n%s", diff)
	}
	if n, err := w.cleaner("r1").Clean(t.Context()); n != 3 || err != nil {
		t.Errorf("%d objects deleted, %v", n, err)
	}
	if diff := cmp.Diff([]string{"class/fast"}, w.left()); diff != "" {
		t.Errorf("left -want +got:\n%s", diff)
	}
}

// TestInterrupt: wherever a run is interrupted, what it made is found and deleted, and what was
// measured until then is in the report.
func TestInterrupt(t *testing.T) {
	for at := range 18 {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			w := newWorld(t, userClass())
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			runs := 0
			w.fio = func(ctx context.Context, _ string) error {
				if runs++; runs > at {
					cancel()
					return ctx.Err()
				}
				return nil
			}
			r, err := w.runner().Run(ctx, planned(t, "none", "writethrough"))
			if at < 14 && !errors.Is(err, context.Canceled) {
				t.Errorf("ended with %v", err)
			}
			if want := map[bool]int{true: 1, false: 0}[at >= 5]; at < 14 && len(r.Rows) != want {
				t.Errorf("%d rows", len(r.Rows))
			}
			if _, err := w.cleaner("r1").Clean(t.Context()); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{"class/fast"}, w.left()); diff != "" {
				t.Errorf("left -want +got:\n%s", diff)
			}
		})
	}
}

// TestClean: of two runs, that one is deleted which is named; without a name, both; and of others
// nothing.
func TestClean(t *testing.T) {
	foreign := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db"}}
	elsewhere := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "bank", Name: "other", Labels: map[string]string{Label: "r1"}}}
	class := func(name string, labels map[string]string) client.Object {
		return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	}
	// Of one that a version before made nobody knows whose it is.
	w := newWorld(t, userClass(), foreign, elsewhere, class("bank", map[string]string{Label: "r3", NamespaceLabel: "bank"}), class("before", map[string]string{Label: "r4"}))
	for _, run := range []string{"r1", "r2"} {
		p := planned(t, "none")
		p.Run, p.Keep = run, true
		p.Subjects[0].Temporary.Name, p.Subjects[0].Temporary.Labels = "bench-"+run, map[string]string{Label: run, NamespaceLabel: "shop"}
		if _, err := w.runner().Run(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := w.cleaner("r2").Clean(t.Context()); n != 3 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	want := []string{"pod/other", "pod/db", "pod/nearflash-bench-r1-1-1", "claim/nearflash-bench-r1-1", "pv/pv-nearflash-bench-r1-1", "class/bank", "class/before", "class/bench-r1", "class/fast"}
	if diff := cmp.Diff(want, w.left()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if n, err := w.cleaner("").Clean(t.Context()); n != 3 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if diff := cmp.Diff([]string{"pod/other", "pod/db", "class/bank", "class/before", "class/fast"}, w.left()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if n, err := w.cleaner("r4").Clean(t.Context()); n != 1 || err != nil {
		t.Errorf("a class of a version before, by its run: %d, %v", n, err)
	}
}

// TestCleanWaits: a volume that its driver does not give up is named, and its class stays.
func TestCleanWaits(t *testing.T) {
	w := newWorld(t, userClass())
	p := planned(t, "none")
	p.Keep = true
	if _, err := w.runner().Run(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	c := w.cleaner("r1")
	c.Client = interceptor.NewClient(w.client, interceptor.Funcs{Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
		if claim, ok := obj.(*corev1.PersistentVolumeClaim); ok {
			claim.Finalizers = nil
			if err := c.Delete(ctx, claim); err != nil {
				return err
			}
			return c.Create(ctx, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "stuck"}, Spec: corev1.PersistentVolumeSpec{
				ClaimRef: &corev1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name},
			}})
		}
		return c.Delete(ctx, obj, opts...)
	}})
	ctx, cancel := context.WithCancel(t.Context())
	looks := 0
	c.After = func(d time.Duration) <-chan time.Time {
		if looks++; looks > 5 {
			cancel()
			return nil
		}
		return w.after(d)
	}
	_, err := c.Clean(ctx)
	if err == nil || !strings.Contains(err.Error(), "PersistentVolumes stuck") {
		t.Errorf("got %v", err)
	}
	if !slices.Contains(w.left(), "class/nearflash-bench-r1-none") {
		t.Error("the class went before the volume")
	}
}

// TestBlind: without the right to ask nodes a run goes on, and says once what is missing.
func TestBlind(t *testing.T) {
	w := newWorld(t, userClass())
	w.meterErr = fmt.Errorf("%w: no role", ErrNoMeter)
	r, err := w.runner().Run(t.Context(), planned(t, "none", "writethrough"))
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "no role") {
		t.Errorf("notes %q", r.Notes)
	}
	if row := r.Rows[1]; row.Counted != nil || !row.WarmUp.Flat || !strings.Contains(row.WarmUp.By, "requests per second") || row.Verdict.Limit != LimitUnknown {
		t.Errorf("row %+v, %+v", row.Verdict, row.WarmUp)
	}
}

// TestWarmLimit: a cache that never becomes warm is measured all the same, and that is said.
func TestWarmLimit(t *testing.T) {
	w := newWorld(t, userClass())
	w.hits = nil
	for i := range 60 {
		w.hits = append(w.hits, uint64(i%2)*9)
	}
	p := planned(t, "writethrough")
	p.WarmLimit = time.Minute
	w.fio = func(context.Context, string) error { w.used += 1 << 17; return nil }
	r, err := w.runner().Run(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if warm := r.Rows[0].WarmUp; warm.Flat || warm.Seconds < 60 || warm.Seconds > 75 {
		t.Errorf("warm-up %+v", warm)
	}
	if len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "was not flat after 1m0s") {
		t.Errorf("notes %q", r.Notes)
	}
}

// TestClaim: a claim that exists is read by a fio that refuses to write, through a mount that nobody
// writes through, and stays.
func TestClaim(t *testing.T) {
	w := newWorld(t)
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data"}}
	if err := w.client.Create(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	p := planned(t)
	p.Subjects = []Subject{{Name: "data", Claim: "data", File: "base/blob", Mode: v1alpha1.CacheModeWritethrough}}
	p.Other = "" // nothing of it moves
	var mounts []corev1.VolumeMount
	w.fio = func(ctx context.Context, _ string) error {
		var pod corev1.Pod
		err := w.client.Get(ctx, client.ObjectKey{Namespace: "shop", Name: "nearflash-bench-r1-1-1"}, &pod)
		mounts = pod.Spec.Containers[0].VolumeMounts
		return err
	}
	r, err := w.runner().Run(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range w.jobs {
		if !strings.HasPrefix(j, "nearflash-bench-r1-1-1: readonly randread 4k ") || !strings.Contains(j, " /nearflash-bench/base/blob ") {
			t.Errorf("runs %s", j)
		}
	}
	if len(mounts) != 1 || !mounts[0].ReadOnly {
		t.Errorf("mounts %+v", mounts)
	}
	if len(r.Rows) != 1 || r.VolumeSize != "" || r.Link != nil {
		t.Errorf("report %+v", r)
	}
	if diff := cmp.Diff([]string{"claim/data", "pv/pv-data"}, w.left()); diff != "" {
		t.Errorf("left -want +got:\n%s", diff)
	}
}

// TestMove: a volume moves with its cache and back without, and what is seen is told apart from what
// was before.
func TestMove(t *testing.T) {
	w := newWorld(t, userClass())
	p := planned(t, "writethrough")
	p.Other = "node-b"
	r, err := w.runner().Run(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Moves) != 2 || !r.Moves[0].Warm || r.Moves[1].Warm || r.Moves[0].To != "node-b" || r.Moves[1].From != "node-b" || r.Moves[1].To != "node-a" {
		t.Fatalf("moves %+v", r.Moves)
	}
	for _, want := range []string{"nearflash-bench-r1-1-1: randread 4k 16 /dev/nearflash-bench 10", "nearflash-bench-r1-1-2: randread 4k 16 /dev/nearflash-bench 40", "nearflash-bench-r1-1-3: randread 4k 16 /dev/nearflash-bench 40"} {
		if !slices.Contains(w.jobs, want) {
			t.Errorf("%q was not run: %q", want, w.jobs)
		}
	}
	if diff := cmp.Diff([]string{"class/fast"}, w.left()); diff != "" {
		t.Errorf("left -want +got:\n%s", diff)
	}
}

func TestJudgeMove(t *testing.T) {
	at := func(s, hits float64) Point { return Point{Seconds: s, HitPercent: &hits} }
	before := 95.0
	m := Move{AwayTo: 20, BeforeHitPercent: &before}
	m.judge([]Point{{Seconds: 21}, at(22, 10), at(23, 60), at(25, 91), at(26, 96)})
	if m.FirstHitPercent == nil || *m.FirstHitPercent != 10 || m.LevelSeconds == nil || *m.LevelSeconds != 5 {
		t.Errorf("%+v", m)
	}
	never := Move{AwayTo: 20, BeforeHitPercent: &before}
	never.judge([]Point{at(22, 10), at(23, 60)})
	if never.LevelSeconds != nil || *never.FirstHitPercent != 10 {
		t.Errorf("%+v", never)
	}
}

// TestWarning: what the cluster said about a claim that is never bound is in the error: the claim is
// deleted.
func TestWarning(t *testing.T) {
	warning := func(name, about, message string, at time.Time) *corev1.Event {
		return &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, InvolvedObject: corev1.ObjectReference{Name: about}, Type: corev1.EventTypeWarning, Message: message, LastTimestamp: metav1.NewTime(at),
		}
	}
	noon := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	w := newWorld(t, userClass(), warning("a", "nearflash-bench-r1-1", "no room", noon), warning("b", "nearflash-bench-r1-1", "parameter cacheSize", noon.Add(time.Minute)), warning("c", "other", "fire", noon.Add(time.Hour)))
	w.client = interceptor.NewClient(w.client, interceptor.Funcs{Get: func(ctx context.Context, cl client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
		err := cl.Get(ctx, key, obj, opts...)
		if pod, ok := obj.(*corev1.Pod); ok {
			pod.Status = corev1.PodStatus{Phase: corev1.PodPending}
		}
		return err
	}})
	_, err := w.runner().Run(t.Context(), planned(t, "none"))
	if err == nil || !strings.HasSuffix(err.Error(), "; the last warning about nearflash-bench-r1-1: parameter cacheSize") {
		t.Errorf("got %v", err)
	}
	if !slices.Contains(w.said, "waiting: pod nearflash-bench-r1-1-1 is Pending") {
		t.Errorf("said %q", w.said)
	}
}

// TestPodProblem: what two conditions say alike is said once.
func TestPodProblem(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
		{Type: corev1.PodReady, Status: corev1.ConditionFalse, Message: "not ready: [fio]"}, {Type: corev1.ContainersReady, Status: corev1.ConditionFalse, Message: "not ready: [fio]"},
	}}}
	if got, want := podProblem(pod), "pod p is Running; not ready: [fio]"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestFailures: what is wrong is said with what to do.
func TestFailures(t *testing.T) {
	w := newWorld(t, userClass())
	w.fio = func(context.Context, string) error { return errors.New("no space") }
	if _, err := w.runner().Run(t.Context(), planned(t, "none")); err == nil || !strings.Contains(err.Error(), "none: fill the volume: fio: : no space") {
		t.Errorf("got %v", err)
	}
	for name, c := range map[string]struct {
		status corev1.PodStatus
		want   string
	}{
		"image": {
			corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "not found"}}}}},
			"timed out after 10m0s: pod nearflash-bench-r1-1-1 is Pending; ImagePullBackOff not found",
		},
		"room": {
			corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/3 nodes are available"}}},
			"0/3 nodes are available",
		},
		"no shell": {corev1.PodStatus{Phase: corev1.PodFailed}, "the image fio:3 has to have sh and sleep"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, userClass())
			w.client = interceptor.NewClient(w.client, interceptor.Funcs{Get: func(ctx context.Context, cl client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
				err := cl.Get(ctx, key, obj, opts...)
				if pod, ok := obj.(*corev1.Pod); ok {
					pod.Status = c.status
				}
				return err
			}})
			if _, err := w.runner().Run(t.Context(), planned(t, "none")); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v", err)
			}
		})
	}
}
