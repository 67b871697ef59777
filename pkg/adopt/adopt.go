package adopt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// FSTypes are the filesystems that nearflash mounts. The first is what an empty fsType means, to
// it as to Kubernetes.
var FSTypes = []string{"ext4", "xfs"}

// pollInterval is the time between two looks at what is waited for.
const pollInterval = time.Second

// ErrTimeout is what waiting ends with when its time has run out.
var ErrTimeout = errors.New("timed out")

// Want is what a claim is adopted with.
type Want struct {
	// Attributes are those of a static PersistentVolume (pkg/driver), without its origin.
	Attributes map[string]string
	// FSType is the filesystem of a volume whose PersistentVolume names none; "" is ext4.
	FSType string
	// Chosen tells that somebody has chosen any of it. An adoption that was begun with something
	// else is then not gone on with.
	Chosen bool
}

// Config is what an Adopter works with.
type Config struct {
	// Client reads from the API server itself.
	Client client.Client
	// Origins is the namespace of origins.
	Origins string
	// Now and After tell the time and wait.
	Now   func() time.Time
	After func(time.Duration) <-chan time.Time
	// Report is told what is done, and what is waited for.
	Report func(string) error
	// Patience is how long to wait for others; 0 waits for ever.
	Patience time.Duration
	// VolumeExists is somebody's word for a release: the volume of an original PersistentVolume
	// that vanished is there.
	VolumeExists bool
}

// Adopter adopts and releases claims.
type Adopter struct {
	api     client.Client
	origins string
	Config
}

// New returns an Adopter.
func New(c Config) *Adopter { return &Adopter{api: c.Client, origins: c.Origins, Config: c} }

// Plan is what would be done.
type Plan struct {
	// Steps are those that are left, in their order; none if nothing is to be done.
	Steps []string
	// Warnings are what to know before.
	Warnings []string
	// Manifests are the originals, as YAML, for a copy.
	Manifests []byte
}

// PlanAdopt returns the plan of an adoption. Errors say why it cannot be.
func (a *Adopter) PlanAdopt(ctx context.Context, claim types.NamespacedName, w Want) (Plan, error) {
	f, err := a.gather(ctx, claim)
	if err != nil {
		return Plan{}, err
	}
	if err := f.sameWant(w); err != nil {
		return Plan{}, err
	}
	next, err := decideAdopt(&f, w)
	if err != nil {
		return Plan{}, err
	}
	j := f.journal
	if j == nil {
		j = newJournal(&f, w)
	}
	p := Plan{Steps: stepsLeft(adoptSteps(j), next.kind), Warnings: warnings(&f, j)}
	p.Manifests, err = manifests(j)
	return p, err
}

// PlanRelease returns the plan of a release.
func (a *Adopter) PlanRelease(ctx context.Context, claim types.NamespacedName) (Plan, error) {
	f, err := a.gather(ctx, claim)
	if err != nil {
		return Plan{}, err
	}
	next, err := decideRelease(&f)
	if err != nil || f.journal == nil {
		return Plan{}, err
	}
	p := Plan{Steps: stepsLeft(releaseSteps(f.journal), next.kind)}
	p.Manifests, err = manifests(f.journal)
	return p, err
}

// Adopt puts a cache in front of a claim, or goes on with that.
func (a *Adopter) Adopt(ctx context.Context, claim types.NamespacedName, w Want) error {
	var seen journalUID
	return a.run(ctx, claim, func(f *facts) (step, error) {
		if err := errors.Join(seen.same(f), f.sameWant(w)); err != nil {
			return step{}, err
		}
		return decideAdopt(f, w)
	}, w)
}

// journalUID is that of the journal that a command goes by, once it has seen one.
type journalUID types.UID

// same refuses another journal than the one of before: somebody has ended that, and it is not for
// this command to begin again.
func (u *journalUID) same(f *facts) error {
	switch {
	case f.journal != nil && *u == "":
		*u = journalUID(f.journal.object.UID)
	case *u != "" && (f.journal == nil || f.journal.object.UID != types.UID(*u)):
		return fmt.Errorf("another command has released claim %s meanwhile: look what it is like, and begin anew if that is wanted", f.key.Name)
	}
	return nil
}

// Release gives a claim back, or goes on with that.
func (a *Adopter) Release(ctx context.Context, claim types.NamespacedName) error {
	var seen journalUID
	return a.run(ctx, claim, func(f *facts) (step, error) {
		if seen != "" && f.journal == nil {
			return step{kind: done}, nil
		}
		if err := seen.same(f); err != nil {
			return step{}, err
		}
		return decideRelease(f)
	}, Want{})
}

// run gathers, decides and acts until all is done.
func (a *Adopter) run(ctx context.Context, claim types.NamespacedName, decide func(*facts) (step, error), w Want) error {
	begun, last := a.Now(), ""
	for {
		f, err := a.gather(ctx, claim)
		if err != nil {
			return err
		}
		next, err := decide(&f)
		if err != nil || next.kind == done {
			return err
		}
		text := "waiting until " + next.until
		if next.kind != wait {
			text = sentence(&f, next)
		}
		fresh := text != last
		if fresh {
			last, begun = text, a.Now()
			if err := a.Report(text); err != nil {
				return err
			}
		}
		if next.kind != wait {
			if err = a.act(ctx, &f, next, w); err != nil && !lookAgain(err) {
				return err
			}
			if err == nil && fresh { // the same step again is one that had no effect
				continue
			}
		}
		if a.Patience > 0 && a.Now().Sub(begun) >= a.Patience {
			return fmt.Errorf("%w after %s (%s): nothing is lost; run the command again", ErrTimeout, a.Patience, last)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.After(pollInterval):
		}
	}
}

// lookAgain reports whether somebody else wrote first, so that the facts are others.
func lookAgain(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) && !missingNamespace(err)
}

// missingNamespace reports whether what was not found is the namespace that something was to be
// made in: another look does not help.
func missingNamespace(err error) bool {
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Kind == "namespaces"
}

// newJournal is the journal of an adoption that begins.
func newJournal(f *facts, w Want) *journal {
	j := &journal{Claim: f.claim.DeepCopy(), Volume: f.volume.DeepCopy()}
	j.state = state{Direction: toCache, ReclaimPolicy: f.volume.Spec.PersistentVolumeReclaimPolicy, Attributes: w.Attributes}
	if ptr.Deref(f.volume.Spec.VolumeMode, corev1.PersistentVolumeFilesystem) == corev1.PersistentVolumeBlock {
		return j
	}
	j.FSType = FSTypes[0]
	for _, fs := range []string{w.FSType, strings.ToLower(source(f.volume).FSType)} {
		if fs != "" {
			j.FSType = fs
		}
	}
	return j
}

// sameWant reports whether an adoption was begun with something else than is asked for.
func (f *facts) sameWant(w Want) error {
	if f.journal == nil || !w.Chosen {
		return nil
	}
	for k, v := range w.Attributes {
		if have := f.journal.Attributes[k]; have != v {
			return fmt.Errorf("the adoption was begun with %s %q, and %q is asked for: leave the flags of the cache out, and change it afterwards with `kubectl nearflash mode` and `resize`", k, have, v)
		}
	}
	if w.FSType != "" && w.FSType != f.journal.FSType {
		return fmt.Errorf("the adoption was begun with the filesystem %q: leave --fs-type out, or release the claim first", f.journal.FSType)
	}
	return nil
}

// manifests are the originals, for a copy in a file: as a release makes them, since somebody may
// apply it. Kubernetes takes a PersistentVolume with the UID of a claim that is gone for one to
// be reclaimed, with its volume.
func manifests(j *journal) ([]byte, error) {
	volume, err := yaml.Marshal(manifestOf(j.originalVolume()))
	if err != nil {
		return nil, err
	}
	claim, err := yaml.Marshal(manifestOf(j.claimFor(j.Volume.Name)))
	head := fmt.Sprintf("# The reclaim policy was %s. Set it again when the claim is bound.\n", j.ReclaimPolicy)
	return slices.Concat([]byte(head), volume, []byte("---\n"), claim), err
}
