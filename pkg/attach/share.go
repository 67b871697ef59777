package attach

import (
	"context"
	"errors"
	"fmt"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/quantity"
	"github.com/nearflash/nearflash/pkg/volume"
)

// errShare: with this cache the caches of its claim's namespace would take more than their share of
// the pool (states.md, The share of a namespace).
var errShare = errors.New("the namespace's share of the pool is used up")

// shareStep is what is done before a cache is made or grows.
type shareStep string

const (
	shareFits   shareStep = "Fits"   // the namespace stays within its share, or there is none
	shareEvict  shareStep = "Evict"  // a retained cache of the namespace goes first
	shareRefuse shareStep = "Refuse" // the volume works without, and nothing is evicted
)

// shareFacts are what decideShare rests on. Bytes are those of the pool: every copy of a mirror
// counts.
type shareFacts struct {
	// Namespace is that of the volume's claim; "" if the record names none.
	Namespace string
	// Percent of CapacityBytes may be taken by the caches of one namespace; 0 is no limit.
	Percent       int32
	CapacityBytes int64
	// UsedBytes is what the caches of the namespace take, RetainedBytes what of that could be
	// evicted, and NeedBytes what is to be made.
	UsedBytes, RetainedBytes, NeedBytes int64
}

// limited reports whether there is a share to keep.
func (f shareFacts) limited() bool { return f.Percent > 0 && f.Namespace != "" }

func (f shareFacts) limitBytes() int64 { return volume.ShareBytes(f.CapacityBytes, f.Percent) }

// decideShare is the table of states.md, The share of a namespace, in its order.
func decideShare(f shareFacts) shareStep {
	switch limit := f.limitBytes(); {
	case !f.limited(), f.NeedBytes <= 0, f.UsedBytes+f.NeedBytes <= limit:
		return shareFits
	case f.UsedBytes-f.RetainedBytes+f.NeedBytes <= limit:
		return shareEvict
	}
	return shareRefuse
}

// refusal says whose share is used up, and by how much.
func (f shareFacts) refusal(node string) error {
	return fmt.Errorf("%w: the caches of namespace %s may take %d%% (%s) of the pool of node %s; they take %s, of which %s in retained caches, and this one needs %s",
		errShare, f.Namespace, f.Percent, quantity.Text(f.limitBytes()), node, quantity.Text(f.UsedBytes), quantity.Text(f.RetainedBytes), quantity.Text(f.NeedBytes))
}

// keepShare evicts retained caches of the volume's namespace, oldest first, until logical volumes
// of these sizes fit into its share. It evicts none if all of them would not be enough. sizes are
// those of one of so many copies. The caller has the lock of the pool's space. Errors: errShare.
func (a *Attacher) keepShare(ctx context.Context, id volume.ID, copies int64, sizes []int64) error {
	for {
		f, retained, err := a.shareFacts(ctx, id, copies, sizes)
		if err != nil {
			return err
		}
		switch decideShare(f) {
		case shareFits:
			return nil
		case shareRefuse:
			return f.refusal(a.Node)
		case shareEvict:
		}
		victim := a.idle(retained)
		if victim == nil {
			return f.refusal(a.Node)
		}
		if err := a.evict(ctx, victim); err != nil {
			return err
		}
	}
}

// shareFacts gathers what decides, and the retained caches of the namespace, oldest first. The
// sizes are the SSD's: a stage makes logical volumes before its entry has their sizes.
func (a *Attacher) shareFacts(ctx context.Context, id volume.ID, copies int64, sizes []int64) (shareFacts, []state.Entry, error) {
	view := a.Pool.View()
	f := shareFacts{Percent: view.NamespaceSharePercent, CapacityBytes: view.CapacityBytes}
	if f.Percent == 0 {
		return f, nil, nil
	}
	entries, err := a.readable()
	if err != nil {
		return f, nil, err
	}
	for i := range entries {
		if entries[i].ID == id {
			f.Namespace = entries[i].Names.Namespace
		}
	}
	if !f.limited() {
		return f, nil, nil
	}
	lvs, err := a.LVM.LVs(ctx, view.VG)
	if err != nil {
		return f, nil, err
	}
	for _, n := range sizes {
		f.NeedBytes += copies * n
	}
	var retained []state.Entry
	for i := range entries {
		e := &entries[i]
		if e.Names.Namespace != f.Namespace {
			continue
		}
		bytes := cacheBytes(lvs, e.ID)
		f.UsedBytes += bytes
		if e.Evictable() && e.ID != id {
			f.RetainedBytes += bytes
			retained = append(retained, *e)
		}
	}
	oldestFirst(retained)
	return f, retained, nil
}

// cacheBytes is what a volume's logical volumes take of the pool.
func cacheBytes(lvs []lvm.LV, id volume.ID) (sum int64) {
	for _, lv := range layout.Find(lvs, id).LVs() {
		sum += lv.PoolBytes()
	}
	return sum
}

// sizesOf are those of one copy of logical volumes.
func sizesOf(specs []lvm.CreateSpec) []int64 {
	sizes := make([]int64, len(specs))
	for i, spec := range specs {
		sizes[i] = spec.SizeBytes
	}
	return sizes
}
