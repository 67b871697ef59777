package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/nearflash/nearflash/pkg/podexec"
)

func TestPlanDatabase(t *testing.T) {
	for name, c := range map[string]struct {
		size, memory int64
		clients      int
		want         Database
	}{
		"the least":  {size: 512 << 20, want: Database{Clients: 8, Scale: 13, Memory: resource.MustParse("128Mi"), WALBytes: 64 << 20}},
		"larger":     {size: 40 << 30, want: Database{Clients: 8, Scale: 1092, Memory: resource.MustParse("5Gi"), WALBytes: 4 << 30}},
		"as is said": {size: 2 << 30, clients: 32, memory: 1 << 30, want: Database{Clients: 32, Scale: 54, Memory: resource.MustParse("1Gi"), WALBytes: 214748364}},
	} {
		t.Run(name, func(t *testing.T) {
			got := PlanDatabase(c.size, c.clients, c.memory)
			if diff := cmp.Diff(c.want, *got, cmpopts.EquateComparable(), cmp.Comparer(func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 })); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// log is what a pod says: seconds of the node's clock, and how long each transaction took.
func logOf(lines ...string) *transactionLog {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	l := &transactionLog{from: now, now: func() time.Time { return now.Add(3 * time.Second) }}
	text := strings.Join(lines, "\n") + "\n"
	// It comes in pieces of any length.
	for len(text) > 0 {
		n := min(7, len(text))
		_, _ = l.Write([]byte(text[:n]))
		text = text[n:]
	}
	return l
}

func TestTransactionLog(t *testing.T) {
	l := logOf("begin", "pgbench (18.6 (Debian 18.6-3))",
		"0 1 500000 0 1796005451 500000", "7 1 250000 0 1796005452 0", "3 2 failed 0 1796005452 100000", "2 9 1000000 0 1796005453 250000",
		"transaction type: <builtin: TPC-B (sort of)>", "number of transactions actually processed: 3", "end 0")
	want := []transaction{{3.5, 500_000}, {4, 250_000}, {5.25, 1_000_000}}
	if diff := cmp.Diff(want, l.all(), cmp.AllowUnexported(transaction{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if err := l.check(); err != nil || l.start() != 3 || longestGap(l.all()) != 1.25 {
		t.Errorf("%v, %g, %g", err, l.start(), longestGap(l.all()))
	}
	for name, lines := range map[string][]string{
		"cut off": {"begin", "0 1 500000 0 1796005451 500000"}, "nothing done": {"begin", "end 0"}, "failed": {"begin", "0 1 500000 0 1796005451 500000", "end 2"},
	} {
		if err := logOf(lines...).check(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestPhases(t *testing.T) {
	var all []transaction
	for i := range 100 { // ten a second from 0 to 5, and from 8 to 13
		at := float64(i) / 10
		if i >= 50 {
			at += 3
		}
		all = append(all, transaction{end: at, micros: int64(1000 + 10*i)})
	}
	p := phaseOf("during", all, 4, 9)
	if p.Transactions != 20 || p.TPS != 4 || p.Latency.P50Micros != 1490 || p.Latency.P99Micros != 1590 {
		t.Errorf("%+v, %+v", p, p.Latency)
	}
	if none := phaseOf("away", all, 5, 8); none.Transactions != 0 || none.TPS != 0 || none.Latency != nil {
		t.Errorf("%+v", none)
	}
	s := secondsOf(all, 3.5, 9.5)
	var tps []float64
	for _, second := range s {
		tps = append(tps, second.TPS)
	}
	if !slices.Equal(tps, []float64{10, 5, 0, 0, 5, 10}) || s[2].P99Micros != nil || *s[0].P99Micros != 1440 || s[0].Seconds != 3.5 {
		t.Errorf("%+v", s)
	}
	if gap := longestGap(all); math.Abs(gap-3.1) > 1e-9 {
		t.Errorf("gap %g", gap)
	}
}

// databases is PostgreSQL in the pods of a world.
type databases struct {
	*world
	// ran are what was run, after the pod.
	ran []string
	// failAt fails what has this word.
	failAt string
	// moved is how many loads have begun after a move. first is how often the first time after one has
	// passed, and seen is that when a node was asked last: no such load ends before.
	moved, first, seen int
}

// Measure implements Meter.
func (d *databases) Measure(ctx context.Context, node, id string) (Sample, error) {
	d.mu.Lock()
	d.seen = d.first
	d.mu.Unlock()
	return d.world.Measure(ctx, node, id)
}

// await looks until something is so, or the context ends.
func (d *databases) await(ctx context.Context, so func() bool) {
	for ctx.Err() == nil && !so() {
		time.Sleep(time.Millisecond)
	}
}

// Run implements Executor. What is to outlive the pod ends with it.
func (d *databases) Run(ctx context.Context, c podexec.Command) error {
	script := c.Args[2]
	if c.Container != serverName || c.Stdin != nil || !strings.Contains(script, runPath) {
		d.t.Errorf("runs %+v", c)
	}
	word := "load"
	if strings.Contains(script, "pgbench -h "+runPath+" -U postgres -i") {
		word = "prepare"
	}
	_, after, _ := strings.Cut(script, "-T ")
	seconds, _, _ := strings.Cut(after, " ")
	d.mu.Lock()
	if seconds == "30" {
		d.moved++
	}
	moved := d.moved
	d.ran = append(d.ran, strings.TrimSpace(c.Pod+": "+word+" "+seconds))
	d.count(9)
	d.mu.Unlock()
	if d.failAt == word {
		_, _ = io.WriteString(c.Stderr, "no space")
		return errors.New("exit status 1")
	}
	if word == "prepare" {
		return nil
	}
	var lines strings.Builder
	lines.WriteString("begin\n")
	for i := range 50 {
		fmt.Fprintf(&lines, "0 %d 4000 0 %d 0\n", i, 1796005451+i)
	}
	if _, err := io.WriteString(c.Stdout, lines.String()); err != nil {
		return err
	}
	switch seconds {
	case "3610": // until its pod is gone
		d.await(ctx, func() bool {
			return apierrors.IsNotFound(d.client.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: c.Pod}, &corev1.Pod{}))
		})
		_, _ = io.WriteString(c.Stdout, "end 2\n")
		return errors.New("its container has ended")
	case "30":
		d.await(ctx, func() bool {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.seen >= moved
		})
	}
	_, err := io.WriteString(c.Stdout, "end 0\n")
	return err
}

func (d *databases) runner() *Runner {
	r := d.world.runner()
	r.Exec, r.Meter = d, d
	r.After = func(long time.Duration) <-chan time.Time {
		if long == firstTime {
			d.mu.Lock()
			d.first++
			d.mu.Unlock()
		}
		return d.after(long)
	}
	return r
}

func plannedDatabase(t *testing.T, modes ...string) *Plan {
	t.Helper()
	p := planned(t, modes...)
	p.Profiles, p.Database = nil, PlanDatabase(p.Size.Value(), 0, 0)
	return p
}

// TestDatabase: a database is filled, warmed, measured, and moved with its cache and without, and what
// is left of it is nothing.
func TestDatabase(t *testing.T) {
	d := &databases{world: newWorld(t, userClass())}
	p := plannedDatabase(t, "none", "writethrough")
	p.Other = "node-b"
	r, err := d.runner().Run(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	const none, cached = "nearflash-bench-r1-1-1: ", "nearflash-bench-r1-2-"
	want := []string{none + "prepare", none + "load 15", none + "load 10", cached + "1: prepare"}
	warm := func(pod string) {
		for range 2 * flatWindows {
			want = append(want, cached+pod+": load 5")
		}
	}
	warm("1")
	want = append(want, cached+"1: load 10", cached+"1: load 3610", cached+"2: load 30")
	warm("2")
	want = append(want, cached+"2: load 3610", cached+"3: load 30")
	if diff := cmp.Diff(want, d.ran); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if len(r.Databases) != 2 || len(r.Rows) != 0 || r.Empty() {
		t.Fatalf("report %+v", r)
	}
	row := r.Databases[1]
	if row.Measured.TPS != 1 || row.Measured.Latency.P99Micros != 4000 || *row.Measured.HitPercent != 90 || row.WarmUp == nil || !row.WarmUp.Flat || len(row.Series) != 6 {
		t.Errorf("row %+v, %+v", row.Measured, row.WarmUp)
	}
	if r.Databases[0].WarmUp != nil || r.Databases[0].Measured.HitPercent != nil || len(r.Databases[0].Moves) > 0 {
		t.Errorf("without a cache: %+v", r.Databases[0])
	}
	if len(row.Moves) != 2 || !row.Moves[0].Warm || row.Moves[1].Warm || row.Moves[0].To != "node-b" || row.Moves[1].To != "node-a" || len(row.Moves[0].Phases) != 3 || len(row.Moves[0].Series) == 0 {
		t.Errorf("moves %+v", row.Moves)
	}
	if diff := cmp.Diff([]string{"class/fast"}, d.left()); diff != "" {
		t.Errorf("left -want +got:\n%s", diff)
	}
}

// TestDatabasePod: a database has a filesystem, memory of its own, time to end, and no more rights than
// a namespace of the standard "baseline" grants.
func TestDatabasePod(t *testing.T) {
	d := &databases{world: newWorld(t, userClass())}
	p := plannedDatabase(t, "none")
	p.Keep = true
	if _, err := d.runner().Run(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	var pod corev1.Pod
	var claim corev1.PersistentVolumeClaim
	for name, o := range map[string]client.Object{"nearflash-bench-r1-1-1": &pod, "nearflash-bench-r1-1": &claim} {
		if err := d.client.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: name}, o); err != nil {
			t.Fatal(err)
		}
	}
	c := pod.Spec.Containers[0]
	baseline := []corev1.Capability{"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"}
	for _, cap := range c.SecurityContext.Capabilities.Add {
		if !slices.Contains(baseline, cap) {
			t.Errorf("capability %s", cap)
		}
	}
	if *claim.Spec.VolumeMode != corev1.PersistentVolumeFilesystem || len(c.VolumeDevices) > 0 || c.VolumeMounts[0].ReadOnly || c.Resources.Limits.Memory().String() != "256Mi" {
		t.Errorf("claim %+v, container %+v", claim.Spec, c)
	}
	if c.ReadinessProbe == nil || *pod.Spec.TerminationGracePeriodSeconds <= stopSeconds {
		t.Errorf("pod %+v", pod.Spec)
	}
}

// TestDatabaseFails: what PostgreSQL says is in the error, and what the first process said in vain.
func TestDatabaseFails(t *testing.T) {
	for word, want := range map[string]string{
		"prepare": "none: fill the database: pgbench: no space: exit status 1", "load": "none: pgbench: no space: exit status 1",
	} {
		d := &databases{world: newWorld(t, userClass()), failAt: word}
		if _, err := d.runner().Run(t.Context(), plannedDatabase(t, "none")); err == nil || err.Error() != want {
			t.Errorf("%s: %v", word, err)
		}
	}
	d := &databases{world: newWorld(t, userClass())}
	d.client = interceptor.NewClient(d.client, interceptor.Funcs{Get: func(ctx context.Context, cl client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
		err := cl.Get(ctx, key, obj, opts...)
		if pod, ok := obj.(*corev1.Pod); ok {
			pod.Status = corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: "su: user postgres\ndoes not exist\n"}}}}}
		}
		return err
	}})
	_, err := d.runner().Run(t.Context(), plannedDatabase(t, "none"))
	if err == nil || !strings.Contains(err.Error(), "su: user postgres does not exist: the image fio:3 has to have PostgreSQL with pgbench, a user postgres") {
		t.Errorf("got %v", err)
	}
}
