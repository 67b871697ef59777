package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/nearflash/nearflash/hack/lab/internal/pki"
	"github.com/nearflash/nearflash/hack/lab/internal/plan"
	"github.com/nearflash/nearflash/hack/lab/internal/proc"
)

// Parts are the files that a lab is made of, all of them outside its state.
type Parts struct {
	// Kernel is the guest kernel, NodeBase the image below every guest's root.
	Kernel, NodeBase string
	// Bin maps the names of host programs to their paths: the control plane's,
	// kubectl and helm.
	Bin map[string]string
	// Images are archives of the driver's images.
	Images []string
	// Origin are the files of an origin driver.
	Origin OriginParts
	// SnapshotDefinitions are the CustomResourceDefinitions of snapshots.
	SnapshotDefinitions []string
}

// UpOptions say what [Lab.Up] makes.
type UpOptions struct {
	// Parts returns the files, making what is absent. Those of an origin driver are
	// among them if it is named.
	Parts func(ctx context.Context, origin string) (Parts, error)
	Sizes Sizes
	// Driver says whether the driver is installed too.
	Driver bool
	// Origin is the origin driver that shall run, in a lab that has none yet: where its
	// nodes are is then settled.
	Origin *Origin
	// StoragePair gives a new lab two storage servers with one disk, of which one is active.
	StoragePair bool
	// SecondStorage gives a new lab a storage server with a name beside the default one.
	SecondStorage bool
	// WithoutISCSID gives a new lab workers on which no iscsid runs, and no initiator name is.
	WithoutISCSID bool
	// ReadOnlyRoot gives a new lab workers whose root nobody can write, but for /var.
	ReadOnlyRoot bool
}

// check refuses what cannot be together, and what a lab that is complete cannot become.
func (o UpOptions) check(id string, s state) error {
	if !s.Complete {
		s = state{} // it goes, and a new one is made
	}
	switch {
	case (o.StoragePair || s.StoragePair) && (o.SecondStorage || s.SecondStorage):
		return fmt.Errorf("lab %s: a pair of storage servers and a second one are for two labs", id)
	case !s.Complete:
		return nil
	case o.StoragePair && !s.StoragePair:
		return fmt.Errorf("lab %s has one storage server: a pair is made with a new lab", id)
	case o.SecondStorage && !s.SecondStorage:
		return fmt.Errorf("lab %s has one storage server: a second one is made with a new lab", id)
	case o.WithoutISCSID && !s.WithoutISCSID:
		return fmt.Errorf("the nodes of lab %s have an iscsid: those without are made with a new lab", id)
	case o.ReadOnlyRoot && !s.ReadOnlyRoot:
		return fmt.Errorf("the nodes of lab %s have a root that can be written: others are made with a new lab", id)
	}
	return nil
}

// Up brings the lab up: on return both nodes are Ready and the driver, if asked
// for, is rolled out. In a complete lab it starts what has ended and brings the
// driver up to date; sizes are then as they were. When the lab was not complete
// before, an error or the end of ctx leaves nothing of it but its logs.
func (l *Lab) Up(ctx context.Context, o UpOptions) error {
	unlock, err := l.Lock(ctx, 0)
	if err != nil {
		return err
	}
	defer unlock()
	s, err := l.load()
	if err != nil && !errors.Is(err, ErrNotUp) {
		return err
	}
	if l.Checkout == "" {
		return fmt.Errorf("%w, and the working folder is in no checkout to make it from", ErrNotUp)
	}
	if err := o.check(l.ID, s); err != nil {
		return err
	}
	if s.Origin == nil {
		s.Origin = o.Origin
	}
	origin := ""
	if s.Origin != nil {
		origin = s.Origin.Name
	}
	parts, partsErr := o.Parts(ctx, origin)
	if partsErr != nil {
		return partsErr
	}
	switch {
	case err == nil && s.Complete:
		return l.bringUp(ctx, &s, parts, o.Driver)
	case err == nil:
		l.say("removing what an interrupted command left")
	}
	if err := l.destroy(ctx); err != nil {
		return err
	}
	if err := l.create(ctx, parts, o); err != nil {
		// The context may be over; what was started must go all the same.
		ctx := context.WithoutCancel(ctx)
		return errors.Join(err, l.keepLogs(), l.destroy(ctx))
	}
	return nil
}

func (l *Lab) create(ctx context.Context, parts Parts, o UpOptions) error {
	token, err := newToken()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(l.Paths.Root, 0o700); err != nil {
		return fmt.Errorf("state folder: %w", err)
	}
	s := state{Checkout: l.Checkout, Token: token, Kernel: parts.Kernel, NodeBase: parts.NodeBase, Bin: parts.Bin, Sizes: o.Sizes, Origin: o.Origin, StoragePair: o.StoragePair, SecondStorage: o.SecondStorage, WithoutISCSID: o.WithoutISCSID, ReadOnlyRoot: o.ReadOnlyRoot}
	if err := l.save(s); err != nil {
		return err
	}
	if err := pki.Write(l.Paths.PKI()); err != nil {
		return err
	}
	return l.bringUp(ctx, &s, parts, o.Driver)
}

// bringUp starts everything that does not run, waits until it is usable and
// brings the driver up to date.
func (l *Lab) bringUp(ctx context.Context, s *state, parts Parts, driver bool) error {
	if err := l.ensureNetwork(*s); err != nil {
		return err
	}
	if err := l.linkBin(s.Bin); err != nil {
		return err
	}
	if err := l.makeBoot(ctx, l.Paths.Boot()); err != nil {
		return err
	}
	if err := l.updateTarget(ctx, *s); err != nil {
		return err
	}
	l.say("network, keys and the guests' programs are there")
	if driver {
		// Before the boot: the guests see the folder, and load what is in it.
		if err := l.stageImages(parts.Images); err != nil {
			return err
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return l.startControlPlane(gctx, s.Bin) })
	g.Go(func() error {
		for _, n := range s.nodes() {
			if err := l.bootGuest(gctx, *s, n); err != nil {
				return err
			}
		}
		return l.awaitGuests(gctx, *s, s.nodes())
	})
	if err := g.Wait(); err != nil {
		return err
	}
	if s.StoragePair && !s.Complete {
		if err := l.activatePair(ctx, *s); err != nil {
			return err
		}
	}
	if driver || s.Origin != nil {
		// Before both: who asks for snapshots ends where their API is not known.
		if err := l.startSnapshots(ctx, *s, parts.SnapshotDefinitions); err != nil {
			return err
		}
	}
	g, gctx = errgroup.WithContext(ctx)
	if s.Origin != nil {
		s.Origin.Parts = parts.Origin
		g.Go(func() error { return l.startOrigin(gctx, *s) })
	}
	if driver {
		g.Go(func() error { return l.installDriver(gctx, *s) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	s.Driver = s.Driver || driver
	s.Complete = true
	if err := l.save(*s); err != nil {
		return err
	}
	l.say("lab %s is up", l.ID)
	return nil
}

// updateTarget builds the storage server's program, and restarts it where it
// runs already.
func (l *Lab) updateTarget(ctx context.Context, s state) error {
	for _, n := range s.nodes() {
		if n.Role != plan.RoleStorage {
			continue
		}
		changed, err := l.install(ctx, targetPackage, filepath.Join(l.Paths.Share(n.Name), targetProgram))
		if err != nil {
			return err
		}
		if !changed || l.mustLive(n.Name) != nil {
			continue
		}
		agent := l.agent(n, s.Token)
		st, err := agent.Status(ctx)
		if err != nil {
			return err
		}
		if s.StoragePair && !slices.Contains(st.Running, targetProgram) {
			continue // the other one of a pair is active
		}
		if err := agent.Restart(ctx, targetProgram); err != nil {
			return err
		}
	}
	return nil
}

// ReplaceTarget gives the storage server another program, that of a file or, without one, that of
// the checkout, and restarts it. The next `up` takes the checkout's again.
func (l *Lab) ReplaceTarget(ctx context.Context, file string) error {
	s, unlock, err := l.lockState(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if file == "" {
		return l.updateTarget(ctx, s)
	}
	storage := plan.Storage()
	if err := replaceFile(file, filepath.Join(l.Paths.Share(storage.Name), targetProgram)); err != nil {
		return err
	}
	return l.agent(storage, s.Token).Restart(ctx, targetProgram)
}

// ensureNetwork makes the namespace with everything in it, unless it is there.
func (l *Lab) ensureNetwork(s state) error {
	inode, err := l.NS.Inode()
	if err != nil {
		return err
	}
	if inode != 0 {
		return nil
	}
	// A file without a mounted namespace is what a reboot of the host leaves.
	if err := l.NS.Delete(); err != nil {
		return err
	}
	if err := l.NS.Create(); err != nil {
		return err
	}
	if err := l.NS.Setup(s.nodes()); err != nil {
		return err
	}
	if len(s.Cuts) == 0 {
		return nil
	}
	return l.NS.Apply(s.Cuts)
}

// linkBin makes the folder of programs that `lab run` puts on PATH.
func (l *Lab) linkBin(bin map[string]string) error {
	if err := os.MkdirAll(l.Paths.Bin(), 0o700); err != nil {
		return fmt.Errorf("program folder: %w", err)
	}
	for name, path := range bin {
		link := filepath.Join(l.Paths.Bin(), name)
		if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("program folder: %w", err)
		}
		if err := os.Symlink(path, link); err != nil {
			return fmt.Errorf("program folder: %w", err)
		}
	}
	return nil
}

// Down ends everything of the lab and removes its state. It succeeds when there
// is nothing.
func (l *Lab) Down(ctx context.Context) error {
	unlock, err := l.Lock(ctx, lockWait)
	if err != nil {
		return err
	}
	defer unlock()
	return l.destroy(ctx)
}

// destroy ends all recorded processes, the last started first, then whatever
// else lives in the lab's namespace, and removes namespace and state.
func (l *Lab) destroy(ctx context.Context) error {
	recs, err := l.Procs.List()
	errs := []error{err}
	for _, rec := range recs {
		errs = append(errs, l.Procs.Stop(ctx, rec, 0))
	}
	inode, err := l.NS.Inode()
	errs = append(errs, err)
	// What a killed command started and did not come to record.
	errs = append(errs, proc.KillInNetns(ctx, inode), l.NS.Delete())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("state of lab %s is kept in %s: %w", l.ID, l.Paths.Root, err)
	}
	if err := os.RemoveAll(l.Paths.Root); err != nil {
		return fmt.Errorf("state folder: %w", err)
	}
	return nil
}

// keepLogs saves the logs of an `up` that failed from the removal of the state.
func (l *Lab) keepLogs() error {
	if err := os.RemoveAll(l.Paths.FailedLogs()); err != nil {
		return fmt.Errorf("keep logs: %w", err)
	}
	err := os.Rename(l.Paths.Logs(), l.Paths.FailedLogs())
	if errors.Is(err, os.ErrNotExist) {
		return nil // nothing was started
	}
	if err != nil {
		return fmt.Errorf("keep logs: %w", err)
	}
	l.say("logs are kept in %s", l.Paths.FailedLogs())
	return nil
}
