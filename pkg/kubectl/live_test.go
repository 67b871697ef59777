package kubectl_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/exec"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/figures"
	"github.com/nearflash/nearflash/pkg/kubectl"
	"github.com/nearflash/nearflash/pkg/podexec"
	"github.com/nearflash/nearflash/pkg/volume"
)

// program is what is run in a container.
type program func(ctx context.Context, c podexec.Command) error

// nodePrograms are what the containers of the node plugin do, by pod.
type nodePrograms struct {
	t    *testing.T
	pods map[string]program

	mu sync.Mutex
	// now and most are how many run at once, and ever did; runs is how often one ran.
	now, most, runs int
}

// Run implements kubectl.Executor.
func (p *nodePrograms) Run(ctx context.Context, c podexec.Command) error {
	p.mu.Lock()
	p.now++
	p.runs++
	p.most = max(p.most, p.now)
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.now--
		p.mu.Unlock()
	}()
	if end, ok := ctx.Deadline(); !ok || time.Until(end) > 10*time.Second {
		p.t.Errorf("%s is waited for until %v", c.Pod, end)
	}
	want := podexec.Command{Namespace: "nearflash", Pod: c.Pod, Container: "nearflash-node", Args: []string{"/nearflash-node", "figures"}, Stdout: c.Stdout, Stderr: c.Stderr}
	if diff := cmp.Diff(want.Args, c.Args); diff != "" || c.Namespace != want.Namespace || c.Container != want.Container || c.Stdin != nil {
		p.t.Errorf("runs %+v", c)
	}
	run := p.pods[c.Pod]
	if run == nil {
		p.t.Errorf("pod %s is asked", c.Pod)
		return nil
	}
	return run(ctx, c)
}

// prints is a program with an output.
func prints(text string) program {
	return func(_ context.Context, c podexec.Command) error {
		_, err := c.Stdout.Write([]byte(text))
		return err
	}
}

// fails is a program that ends with status 1.
func fails(stderr string) program {
	return func(_ context.Context, c podexec.Command) error {
		if _, err := c.Stderr.Write([]byte(stderr)); err != nil {
			return err
		}
		return exec.CodeExitError{Err: errors.New("command terminated with exit code 1"), Code: 1}
	}
}

// returns is a program that is not run.
func returns(err error) program {
	return func(context.Context, podexec.Command) error { return err }
}

// measures is a program that answers with reads a second, seen this moment.
func measures(t *testing.T, reads map[string]int64) program {
	t.Helper()
	var a figures.Answer
	for id, n := range reads {
		var v v1alpha1.CachedVolume
		on("")(&v)
		cache := v.Status.Cache
		cache.Mode, cache.Performance.ReadIOPS, cache.ObservedTime = v1alpha1.CacheModeWritethrough, &n, metav1.NewTime(start)
		a.Volumes = append(a.Volumes, figures.Volume{ID: volume.ID(id), Cache: cache})
	}
	text, err := figures.Encode(a)
	if err != nil {
		t.Fatal(err)
	}
	return prints(string(text))
}

// liveRig is fleet with the node plugins of node-a and node-b, and programs in them.
func liveRig(t *testing.T, pods map[string]program) (*rig, *nodePrograms) {
	t.Helper()
	r := newRig(t, append(fleet(), driverPod("node", "plugin-a", "node-a", true), driverPod("node", "plugin-b", "node-b", true), driverPod("node", "plugin-c", "node-c", true),
		driverPod("controller", "controller", "node-a", true))...)
	p := &nodePrograms{t: t, pods: pods}
	r.executor = p
	return r, p
}

const (
	liveA    = "data    node-a   94     5        310       4.2ms   120us     500us     2.1ms      15ms       0       8.2Gi   0s\n"
	liveB    = "logs    node-b   94     6        310       4.2ms   120us     500us     2.1ms      15ms       0       8.2Gi   0s\n"
	toldA    = "data    node-a   94     1200     310       4.2ms   120us     500us     2.1ms      15ms       0       8.2Gi   12s\n"
	toldB    = "logs    node-b   40     9000     310       900us   120us     500us     2.1ms      15ms       512Mi   8.2Gi   12s\n"
	liveHead = "CLAIM   NODE     HIT%   READ/S   WRITE/S   P99     HIT-P50   HIT-P99   MISS-P50   MISS-P99   DIRTY   USED    SEEN\n"
)

func TestTopLive(t *testing.T) {
	a, b := measures(t, map[string]int64{"pvc-1": 5}), measures(t, map[string]int64{"pvc-2": 6})
	bSilent := func(why string) string {
		return "1 of 2 nodes did not answer; its figures are as last reported: node-b: " + why + "\n"
	}
	for name, c := range map[string]struct {
		args    string
		pods    map[string]program
		change  func(*rig)
		want    string
		wantErr string
		runs    int
	}{
		"both nodes answer":    {args: "data logs", pods: map[string]program{"plugin-a": a, "plugin-b": b}, want: liveHead + liveA + liveB, runs: 2},
		"only who has volumes": {args: "data", pods: map[string]program{"plugin-a": a}, want: liveHead + liveA, runs: 1},
		"sorted by what is now": {
			args: "data logs --sort-by iops", pods: map[string]program{"plugin-a": measures(t, map[string]int64{"pvc-1": 5}), "plugin-b": b},
			want: liveHead + liveB + liveA, runs: 2,
		},
		"as an object":         {args: "data -o jsonpath={.items[0].status.cache.performance.readIOPS}", pods: map[string]program{"plugin-a": a}, want: "5", runs: 1},
		"what nodes reported":  {args: "data logs --reported", want: liveHead + toldA + toldB},
		"nothing is attached":  {args: "-n web", change: func(r *rig) { r.forbid(&corev1.Pod{}) }, wantErr: "No attached volumes found in namespace web.\n"},
		"a plugin of before":   {args: "data logs", pods: map[string]program{"plugin-a": a, "plugin-b": fails("nearflash-node: unexpected argument \"figures\"\n")}, want: liveHead + liveA + toldB, wantErr: bSilent("its node plugin is of a version before this question: command terminated with exit code 1"), runs: 2},
		"a plugin of after":    {args: "data logs", pods: map[string]program{"plugin-a": a, "plugin-b": prints(`{"version":2,"figures":[]}`)}, want: liveHead + liveA + toldB, wantErr: bSilent("use the kubectl plugin of its version: figures: the answer is of another version: 2, known is 1"), runs: 2},
		"nonsense":             {args: "data logs", pods: map[string]program{"plugin-a": a, "plugin-b": prints("Segmentation fault")}, want: liveHead + liveA + toldB, wantErr: bSilent("its answer cannot be read: figures: invalid character 'S' looking for beginning of value"), runs: 2},
		"too much":             {args: "data logs", pods: map[string]program{"plugin-a": a, "plugin-b": prints(strings.Repeat(" ", figures.MaxBytes+1))}, want: liveHead + liveA + toldB, wantErr: bSilent("answers with more than 16777216 bytes"), runs: 2},
		"a plugin that hangs":  {args: "data logs", pods: map[string]program{"plugin-a": a, "plugin-b": fails("nearflash-node figures: the plugin has not answered within 5s\n")}, want: liveHead + liveA + toldB, wantErr: bSilent("nearflash-node figures: the plugin has not answered within 5s"), runs: 2},
		"a kubelet that hangs": {args: "data logs", pods: map[string]program{"plugin-a": a, "plugin-b": returns(fmt.Errorf("exec in plugin-b: %w", context.DeadlineExceeded))}, want: liveHead + liveA + toldB, wantErr: bSilent("no answer within 8s: exec in plugin-b: context deadline exceeded"), runs: 2},
		"no plugin on a node": {
			args: "data logs", pods: map[string]program{"plugin-a": a}, want: liveHead + liveA + toldB, wantErr: bSilent("has no pod of the node plugin"), runs: 1,
			change: func(r *rig) {
				if err := r.client.Delete(r.t.Context(), driverPod("node", "plugin-b", "node-b", true)); err != nil {
					r.t.Fatal(err)
				}
			},
		},
		"no right to exec": {
			args: "data", pods: map[string]program{"plugin-a": returns(fmt.Errorf("exec in plugin-a: %w", podexec.ErrForbidden))}, want: liveHead + toldA, runs: 1,
			wantErr: "The figures are those that nodes reported last: to ask the nodes, this account needs the right to create pods/exec in namespace nearflash.\n",
		},
		"no right to see pods": {
			args: "data", change: func(r *rig) { r.forbid(&corev1.Pod{}) }, want: liveHead + toldA,
			wantErr: "The figures are those that nodes reported last: this account may not list pods in all namespaces, and so finds no node plugin to ask.\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, p := liveRig(t, c.pods)
			if c.change != nil {
				c.change(r)
			}
			before := r.record("pvc-1")
			code, out, errOut := r.run(append([]string{"top", "-n", "shop"}, strings.Fields(c.args)...)...)
			expect(t, "output", out, c.want)
			expect(t, "errors", errOut, c.wantErr)
			if code != 0 || p.runs != c.runs {
				t.Errorf("exit status %d, %d programs run, want %d", code, p.runs, c.runs)
			}
			if diff := cmp.Diff(before, r.record("pvc-1")); diff != "" {
				t.Errorf("the record was written (-before +after):\n%s", diff)
			}
		})
	}
}

// TestTopLiveWatch: each table is of its moment. What is wrong is said after it, and a right that is
// missing once.
func TestTopLiveWatch(t *testing.T) {
	refused := returns(podexec.ErrForbidden)
	for name, c := range map[string]struct {
		b       program
		wantErr string
		runs    int
	}{
		"a node that is silent": {fails("gone"), strings.Repeat("1 of 2 nodes did not answer; its figures are as last reported: node-b: gone\n", 3), 6},
		"no right":              {refused, "The figures are those that nodes reported last: to ask the nodes, this account needs the right to create pods/exec in namespace nearflash.\n", 2},
	} {
		t.Run(name, func(t *testing.T) {
			r, p := liveRig(t, map[string]program{"plugin-a": measures(t, map[string]int64{"pvc-1": 5}), "plugin-b": c.b})
			r.terminal = true
			run := make(chan struct{})
			r.clock.ticks = []func(){func() {}, func() {}}
			r.clock.stop = func() { close(run) }
			code, out, errOut := r.runUntil(run, "top", "-n", "shop", "data", "logs", "-w")
			expect(t, "errors", errOut, c.wantErr)
			if n := strings.Count(out, "\x1b[2J"); code != 0 || n != 3 || p.runs > c.runs || p.runs == 0 {
				t.Errorf("exit status %d, %d tables, %d programs run:\n%s", code, n, p.runs, out)
			}
		})
	}
}

// TestTopLiveInterrupted: whoever has seen enough while a node is asked gets no error.
func TestTopLiveInterrupted(t *testing.T) {
	run := make(chan struct{})
	r, p := liveRig(t, nil)
	p.pods = map[string]program{"plugin-a": func(ctx context.Context, _ podexec.Command) error {
		close(run)
		<-ctx.Done()
		return ctx.Err()
	}}
	if code, out, errOut := r.runUntil(run, "top", "-n", "shop", "data", "-w"); code != 0 || out != "" || errOut != "" {
		t.Errorf("exit status %d, %q, %q", code, out, errOut)
	}
}

// TestTopManyNodes: of many nodes some are asked at once.
func TestTopManyNodes(t *testing.T) {
	const nodes = 40
	p := &nodePrograms{t: t, pods: map[string]program{}}
	var objs []client.Object
	for i := range nodes {
		id, n := fmt.Sprintf("pvc-%02d", i), fmt.Sprintf("node-%02d", i)
		objs = append(objs, bound("shop", "claim-"+id, id, on(n))...)
		objs = append(objs, driverPod("node", "plugin-"+n, n, true))
		answer := measures(t, map[string]int64{id: 5})
		p.pods["plugin-"+n] = func(ctx context.Context, c podexec.Command) error {
			time.Sleep(20 * time.Millisecond)
			return answer(ctx, c)
		}
	}
	r := newRig(t, objs...)
	r.executor = p
	code, out, errOut := r.run("top", "-n", "shop")
	if n := strings.Count(out, " 0s\n"); code != 0 || errOut != "" || n != nodes {
		t.Errorf("exit status %d, %d volumes of now, %s", code, n, errOut)
	}
	if p.most > 16 || p.most < 2 {
		t.Errorf("%d nodes were asked at once", p.most)
	}
}

var _ kubectl.Executor = (*nodePrograms)(nil)
