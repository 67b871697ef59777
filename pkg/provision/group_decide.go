package provision

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/volume"
)

// cutRaw refuses a group: a member cannot be stopped.
const cutRaw cutStep = "Raw"

// groupOrder is the order of the steps of a group: nobody takes one while another member is
// behind. What is not in it is not taken in a group.
var groupOrder = []cutStep{cutDrop, cutFlush, cutSettle, cutWait, cutFreeze, cutAwaitFreeze, cutCut, cutThaw, cutAwaitThaw, cutAccept}

// cutAwaitThaw is cutAwaitFreeze behind cutThaw.
const cutAwaitThaw cutStep = "AwaitThaw"

// groupFacts are what decideGroup rests on.
type groupFacts struct {
	Group volume.GroupID
	// Mark is that of the volumes that are asked for.
	Mark string
	// Members are what is known of each, in the order of the names of their cuts.
	Members []cutFacts
	// Foreign are accepted cuts of the group of other volumes.
	Foreign []backend.Cut
}

// groupMark is the mark of a group's volumes, by the names of their cuts in order.
func groupMark(members []volume.SnapshotID) string {
	var all strings.Builder
	for _, m := range members {
		all.WriteString(string(m) + ",")
	}
	return markOf(all.String())
}

// wholeGroup reports whether accepted cuts, in the order of their names, are all of a group.
func wholeGroup(cuts []backend.Cut) bool {
	var names []volume.SnapshotID
	for _, c := range cuts {
		if c.Hold != cuts[0].Hold {
			return false
		}
		names = append(names, c.ID)
	}
	return len(cuts) > 0 && markIn(cuts[0].Hold) == groupMark(names)
}

// decideGroup is the table "A group" in states.md: the step that is taken next, and who takes
// it. Errors: those of decideCut.
func decideGroup(f groupFacts) (step cutStep, who []int, err error) {
	if step, who, err = decideAccepted(f); step != "" || err != nil {
		return step, who, err
	}
	steps, tokens := make([]cutStep, len(f.Members)), map[string]bool{}
	for i, m := range f.Members {
		if steps[i], err = decideMember(m); err != nil {
			return "", nil, err
		}
		if m.Record.Hold != nil {
			tokens[m.Record.Hold.Token] = true
		}
	}
	for _, first := range []cutStep{cutHold, cutRaw, cutUnfrozen} {
		if slices.Contains(steps, first) || first == cutHold && len(tokens) != 1 {
			return first, everybody(f), nil
		}
	}
	for _, step = range groupOrder {
		for i := range steps {
			if steps[i] == step {
				who = append(who, i)
			}
		}
		if len(who) > 0 {
			return step, who, nil
		}
	}
	return "", nil, fmt.Errorf("group %s: no step of %v", f.Group, steps)
}

// everybody are all members.
func everybody(f groupFacts) (who []int) {
	for i := range f.Members {
		who = append(who, i)
	}
	return who
}

// decideMember is the step of a member as if it were alone, with a freeze.
func decideMember(m cutFacts) (cutStep, error) {
	step, err := decideCut(m)
	h := m.hold()
	switch {
	case err != nil || step == cutHold || step == cutDrop || h == nil:
		return step, err
	case h.Freeze != "" && m.report() == volume.FreezeNoFilesystem:
		return cutRaw, nil
	case step == cutAwaitFreeze && h.Freeze == volume.FreezeOver:
		return cutAwaitThaw, nil
	}
	return step, nil
}

// hold is that of the record, nil if there is none.
func (f *cutFacts) hold() *volume.Hold {
	if f.Record == nil {
		return nil
	}
	return f.Record.Hold
}

// decideAccepted decides if a cut of the group is accepted; "" says that none is.
func decideAccepted(f groupFacts) (step cutStep, who []int, err error) {
	accepted := slices.Clone(f.Foreign)
	for _, m := range f.Members {
		if m.Cut != nil && m.Cut.Accepted {
			accepted = append(accepted, *m.Cut)
		}
	}
	if len(accepted) == 0 {
		return "", nil, nil
	}
	token := accepted[0].Hold
	for _, c := range accepted {
		if markIn(c.Hold) != f.Mark {
			return "", nil, fmt.Errorf("%w: group %s was made of other volumes than are asked for now", volume.ErrExists, f.Group)
		}
	}
	for i, m := range f.Members {
		switch c := m.Cut; {
		case c == nil || c.Hold != token || !c.Accepted && !c.Done:
			return "", nil, fmt.Errorf("%w: group %s is not whole: snapshot %s of volume %s is not there any more, or is of another moment; delete the group", volume.ErrExists, f.Group, m.Name, m.Volume)
		case !c.Accepted:
			who = append(who, i)
		}
	}
	if len(who) == 0 {
		return cutAnswer, nil, nil
	}
	return cutAccept, who, nil
}
