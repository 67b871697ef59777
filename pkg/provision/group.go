package provision

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/passes"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

var _ volume.GroupSnapshotter = (*Service)(nil)

// groupWidth is how many members of a group are asked at once.
const groupWidth = 16

// grouping is the cut of a group under way.
type grouping struct {
	id      volume.GroupID
	members []*cutting
	// foreign are accepted cuts of the group of other volumes.
	foreign []backend.Cut
}

// CreateGroup implements volume.GroupSnapshotter. As of a single cut, each step is decided anew
// by what is there.
func (s *Service) CreateGroup(ctx context.Context, id volume.GroupID, of []volume.ID, class volume.SnapshotClass) ([]volume.Snapshot, error) {
	g, err := s.beginGroup(ctx, id, of, class)
	if err != nil {
		return nil, err
	}
	log := logr.FromContextOrDiscard(ctx)
	for range cutSteps + frozenSteps + 2*len(of) {
		f, err := s.gatherGroup(ctx, g)
		if err != nil {
			return nil, err
		}
		step, who, err := decideGroup(f)
		if err != nil {
			return nil, err
		}
		log.V(2).Info("Cutting group", "group", id, "step", step, "members", who)
		if step == cutAnswer {
			return s.answerGroup(ctx, g)
		}
		if err := s.takeGroupStep(ctx, g, step, g.those(who)); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%w: the volumes of group %s change while they are cut", volume.ErrBusy, id)
}

func (g *grouping) those(who []int) (out []*cutting) {
	for _, i := range who {
		out = append(out, g.members[i])
	}
	return out
}

// each does something for several members at once, and returns when all is done.
func each(members []*cutting, do func(*cutting) error) error {
	errs := make([]error, len(members))
	var all errgroup.Group
	all.SetLimit(groupWidth)
	for i, c := range members {
		all.Go(func() error {
			errs[i] = do(c)
			return nil
		})
	}
	_ = all.Wait() // each error is in errs
	return errors.Join(errs...)
}

// beginGroup finds where the volumes lie, and what the group has of others.
func (s *Service) beginGroup(ctx context.Context, id volume.GroupID, of []volume.ID, class volume.SnapshotClass) (*grouping, error) {
	g := &grouping{id: id}
	class.Freeze = true
	var names []volume.SnapshotID
	for _, v := range of {
		names = append(names, id.Member(v))
	}
	slices.Sort(names)
	for _, v := range of {
		c, err := s.beginCut(ctx, cutOrder{name: id.Member(v), of: v, class: class, group: groupMark(names)})
		if err != nil {
			return nil, err
		}
		g.members = append(g.members, c)
	}
	slices.SortFunc(g.members, func(a, b *cutting) int { return cmp.Compare(a.name, b.name) })
	all, err := s.groupCuts(ctx, id)
	for _, c := range all {
		if _, asked := slices.BinarySearch(names, c.ID); c.Accepted && !asked {
			g.foreign = append(g.foreign, c.Cut)
		}
	}
	return g, err
}

// groupCut is a cut of a group, with where it lies.
type groupCut struct {
	backend.Cut
	at place
}

// groupCuts lists what there is of a group, in the order of the names. No place is waited for
// long: volumes of others are locked meanwhile.
func (s *Service) groupCuts(ctx context.Context, id volume.GroupID) (out []groupCut, err error) {
	if err := s.allReachable(ctx); err != nil {
		return nil, err
	}
	for _, at := range s.configured() {
		_, cuts, err := s.cutsWithin(ctx, at, listPatience)
		if err != nil {
			return nil, err
		}
		for _, c := range cuts {
			if c.ID.Group() == id && !c.Ending {
				out = append(out, groupCut{c, at})
			}
		}
	}
	slices.SortFunc(out, func(a, b groupCut) int { return cmp.Compare(a.ID, b.ID) })
	return out, nil
}

// gatherGroup looks at all members.
func (s *Service) gatherGroup(ctx context.Context, g *grouping) (groupFacts, error) {
	f := groupFacts{Group: g.id, Mark: g.members[0].group, Foreign: g.foreign}
	err := each(g.members, func(c *cutting) error { return s.gatherCut(ctx, c) })
	for _, c := range g.members {
		f.Members = append(f.Members, c.facts)
	}
	return f, err
}

// answerGroup ends what is left of the holds.
func (s *Service) answerGroup(ctx context.Context, g *grouping) ([]volume.Snapshot, error) {
	var out []volume.Snapshot
	for _, c := range g.members {
		out = append(out, snapshotOf(c.at, *c.facts.Cut))
	}
	return out, each(g.members, func(c *cutting) error { return s.endHold(ctx, c.of, c.name) })
}

// takeGroupStep takes one step of those members that are to take it. Each may be repeated from
// its beginning.
func (s *Service) takeGroupStep(ctx context.Context, g *grouping, step cutStep, who []*cutting) error {
	switch step {
	case cutHold:
		return s.holdGroup(ctx, g)
	case cutDrop:
		return s.dropCut(ctx, who[0]) // in order, with a look behind each
	case cutWait:
		return s.waitGroup(ctx, g, who)
	case cutAwaitFreeze, cutAwaitThaw:
		why, err := s.awaitNode(ctx, who[0])
		if why != "" {
			return s.abandon(ctx, g, fmt.Errorf("%w: %s", volume.ErrBusy, why))
		}
		return err
	case cutCut:
		return s.cutGroup(ctx, g, who)
	case cutAccept:
		return s.acceptGroup(ctx, who)
	case cutRaw:
		return s.refuseRaw(ctx, g)
	case cutUnfrozen:
		return s.abandon(ctx, g, fmt.Errorf("%w: %s", volume.ErrBusy, g.whyUnfrozen()))
	}
	return each(who, func(c *cutting) error { return s.takeCutStep(ctx, c, step) })
}

// holdGroup puts a hold with one new token on all records, if the storage says of none that it
// will refuse. What is known to be refused is not held for.
func (s *Service) holdGroup(ctx context.Context, g *grouping) error {
	for _, c := range g.members {
		if err := s.mayHold(ctx, c); err != nil {
			return errors.Join(err, each(g.members, func(c *cutting) error { return s.endHold(ctx, c.of, c.name) }))
		}
	}
	token := newHold(g.members[0].group)
	return each(g.members, func(c *cutting) error { return s.putHold(ctx, c, token) })
}

// waitGroup says for whom the group waits. While something drains, the holds of the others are
// wanted too.
func (s *Service) waitGroup(ctx context.Context, g *grouping, who []*cutting) error {
	var renewed error
	if slices.ContainsFunc(who, func(c *cutting) bool { return c.facts.Record.PossiblyDirty }) {
		renewed = each(g.members, func(c *cutting) error { return s.renewHold(ctx, c) })
	}
	for _, c := range who {
		renewed = errors.Join(renewed, waits(c))
	}
	return renewed
}

// stopped reports whether anybody stands still for the group.
func (g *grouping) stopped() bool {
	return slices.ContainsFunc(g.members, func(c *cutting) bool { return c.facts.Record.Published })
}

// cutGroup asks for cuts. If one is refused, nobody stands still for the others.
func (s *Service) cutGroup(ctx context.Context, g *grouping, who []*cutting) error {
	undone := make(chan struct{}, len(who))
	err := each(who, func(c *cutting) error {
		cut, err := c.snaps.Cut(c.sight.of(ctx), c.name, c.of, c.request())
		if errors.Is(err, volume.ErrInvalid) || errors.Is(err, volume.ErrNoSpace) {
			s.refusals.put(c.cutOrder, err, s.now())
		}
		if err != nil {
			return fmt.Errorf("cut volume %s for group %s: %w", c.of, g.id, err)
		}
		if !cut.Done {
			undone <- struct{}{}
		}
		return nil
	})
	switch {
	case err != nil:
		return s.abandon(ctx, g, err)
	case len(undone) == 0:
		return nil
	case g.stopped():
		return passes.Pause(ctx, s.freezePoll) // there are seconds for it
	}
	err = each(g.members, func(c *cutting) error { return s.renewHold(ctx, c) })
	return errors.Join(err, fmt.Errorf("%w: volumes of group %s are being cut", volume.ErrBusy, g.id))
}

// acceptGroup accepts in order, and ends where a cut is not there any more: another process has
// begun to drop them (states.md, A group).
func (s *Service) acceptGroup(ctx context.Context, who []*cutting) error {
	for _, c := range who {
		err := c.snaps.Accept(c.sight.of(ctx), c.name, c.facts.Cut.Hold)
		if errors.Is(err, volume.ErrNotFound) {
			return fmt.Errorf("%w: snapshot %s was dropped meanwhile", volume.ErrBusy, c.name)
		}
		if err != nil {
			return fmt.Errorf("accept snapshot %s: %w", c.name, err)
		}
	}
	return nil
}

// refuseRaw refuses a group for a while.
func (s *Service) refuseRaw(ctx context.Context, g *grouping) error {
	var refused error
	for _, c := range g.members {
		if c.facts.report() == volume.FreezeNoFilesystem {
			err := fmt.Errorf("%w: volume %s is a raw block volume in use: nearflash cannot stop its writes, so it cannot be in a group; leave it out, stop its pods, or make a VolumeSnapshot of it", volume.ErrFenced, c.of)
			s.refusals.put(c.cutOrder, err, s.now())
			refused = errors.Join(refused, err)
		}
	}
	return s.abandon(ctx, g, refused)
}

// whyUnfrozen says what a node has said, and of which volume.
func (g *grouping) whyUnfrozen() string {
	for _, c := range g.members {
		if r := c.facts.Record; c.facts.report() == volume.FreezeFailed {
			return fmt.Sprintf("the filesystem of volume %s was not frozen on node %s all the time: %s", c.of, r.Fence.Node, r.Freeze.Message)
		}
	}
	return "a volume was attached, detached or formatted meanwhile"
}

// abandon ends the holds of the last look, and with them all stops, and drops what was cut under
// them, in order.
func (s *Service) abandon(ctx context.Context, g *grouping, why error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), freezePatience)
	defer cancel()
	token := g.members[0].facts.Record.Hold.Token
	err := each(g.members, func(c *cutting) error {
		return records.EndHold(ctx, s.client, c.of, func(h volume.Hold) bool { return h.Token == token })
	})
	for _, c := range g.members {
		s.holds.forget(c.of, c.name)
		err = errors.Join(err, c.snaps.DropCut(c.sight.of(ctx), c.name, token))
	}
	return errors.Join(fmt.Errorf("group %s was not cut at one point in time: %w", g.id, why), err)
}

// Group implements volume.GroupSnapshotter.
func (s *Service) Group(ctx context.Context, id volume.GroupID) ([]volume.Snapshot, error) {
	all, err := s.groupCuts(ctx, id)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(c groupCut) bool { return !c.Accepted })
	var cuts []backend.Cut
	var out []volume.Snapshot
	for _, c := range all {
		cuts, out = append(cuts, c.Cut), append(out, snapshotOf(c.at, c.Cut))
	}
	if !wholeGroup(cuts) {
		return nil, fmt.Errorf("%w: group %s", volume.ErrNotFound, id)
	}
	return out, nil
}

// DeleteGroup implements volume.GroupSnapshotter. Killed, or refused in the middle, it is called
// again.
func (s *Service) DeleteGroup(ctx context.Context, id volume.GroupID, snapshots []volume.SnapshotHandle) error {
	for _, h := range snapshots {
		if h.ID.Group() != id {
			return fmt.Errorf("%w: snapshot_ids: %s is not of group %s", volume.ErrInvalid, h, id)
		}
	}
	all, err := s.groupCuts(ctx, id)
	if err != nil {
		return err
	}
	wanted := slices.Clone(snapshots)
	for _, c := range all {
		h := snapshotOf(c.at, c.Cut).Handle
		if slices.Contains(snapshots, h) {
			continue
		}
		if c.Accepted {
			return fmt.Errorf("%w: snapshot_ids: %s is of group %s, and is missing", volume.ErrInvalid, h, id)
		}
		wanted = append(wanted, h)
	}
	slices.SortFunc(wanted, func(a, b volume.SnapshotHandle) int { return cmp.Compare(a.ID, b.ID) })
	for _, h := range wanted {
		if err := s.deleteCut(ctx, h); err != nil {
			return err
		}
	}
	return nil
}

// behind reports whether the cut of a group may not be dropped yet: one of its token is accepted,
// or is to be dropped before it (states.md, A group).
func (s *Service) behind(ctx context.Context, cut backend.Cut) (bool, error) {
	id := cut.ID.Group()
	if id == "" {
		return false, nil
	}
	all, err := s.groupCuts(ctx, id)
	return slices.ContainsFunc(all, func(c groupCut) bool {
		return c.Hold == cut.Hold && (c.Accepted || c.ID < cut.ID)
	}), err
}
