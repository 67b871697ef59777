package kubectl_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// requestAtStart is the request of a command that begins with the test.
const requestAtStart = "2026-11-21T12:00:00Z"

// pool is a node's pool.
func readyPool(node string) *v1alpha1.CachePool {
	return &v1alpha1.CachePool{
		ObjectMeta: metav1.ObjectMeta{Name: node},
		Status: v1alpha1.CachePoolStatus{Conditions: []metav1.Condition{
			{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Ready", LastTransitionTime: before(time.Hour)},
		}},
	}
}

// prewarm is the copy of a cache to node-b that carries out a request.
func prewarm(request string, opts ...func(*v1alpha1.CacheMigration)) *v1alpha1.CacheMigration {
	return move("pvc-1", "node-a", 3, append([]func(*v1alpha1.CacheMigration){func(m *v1alpha1.CacheMigration) {
		m.Name += "-prewarm"
		m.Spec.SourceGeneration, m.Spec.Purpose, m.Spec.PrewarmRequest = 3, v1alpha1.MigrationPrewarm, request
	}}, opts...)...)
}

// copied is how much of 4 GiB is there.
func copied(n int64, left time.Duration) func(*v1alpha1.CacheMigration) {
	return func(m *v1alpha1.CacheMigration) {
		exported(m)
		m.Status.Progress.HydratedBytes = &n
		m.Status.Progress.EstimatedCompletionTime = metav1.NewTime(start.Add(left))
	}
}

func outcome(o v1alpha1.MigrationOutcome, message string) func(*v1alpha1.CacheMigration) {
	return func(m *v1alpha1.CacheMigration) {
		m.Status.Outcome, m.Status.OutcomeMessage, m.Status.CompletionTime = o, message, metav1.NewTime(start)
	}
}

// goesOn changes the migration while the program waits; nil is a look without a
// change.
func (r *rig) goesOn(changes ...func(*v1alpha1.CacheMigration)) {
	for _, change := range changes {
		r.clock.ticks = append(r.clock.ticks, func() {
			if change == nil {
				return
			}
			m := prewarm(requestAtStart)
			if err := r.client.Get(r.t.Context(), client.ObjectKeyFromObject(m), m); err != nil {
				if err := r.client.Create(r.t.Context(), m); err != nil {
					r.t.Fatal(err)
				}
			}
			change(m)
			if err := r.client.Status().Update(r.t.Context(), m); err != nil {
				r.t.Fatal(err)
			}
		})
	}
}

// zoned is a node of a zone.
func zoned(name, zone string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": zone}}}
}

// inZone is a volume that can be reached from a zone alone.
func inZone(t *testing.T, zone string) []client.Object {
	t.Helper()
	objs := bound("default", "data", "pvc-1", on("node-a"))
	for _, o := range objs {
		if pv, ok := o.(*corev1.PersistentVolume); ok {
			pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}},
			}}}}
			return objs
		}
	}
	t.Fatal("no PersistentVolume")
	return nil
}

func TestMigrate(t *testing.T) {
	attached := bound("default", "data", "pvc-1", on("node-a"))
	for name, tc := range map[string]struct {
		args             []string
		objs             []client.Object
		goesOn           []func(*v1alpha1.CacheMigration)
		terminal         bool
		wantOut, wantErr string
		// wantNode is the node that is asked for at the end.
		wantNode string
	}{
		"lines": {
			args: []string{"migrate", "data", "--to", "node-b"},
			objs: append(attached, readyPool("node-b")),
			goesOn: []func(*v1alpha1.CacheMigration){
				func(*v1alpha1.CacheMigration) {}, func(m *v1alpha1.CacheMigration) { m.Status.Source.State = v1alpha1.ExportStateExported },
				copied(gib, time.Minute+3*time.Second), nil, copied(3*gib, 25*time.Second),
				func(m *v1alpha1.CacheMigration) {
					copied(4*gib, 0)(m)
					outcome(v1alpha1.MigrationCompleted, "everything was copied")(m)
				},
			},
			wantOut: `
data: waiting for node node-b
data: waiting for node node-a to export its cache
data: node node-b begins to copy from node node-a
data: 25% copied, 1Gi/4Gi, 50Mi/s, 60s left
data: 75% copied, 3Gi/4Gi, 50Mi/s, 20s left
data: node node-b has a copy of 4Gi of the cache; what is written from now on is copied after the move
data: next: ` + "`kubectl cordon node-a`" + `, then delete the pod that uses the volume; it must be able to run on node node-b
`,
		},
		"a bar": {
			args: []string{"migrate", "data", "--to", "node-b"}, terminal: true,
			objs: append(attached, readyPool("node-b")),
			goesOn: []func(*v1alpha1.CacheMigration){
				copied(gib, 31*time.Second), copied(3*gib, 12*time.Second),
				func(m *v1alpha1.CacheMigration) { outcome(v1alpha1.MigrationCompleted, "everything was copied")(m) },
			},
			wantOut: "\rdata: waiting for node node-b" +
				"\rdata: [#######.......................] 25% copied, 1Gi/4Gi, 50Mi/s, 30s left" +
				"\rdata: [######################........] 75% copied, 3Gi/4Gi, 50Mi/s, 10s left" + `
data: node node-b has a copy of 4Gi of the cache; what is written from now on is copied after the move
data: next: ` + "`kubectl cordon node-a`" + `, then delete the pod that uses the volume; it must be able to run on node node-b
`,
		},
		"ends early": {
			args: []string{"migrate", "data", "--to", "node-b"},
			objs: append(attached, readyPool("node-b")),
			goesOn: []func(*v1alpha1.CacheMigration){func(m *v1alpha1.CacheMigration) {
				outcome(v1alpha1.MigrationEnded, "a part was copied: the time of the lease is over")(m)
			}},
			wantOut: `
data: waiting for node node-b
data: the copy ended early: a part was copied: the time of the lease is over
data: next: ` + "`kubectl cordon node-a`" + `, then delete the pod that uses the volume; it must be able to run on node node-b
`,
		},
		"fails": {
			args:    []string{"migrate", "data", "--to", "node-b"},
			objs:    append(attached, readyPool("node-b")),
			goesOn:  []func(*v1alpha1.CacheMigration){func(m *v1alpha1.CacheMigration) { outcome(v1alpha1.MigrationFailed, "the pool is full")(m) }},
			wantOut: "data: waiting for node node-b\n",
			wantErr: "error: data: nothing was copied to node node-b: the pool is full: the move will be an ordinary one\n",
		},
		"an earlier copy": {
			args:     []string{"migrate", "data", "--to", "node-b", "--timeout", "2s"},
			objs:     append(attached, readyPool("node-b"), prewarm("earlier", outcome(v1alpha1.MigrationCompleted, "everything was copied"))),
			goesOn:   []func(*v1alpha1.CacheMigration){nil, nil},
			wantOut:  "data: waiting for node node-b\n",
			wantErr:  "error: data: timed out after 2s: the copy goes on, `kubectl nearflash migrations -n default data` shows it and --cancel ends it\n",
			wantNode: "node-b",
		},
		"without waiting": {
			args:     []string{"migrate", "data", "--to", "node-b", "--wait=false"},
			objs:     append(attached, readyPool("node-b")),
			wantOut:  "data: copy to node node-b requested: `kubectl nearflash migrations -n default data` shows it\n",
			wantNode: "node-b",
		},
		"taken back": {
			args: []string{"migrate", "data", "--cancel"},
			objs: bound("default", "data", "pvc-1", on("node-a"), func(v *v1alpha1.CachedVolume) {
				v.Spec.PrewarmNode, v.Spec.PrewarmRequest = "node-b", "earlier"
			}),
			wantOut: "data: the copy to node node-b is not asked for any more\n",
		},
		"nothing to take back": {
			args: []string{"migrate", "data", "--cancel"}, objs: attached,
			wantOut: "data: no copy was asked for\n",
		},
		"no node": {
			args: []string{"migrate", "data"}, objs: attached,
			wantErr: "error: migrate needs the node to copy to: add --to NODE, `kubectl nearflash pools` lists those with SSDs\n",
		},
		"the node where it is": {
			args: []string{"migrate", "data", "--to", "node-a"}, objs: attached,
			wantErr: "error: data: it is on node node-a already: name the node that its pod is going to\n",
		},
		"no pool": {
			args: []string{"migrate", "data", "--to", "node-b"}, objs: attached,
			wantErr: "error: data: node node-b has no pool of SSDs: `kubectl nearflash pools` lists the nodes that have\n",
		},
		"a pool that is not ready": {
			args:    []string{"migrate", "data", "--to", "node-b"},
			objs:    append(attached, &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: "node-b"}}),
			wantErr: "error: data: the pool of node node-b is not ready (it has not reported yet): `kubectl nearflash doctor` says what helps\n",
		},
		"a node that the volume does not reach": {
			args: []string{"migrate", "data", "--to", "node-b"}, objs: append(inZone(t, "z1"), readyPool("node-b"), zoned("node-b", "z2")),
			wantErr: "error: data: node node-b is outside of the node affinity of PersistentVolume pvc-1 (zone In z1): the volume cannot be attached there; name a node that it allows\n",
		},
		"a node that is not there": {
			args: []string{"migrate", "data", "--to", "node-b"}, objs: append(inZone(t, "z1"), readyPool("node-b")),
			wantErr: "error: data: there is no node node-b: `kubectl nearflash pools` lists the nodes that have SSDs\n",
		},
		"a node that the volume reaches": {
			args:     []string{"migrate", "data", "--to", "node-b", "--wait=false"},
			objs:     append(inZone(t, "z1"), readyPool("node-b"), zoned("node-b", "z1")),
			wantOut:  "data: copy to node node-b requested: `kubectl nearflash migrations -n default data` shows it\n",
			wantNode: "node-b",
		},
		"attached nowhere": {
			args: []string{"migrate", "data", "--to", "node-b"}, objs: bound("default", "data", "pvc-1", released("node-a")),
			wantErr: "error: data: it is attached nowhere: start its pod where you want it, a move then takes the cache along by itself\n",
		},
		"uncached": {
			args:    []string{"migrate", "data", "--to", "node-b"},
			objs:    bound("default", "data", "pvc-1", func(v *v1alpha1.CachedVolume) { v.Spec.CacheMode = "none" }, on("node-a")),
			wantErr: "error: data: it has no cache that could be copied: `kubectl nearflash mode -n default data writethrough` gives it one\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, tc.objs...)
			r.terminal = tc.terminal
			r.goesOn(tc.goesOn...)
			code, out, errOut := r.run(tc.args...)
			expect(t, "output", out, tc.wantOut)
			expect(t, "errors", errOut, tc.wantErr)
			if failed := strings.Contains(tc.wantErr, "error: "); (code != 0) != failed {
				t.Errorf("exit status %d", code)
			}
			if len(r.clock.ticks) > 0 {
				t.Errorf("the command ended before %d more changes", len(r.clock.ticks))
			}
			if s := r.record("pvc-1").Spec; s.PrewarmNode != tc.wantNode || (s.PrewarmRequest == "") != (tc.wantNode == "") {
				t.Errorf("asked for %q (%q), want %q", s.PrewarmNode, s.PrewarmRequest, tc.wantNode)
			}
		})
	}
}
