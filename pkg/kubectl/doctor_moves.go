package kubectl

import (
	"fmt"
	"slices"
	"time"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// failedLately is how long a move that has failed is reported.
const failedLately = time.Hour

// checkMoves looks for caches that did not follow their pods, and for space that
// they keep for nobody.
func checkMoves(d *diagnosis, f *clusterFacts, now time.Time) {
	since := len(d.Findings)
	going := 0
	for _, m := range f.moves {
		if !m.ended() {
			going++
		}
		checkMove(d, m, now)
	}
	for _, v := range f.volumes {
		checkKept(d, f, v, now)
	}
	if !d.bad(since) {
		d.ok("moves", "%s under way, none failed in the last hour", count(going, "move"))
	}
}

func checkMove(d *diagnosis, m move, now time.Time) {
	object := objectName(m.of)
	switch m.state() {
	case "failed":
		if now.Sub(m.Status.CompletionTime.Time) < failedLately {
			d.add(sevWarning, object, "none needed: the pod runs and the cache fills as it reads; docs/troubleshooting.md, \"The cache is cold after a move\", has the causes",
				"its cache on %s did not begin with that of %s, %s ago: %s", m.Spec.DestinationNode, m.from(), ago(now, m.Status.CompletionTime), m.message())
		}
	case moveWaiting, moveRefused:
		if now.Sub(m.CreationTimestamp.Time) > stuckAfter {
			d.add(sevWarning, object, fmt.Sprintf("see the logs of the node plugins on %s and %s; the object goes when the volume moves on", m.Spec.SourceNode, m.Spec.DestinationNode),
				"move %s is %s for %s", m.Name, m.state(), ago(now, m.CreationTimestamp))
		}
	}
}

// checkKept reports caches that nobody can use any more although their node, which
// should have wiped them, is there. Those of other nodes are wiped when these are
// back.
func checkKept(d *diagnosis, f *clusterFacts, v *volume, now time.Time) {
	moves := slices.DeleteFunc(slices.Clone(f.moves), func(m move) bool { return m.of.UID != v.UID })
	c := v.condition(v1alpha1.ConditionCached)
	if c != nil && now.Sub(c.LastTransitionTime.Time) < stuckAfter {
		return // it has just moved
	}
	if slices.ContainsFunc(moves, func(m move) bool { return m.ended() && now.Sub(m.Status.CompletionTime.Time) < stuckAfter }) {
		return
	}
	for _, r := range v.Status.RetainedCaches {
		if keptFor(v, r, moves) != stale || now.Sub(r.LastUsedTime.Time) < stuckAfter || !stateOf(f.nodes[r.NodeName]).ready {
			continue
		}
		d.add(sevWarning, objectName(v), "see the log of the node plugin on "+r.NodeName, "node %s keeps %s of generation %d that nobody can use", r.NodeName, optionalSize(r.SizeBytes), r.Generation)
	}
}
