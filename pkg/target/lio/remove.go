package lio

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/go-logr/logr"
)

// Remove removes the target and its backstore, or what is there of them. Live
// sessions are cut.
func (t *Tree) Remove(ctx context.Context, iqn, backstore string) error {
	if err := t.RemoveTarget(ctx, iqn); err != nil {
		return err
	}
	return t.RemoveBackstore(ctx, backstore)
}

// RemoveTarget removes the target without its backstore.
func (t *Tree) RemoveTarget(ctx context.Context, iqn string) error {
	if err := t.removeTarget(ctx, iqn); err != nil {
		return fmt.Errorf("remove target %s: %w", iqn, err)
	}
	return nil
}

// RemoveBackstore removes a backstore that no target uses any more.
func (t *Tree) RemoveBackstore(ctx context.Context, backstore string) error {
	_, err := t.fs.Read(backstoreDir(backstore) + "/enable")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := t.rmdir(backstoreDir(backstore)); err != nil {
		return fmt.Errorf("remove backstore %s: %w", backstore, err)
	}
	logr.FromContextOrDiscard(ctx).V(1).Info("Removed backstore", "backstore", backstore)
	return nil
}

func (t *Tree) removeTarget(ctx context.Context, iqn string) error {
	dir := tpgDir(iqn)
	acls, err := t.list(dir + "/acls")
	if err != nil {
		return err
	}
	for _, e := range acls {
		if e.Dir {
			if err := t.removeACL(ctx, iqn, e.Name); err != nil {
				return err
			}
		}
	}
	portals, err := t.list(dir + "/np")
	if err != nil {
		return err
	}
	for _, e := range portals {
		if e.Dir {
			if err := t.rmdir(dir + "/np/" + e.Name); err != nil {
				return err
			}
		}
	}
	if err := t.removeLinkDirs(dir + "/lun"); err != nil {
		return err
	}
	if err := t.rmdir(dir); err != nil {
		return err
	}
	return t.rmdir(targetDir(iqn))
}

// removeACL takes the LUN away first, then the ACL, which ends the session.
func (t *Tree) removeACL(ctx context.Context, iqn, initiator string) error {
	dir := aclDir(iqn, initiator)
	if err := t.removeLinkDirs(dir); err != nil {
		return err
	}
	if err := t.rmdir(dir); err != nil {
		return err
	}
	logr.FromContextOrDiscard(ctx).V(1).Info("Removed initiator", "target", iqn, "initiator", initiator)
	return nil
}

// removeLinkDirs removes the lun_N directories of dir and the symlinks in them.
func (t *Tree) removeLinkDirs(dir string) error {
	luns, err := t.list(dir)
	if err != nil {
		return err
	}
	for _, l := range luns {
		if !l.Dir || !strings.HasPrefix(l.Name, "lun_") {
			continue
		}
		sub := dir + "/" + l.Name
		entries, err := t.list(sub)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if !e.Link {
				continue
			}
			if err := t.fs.Unlink(sub + "/" + e.Name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		if err := t.rmdir(sub); err != nil {
			return err
		}
	}
	return nil
}
