package bench

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/driver"
	"github.com/nearflash/nearflash/pkg/figures"
	"github.com/nearflash/nearflash/pkg/kube"
	"github.com/nearflash/nearflash/pkg/podexec"
)

// world is a cluster whose controllers and kubelets do at once what they are asked for, a node that
// counts, and a fio that takes no time.
type world struct {
	t      *testing.T
	client client.WithWatch
	now    time.Time

	mu sync.Mutex
	// jobs are the job files that were run, after the pod; said is what a person was told.
	jobs, said []string
	// hits is how many of ten reads hit next, in the order of the runs; the last goes on.
	hits   []uint64
	totals figures.Totals
	used   int64
	// fio is run instead, if it is given.
	fio func(ctx context.Context, job string) error
	// meterErr is what the nodes answer, if they do not.
	meterErr error
}

func newWorld(t *testing.T, objs ...client.Object) *world {
	t.Helper()
	scheme, err := kube.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, now: time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC), hits: []uint64{9}}
	w.client = interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).WithObjects(objs...).Build(), interceptor.Funcs{Create: w.create, Delete: w.delete})
	return w
}

// create makes an object, and what a cluster makes of it.
func (w *world) create(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
	switch o := obj.(type) {
	case *corev1.Pod:
		o.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	case *corev1.PersistentVolumeClaim:
		o.Spec.VolumeName = "pv-" + o.Name
		pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: o.Spec.VolumeName}, Spec: corev1.PersistentVolumeSpec{
			ClaimRef:               &corev1.ObjectReference{Namespace: o.Namespace, Name: o.Name},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver.Name, VolumeHandle: "vol-" + o.Name}},
		}}
		record := &v1alpha1.CachedVolume{ObjectMeta: metav1.ObjectMeta{Name: "vol-" + o.Name}}
		for _, made := range []client.Object{pv, record} {
			if err := c.Create(ctx, made); err != nil {
				return err
			}
		}
	}
	return c.Create(ctx, obj, opts...)
}

func (w *world) delete(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
	if _, ok := obj.(*corev1.PersistentVolumeClaim); ok {
		for _, made := range []client.Object{
			&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + obj.GetName()}}, &v1alpha1.CachedVolume{ObjectMeta: metav1.ObjectMeta{Name: "vol-" + obj.GetName()}},
		} {
			if err := client.IgnoreNotFound(c.Delete(ctx, made)); err != nil {
				return err
			}
		}
	}
	return c.Delete(ctx, obj, opts...)
}

// Run implements Executor.
func (w *world) Run(ctx context.Context, c podexec.Command) error {
	text, err := io.ReadAll(c.Stdin)
	if err != nil {
		return err
	}
	if len(c.Args) != 3 || c.Args[0] != "sh" || !strings.Contains(c.Args[2], "--output-format=json+ -") || c.Container != "fio" {
		w.t.Errorf("runs %+v", c)
	}
	w.mu.Lock()
	w.jobs = append(w.jobs, c.Pod+": "+flags(c.Args[2])+words(string(text)))
	hits := w.hits[0]
	if len(w.hits) > 1 {
		w.hits = w.hits[1:]
	}
	w.count(hits)
	w.now = w.now.Add(5 * time.Second)
	w.mu.Unlock()
	if w.fio != nil {
		if err := w.fio(ctx, string(text)); err != nil {
			return err
		}
	}
	_, err = c.Stdout.Write(recorded(w.t, "fio-oltp.json"))
	return err
}

// count has the node count what a run does: so many of ten reads are hits.
func (w *world) count(hits uint64) {
	w.totals.ReadHits += 100 * hits
	w.totals.ReadMisses += 100 * (10 - hits)
	add := func(name string, n, micros uint64) {
		if w.totals.Devices == nil {
			w.totals.Devices = map[string]figures.Device{}
		}
		d := w.totals.Devices[name]
		d.Reads, d.ReadBytes, d.Nanos = d.Reads+n, d.ReadBytes+n*4096, d.Nanos+n*micros*1000
		d.Histogram = []uint64{0, d.Reads}
		w.totals.Devices[name] = d
	}
	add("volume", 1000, 300)
	add("ssd", 100*hits, 100)
	add("origin", 100*(10-hits), 2000)
}

// flags are what fio was given besides the job file.
func flags(script string) string {
	if strings.Contains(script, "--readonly") {
		return "readonly "
	}
	return ""
}

// words are what a test wants to see of a job file.
func words(job string) string {
	var out []string
	for line := range strings.Lines(job) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch key {
		case "rw", "bs", "iodepth", "runtime", "filename":
			out = append(out, value)
		}
	}
	return strings.Join(out, " ")
}

// Measure implements Meter.
func (w *world) Measure(_ context.Context, node, id string) (Sample, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.meterErr != nil {
		return Sample{}, w.meterErr
	}
	if !strings.HasPrefix(id, "vol-") || node == "" {
		return Sample{}, fmt.Errorf("no volume %q on node %q", id, node)
	}
	totals := w.totals
	totals.Devices = map[string]figures.Device{}
	for name, d := range w.totals.Devices {
		totals.Devices[name] = d
	}
	size := int64(1 << 20)
	return Sample{Time: w.now, Totals: &totals, BoundsMicros: []int64{50, 5000}, Cache: v1alpha1.CacheStatus{SizeBytes: &size, UsedBytes: &w.used}}, nil
}

// after lets time pass at once.
func (w *world) after(d time.Duration) <-chan time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
	ch := make(chan time.Time, 1)
	ch <- w.now
	return ch
}

func (w *world) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func (w *world) runner() *Runner {
	return &Runner{Client: w.client, Exec: w, Meter: w, Now: w.clock, After: w.after, Say: func(format string, args ...any) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.said = append(w.said, fmt.Sprintf(format, args...))
	}}
}

func (w *world) cleaner(run string) Cleaner {
	return Cleaner{Client: w.client, Namespace: "shop", Run: run, After: w.after}
}

// left are the objects that a run can make, by kind and name.
func (w *world) left() []string {
	w.t.Helper()
	var out []string
	for _, list := range []client.ObjectList{
		&corev1.PodList{}, &corev1.PersistentVolumeClaimList{}, &corev1.PersistentVolumeList{}, &storagev1.StorageClassList{},
	} {
		if err := w.client.List(context.Background(), list); err != nil {
			w.t.Fatal(err)
		}
		switch l := list.(type) {
		case *corev1.PodList:
			for _, o := range l.Items {
				out = append(out, "pod/"+o.Name)
			}
		case *corev1.PersistentVolumeClaimList:
			for _, o := range l.Items {
				out = append(out, "claim/"+o.Name)
			}
		case *corev1.PersistentVolumeList:
			for _, o := range l.Items {
				out = append(out, "pv/"+o.Name)
			}
		case *storagev1.StorageClassList:
			for _, o := range l.Items {
				out = append(out, "class/"+o.Name)
			}
		}
	}
	return out
}

// template is a class of a user.
func userClass() *storagev1.StorageClass {
	retain, wait := corev1.PersistentVolumeReclaimRetain, storagev1.VolumeBindingWaitForFirstConsumer
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: driver.Name, ReclaimPolicy: &retain, VolumeBindingMode: &wait, MountOptions: []string{"noatime"},
		Parameters: map[string]string{
			"backend": "iscsi", "cacheMode": "writeback", "cacheSize": "20%", "acceptDirtyLoss": "node-loss", "maxDirtyBytes": "1Gi", "warmStart": "peer", "preload": "all", "redundancy": "mirror",
			"csi.storage.k8s.io/node-stage-secret-name": "chap",
		},
	}
}

// planned is a plan of modes.
func planned(t *testing.T, modes ...string) *Plan {
	t.Helper()
	randread, _ := Named("randread")
	p := &Plan{
		Run: "r1", Namespace: "shop", Node: "node-a", Image: "fio:3", Profiles: []Profile{randread}, Size: resource.MustParse("2Gi"),
		Runtime: 10 * time.Second, WarmLimit: 5 * time.Minute,
	}
	for _, m := range modes {
		class, err := Derive(userClass(), p.Namespace, p.Run, v1alpha1.CacheMode(m), "")
		if err != nil {
			t.Fatal(err)
		}
		p.Subjects = append(p.Subjects, Subject{Name: m, Mode: v1alpha1.CacheMode(m), Temporary: class, Class: class.Name})
	}
	return p
}
