package lvmtest

import (
	"context"
	"errors"
	"fmt"

	"github.com/nearflash/nearflash/pkg/lvm"
)

// comparison is how many looks at the logical volumes a comparison takes.
const comparison = 2

// copies are the two of a mirror.
type copies struct {
	// torn is true if they may differ in what was under way when the power was lost.
	torn bool
	// looks are those until the comparison that is under way has ended.
	looks int
}

// look shows the copies of an active mirror, and has a comparison go on.
func (c *copies) look(lv *lvm.LV) {
	if !lv.Mirrored() || !lv.Active {
		return
	}
	if lv.SyncAction = lvm.SyncIdle; c.looks == 0 {
		return
	}
	lv.SyncAction, lv.SyncPercent = lvm.SyncRepair, 100-100*float64(c.looks)/(comparison+1)
	if c.looks--; c.looks == 0 {
		c.torn = false
	}
}

// Tear is the first moment of a power loss: what is written to an open mirror just then reaches one
// of its copies. The kernel does not make them alike by itself (states.md, The copies of a mirror
// after an unclean stop).
func (l *LVM) Tear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, v := range l.all() {
		v.torn = v.torn || v.lv.Mirrored() && v.lv.Active && l.machine.Openers(v.lv.DevNo()) > 0
	}
}

// Torn are the open logical volumes whose copies may differ.
func (l *LVM) Torn() (names []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, v := range l.all() {
		if v.torn && v.lv.Active && l.machine.Openers(v.lv.DevNo()) > 0 {
			names = append(names, v.lv.Name)
		}
	}
	return names
}

// errNoCopies: what has one copy has nothing to compare.
var errNoCopies = errors.New("not a mirror")

// RepairCopies implements lvm.Client.
func (c *client) RepairCopies(ctx context.Context, vg, name string) error {
	return c.change(ctx, "compare copies of "+name, func() error {
		v, err := c.find(vg, name)
		switch {
		case err != nil:
			return err
		case !v.lv.Active:
			return fmt.Errorf("%w: logical volume %s/%s is not active", lvm.ErrNotFound, vg, name)
		case !v.lv.Mirrored():
			return fmt.Errorf("logical volume %s/%s: %w", vg, name, errNoCopies)
		case v.looks > 0:
			return fmt.Errorf("%w: logical volume %s/%s", lvm.ErrBusy, vg, name)
		}
		v.looks = comparison
		return nil
	})
}
