package kubectl_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/exec"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/bench"
	"github.com/nearflash/nearflash/pkg/podexec"
	"github.com/nearflash/nearflash/pkg/scratch"
)

// fios is what runs in the pods of bench, and in those of the node plugin.
type fios struct {
	t      *testing.T
	output []byte
	// during is called while fio runs, with how often it ran.
	during func(ctx context.Context, n int)

	mu sync.Mutex
	n  int
	// handle is what the node plugin knows.
	handle func() string
	reads  int
	// ssd is what was asked of the SSD alone; ssdErr and ssdSays are how that fails.
	ssd     []string
	ssdErr  error
	ssdSays string
}

// measureSSD is nearflash-node ssd.
func (f *fios) measureSSD(c podexec.Command) error {
	f.ssd = append(f.ssd, strings.Join(c.Args, " "))
	if f.ssdErr != nil {
		_, _ = c.Stderr.Write([]byte(f.ssdSays))
		return f.ssdErr
	}
	run := scratch.Run{Depth: 1, Seconds: 1, Reads: scratch.Counts{90_000: 5000}, Bytes: 5000 * 4096}
	deep := run
	deep.Depth, deep.Reads = 16, scratch.Counts{180_000: 9000}
	text, err := scratch.Encode(scratch.Answer{Bytes: 1 << 30, Place: "on one SSD", Runs: []scratch.Run{run, deep}})
	if err != nil {
		return err
	}
	_, err = c.Stdout.Write(text)
	return err
}

// Run implements kubectl.Executor.
func (f *fios) Run(ctx context.Context, c podexec.Command) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.Container == "nearflash-node" && c.Args[1] == scratch.Command {
		return f.measureSSD(c)
	}
	if c.Container == "nearflash-node" {
		f.reads += 1000
		text, err := json.Marshal(map[string]any{"version": 1, "time": start, "boundsMicros": []int64{100}, "volumes": []any{map[string]any{
			"id": f.handle(), "cache": map[string]any{"mode": "writethrough"},
			"totals": map[string]any{"readHits": f.reads, "devices": map[string]any{"volume": map[string]any{"reads": f.reads, "nanos": f.reads * 80_000}, "ssd": map[string]any{"reads": f.reads, "nanos": f.reads * 75_000}}},
		}}})
		if err != nil {
			return err
		}
		_, err = c.Stdout.Write(text)
		return err
	}
	f.n++
	if f.during != nil {
		f.during(ctx, f.n)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	_, err := c.Stdout.Write(f.output)
	return err
}

// roomyPool is a pool with room.
func roomyPool(name, free string) *v1alpha1.CachePool {
	p := &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.CachePoolStatus{Free: resource.MustParse(free)}}
	p.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "PoolReady"}}
	return p
}

func benchClass(name string, reclaim corev1.PersistentVolumeReclaimPolicy, parameters map[string]string) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: driver, ReclaimPolicy: &reclaim, Parameters: parameters}
}

// benchRig is a cluster that binds claims and runs pods at once.
func benchRig(t *testing.T, objs ...client.Object) (*rig, *fios) {
	t.Helper()
	plugin := userPod("nearflash", "plugin-b", "", "node-b")
	plugin.Labels = map[string]string{"app.kubernetes.io/name": "nearflash", "app.kubernetes.io/component": "node"}
	pending := roomyPool("node-c", "900Gi")
	pending.Status.Conditions[0].Status = metav1.ConditionFalse
	r := newRig(t, append(objs, plugin, roomyPool("node-a", "10Gi"), roomyPool("node-b", "50Gi"), pending)...)
	r.clock.free = true
	output, err := os.ReadFile("../bench/testdata/fio-read-two-jobs.json")
	if err != nil {
		t.Fatal(err)
	}
	f := &fios{t: t, output: output}
	r.executor = f
	plain := r.client.(client.WithWatch)
	f.handle = func() string {
		var list corev1.PersistentVolumeList
		if err := plain.List(context.Background(), &list); err != nil || len(list.Items) == 0 {
			return "none"
		}
		return list.Items[len(list.Items)-1].Spec.CSI.VolumeHandle
	}
	r.client = interceptor.NewClient(plain, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			switch o := obj.(type) {
			case *corev1.Pod:
				o.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
			case *corev1.PersistentVolumeClaim:
				o.Spec.VolumeName = "pv-" + o.Name
				if err := c.Create(ctx, pvAndRecord(o.Namespace, o.Name, o.Spec.VolumeName)[0]); err != nil {
					return err
				}
			}
			return c.Create(ctx, obj, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			if _, ok := obj.(*corev1.PersistentVolumeClaim); ok {
				if err := client.IgnoreNotFound(c.Delete(ctx, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + obj.GetName()}})); err != nil {
					return err
				}
			}
			return c.Delete(ctx, obj, opts...)
		},
	})
	return r, f
}

// benchObjects counts what bench can leave.
func (r *rig) benchObjects() int {
	r.t.Helper()
	n := 0
	var pods corev1.PodList
	var claims corev1.PersistentVolumeClaimList
	var classes storagev1.StorageClassList
	for _, list := range []client.ObjectList{&pods, &claims, &classes} {
		if err := r.client.List(context.Background(), list, client.HasLabels{bench.Label}); err != nil {
			r.t.Fatal(err)
		}
	}
	n += len(pods.Items) + len(claims.Items) + len(classes.Items)
	return n
}

var cachedClass = map[string]string{"backend": "iscsi", "cacheMode": "writethrough", "cacheSize": "10%"}

func TestBench(t *testing.T) {
	page := filepath.Join(t.TempDir(), "report.html")
	r, _ := benchRig(t, benchClass("fast", corev1.PersistentVolumeReclaimRetain, cachedClass))
	code, out, errOut := r.run("bench", "-n", "shop", "--image", "fio:3", "--profile", "randread,seq", "--runtime", "4s", "-o", "json", "--html", page)
	if code != 0 {
		t.Fatal(errOut)
	}
	var report bench.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var rows []string
	for _, row := range report.Rows {
		rows = append(rows, row.Volume+" "+row.Profile)
	}
	if got := strings.Join(rows, ", "); got != "none randread, none seq, writethrough randread, writethrough seq" || report.Node != "node-b" {
		t.Errorf("measured %s on %s", got, report.Node)
	}
	if c := report.Rows[2].Counted; c == nil || c.ReadHitPercent == nil || *c.ReadHitPercent != 100 {
		t.Errorf("counted %+v", c)
	}
	if text, err := os.ReadFile(page); err != nil || !strings.Contains(string(text), "</html>") {
		t.Errorf("page %v", err)
	}
	if !strings.Contains(errOut, "deleted: nothing is left of run "+report.Run) || r.benchObjects() != 0 {
		t.Errorf("%d objects are left: %s", r.benchObjects(), errOut)
	}
	code, out, errOut = r.run("bench", "-n", "shop", "--image", "fio:3", "--runtime", "4s", "--mode", "none", "--node", "node-a")
	if code != 0 || !strings.HasPrefix(out, "VOLUME      PROFILE ") {
		t.Errorf("%d, %s, %s", code, out, errOut)
	}
}

// TestBenchSSD: the SSD alone is measured in the node plugin's pod, with the profile's requests; why it was not is
// in its row.
func TestBenchSSD(t *testing.T) {
	args := []string{"bench", "-n", "shop", "--image", "fio:3", "--profile", "oltp", "--size", "2Gi", "--runtime", "4s", "--mode", "none"}
	r, f := benchRig(t, benchClass("fast", corev1.PersistentVolumeReclaimRetain, cachedClass))
	code, out, errOut := r.run(args...)
	if code != 0 || !strings.Contains(out, "\nSSD alone   oltp      16      9000 ") || !strings.Contains(out, "SSD alone: 1Gi of the pool on one SSD") {
		t.Errorf("exit status %d: %s%s", code, out, errOut)
	}
	want := "/nearflash-node ssd --bytes=2147483648 --block-bytes=8192 --read-percent=70 --random=true --sync-every=8 --depths=1,16 --time=4s"
	if len(f.ssd) != 1 || f.ssd[0] != want {
		t.Errorf("ran %q, want %q", f.ssd, want)
	}
	for name, c := range map[string]struct {
		err        error
		says, want string
	}{
		"no right":      {podexec.ErrForbidden, "", "needs the right to create pods/exec in namespace nearflash"},
		"no room":       {exec.CodeExitError{Code: 1}, "nearflash-node ssd: no scratch volume: it is\x1b[2J full\n", "SSD alone: not measured: no scratch volume: it is [2J full"},
		"an older node": {exec.CodeExitError{Code: 1}, `nearflash-node: unexpected argument "ssd"`, "its node plugin is of a version before this question"},
	} {
		t.Run(name, func(t *testing.T) {
			r, f := benchRig(t, benchClass("fast", corev1.PersistentVolumeReclaimRetain, cachedClass))
			f.ssdErr, f.ssdSays = c.err, c.says
			code, out, errOut := r.run(args...)
			if code != 0 || !strings.Contains(out, "\nnone        oltp ") || !strings.Contains(out, "\nSSD alone   -  ") || !strings.Contains(out, c.want) || strings.Contains(out, "\x1b") {
				t.Errorf("exit status %d: %s%s", code, out, errOut)
			}
		})
	}
}

// TestBenchDatabase: a database has its own table, the clients of --depth and the memory of --memory.
func TestBenchDatabase(t *testing.T) {
	r, f := benchRig(t, benchClass("fast", corev1.PersistentVolumeReclaimRetain, cachedClass))
	f.output = []byte("begin\n0 1 4000 0 1796005451 0\nend 0\n")
	code, out, errOut := r.run("bench", "-n", "shop", "--image", "pg:18", "--profile", "postgres", "--mode", "none", "--depth", "3", "--size", "1Gi", "--memory", "200Mi", "--runtime", "4s")
	if code != 0 || !strings.HasPrefix(out, "VOLUME   CLIENTS ") || !strings.Contains(out, "none     3 ") || !strings.Contains(out, "200 MiB of memory") || r.benchObjects() != 0 {
		t.Errorf("exit status %d, %s, %s", code, out, errOut)
	}
}

// TestBenchInterrupted: who interrupts gets what was measured, and a clean cluster; who does so again
// gets the command that cleans.
func TestBenchInterrupted(t *testing.T) {
	for name, again := range map[string]bool{"once": false, "twice": true} {
		t.Run(name, func(t *testing.T) {
			r, f := benchRig(t, benchClass("fast", corev1.PersistentVolumeReclaimDelete, cachedClass))
			interrupt := make(chan struct{})
			if again {
				r.again = func(ctx context.Context) (context.Context, context.CancelFunc) {
					ctx, cancel := context.WithCancel(ctx)
					cancel()
					return ctx, cancel
				}
				plain := r.client.(client.WithWatch)
				r.client = interceptor.NewClient(plain, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
					if ctx.Err() != nil {
						return ctx.Err() // as a real client does
					}
					return c.List(ctx, list, opts...)
				}})
			}
			f.during = func(ctx context.Context, n int) {
				if n == 8 {
					close(interrupt)
					<-ctx.Done()
				}
			}
			code, out, errOut := r.runUntil(interrupt, "bench", "-n", "shop", "--image", "fio:3", "--runtime", "4s")
			if code != 1 || !strings.Contains(errOut, "error: interrupted") || !strings.Contains(out, "none     randread") {
				t.Errorf("exit status %d, output %s, errors %s", code, out, errOut)
			}
			if !again {
				if n := r.benchObjects(); n != 0 || !strings.Contains(errOut, "deleted: nothing is left of run") {
					t.Errorf("%d objects are left: %s", n, errOut)
				}
				return
			}
			_, command, found := strings.Cut(errOut, "not everything is deleted: look for what is left: context canceled: `kubectl nearflash ")
			command, _, whole := strings.Cut(command, "` deletes it")
			if !found || !whole || r.benchObjects() == 0 {
				t.Fatalf("%d objects are left: %s", r.benchObjects(), errOut)
			}
			code, out, errOut = r.run(strings.Fields(command)...)
			if code != 0 || !strings.HasPrefix(out, "deleted: 3 objects; nothing is left") || r.benchObjects() != 0 {
				t.Errorf("%s: exit status %d, output %s, errors %s", command, code, out, errOut)
			}
		})
	}
}

// TestBenchFails: an error in the middle leaves nothing either.
func TestBenchFails(t *testing.T) {
	r, f := benchRig(t, benchClass("fast", corev1.PersistentVolumeReclaimDelete, cachedClass))
	f.output = []byte("fio: out of memory")
	code, _, errOut := r.run("bench", "-n", "shop", "--image", "fio:3")
	if code != 1 || !strings.Contains(errOut, "error: none: fill the volume: not the result of fio: \"fio: out of memory\"\n") || r.benchObjects() != 0 {
		t.Errorf("exit status %d, %d objects, %s", code, r.benchObjects(), errOut)
	}
}

func TestBenchClaim(t *testing.T) {
	r, f := benchRig(t, bound("shop", "data", "pvc-1", on("node-b"))...)
	f.handle = func() string { return "pvc-1" }
	args := []string{"bench", "-n", "shop", "--image", "fio:3", "--runtime", "4s", "--claim", "data", "--claim-file", "blob"}
	r.interactive, r.input = true, "n\n"
	code, _, errOut := r.run(args...)
	if code != 1 || !strings.Contains(errOut, "changes what its cache holds") || !strings.Contains(errOut, "nothing was changed: answer y, or add --yes") || f.n != 0 {
		t.Errorf("exit status %d, %d runs, %s", code, f.n, errOut)
	}
	if code, _, errOut = r.run(append(args, "--profile", "oltp", "--yes")...); code != 1 || !strings.Contains(errOut, "profile oltp writes, and --claim is only read") {
		t.Errorf("exit status %d, %s", code, errOut)
	}
	code, out, errOut := r.run(append(args, "--yes")...)
	if code != 0 || !strings.Contains(out, "data     randread") || r.benchObjects() != 0 {
		t.Errorf("exit status %d, %s, %s", code, out, errOut)
	}
	var claim corev1.PersistentVolumeClaim
	if err := r.client.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "data"}, &claim); err != nil {
		t.Error(err)
	}
}

// TestBenchBlind: without the right to exec in nearflash's namespace it says what is missing.
func TestBenchBlind(t *testing.T) {
	r, f := benchRig(t, benchClass("fast", corev1.PersistentVolumeReclaimDelete, cachedClass))
	r.executor = refusing{f}
	code, out, errOut := r.run("bench", "-n", "shop", "--image", "fio:3", "--runtime", "4s", "--mode", "writethrough")
	if code != 0 || !strings.Contains(out, "this account needs the right to create pods/exec in namespace nearflash") {
		t.Errorf("exit status %d, %s, %s", code, out, errOut)
	}
}

// refusing refuses to run anything in the pods of the node plugin.
type refusing struct{ *fios }

// Run implements kubectl.Executor.
func (f refusing) Run(ctx context.Context, c podexec.Command) error {
	if c.Container == "nearflash-node" {
		return errors.Join(podexec.ErrForbidden, errors.New("no role"))
	}
	return f.fios.Run(ctx, c)
}

func TestBenchBadInput(t *testing.T) {
	job := filepath.Join(t.TempDir(), "x.fio")
	if err := os.WriteFile(job, []byte("[x]\nstonewall\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	foreign := benchClass("gp3", corev1.PersistentVolumeReclaimDelete, nil)
	foreign.Provisioner = "ebs.csi.aws.com"
	for args, want := range map[string]string{
		"":                             "--image is missing: name an image with fio and sh that the nodes can pull",
		"data":                         "bench takes no arguments: leave out data; a claim is named by --claim",
		"-o wide --image x":            "-o wide is not known: accepted are json, yaml",
		"--image x --mode fast":        "--mode fast is not known: accepted are none, writethrough, writeback, writeback-unsafe",
		"--image x --mode none,none":   "--mode none,none names one twice: accepted is each once",
		"--image x --profile pg":       "--profile pg is not known: accepted are randread, oltp, seq, zipf, postgres",
		"--image x --size 1Mi":         "--size \"1Mi\" is not accepted: accepted are quantities of at least 64Mi, such as 2Gi",
		"--image x --size big":         "--size \"big\" is not accepted",
		"--image x --cache-size 200%":  "--cache-size \"200%\" is not accepted: accepted are quantities of bytes such as 1Gi, and 1% to 100%",
		"--image x --runtime 1s":       "--runtime 1s is not accepted: accepted are whole seconds, at least 2s",
		"--image x --runtime 2500ms":   "--runtime 2.5s is not accepted",
		"--image x --warm-limit 1s":    "--warm-limit 1s is too short: give at least 30s",
		"--image x --depth -1":         "--depth -1 is not accepted: accepted are 1 to 1024",
		"--image x --to node-b":        "--to node-b is for --move: add that, or leave both out",
		"--image x --html /none/x":     "--html /none/x: its folder cannot be written to: accepted is a file in one that exists",
		"--image x --claim-file f":     "--claim-file f is for --claim: add that, or leave both out",
		"--image x --claim a --move":   "--move is for volumes that bench makes, and --claim a exists: leave one of them out",
		"--image x --claim a":          "--claim a: reading it loads its SSD and changes what its cache holds, and there is nobody to ask: add --yes",
		"--image x --job-file /none":   "--job-file /none: open /none: no such file or directory: accepted is a job file of fio",
		"--image x --job-file " + job:  "--job-file " + job + ": line 2: the option stonewall is not accepted",
		"--image x":                    "--class is missing: name the one of fast, kept that temporary classes are made of",
		"--image x --class gp3":        "--class gp3 has the provisioner ebs.csi.aws.com: accepted are those with csi.nearflash.io",
		"--image x --class no":         "--class no: there is no such StorageClass",
		"--image x --class kept":       "--class kept keeps the volumes of claims that are deleted (reclaimPolicy Retain): measure it as a template, with --mode writethrough",
		"--clean-up a/b":               "--clean-up \"a/b\" is no run's identity: accepted are what bench printed when it began, and all",
		"--image x --yes --claim nope": "there is no claim nope in namespace shop",

		"--image x --memory 1Gi":                                    "--memory 1Gi is for --profile postgres: add that, or leave both out",
		"--image x --profile postgres,seq":                          "--profile postgres,seq: a database is measured alone: accepted is --profile postgres",
		"--image x --profile postgres --job-file " + job:            "--job-file " + job + ": a database is measured alone, on volumes of its own: accepted is --profile postgres without it",
		"--image x --profile postgres --yes --claim a":              "--claim a: a database is measured alone",
		"--image x --profile postgres --size 256Mi":                 "--size 256Mi is too small for a database: accepted are at least 512Mi",
		"--image x --profile postgres --memory 64Mi":                "--memory \"64Mi\" is not accepted: accepted are quantities of at least 128Mi",
		"--image x --profile postgres --memory much":                "--memory \"much\" is not accepted",
		"--image x --node n --move --to n":                          "--to n is the node of --node: accepted is another one",
		"--image x --class a,b --mode none":                         "--class a,b: with --mode, accepted is the one class that temporary ones are made of",
		"--image x --class fast --cache-size 5%":                    "--cache-size 5% is for --mode: classes of --class have one of their own",
		"--image x --class fast --node node-c":                      "--node node-c has no pool of SSDs that is ready: accepted are node-b, node-a",
		"--image x --yes --claim data --claim-file ../etc":          "--claim-file \"../etc\" is not accepted: accepted is a path below the root",
		"--image x --yes --claim data --claim-file a#b":             "--claim-file \"a#b\" is not accepted: fio cannot read",
		"--image x --yes --claim data":                              "claim data has a filesystem: name a large file of it with --claim-file",
		"--image x --yes --claim data --claim-file f --node node-a": "--node node-a: claim data is in use on node node-b: leave --node out",
	} {
		t.Run(args, func(t *testing.T) {
			objs := append(bound("shop", "data", "pvc-1", on("node-b")), foreign.DeepCopy(), benchClass("fast", corev1.PersistentVolumeReclaimDelete, cachedClass), benchClass("kept", corev1.PersistentVolumeReclaimRetain, cachedClass))
			r, f := benchRig(t, objs...)
			code, out, errOut := r.run(append([]string{"bench", "-n", "shop"}, strings.Fields(args)...)...)
			if code != 1 || out != "" || !strings.HasPrefix(errOut, "error: "+want) || strings.Count(errOut, "\n") != 1 || f.n != 0 {
				t.Errorf("exit status %d, output %q, errors %q", code, out, errOut)
			}
		})
	}
}
