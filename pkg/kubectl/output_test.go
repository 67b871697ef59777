package kubectl_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend/epoch"
	"github.com/nearflash/nearflash/pkg/kubectl"
)

var update = flag.Bool("update", false, "write what the reference shows of commands")

// shownOutput is a command of the reference with what it prints.
type shownOutput struct {
	args []string
	out  string
}

// documentedOutput is what the reference shows of a command: a file of testdata/output, which kubectldoc takes
// too, has command lines after "$ ", each with its output.
func documentedOutput(t *testing.T, command string) []shownOutput {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "output", command+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	var all []shownOutput
	for _, one := range strings.Split(string(text), "$ kubectl nearflash ")[1:] {
		line, out, _ := strings.Cut(one, "\n")
		all = append(all, shownOutput{strings.Fields(line), strings.TrimSpace(out) + "\n"})
	}
	if len(all) == 0 {
		t.Fatalf("nothing is shown of %s", command)
	}
	return all
}

// applies has the node of pvc-1 do what was asked for, and say so; more is what else it reports.
func applies(message string, more ...func(*v1alpha1.CachedVolume)) func(*testing.T) *rig {
	return onTicks(append(bound("shop", "data", "pvc-1", on("node-a"), stale), node("node-a", true)), accept(metav1.ConditionTrue, v1alpha1.ReasonApplied, message, more...))
}

// onTicks is a cluster in which pvc-1 changes while a command waits.
func onTicks(objs []client.Object, ticks ...func(*v1alpha1.CachedVolume)) func(*testing.T) *rig {
	return func(t *testing.T) *rig {
		r := newRig(t, objs...)
		r.tick("pvc-1", ticks...)
		return r
	}
}

// documented are the clusters in which the commands of the reference print what it shows of them. What is missing has a
// test of its own (preload), or is a script (completion).
var documented = map[string]func(t *testing.T) *rig{
	"abandon": onTicks(append(bound("shop", "data", "pvc-1", writeback, released("node-a")), node("node-a", false))),
	"adopt":   func(t *testing.T) *rig { return newRig(t, adoptable()...) },
	"advise":  func(t *testing.T) *rig { return newRig(t, advisable()...) },
	"bench": func(t *testing.T) *rig {
		r, _ := benchRig(t, benchClass("fast", corev1.PersistentVolumeReclaimRetain, cachedClass))
		return r
	},
	"describe": onTicks(append(bound("shop", "data", "pvc-1", writeback, on("node-a"), dirty(512*mib)),
		node("node-a", true), userPod("shop", "db-0", "data", "node-a"), event("shop", "e1", "PersistentVolumeClaim", "data", "CacheActive", "the cache is active", time.Minute))),
	"discard": func(t *testing.T) *rig { return newRig(t, pool("node-a", keeping("pvc-0d7d1a7e"))) },
	"doctor": func(t *testing.T) *rig {
		return newRig(t, append(healthy(t), node("node-b", true), csiNode("node-b", driver), pool("node-b", mirrored), driverPod("node", "nearflash-node-2", "node-b", true))...)
	},
	"drop": applies("mode none", with(v1alpha1.ConditionCached, metav1.ConditionFalse, v1alpha1.ReasonModeNone, "")),
	"flush": onTicks(bound("shop", "data", "pvc-1", writeback, on("node-a"), dirty(512*mib), stale), dirty(120*mib), func(v *v1alpha1.CachedVolume) {
		v.Status.Flush = v1alpha1.FlushStatus{Request: requestAtStart, CompletionTime: before(0)}
	}),
	"invalidate": onTicks(bound("shop", "data", "pvc-1", released("node-a"))),
	"list": func(t *testing.T) *rig {
		return newRig(t, append(fleet(), node("node-b", true), node("node-c", false))...)
	},
	"migrate": func(t *testing.T) *rig {
		r := newRig(t, append(bound("shop", "data", "pvc-1", on("node-a")), readyPool("node-b"))...)
		r.goesOn(copied(gib, time.Minute), copied(3*gib, 20*time.Second), func(m *v1alpha1.CacheMigration) {
			copied(4*gib, 0)(m)
			outcome(v1alpha1.MigrationCompleted, "everything was copied")(m)
		})
		return r
	},
	"migrations": func(t *testing.T) *rig { return newRig(t, moving()...) },
	"mode":       applies("mode writeback"),
	"pools":      func(t *testing.T) *rig { return newRig(t, pool("node-a"), pool("node-b", mirrored)) },
	"release":    releasable,
	"resize":     applies("", func(v *v1alpha1.CachedVolume) { v.Status.Cache.SizeBytes = ptr(20 * gib) }),
	"scrub": onTicks(bound("shop", "data", "pvc-1", on("node-a")), dirty(0), func(v *v1alpha1.CachedVolume) {
		v.Status.Scrub = v1alpha1.ScrubStatus{
			Request: start.Format(time.RFC3339Nano), CompletionTime: before(0), NodeName: "node-a", CheckedBytes: ptr(8 * gib), CorruptedChunks: ptr(int64(0)), UnjudgedPieces: ptr(int64(0)),
		}
	}),
	"takeover": func(t *testing.T) *rig {
		r := newRig(t, epochs(t, map[string]epoch.Record{"s1": refusedFor(5 * time.Minute)}))
		r.clock.ticks = append(r.clock.ticks, func() {
			obj, _ := epochOf(t, r.client, "s1")
			if err := errors.Join(epoch.Encode(obj, "s1", epoch.Record{Current: "drawn-anew"}), r.client.Update(t.Context(), obj)); err != nil {
				t.Fatal(err)
			}
		})
		return r
	},
	"top":     func(t *testing.T) *rig { return newRig(t, fleet()...) },
	"version": func(t *testing.T) *rig { return newRig(t) },
}

// releasable is a cluster with an adopted claim.
func releasable(t *testing.T) *rig {
	r := newRig(t, adoptable()...)
	for range 8 {
		r.clock.ticks = append(r.clock.ticks, func() { controller(t, r) })
	}
	if code, _, errOut := r.run("adopt", "-n", "shop", "data", "--yes"); code != 0 {
		t.Fatal(errOut)
	}
	r.clock.ticks = nil
	return r
}

// TestDocumentedOutput: commands print what the reference shows.
func TestDocumentedOutput(t *testing.T) {
	for command, cluster := range documented {
		t.Run(command, func(t *testing.T) {
			var got strings.Builder
			for _, one := range documentedOutput(t, command) {
				// A test has no nodes to ask.
				args := one.args
				if command == "top" || command == "advise" {
					args = append(slices.Clone(args), "--reported")
				}
				code, out, errOut := cluster(t).run(args...)
				if failed := code != 0; failed != (command == "doctor") {
					t.Fatalf("exit status %d: %s", code, errOut)
				}
				if command != "bench" { // its progress has a run's identity
					out += errOut
				}
				fmt.Fprintf(&got, "\n$ kubectl nearflash %s\n%s", strings.Join(one.args, " "), out)
				if !*update {
					expect(t, strings.Join(one.args, " "), out, one.out)
				}
			}
			if *update {
				if err := os.WriteFile(filepath.Join("testdata", "output", command+".txt"), []byte(strings.TrimPrefix(got.String(), "\n")), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// TestBenchSample: the how-to shows the same table of bench as the reference.
func TestBenchSample(t *testing.T) {
	howTo, err := os.ReadFile("../../docs/how-to/measure-your-own-load.md")
	if err != nil {
		t.Fatal(err)
	}
	var shown strings.Builder
	for line := range strings.Lines(documentedOutput(t, "bench")[0].out) {
		if strings.TrimSpace(line) != "" {
			shown.WriteString("    ")
		}
		shown.WriteString(line)
	}
	if !strings.Contains(string(howTo), shown.String()) {
		t.Errorf("the how-to does not show:\n%s", shown.String())
	}
}

// TestEveryOutput: no command is without one.
func TestEveryOutput(t *testing.T) {
	files, err := filepath.Glob("testdata/output/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, f := range files {
		have = append(have, strings.TrimSuffix(filepath.Base(f), ".txt"))
	}
	var want []string
	for _, c := range kubectl.New(&kubectl.Factory{Config: genericclioptions.NewConfigFlags(false)}).Commands() {
		if c.Name() != "completion" && !c.Hidden {
			want = append(want, c.Name())
		}
	}
	slices.Sort(want)
	if !slices.Equal(have, want) {
		t.Errorf("there is output of %v, and there are the commands %v", have, want)
	}
}
