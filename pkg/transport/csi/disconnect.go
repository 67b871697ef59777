package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/durable"
	"github.com/nearflash/nearflash/pkg/transport"
)

// Disconnect implements transport.Transport: it unpublishes, then unstages, and goes no
// further than what succeeds. The volume's own cache must be gone by then: drivers unpublish
// a device that is open, and refuse to unstage it.
// Without directories of ours nothing was asked of the driver, and it need not run.
func (t *Transport) Disconnect(ctx context.Context, at transport.Target) error {
	v, err := t.volume(at)
	if err != nil {
		return err
	}
	touched, err := v.touched()
	if err != nil {
		return fmt.Errorf("disconnect %s: %w", v, err)
	}
	if touched {
		if err := t.undo(ctx, v); err != nil {
			return fmt.Errorf("disconnect %s: %w", v, err)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.secrets, v.source.PV)
	return nil
}

// undo takes a volume off the node. The record says so first, so that nobody takes for attached
// what is half gone.
func (t *Transport) undo(ctx context.Context, v vol) error {
	known, err := t.recall(v)
	if err != nil {
		return err
	}
	n, err := t.dial(ctx, v.source.Driver, callSecrets{})
	if err != nil {
		return err
	}
	defer n.close()
	if known != nil && !known.Leaving {
		known.Leaving = true
		if err := known.write(v); err != nil {
			return err
		}
	}
	if err := t.unpublish(ctx, n, v, known != nil); err != nil {
		return err
	}
	return t.unstage(ctx, n, v, known != nil)
}

// unpublish calls the driver also if the target is not there: a NodePublishVolume whose answer
// was lost may be under way (kubelet, UnmapPodDevice).
func (t *Transport) unpublish(ctx context.Context, n *node, v vol, was bool) error {
	if _, err := os.Lstat(v.publishDir()); errors.Is(err, fs.ErrNotExist) {
		return nil // done before
	} else if err != nil {
		return err
	}
	if err := n.unpublish(ctx, v); err != nil && !t.gone(ctx, v, err, was) {
		return err
	}
	return v.removeTarget()
}

// unstage ends with the removal of what Disconnect goes by.
func (t *Transport) unstage(ctx context.Context, n *node, v vol, was bool) error {
	_, err := os.Lstat(v.staging)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// Done before, or the driver stages nothing.
	case err != nil:
		return err
	case n.can.stage:
		if err := n.unstage(ctx, v); err != nil && !t.gone(ctx, v, err, was) {
			return err
		}
		fallthrough
	default:
		if err := v.removeStaging(); err != nil {
			return err
		}
	}
	return v.removePublish()
}

// gone reports whether an error says that the driver does not know the volume, which was never
// attached as far as is known: then there is nothing to undo. Of one that was, it is an error:
// its device may be there still.
func (t *Transport) gone(ctx context.Context, v vol, err error, was bool) bool {
	if was || !errors.Is(err, transport.ErrNoTarget) {
		return false
	}
	if _, block, statErr := t.disks.stat(v.target); statErr == nil && block {
		return false
	}
	klog.FromContext(ctx).Info("CSI driver does not know a volume that was never attached", "driver", v.source.Driver, "handle", v.source.Handle, "answer", err.Error())
	return true
}

// removePublish removes the publish directory with what a kill has left of records.
func (v vol) removePublish() error {
	if err := os.Remove(v.record()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := durable.Sweep(v.publishDir()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Remove(v.publishDir()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("publish directory: %w", err)
	}
	return nil
}
