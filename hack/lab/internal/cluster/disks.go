package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/nearflash/nearflash/hack/lab/internal/agentapi"
	"github.com/nearflash/nearflash/hack/lab/internal/node"
	"github.com/nearflash/nearflash/hack/lab/internal/plan"
)

// ownDisks are a guest's root and its second disk.
const ownDisks = 2

// PlugDisk gives a guest a raw image as a disk of SCSI, and returns its path there,
// /dev/disk/by-id/google-NAME. The guest keeps it over boots, until it is unplugged. A guest
// that does not run has it from its next boot on. What is plugged in already is left as it is.
func (l *Lab) PlugDisk(ctx context.Context, guest string, d node.Plugged) (device string, err error) {
	if d.File, err = filepath.Abs(d.File); err != nil {
		return "", fmt.Errorf("plug %s: %w", d.Serial, err)
	}
	if _, err := os.Stat(d.File); err != nil {
		return "", fmt.Errorf("plug %s: %w", d.Serial, err)
	}
	err = l.withPlugged(ctx, guest, func(list []node.Plugged) ([]node.Plugged, error) {
		i := slices.IndexFunc(list, func(p node.Plugged) bool { return p.Serial == d.Serial })
		if i < 0 {
			if d.Letter, err = node.FreeLetter(ownDisks, list); err != nil {
				return nil, err
			}
		} else if d.Letter = list[i].Letter; d != list[i] {
			return nil, fmt.Errorf("plug %s: %s has another disk of that name: %+v", d.Serial, guest, list[i])
		}
		if l.mustLive(guest) == nil {
			if i < 0 { // a call that failed in the middle may have left another there
				err = l.unplugLive(ctx, guest, d)
			}
			if err == nil {
				err = l.plugLive(ctx, guest, d)
			}
			if err != nil {
				return nil, fmt.Errorf("plug %s: %w", d.Serial, err)
			}
		}
		if i < 0 {
			list = append(list, d)
		}
		return list, nil
	})
	return "/dev/disk/by-id/google-" + d.Serial, err
}

// plugLive plugs a disk into a running guest that may have it.
func (l *Lab) plugLive(ctx context.Context, guest string, d node.Plugged) error {
	console := node.Console{Guest: guest, RunDir: l.Paths.Node(guest)}
	if has, err := console.Has(ctx, d.Letter); !has || err != nil {
		if err := console.Plug(ctx, d); err != nil {
			return err
		}
	}
	return l.changeDisk(ctx, guest, agentapi.DiskAdd, d)
}

// unplugLive takes the disk of a letter away from a running guest, if it has one.
func (l *Lab) unplugLive(ctx context.Context, guest string, d node.Plugged) error {
	console := node.Console{Guest: guest, RunDir: l.Paths.Node(guest)}
	if has, err := console.Has(ctx, d.Letter); !has || err != nil {
		return err
	}
	if err := l.changeDisk(ctx, guest, agentapi.DiskRemove, d); err != nil {
		return err
	}
	return console.Unplug(ctx, d.Letter)
}

// changeDisk has a running guest make what was plugged in a disk of SCSI, or end that. The
// guest has such a disk open itself, so that its console no longer says who else does.
func (l *Lab) changeDisk(ctx context.Context, guest, verb string, d node.Plugged) error {
	var out bytes.Buffer
	argv := []string{agentapi.AgentSelf, agentapi.DiskCommand, verb, "ubd" + d.Letter}
	code, err := l.Exec(ctx, guest, agentapi.ExecRequest{Argv: argv}, &out, &out)
	switch {
	case err != nil:
		return err
	case code == agentapi.DiskInUse:
		return fmt.Errorf("%w: %s", node.ErrInUse, bytes.TrimSpace(out.Bytes()))
	case code != 0:
		return fmt.Errorf("%s: %v: exit status %d: %s", guest, argv, code, bytes.TrimSpace(out.Bytes()))
	}
	return nil
}

// UnplugDisk takes a disk away from a guest. It returns [node.ErrInUse] when the guest
// has it open, and nil when the guest has no such disk.
func (l *Lab) UnplugDisk(ctx context.Context, guest, name string) error {
	return l.withPlugged(ctx, guest, func(list []node.Plugged) ([]node.Plugged, error) {
		i := slices.IndexFunc(list, func(p node.Plugged) bool { return p.Serial == name })
		if i < 0 {
			return list, nil
		}
		if l.mustLive(guest) == nil {
			if err := l.unplugLive(ctx, guest, list[i]); err != nil {
				return nil, fmt.Errorf("unplug %s: %w", name, err)
			}
		}
		return slices.Delete(list, i, i+1), nil
	})
}

// PluggedDisks lists what is plugged into a guest.
func (l *Lab) PluggedDisks(ctx context.Context, guest string) (out []node.Plugged, err error) {
	err = l.withPlugged(ctx, guest, func(list []node.Plugged) ([]node.Plugged, error) {
		out = slices.Clone(list)
		return list, nil
	})
	return out, err
}

// withPlugged changes the list of what is plugged into a guest. While it does, nobody
// else does, and the guest does not boot. The lab's own lock is not taken: a disk is
// attached while other commands wait for a cluster that needs it.
func (l *Lab) withPlugged(ctx context.Context, guest string, change func([]node.Plugged) ([]node.Plugged, error)) error {
	if _, err := plan.FindNode(guest); err != nil {
		return err
	}
	if _, err := os.Stat(l.Paths.Node(guest)); err != nil {
		return fmt.Errorf("%w: %w", ErrNotUp, err)
	}
	unlock, err := l.lockPlugged(ctx, guest)
	if err != nil {
		return err
	}
	defer unlock()
	list, err := l.readPlugged(guest)
	if err != nil {
		return err
	}
	changed, err := change(slices.Clone(list))
	if err != nil || slices.Equal(list, changed) {
		return err
	}
	if err := writeJSON(l.Paths.Plugged(guest), changed); err != nil {
		return fmt.Errorf("plugged disks of %s: %w", guest, err)
	}
	return nil
}

func (l *Lab) readPlugged(guest string) (list []node.Plugged, err error) {
	b, err := os.ReadFile(l.Paths.Plugged(guest))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("plugged disks of %s: %w", guest, err)
	}
	return list, nil
}

// lockPlugged waits for the list's lock; it is held for moments only.
func (l *Lab) lockPlugged(ctx context.Context, guest string) (unlock func(), err error) {
	f, err := os.OpenFile(l.Paths.Plugged(guest)+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("plugged disks of %s: %w", guest, err)
	}
	err = until(ctx, "the disks of "+guest, func(context.Context) (bool, error) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		return err == nil, err
	})
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}
