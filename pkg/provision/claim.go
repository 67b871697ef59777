package provision

import (
	"fmt"

	"github.com/nearflash/nearflash/pkg/faultpoint"
	"github.com/nearflash/nearflash/pkg/volume"
)

// bugNoFence is a defect that tests put in to show that it would be noticed: a
// volume goes to another node while its owner may hold unflushed writes (I1, I2).
var bugNoFence = faultpoint.NewBug("no-fence")

// claim is the ownership that a publication establishes.
type claim struct {
	Generation int64
	// NewOwner is true if the node takes the volume over from another owner, or
	// from nobody, or from one that the record has forgotten. What was dirty
	// under the generation before is not this owner's.
	NewOwner bool
}

// decideClaim is the table "The record (controller)" of states.md. stored is the
// highest generation that the storage server has ever admitted; it is beyond the
// record's only if the record was restored from an old backup or made anew.
func decideClaim(v volume.Volume, node string, stored int64) (claim, error) {
	owner, gen := v.Fence.Node, v.Fence.Generation
	switch {
	case owner == volume.Readers && owner != node && v.Published:
		return claim{}, fmt.Errorf("%w: volume %s is read by %s (generation %d), and a volume is written by one node or read by many: end their pods first", volume.ErrInUse, v.ID, volume.NamesOfReaders(v.Readers), gen)
	case owner != "" && node == volume.Readers && owner != node && v.Published:
		return claim{}, fmt.Errorf("%w: volume %s is published to node %s (generation %d), which may write to it, and a volume is written by one node or read by many: end its pods first", volume.ErrInUse, v.ID, owner, gen)
	case owner != "" && owner != node && v.Published:
		return claim{}, fmt.Errorf("%w: volume %s is published to node %s (generation %d)", volume.ErrInUse, v.ID, owner, gen)
	case stored > gen:
		// Whoever was admitted since came after the owner's flush, or after its writes
		// were given up: the mark is as old as the record.
		return claim{Generation: stored + 1, NewOwner: true}, nil
	case owner != "" && owner != node && v.PossiblyDirty && !bugNoFence.On():
		return claim{}, fmt.Errorf(
			"%w: node %s may hold unflushed writes of volume %s (generation %d): bring the node back so that it flushes them, or, if the node is lost for good, give them up with `kubectl nearflash abandon cvol/%s --accept-data-loss`",
			volume.ErrFenced, owner, v.ID, gen, v.ID)
	case owner == node && gen > 0:
		return claim{Generation: gen}, nil
	default:
		return claim{Generation: gen + 1, NewOwner: true}, nil
	}
}
