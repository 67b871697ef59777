package kubectl_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// move is a CacheMigration of a volume to node-b, begun 30 seconds ago; from is ""
// for a hydration from the origin.
func move(id, from string, generation int64, opts ...func(*v1alpha1.CacheMigration)) *v1alpha1.CacheMigration {
	m := &v1alpha1.CacheMigration{
		ObjectMeta: metav1.ObjectMeta{Name: id + "-" + string(rune('0'+generation)), CreationTimestamp: before(30 * time.Second)},
		Spec: v1alpha1.CacheMigrationSpec{
			VolumeName: id, VolumeUID: "uid-" + id, Generation: generation, DestinationNode: "node-b", BandwidthBytesPerSecond: ptr(64 * mib),
		},
	}
	if from != "" {
		m.Spec.SourceNode, m.Spec.SourceGeneration = from, generation-1
		m.Spec.Deadline = metav1.NewTime(start.Add(29*time.Minute + 30*time.Second))
	}
	for _, o := range opts {
		o(m)
	}
	return m
}

// by lets a move say its method and why.
func by(method v1alpha1.MigrationMethod, reason string) func(*v1alpha1.CacheMigration) {
	return func(m *v1alpha1.CacheMigration) { m.Spec.Method, m.Spec.MethodReason = method, reason }
}

// exported lets the source have answered, and the copy go on.
func exported(m *v1alpha1.CacheMigration) {
	m.Status.Source.State = v1alpha1.ExportStateExported
	m.Status.StartTime = m.CreationTimestamp
	m.Status.Progress = v1alpha1.MigrationProgress{
		TotalBytes: ptr(4 * gib), HydratedBytes: ptr(3 * gib), BytesPerSecond: ptr(50 * mib), ServedFrom: v1alpha1.ServedFromPeer,
		EstimatedCompletionTime: metav1.NewTime(start.Add(20 * time.Second)),
	}
}

// onOrigin is exported, after the source has gone.
func onOrigin(m *v1alpha1.CacheMigration) {
	exported(m)
	m.Status.Source.State, m.Status.Progress.ServedFrom = v1alpha1.ExportStateReleased, v1alpha1.ServedFromOrigin
}

func refused(m *v1alpha1.CacheMigration) {
	m.Status.Source = v1alpha1.MigrationSource{State: v1alpha1.ExportStateRefused, Message: "not found: no clean cache is kept here"}
}

// ended ends a move some time ago, a minute after its beginning.
func ended(outcome v1alpha1.MigrationOutcome, since time.Duration, message string) func(*v1alpha1.CacheMigration) {
	return func(m *v1alpha1.CacheMigration) {
		m.CreationTimestamp = before(since + time.Minute)
		m.Status.Outcome, m.Status.OutcomeMessage = outcome, message
		m.Status.StartTime, m.Status.CompletionTime = m.CreationTimestamp, before(since)
		m.Status.Progress.BytesPerSecond, m.Status.Progress.EstimatedCompletionTime = nil, metav1.Time{}
	}
}

// moving is the fleet with a move in each state.
func moving() []client.Object {
	return append(fleet(),
		move("pvc-1", "node-c", 3, exported, by(v1alpha1.MigrationStream, "no dm-clone\non node-b")),
		move("pvc-2", "node-a", 3),
		move("pvc-4", "", 3, onOrigin, by(v1alpha1.MigrationHotSet, "")),
		move("pvc-5", "node-c", 3, refused),
		move("pvc-1", "node-a", 2, exported, ended(v1alpha1.MigrationCompleted, 20*time.Minute, "everything was copied, 1m0s")),
		move("pvc-2", "node-c", 2, ended(v1alpha1.MigrationFailed, 10*time.Minute, "node node-c has not said\nwhether it exports its cache")),
		move("pvc-6", "node-a", 3, exported, ended(v1alpha1.MigrationEnded, 5*time.Minute, "the volume left the node before everything was copied")),
		move("gone", "node-a", 7, onOrigin),
	)
}

func TestMigrations(t *testing.T) {
	for tc, c := range map[string]struct {
		args             []string
		objs             []client.Object
		wantOut, wantErr string
	}{
		"namespace": {
			args: []string{"migrations", "-n", "shop"}, objs: moving(),
			wantOut: `
CLAIM   FROM     TO       METHOD   STATE       SERVED-FROM   PROGRESS   DONE%   RATE     ETA   AGE
data    node-c   node-b   Stream   running     Peer          3Gi/4Gi    75      50Mi/s   20s   30s
logs    node-a   node-b   Clone    waiting     -             -          -       -        -     30s
small   origin   node-b   HotSet   running     Origin        3Gi/4Gi    75      50Mi/s   20s   30s
tune    node-c   node-b   Clone    refused     -             -          -       -        -     30s
logs    node-c   node-b   Clone    failed      -             -          -       -        -     11m
data    node-a   node-b   Clone    completed   Peer          4Gi/4Gi    100     -        -     21m
`,
		},
		"all namespaces, wide": {
			args: []string{"moves", "-A", "-o", "wide"}, objs: moving(),
			wantOut: `
NAMESPACE   CLAIM       FROM     TO       METHOD   STATE       SERVED-FROM   PROGRESS   DONE%   RATE     ETA   AGE   MIGRATION   GEN   EXPORT     LIMIT    DEADLINE   TOOK   WHY-METHOD              MESSAGE
-           cvol/gone   node-a   node-b   Clone    running     Origin        3Gi/4Gi    75      50Mi/s   20s   30s   gone-7      7     Released   64Mi/s   -          -      -                       -
shop        data        node-c   node-b   Stream   running     Peer          3Gi/4Gi    75      50Mi/s   20s   30s   pvc-1-3     3     Exported   64Mi/s   29m        -      no dm-clone on node-b   -
shop        logs        node-a   node-b   Clone    waiting     -             -          -       -        -     30s   pvc-2-3     3     -          64Mi/s   29m        -      -                       -
shop        small       origin   node-b   HotSet   running     Origin        3Gi/4Gi    75      50Mi/s   20s   30s   pvc-4-3     3     Released   64Mi/s   -          -      -                       -
shop        tune        node-c   node-b   Clone    refused     -             -          -       -        -     30s   pvc-5-3     3     Refused    64Mi/s   -          -      -                       not found: no clean cache is kept here
web         site        node-a   node-b   Clone    ended       Peer          3Gi/4Gi    75      -        -     6m    pvc-6-3     3     Exported   64Mi/s   -          60s    -                       the volume left the node before everything was copied
shop        logs        node-c   node-b   Clone    failed      -             -          -       -        -     11m   pvc-2-2     2     -          64Mi/s   -          60s    -                       node node-c has not said whether it exports its cache
shop        data        node-a   node-b   Clone    completed   Peer          4Gi/4Gi    100     -        -     21m   pvc-1-2     2     Exported   64Mi/s   -          60s    -                       everything was copied, 1m0s
`,
		},
		"of a volume": {
			args: []string{"migrations", "-n", "web", "site"}, objs: moving(),
			wantOut: `
CLAIM   FROM     TO       METHOD   STATE   SERVED-FROM   PROGRESS   DONE%   RATE   ETA   AGE
site    node-a   node-b   Clone    ended   Peer          3Gi/4Gi    75      -      -     6m
`,
		},
		"as objects":             {args: []string{"migrations", "-n", "web", "-o", "name"}, objs: moving(), wantOut: "cachemigration.nearflash.io/pvc-6-3\n"},
		"none of a volume":       {args: []string{"migrations", "-n", "shop", "data"}, objs: fleet(), wantErr: "No migrations of data found.\n"},
		"none in a namespace":    {args: []string{"migrations"}, objs: moving(), wantErr: "No migrations found in namespace default.\n"},
		"none":                   {args: []string{"migrations", "-A"}, objs: fleet(), wantErr: "No migrations found.\n"},
		"of a volume that is no": {args: []string{"migrations", "-n", "shop", "x"}, objs: fleet(), wantErr: "error: there is no claim x in namespace shop: name its namespace with -n; `kubectl nearflash list -A` shows all volumes\n"},
		"watched as objects":     {args: []string{"migrations", "-w", "-o", "json"}, wantErr: "error: --watch prints tables: leave out --watch, or -o\n"},
	} {
		t.Run(tc, func(t *testing.T) {
			_, out, errOut := newRig(t, c.objs...).run(c.args...)
			expect(t, "output", out, c.wantOut)
			expect(t, "errors", errOut, c.wantErr)
		})
	}
}

func TestMigrationsJSON(t *testing.T) {
	objs := append(bound("shop", "data", "pvc-1", on("node-b")), move("pvc-1", "", 3))
	_, out, errOut := newRig(t, objs...).run("migrations", "-n", "shop", "-o", "jsonpath={.items[*].kind} {.items[*].spec.destinationNode}")
	expect(t, "output", out, "CacheMigration node-b")
	expect(t, "errors", errOut, "")
}

// The screen shows how a move goes on.
func TestMigrationsWatch(t *testing.T) {
	r := newRig(t, append(bound("default", "data", "pvc-1", on("node-b")), move("pvc-1", "node-a", 3))...)
	r.clock.ticks = append(r.clock.ticks, func() {
		var m v1alpha1.CacheMigration
		if err := r.client.Get(t.Context(), client.ObjectKey{Name: "pvc-1-3"}, &m); err != nil {
			t.Fatal(err)
		}
		exported(&m)
		if err := r.client.Status().Update(t.Context(), &m); err != nil {
			t.Fatal(err)
		}
	})
	enough := make(chan struct{})
	r.clock.stop = func() { close(enough) }
	code, out, errOut := r.runUntil(enough, "migrations", "-w")
	expect(t, "output", out, ""+
		"Every 5s: 12:00:00 UTC\n\n"+
		"CLAIM   FROM     TO       METHOD   STATE     SERVED-FROM   PROGRESS   DONE%   RATE   ETA   AGE\n"+
		"data    node-a   node-b   Clone    waiting   -             -          -       -      -     30s\n\n"+
		"Every 5s: 12:00:05 UTC\n\n"+
		"CLAIM   FROM     TO       METHOD   STATE     SERVED-FROM   PROGRESS   DONE%   RATE     ETA   AGE\n"+
		"data    node-a   node-b   Clone    running   Peer          3Gi/4Gi    75      50Mi/s   15s   35s\n\n")
	if code != 0 || errOut != "" {
		t.Errorf("exit status %d, errors %q", code, errOut)
	}
}

func TestListShowsMoves(t *testing.T) {
	objs := bound("shop", "data", "pvc-1", on("node-b"))
	objs = append(objs, bound("shop", "logs", "pvc-2", on("node-b"))...)
	objs = append(objs, bound("shop", "old", "pvc-3", on("node-b"))...)
	objs = append(objs, move("pvc-1", "node-a", 3, exported), move("pvc-2", "node-a", 3), move("pvc-3", "node-a", 2, exported))
	_, out, errOut := newRig(t, objs...).run("list", "-n", "shop", "-o", "wide")
	expect(t, "output", out, `
CLAIM   MODE           SIZE   NODE     CACHED   HIT%   DIRTY   USED    WAITS-FOR   VOLUME   STATE       HEALTH    GEN   WARM-ON   MOVE      APPLIED   TOTAL-HIT%   SEEN
data    writethrough   10Gi   node-b   yes      94     0       8.2Gi   -           pvc-1    Published   Healthy   3     -         75%       Applied   91           12s
logs    writethrough   10Gi   node-b   yes      94     0       8.2Gi   -           pvc-2    Published   Healthy   3     -         waiting   Applied   91           12s
old     writethrough   10Gi   node-b   yes      94     0       8.2Gi   -           pvc-3    Published   Healthy   3     -         -         Applied   91           12s
`)
	expect(t, "errors", errOut, "")
}
