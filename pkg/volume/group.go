package volume

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
)

// GroupID names a group of snapshots (A group in docs/design/states.md). It is the
// group_snapshot_id of the CSI specification.
type GroupID string

// memberForm is a group's name, and that of a member's cut.
var memberForm = regexp.MustCompile(`^(group-[0-9a-f]{26})(-[0-9a-f]{26})?$`)

// digest is what a name has of another one: 104 bits, so that two fit into a SnapshotID.
func digest(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:13])
}

// GroupNamed returns the ID of a group with a name of the CSI specification.
func GroupNamed(name string) GroupID { return GroupID("group-" + digest(name)) }

// ParseGroupID reads a group_snapshot_id. Errors: ErrInvalid.
func ParseGroupID(s string) (GroupID, error) {
	if m := memberForm.FindStringSubmatch(s); m == nil || m[2] != "" {
		return "", fmt.Errorf("%w: group_snapshot_id %q: accepted is what CreateVolumeGroupSnapshot answers: group- and 26 hexadecimal digits", ErrInvalid, s)
	}
	return GroupID(s), nil
}

// Member returns the ID of the cut of a volume of the group.
func (g GroupID) Member(of ID) SnapshotID {
	return SnapshotID(string(g) + "-" + digest(string(of)))
}

// Group returns the group that a snapshot belongs to, "" if it is none's.
func (id SnapshotID) Group() GroupID {
	if m := memberForm.FindStringSubmatch(string(id)); m != nil && m[2] != "" {
		return GroupID(m[1])
	}
	return ""
}

// GroupSnapshotter is the controller's side of groups of snapshots.
type GroupSnapshotter interface {
	Snapshotter
	// CreateGroup cuts volumes at one point in time, or finds the group. The snapshots are in
	// the order of their IDs. Errors: those of CreateSnapshot for any of the volumes; ErrBusy
	// if they did not all stand still until all were cut; ErrExists if the group is of other
	// volumes, or not whole any more; ErrFenced if a volume cannot be made to stand still.
	CreateGroup(ctx context.Context, id GroupID, of []ID, class SnapshotClass) ([]Snapshot, error)
	// DeleteGroup deletes the snapshots of a group and ends holds that were for it; a missing
	// one is success. Errors: ErrInvalid if the snapshots are not those of the group, and as
	// of DeleteSnapshot.
	DeleteGroup(ctx context.Context, id GroupID, snapshots []SnapshotHandle) error
	// Group returns the snapshots of a group. Errors: ErrNotFound if it is not there, or not whole.
	Group(ctx context.Context, id GroupID) ([]Snapshot, error)
}
