package records

import (
	"cmp"
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/quantity"
	"github.com/nearflash/nearflash/pkg/volume"
)

const actionScrub = "Scrub"

// ReportScrub implements volume.Records.
func (r *Records) ReportScrub(ctx context.Context, id volume.ID, f volume.Fence, rep volume.ScrubReport) error {
	var seen *v1alpha1.CachedVolume
	err := r.updateOwned(ctx, id, f, func(obj *v1alpha1.CachedVolume) error {
		seen = obj
		if c, news := scrubCondition(f.Node, rep); news {
			c.ObservedGeneration, c.LastTransitionTime = obj.Generation, metav1.NewTime(r.now())
			meta.SetStatusCondition(&obj.Status.Conditions, c)
		}
		if rep.Done {
			obj.Status.Scrub = v1alpha1.ScrubStatus{
				Request: cmp.Or(rep.Request, obj.Status.Scrub.Request), CompletionTime: metav1.NewTime(r.now()), NodeName: f.Node,
				CheckedBytes: ptr.To(rep.CheckedBytes), CorruptedChunks: ptr.To(rep.Corrupted), UnjudgedPieces: ptr.To(rep.Unjudged),
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if rep.Message != "" {
		Emit(ctx, r.client, r.events, seen, Event{Warning: true, Reason: scrubReason(rep), Action: actionScrub, Note: fmt.Sprintf("node %s: %s", f.Node, rep.Message)})
	}
	return nil
}

// scrubCondition is what the condition becomes; news is false if it stays as it is. A scrub that has
// compared nothing, or left something unjudged and found nothing, says nothing.
func scrubCondition(node string, rep volume.ScrubReport) (c metav1.Condition, news bool) {
	c = metav1.Condition{Type: v1alpha1.ConditionCacheIntact, Status: metav1.ConditionFalse, Reason: scrubReason(rep)}
	switch {
	case rep.Message != "":
		c.Message = truncate(fmt.Sprintf("node %s: %s", node, rep.Message), maxConditionMessage)
	case !rep.Done, rep.CheckedBytes == 0, rep.Unjudged > 0 && rep.Corrupted == 0:
		return c, false
	case rep.Corrupted > 0:
		c.Message = fmt.Sprintf("node %s: of %s of the cache, corrupted chunks: %d. %s", node, quantity.Text(rep.CheckedBytes), rep.Corrupted, scrubDone(rep))
	default:
		c.Status, c.Message = metav1.ConditionTrue, fmt.Sprintf("node %s: %s of the cache are what the storage server has", node, quantity.Text(rep.CheckedBytes))
	}
	return c, true
}

// scrubDone is what was done about what is corrupted.
func scrubDone(rep volume.ScrubReport) string {
	if rep.Untouched {
		return "Nothing was replaced, because the SSD may have the only right copy: check and save the application's data, then kubectl nearflash drop gives the cache up"
	}
	return "The cache has there what the storage server has"
}

func scrubReason(rep volume.ScrubReport) string {
	switch {
	case rep.NotKept:
		return v1alpha1.ReasonSSDNotKeeping
	case rep.Message != "" || rep.Corrupted > 0:
		return v1alpha1.ReasonCacheCorrupted
	}
	return v1alpha1.ReasonIntact
}
