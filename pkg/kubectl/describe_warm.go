package kubectl

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/quantity"
)

// maxMoves is how many moves of a volume are shown, the last ones.
const maxMoves = 3

// warmFacts are what is known of a volume's cache beyond its node.
type warmFacts struct {
	moves []move
	// hot is nil if there is no hot set.
	hot *v1alpha1.CacheHotSet
}

func (s *session) warmFacts(ctx context.Context, v *volume) (warmFacts, error) {
	all, err := s.migrationsIfAny(ctx)
	if err != nil {
		return warmFacts{}, err
	}
	hot, err := s.hotSet(ctx, v)
	return warmFacts{moves: movesOf(all, []*volume{v}, false), hot: hot}, err
}

// hotSet returns a volume's hot set, nil if it has none or the account may not read
// it.
func (s *session) hotSet(ctx context.Context, v *volume) (*v1alpha1.CacheHotSet, error) {
	var hot v1alpha1.CacheHotSet
	err := s.client.Get(ctx, client.ObjectKey{Name: v.Name}, &hot)
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || meta.IsNoMatchError(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read CacheHotSet %s: %w", v.Name, err)
	case hot.VolumeUID != string(v.UID):
		return nil, nil // of an earlier volume of the name
	}
	return &hot, nil
}

// warmStart says how a cache begins on a new node.
func warmStart(w io.Writer, v *volume) {
	if v.Spec.CacheMode == v1alpha1.CacheModeNone {
		return
	}
	s := v.Spec.WarmStart
	text := string(warmFrom(v))
	if m := s.Method; m != "" && m != v1alpha1.WarmStartAuto {
		text += " by " + string(m)
	}
	if preloads(v) {
		text += ", preload all"
	}
	if n := s.BandwidthBytesPerSecond; n != nil && *n > 0 {
		text += ", at most " + perSecond(n)
	}
	if n := s.DeadlineSeconds; n != nil && *n > 0 {
		text += ", deadline " + duration.HumanDuration(time.Duration(*n)*time.Second)
	}
	line(w, "Warm start", "%s", text)
}

// preloads reports whether a cache that begins with no other node's is filled as far as it has room.
func preloads(v *volume) bool {
	return v.Spec.WarmStart.Preload == v1alpha1.WarmStartPreloadAll && warmFrom(v) != v1alpha1.WarmStartOff
}

// warmFrom is what the volume's cache begins with on a new node.
func warmFrom(v *volume) v1alpha1.WarmStartFrom {
	if from := v.Spec.WarmStart.From; from != "" {
		return from
	}
	return v1alpha1.WarmStartPeer
}

func (o *describeOptions) warm(w io.Writer, v *volume, f warmFacts) {
	now := o.Clock.Now()
	if s := v.Status.WarmSource; s.NodeName != "" {
		line(w, "Warm source", "%s, generation %d", s.NodeName, s.Generation)
	}
	if len(v.Status.RetainedCaches) == 0 {
		line(w, "Kept on", "no node")
	}
	for _, r := range v.Status.RetainedCaches {
		line(w, "Kept on", "%s: %s, %s, generation %d, left %s ago", r.NodeName, optionalSize(r.SizeBytes), keptFor(v, r, f.moves), r.Generation, ago(now, r.LastUsedTime))
	}
	for _, m := range f.moves[:min(len(f.moves), maxMoves)] {
		line(w, "Move", "%s to %s by %s: %s", m.from(), m.Spec.DestinationNode, m.methodWords(), m.words(now))
	}
	switch {
	case f.hot != nil:
		line(w, "Hot set", "a list of %s, recorded %s ago", quantity.Text(int64(len(f.hot.Blocks))), ago(now, f.hot.RecordedTime))
	case v.Spec.CacheMode != v1alpha1.CacheModeNone:
		line(w, "Hot set", "none")
	}
}

// stale is what a retained cache is that nobody can use.
const stale = "stale, will be wiped"

// inPart reports whether a retained cache is one that its own node alone can use.
func inPart(v *volume, r v1alpha1.RetainedCache) bool {
	return fresh(v, r) && r.Content == v1alpha1.RetainedCachePartial
}

// keptWhole reports whether what is kept is of use to other nodes too.
func keptWhole(v *volume) bool {
	return !slices.ContainsFunc(v.Status.RetainedCaches, func(r v1alpha1.RetainedCache) bool { return inPart(v, r) })
}

// keptFor says what a retained cache is good for.
func keptFor(v *volume, r v1alpha1.RetainedCache, moves []move) string {
	switch {
	case inPart(v, r):
		return "warm in part"
	case fresh(v, r):
		return "warm"
	}
	if i := slices.IndexFunc(moves, func(m move) bool { return m.imports(r) }); i >= 0 {
		if moves[i].Status.Source.State == "" {
			return "asked for by " + moves[i].Spec.DestinationNode
		}
		return "exported to " + moves[i].Spec.DestinationNode
	}
	if s := v.Status.WarmSource; s.NodeName == r.NodeName && s.Generation == r.Generation {
		return "kept for " + v.Status.OwnerNode
	}
	return stale
}

// words says what a move does, or what it has done.
func (m move) words(now time.Time) string {
	if m.ended() {
		text := fmt.Sprintf("%s %s ago", m.state(), ago(now, m.Status.CompletionTime))
		if m.message() != "" {
			text += ", " + oneLine(m.message())
		}
		return text
	}
	parts := []string{m.state()}
	if m.copied() != none {
		parts = append(parts, fmt.Sprintf("%s (%s%%)", m.copied(), m.percent()))
	}
	if from := m.Status.Progress.ServedFrom; from != "" {
		parts = append(parts, "served from "+string(from))
	}
	if m.rate() != none {
		parts = append(parts, m.rate())
	}
	if m.left(now) != none {
		parts = append(parts, m.left(now)+" left")
	}
	if m.message() != "" {
		parts = append(parts, oneLine(m.message()))
	}
	return strings.Join(parts, ", ")
}

// elsewhere says how a volume begins on a node that does not keep its cache; the
// owner keeps it.
func elsewhere(v *volume, owner nodeState, f warmFacts) string {
	switch from := warmFrom(v); {
	case from == v1alpha1.WarmStartPeer && owner.ready && keptWhole(v):
		return "begins with that cache too, read over the network until it is copied"
	case preloads(v):
		return "is filled from the storage server, as far as it has room"
	case from != v1alpha1.WarmStartOff && f.hot != nil:
		return "begins with the blocks that were hottest, read from the storage server"
	}
	return "starts cold"
}
