package attach_test

import (
	"context"
	"errors"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach"
	"github.com/nearflash/nearflash/pkg/volume"
)

// pathKept notes whether the staging path was removed.
type pathKept struct {
	attach.Filesystem
	removed bool
}

func (p *pathKept) Unmount(ctx context.Context, target string) error {
	p.removed = p.removed || target == staging
	return p.Filesystem.Unmount(ctx, target)
}

// TestStagingPathLast: an unstage that fails leaves the staging path. Without it the kubelet takes a raw
// block volume for unstaged, and nobody asks for its end any more.
func TestStagingPathLast(t *testing.T) {
	l := newLife(t, volume.ModeWriteback)
	h := l.a
	fs := &pathKept{Filesystem: h.FS}
	h.FS = fs
	l.must("stage", h.Stage(l.ctx, l.publish(h.name)))
	h.podWrites(1, 0)
	_, closed, err := h.machine.Open(h.mounts[staging].device)
	l.must("open", err)
	if err := h.Unstage(l.ctx, volumeID, staging); !errors.Is(err, volume.ErrInUse) {
		t.Fatalf("unstage while somebody has the device open: %v", err)
	}
	if fs.removed {
		t.Error("the staging path is gone, and the volume is not unstaged")
	}
	closed()
	l.must("unstage", h.Unstage(l.ctx, volumeID, staging))
	if !fs.removed {
		t.Error("the staging path stays")
	}
}
