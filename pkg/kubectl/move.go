package kubectl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/quantity"
)

// originWord stands for a source that is no node.
const originWord = "origin"

// States of a move as they are shown. Ended ones show their outcome.
const (
	moveWaiting = "waiting"
	moveRefused = "refused"
	moveRunning = "running"
)

// move is a CacheMigration and its volume.
type move struct {
	*v1alpha1.CacheMigration
	// of has no more than a name if the volume is gone.
	of *volume
}

// errNoMigrations is what a cluster gets for an answer whose definitions are of an
// older nearflash.
var errNoMigrations = errors.New("this cluster has no CustomResourceDefinition of CacheMigrations: kubectl apply --server-side --force-conflicts -f crds/ with the directory crds of the chart of this version")

// migrations returns all CacheMigrations.
func (s *session) migrations(ctx context.Context) ([]v1alpha1.CacheMigration, error) {
	var list v1alpha1.CacheMigrationList
	err := s.client.List(ctx, &list)
	switch {
	case meta.IsNoMatchError(err):
		return nil, errNoMigrations
	case err != nil:
		return nil, fmt.Errorf("list CacheMigrations: %w", err)
	}
	return list.Items, nil
}

// migrationsIfAny is migrations for those who can do without: a cluster that has
// none, or an account that may not read them, is none.
func (s *session) migrationsIfAny(ctx context.Context) ([]v1alpha1.CacheMigration, error) {
	all, err := s.migrations(ctx)
	if errors.Is(err, errNoMigrations) || apierrors.IsForbidden(err) {
		return nil, nil
	}
	return all, err
}

// movesOf returns the moves of some volumes, and with foreign those of volumes
// that are gone: those that go on by name, then the ended ones, the last first.
func movesOf(all []v1alpha1.CacheMigration, volumes []*volume, foreign bool) []move {
	byUID := make(map[string]*volume, len(volumes))
	for _, v := range volumes {
		byUID[string(v.UID)] = v
	}
	var out []move
	for i := range all {
		m := move{&all[i], byUID[all[i].Spec.VolumeUID]}
		switch {
		case m.of != nil:
		case foreign:
			m.of = &volume{CachedVolume: &v1alpha1.CachedVolume{ObjectMeta: metav1.ObjectMeta{Name: m.Spec.VolumeName}}}
		default:
			continue
		}
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b move) int {
		if a.ended() != b.ended() {
			if b.ended() {
				return -1
			}
			return 1
		}
		return cmp.Or(b.Status.CompletionTime.Compare(a.Status.CompletionTime.Time), byName(a.of, b.of), strings.Compare(a.Name, b.Name))
	})
	return out
}

func (m move) ended() bool { return m.Status.Outcome != "" }

// state is in one word what the move does.
func (m move) state() string {
	lease := m.Status.Source.State.Now()
	switch {
	case m.ended():
		return strings.ToLower(string(m.Status.Outcome))
	case m.Spec.SourceNode != "" && (lease == "" || lease == v1alpha1.ExportStatePreparing):
		return moveWaiting
	case lease == v1alpha1.ExportStateRefused:
		return moveRefused
	}
	return moveRunning
}

// from is the node whose cache the new one begins with.
func (m move) from() string {
	if m.Spec.SourceNode == "" {
		return originWord
	}
	return m.Spec.SourceNode
}

// method is how the new node's cache is filled. Objects of an earlier version do not say it.
func (m move) method() string {
	switch method := m.Spec.Method; {
	case method != "":
		return string(method)
	case m.Spec.SourceNode == "":
		return string(v1alpha1.MigrationHotSet)
	}
	return string(v1alpha1.MigrationClone)
}

// methodWords is method in a sentence, with the reason if it has one.
func (m move) methodWords() string {
	words := strings.ToLower(m.method())
	if m.method() == string(v1alpha1.MigrationHotSet) {
		words = "hot set"
	}
	if m.Spec.MethodReason != "" {
		words += " (" + oneLine(m.Spec.MethodReason) + ")"
	}
	return words
}

// bytes returns how much is copied and how much there is to copy; 0 of 0 if that is
// not known.
func (m move) bytes() (done, total int64) {
	p := m.Status.Progress
	if p.TotalBytes == nil || p.HydratedBytes == nil || *p.TotalBytes == 0 {
		return 0, 0
	}
	if m.Status.Outcome == v1alpha1.MigrationCompleted {
		return *p.TotalBytes, *p.TotalBytes // the last report is older than the end
	}
	return *p.HydratedBytes, *p.TotalBytes
}

func (m move) copied() string {
	done, total := m.bytes()
	if total == 0 {
		return none
	}
	return quantity.Text(done) + "/" + quantity.Text(total)
}

func (m move) percent() string {
	done, total := m.bytes()
	if total == 0 {
		return none
	}
	return fmt.Sprint(int64(float64(done) / float64(total) * 100))
}

// rate and left are only about a move that goes on.
func (m move) rate() string {
	if m.ended() {
		return none
	}
	return perSecond(m.Status.Progress.BytesPerSecond)
}

func (m move) left(now time.Time) string {
	t := m.Status.Progress.EstimatedCompletionTime
	if m.ended() || t.IsZero() {
		return none
	}
	return duration.HumanDuration(max(0, t.Sub(now)))
}

// deadline is how long the source still serves.
func (m move) deadline(now time.Time) string {
	if m.ended() || m.Spec.Deadline.IsZero() || m.Status.Source.State == v1alpha1.ExportStateRefused || m.Status.Source.State == v1alpha1.ExportStateReleased {
		return none
	}
	return duration.HumanDuration(max(0, m.Spec.Deadline.Sub(now)))
}

func (m move) took() string {
	if !m.ended() || m.Status.StartTime.IsZero() || m.Status.CompletionTime.IsZero() {
		return none
	}
	return duration.HumanDuration(max(0, m.Status.CompletionTime.Sub(m.Status.StartTime.Time)))
}

// message says why, if there is something to say.
func (m move) message() string { return cmp.Or(m.Status.OutcomeMessage, m.Status.Source.Message) }

// imports reports whether a move that goes on reads a retained cache, or waits for it.
func (m move) imports(r v1alpha1.RetainedCache) bool {
	lease := m.Status.Source.State.Now()
	return !m.ended() && m.Spec.SourceNode == r.NodeName && m.Spec.SourceGeneration == r.Generation && (lease == "" || lease == v1alpha1.ExportStateExported)
}

// perSecond prints a rate in bytes per second; 0 is none.
func perSecond(n *int64) string {
	if n == nil || *n == 0 {
		return none
	}
	return quantity.Text(*n) + "/s"
}
