//go:build kernel

package kernel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearflash/nearflash/e2e/kernel/guest"
	"github.com/nearflash/nearflash/pkg/attach"
	"github.com/nearflash/nearflash/pkg/faultpoint"
	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/scratch"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	childEnv = "NEARFLASH_KERNEL_CHILD"
	// matrixEnv is "whole" where every step is killed at; without it one of each phase is.
	matrixEnv = "MATRIX"
	// seedEnv chooses what is left to chance.
	seedEnv = "SEED"
)

func wholeMatrix() bool { return os.Getenv(matrixEnv) == "whole" }

// every reports whether a test goes through all that it has, and not only through what says
// most: so it does with the whole matrix, and on the kernels of distributions.
func every() bool { return wholeMatrix() || os.Getenv(guest.KernelEnv) != "" }

// cachingModes are the modes that have a cache, or the one that has unflushed writes too.
func cachingModes() []volume.CacheMode {
	if every() {
		return []volume.CacheMode{volume.ModeWritethrough, volume.ModeWriteback}
	}
	return []volume.CacheMode{volume.ModeWriteback}
}

// killedAt are the steps that a test kills at: all of points, or those that stand for their
// phase because the steps beside them leave nearly the same (make test-full has all). With SEED,
// which follows from the commit, it is every second of these: each commit has others, as its
// campaign has.
func killedAt(t *testing.T, points []string, phases ...string) []string {
	t.Helper()
	for _, p := range phases {
		if !slices.Contains(points, p) {
			t.Fatalf("%s stands for a phase, and is no step of %q", p, points)
		}
	}
	if wholeMatrix() {
		return points
	}
	if os.Getenv(seedEnv) == "" || every() || len(phases) < 2 {
		return phases
	}
	i := number(t, seedEnv, 0)
	return slices.DeleteFunc(slices.Clone(phases), func(string) bool { i++; return i%2 == 0 })
}

// order is what a child process does.
type order struct {
	Dir     string
	Req     volume.StageRequest
	Secret  string // Credentials do not marshal on purpose
	Secrets map[string]string
	Unstage bool
	// Repair runs the repair instead, as a restarted plugin does.
	Repair bool
	// Change does what the record asks of the attached volume.
	Change bool
	// FailOver looks for caches that fail.
	FailOver bool
	// Lessor is the state of the node that exports; then Dir is that of another node,
	// which stages, or with Hydration leads the hydration to its end.
	Lessor    string
	Hydration bool
	// Prepare lets the node begin the stage before it is asked for.
	Prepare bool
	// Announce has it know of the request meanwhile.
	Announce bool
	// Other is the state of the other node of a pair, if Dir is that of the one whose
	// folder has the records.
	Other string
	// Prewarm makes that node copy what the record asks for.
	Prewarm bool
	// Freeze does what the record asks of the filesystem.
	Freeze bool
	// Scrub compares the cache with the origin, as the record asks.
	Scrub bool
	// Scratch lends the scratch volume.
	Scratch bool
	// Count lets the count of the attached volume grow.
	Count bool
	// DirtyLimits keeps the dirty limits for a while.
	DirtyLimits bool
	// Rescue is the origin to which the volume's cache is rescued, without the node.
	Rescue string
	// Devices are those of the pool; empty is one.
	Devices []string
	// Evacuate has these of them leave the pool.
	Evacuate []string
	// Integrity has the pool ask for checksums.
	Integrity bool
	// Hang lets the frail SSD hang when a cache is made.
	Hang bool
	// Outside asks whether commands can leave the container.
	Outside bool
}

// child is a node plugin in a process of its own, to be killed at a fault point.
func child() int {
	var o order
	if err := json.Unmarshal([]byte(os.Getenv(childEnv)), &o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 3
	}
	o.Req.Credentials = &volume.Credentials{Username: chapUser, Password: o.Secret, Secrets: o.Secrets}
	ctx := context.Background()
	if o.Rescue != "" {
		if out, err := rescueCommand(ctx, "--temp-dir", o.Dir, "--volume", string(o.Req.ID), "--origin", o.Rescue); err != nil {
			fmt.Fprintln(os.Stderr, out, err)
			return 4
		}
		return 0
	}
	n, err := o.open(ctx)
	if err == nil && o.Hang {
		d := n.Deps
		d.DM = hangingDM{d.DM, hostexec.New()}
		n.Attacher = attach.New(n.Config, d)
	}
	if err == nil {
		switch {
		case o.Outside:
			var run *hostexec.Apart
			if run, err = hostexec.NewApart(o.Dir); err == nil {
				err = run.Outside()
			}
		case len(o.Evacuate) > 0:
			err = n.evacuated(ctx, o.Evacuate)
		case o.DirtyLimits:
			bctx, cancel := context.WithTimeout(ctx, 2*time.Minute) // it is killed before
			n.DirtyLimits().Run(bctx)
			cancel()
		case o.Count:
			n.later(time.Hour)
			err = n.CountUp(ctx)
		case o.Freeze:
			err = n.Freeze(ctx, o.Req.ID)
		case o.Scrub:
			err = n.scrubOnce(ctx, o.Req.ID)
		case o.Scratch:
			_, _, err = n.LendScratch(ctx, scratch.MinBytes)
		case o.Prewarm:
			err = n.prewarm(ctx, o.Req.ID)
		case o.Hydration:
			err = n.hydrateAll(ctx, o.Req.ID)
		case o.Repair:
			err = n.Repair(ctx)
		case o.FailOver:
			err = n.CacheFaults().Pass(ctx)
		case o.Change:
			err = n.change(ctx, o.Req.ID)
		case o.Unstage:
			err = unstage(ctx, n, o.Req)
		default:
			if o.Prepare {
				n.prepare(ctx, o.Req, o.Announce)
			}
			err = n.Stage(ctx, o.Req)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 4
	}
	return 0
}

func (o order) open(ctx context.Context) (*node, error) {
	if o.Other != "" {
		n, _, err := openPair(ctx, o.Dir, o.Other)
		return n, err
	}
	if o.Lessor == "" {
		spec := onOneSSD()
		spec.Integrity = o.Integrity
		if len(o.Devices) > 0 {
			spec.Devices = o.Devices
		}
		return openNode(ctx, o.Dir, spec, fileRecords{filepath.Join(o.Dir, "records")})
	}
	_, n, err := openPair(ctx, o.Lessor, o.Dir)
	return n, err
}

// runArmed runs a child with a fault point armed to its end. The file that arms it is gone if the
// point was passed.
func (d *disk) runArmed(point string, o order) (st *os.ProcessState, arm string) {
	d.m.t.Helper()
	faults := filepath.Join(d.n.dir, "faults")
	mustPass(d.m.t, "faults", os.MkdirAll(faults, 0o700))
	arm = filepath.Join(faults, point)
	mustPass(d.m.t, "arm", os.WriteFile(arm, nil, 0o600))
	p := d.startChild(o, "NEARFLASH_FAULT_DIR="+faults)
	st, err := p.Wait()
	mustPass(d.m.t, "wait", err)
	return st, arm
}

// killAt runs a child with a fault point armed and reports whether it was
// killed there. A child that ended well did not pass the point.
func (d *disk) killAt(point string, o order) (killed bool) {
	d.m.t.Helper()
	st, arm := d.runArmed(point, o)
	if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() && ws.Signal() == syscall.SIGKILL {
		return true
	}
	if st.ExitCode() != 0 {
		d.m.t.Fatalf("%s: the child ended with %v and not by the fault", point, st)
	}
	if err := os.Remove(arm); !errors.Is(err, fs.ErrNotExist) { // a process of its own may have died there
		mustPass(d.m.t, "disarm", err)
	}
	return false
}

// startChild begins a process of the volume's node that carries out an order.
func (d *disk) startChild(o order, env ...string) *os.Process {
	d.m.t.Helper()
	o.Integrity = o.Integrity || d.integrity
	o.Dir, o.Req, o.Secret, o.Secrets = d.n.dir, d.req, chapWord, d.req.Credentials.Secrets
	o.Req.Credentials = nil
	b, err := json.Marshal(o)
	mustPass(d.m.t, "order", err)
	exe, err := os.Executable()
	mustPass(d.m.t, "executable", err)
	p, err := os.StartProcess(exe, []string{exe}, &os.ProcAttr{
		Env:   append(append(os.Environ(), childEnv+"="+string(b)), env...),
		Files: []*os.File{nil, os.Stderr, os.Stderr},
	})
	mustPass(d.m.t, "start", err)
	return p
}

// cachedPoints are tried with writethrough too, where a cache is discarded
// instead of recovered; everything else is the same code as with writeback.
var cachedPoints = []string{"stage.allocated", "stage.data-device", "stage.activated", "unstage.cleaned", "unstage.removed", "unstage.retained"}

// pointsOf lists the fault points that a mode passes and is tried with.
func pointsOf(mode volume.CacheMode) []string {
	return slices.DeleteFunc(faultpoint.List(), func(point string) bool {
		for _, other := range []string{"change.", "leave.", "hydration.", "export.", "release.", "prestage.", "prewarm.", "failover.", "dirtylimit.", "rescue.", "format.", "count.", "lost.", "freeze.", "scrub.", "scratch."} {
			if strings.HasPrefix(point, other) {
				return true // TestKernelKillChange, TestKernelKillHydration, TestKernelKillPrewarm, TestKernelKillFailover, TestKernelFormatOnce, TestKernelKillCount, TestKernelFreeze, TestKernelKillScrub, TestKernelScratch; lost.: pkg/attach, TestReservationLost
			}
		}
		detach := strings.HasPrefix(point, "detach.")
		switch mode {
		case volume.ModeNone:
			return !detach
		case volume.ModeWritethrough:
			return !slices.Contains(cachedPoints, point)
		default:
			return detach
		}
	})
}

// TestKernelKillAnywhere kills the node plugin at every step of stage and of
// unstage; a successor must converge, lose nothing and leave nothing (I8).
func TestKernelKillAnywhere(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	phases := map[volume.CacheMode][]string{
		volume.ModeNone:         {"detach.removed"},
		volume.ModeWritethrough: {"stage.activated"},
		volume.ModeWriteback: {
			"stage.allocated", "stage.activating", "stage.mounted", "unstage.cleaner", "unstage.flushed", "unstage.retained", "wipe.removed",
		},
	}
	for _, mode := range []volume.CacheMode{volume.ModeNone, volume.ModeWritethrough, volume.ModeWriteback} {
		m.t = t
		d := m.volume(n, "kill-"+string(mode), 64*mib, cached(mode, 32*mib))
		d.req.FSType = "ext4"
		for i, point := range killedAt(t, pointsOf(mode), phases[mode]...) {
			t.Run(string(mode)+"/"+point, func(t *testing.T) {
				m.t = t
				// Each stage is that of a new owner, so that a cache found is
				// wiped and made anew: all steps are passed.
				d.publish(int64(i) + 2)
				d.dieAndRecover(point, uint64(i))
			})
		}
		m.t = t
		d.remove()
	}
}

// TestKernelKillTwice kills a stage that has marked the record, and the next one when it
// has wiped what the first one made. Nothing was written, and the volume must not wait for
// somebody who gives writes up (I8).
func TestKernelKillTwice(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	d := m.volume(n, "kill-twice", 64*mib, cached(volume.ModeWriteback, 32*mib))
	d.req.FSType = "ext4"
	for _, point := range []string{"stage.marked", "stage.wiped"} {
		if !d.killAt(point, order{}) {
			t.Fatalf("stage did not pass %s", point)
		}
	}
	mustPass(t, "repair", d.n.Repair(t.Context()))
	d.stage()
	d.unstage()
	d.remove()
}

// dieAndRecover uses a volume with one kill at the point.
func (d *disk) dieAndRecover(point string, seed uint64) {
	t := d.m.t
	down := slices.ContainsFunc([]string{"unstage.", "detach.", "reload."}, func(p string) bool { return strings.HasPrefix(point, p) })
	if !down {
		if !d.killAt(point, order{}) {
			t.Fatalf("stage did not pass %s", point)
		}
		// What a restarted plugin does first, and then kubelet's repetition.
		mustPass(t, "repair", d.n.Repair(t.Context()))
	}
	d.stage()
	file := filepath.Join(d.req.StagingPath, "data")
	mustPass(t, "create", os.WriteFile(file, make([]byte, 4*mib), 0o600))
	data := pattern(seed, 4*mib)
	d.writeDirty(file, data)
	if down {
		if !d.killAt(point, order{Unstage: true}) {
			t.Fatalf("unstage did not pass %s", point)
		}
		mustPass(t, "repair", d.n.Repair(t.Context()))
	}
	d.unstage()
	d.stage()
	check(t, file, data, 0)
	d.unstage()
}

// writeDirty writes data, with writeback until some of them are only in the
// cache: dm-cache takes a block in when it has been written a few times. They stay
// there: without a threshold dm-cache writes nothing back of its own accord, which it
// does otherwise after a second without I/O.
func (d *disk) writeDirty(file string, data []byte) {
	d.m.t.Helper()
	rec, err := d.rec.load(d.req.ID)
	mustPass(d.m.t, "record", err)
	if rec.Volume.Spec.Mode == volume.ModeWriteback {
		d.m.must("dmsetup", "message", "nf-"+string(d.req.ID), "0", "migration_threshold", "0")
	}
	for range 200 {
		write(d.m.t, file, data, 0, true)
		st, found := d.cache()
		if rec.Volume.Spec.Mode != volume.ModeWriteback || found && st.Dirty > 0 {
			return
		}
	}
	d.m.t.Fatal("no block became dirty")
}
