package lio

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/go-logr/logr"
)

// Tree is the kernel's target tree. Calls for different targets may run at the
// same time; calls for the same target must not.
type Tree struct {
	fs FS
}

// NewTree returns the tree behind fsys.
func NewTree(fsys FS) *Tree {
	return &Tree{fs: fsys}
}

// Ensure makes the kernel export t exactly as described: it adds what is missing,
// removes initiators and portals that are not wanted (an initiator loses its
// session), and rebuilds a backstore that is not the wanted one. It may be
// repeated after any failure.
func (t *Tree) Ensure(ctx context.Context, want Target) error {
	if err := want.validate(); err != nil {
		return err
	}
	ok, err := t.backstoreMatches(want)
	if err != nil {
		return fmt.Errorf("backstore %s: %w", want.Backstore, err)
	}
	if !ok {
		if err := t.Remove(ctx, want.IQN, want.Backstore); err != nil {
			return err
		}
		if err := t.createBackstore(ctx, want); err != nil {
			return fmt.Errorf("create backstore %s: %w", want.Backstore, err)
		}
	}
	if err := t.ensureUnmap(ctx, want); err != nil {
		return fmt.Errorf("backstore %s: %w", want.Backstore, err)
	}
	if err := t.ensureTarget(ctx, want); err != nil {
		return fmt.Errorf("target %s: %w", want.IQN, err)
	}
	return nil
}

// backstoreMatches says whether the backstore is complete and the wanted one.
func (t *Tree) backstoreMatches(want Target) (bool, error) {
	dir := backstoreDir(want.Backstore)
	enabled, err := t.fs.Read(dir + "/enable")
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	device, err := t.fs.Read(dir + "/udev_path")
	if err != nil {
		return false, err
	}
	serial, err := t.fs.Read(dir + "/wwn/vpd_unit_serial")
	if err != nil {
		return false, err
	}
	info, err := t.fs.Read(dir + "/info")
	if err != nil {
		return false, err
	}
	other, err := t.otherProduct(dir, want)
	if err != nil {
		return false, err
	}
	// The kernel answers "T10 VPD Unit Serial Number: ...", and "readonly: 1" among
	// other things (drivers/target/target_core_iblock.c).
	return enabled == "1" && !other && device == want.Device && strings.HasSuffix(serial, ": "+want.Serial) &&
		strings.Contains(info, "readonly: 1") == want.ReadOnly, nil
}

// productPath is the attribute with the product identification.
const productPath = "/wwn/product_id"

// otherProduct tells a backstore that was made for another product of ours. One with
// the kernel's own was made before there were any: whoever uses it is not disturbed.
func (t *Tree) otherProduct(dir string, want Target) (bool, error) {
	if want.Product == "" {
		return false, nil
	}
	now, err := t.fs.Read(dir + productPath)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return now != want.Product && now != kernelProduct, err
}

// setProduct names the product. The kernel takes it as long as nobody can see the
// LUN.
func (t *Tree) setProduct(dir string, want Target) error {
	if want.Product == "" {
		return nil
	}
	err := t.fs.Write(dir+productPath, want.Product)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (t *Tree) createBackstore(ctx context.Context, want Target) error {
	dir := backstoreDir(want.Backstore)
	for _, d := range []string{hba, dir} {
		if err := t.mkdir(d); err != nil {
			return err
		}
	}
	if err := t.setProduct(dir, want); err != nil {
		return fmt.Errorf("product %s: %w", want.Product, err)
	}
	readonly := "0"
	if want.ReadOnly {
		readonly = "1"
	}
	for _, a := range []attribute{
		{"control", "udev_path=" + want.Device + ",readonly=" + readonly},
		{"udev_path", want.Device},
		// Before anybody can see the LUN: its identity must never change.
		{"wwn/vpd_unit_serial", want.Serial},
		{"enable", "1"},
	} {
		if err := t.fs.Write(dir+"/"+a.path, a.value); err != nil {
			return fmt.Errorf("%s=%s: %w", a.path, a.value, err)
		}
	}
	logr.FromContextOrDiscard(ctx).V(1).Info("Created backstore", "backstore", want.Backstore, "device", want.Device)
	return nil
}

// ensureUnmap offers UNMAP and WRITE SAME with the unmap bit. Both: some kernels
// (seen with 7.2) send a Block Limits page that their own initiator takes for too
// short, and then only WRITE SAME is found. A device that cannot discard is
// exported without.
func (t *Tree) ensureUnmap(ctx context.Context, want Target) error {
	value := "0"
	if want.Unmap {
		value = "1"
	}
	for _, name := range []string{"emulate_tpu", "emulate_tpws"} {
		path := backstoreDir(want.Backstore) + "/attrib/" + name
		now, err := t.fs.Read(path)
		if err != nil {
			return err
		}
		if now == value {
			continue
		}
		if err := t.fs.Write(path, value); err != nil {
			logr.FromContextOrDiscard(ctx).Info("Exporting without discard", "backstore", want.Backstore, "attribute", name, "err", err.Error())
		}
	}
	return nil
}

func (t *Tree) ensureTarget(ctx context.Context, want Target) error {
	for _, d := range []string{"iscsi", targetDir(want.IQN), tpgDir(want.IQN)} {
		if err := t.mkdir(d); err != nil {
			return err
		}
	}
	for _, a := range tpgAttributes() {
		if err := t.set(tpgDir(want.IQN)+"/"+a.path, a.value); err != nil {
			return err
		}
	}
	lun := tpgDir(want.IQN) + "/lun/" + lunDir
	if err := t.ensureLink(lun, want.Backstore, backstoreDir(want.Backstore)); err != nil {
		return err
	}
	if err := t.ensureACLs(ctx, want); err != nil {
		return err
	}
	if err := t.ensurePortals(want); err != nil {
		return err
	}
	// Last: nobody can log in to a half-made target.
	return t.set(tpgDir(want.IQN)+"/enable", "1")
}

func (t *Tree) ensurePortals(want Target) error {
	dir := tpgDir(want.IQN) + "/np"
	wanted := map[string]bool{}
	for _, p := range want.Portals {
		wanted[p] = true
		if err := t.mkdir(dir + "/" + p); err != nil {
			return fmt.Errorf("listen on %s: %w", p, err)
		}
	}
	present, err := t.list(dir)
	if err != nil {
		return err
	}
	for _, e := range present {
		if e.Dir && !wanted[e.Name] {
			if err := t.rmdir(dir + "/" + e.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

// ensureACLs removes before it adds: at no time may two initiators be let in when
// one takes over from the other.
func (t *Tree) ensureACLs(ctx context.Context, want Target) error {
	wanted := map[string]bool{}
	for _, a := range want.ACLs {
		wanted[a.Initiator] = true
	}
	present, err := t.list(tpgDir(want.IQN) + "/acls")
	if err != nil {
		return err
	}
	for _, e := range present {
		if e.Dir && !wanted[e.Name] {
			if err := t.removeACL(ctx, want.IQN, e.Name); err != nil {
				return err
			}
		}
	}
	for _, a := range want.ACLs {
		if err := t.ensureACL(want, a); err != nil {
			return fmt.Errorf("initiator %s: %w", a.Initiator, err)
		}
	}
	return nil
}

func (t *Tree) ensureACL(want Target, acl ACL) error {
	dir := aclDir(want.IQN, acl.Initiator)
	if err := t.mkdir(dir); err != nil {
		return err
	}
	// The account before the LUN: never a LUN without a password.
	if err := t.set(dir+"/auth/userid", acl.Username); err != nil {
		return err
	}
	if err := t.set(dir+"/auth/password", acl.Password); err != nil {
		return err
	}
	if err := t.ensureLink(dir+"/"+lunDir, lunDir, tpgDir(want.IQN)+"/lun/"+lunDir); err != nil {
		return err
	}
	if !want.ReadOnly {
		return nil // as the kernel makes it
	}
	// The kernel does so by itself for a device that it opened for reading only;
	// this is for one that does not.
	return t.set(dir+"/"+lunDir+"/write_protect", "1")
}

// ensureLink makes the directory dir with one symlink name to target in it.
func (t *Tree) ensureLink(dir, name, target string) error {
	if err := t.mkdir(dir); err != nil {
		return err
	}
	entries, err := t.list(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Link && e.Name == name {
			return nil
		}
	}
	return t.fs.Symlink(target, dir+"/"+name)
}

// LoggedIn says whether the initiator has a session with the target now.
func (t *Tree) LoggedIn(iqn, initiator string) (bool, error) {
	info, err := t.fs.Read(aclDir(iqn, initiator) + "/info")
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return strings.Contains(info, "TARG_SESS_STATE_LOGGED_IN"), nil
}

// InUse says whether any initiator has a session with the target now.
func (t *Tree) InUse(iqn string) (bool, error) {
	acls, err := t.list(tpgDir(iqn) + "/acls")
	if err != nil {
		return false, err
	}
	for _, acl := range acls {
		if !acl.Dir {
			continue
		}
		if in, err := t.LoggedIn(iqn, acl.Name); in || err != nil {
			return in, err
		}
	}
	return false, nil
}

// Targets lists the names of targets that start with prefix.
func (t *Tree) Targets(prefix string) ([]string, error) {
	return t.dirs("iscsi", prefix)
}

// Backstores lists those of our backstores whose names start with prefix.
func (t *Tree) Backstores(prefix string) ([]string, error) {
	return t.dirs(hba, prefix)
}

func (t *Tree) dirs(dir, prefix string) ([]string, error) {
	entries, err := t.list(dir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		// hba_info and the like are files; discovery_auth has not our prefix.
		if e.Dir && strings.HasPrefix(e.Name, prefix) {
			out = append(out, e.Name)
		}
	}
	return out, nil
}

// mkdir is fine with a directory that exists.
func (t *Tree) mkdir(dir string) error {
	if err := t.fs.Mkdir(dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// rmdir is fine with a directory that does not exist.
func (t *Tree) rmdir(dir string) error {
	if err := t.fs.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// set writes an attribute unless it has the value already.
func (t *Tree) set(path, value string) error {
	now, err := t.fs.Read(path)
	if err != nil {
		return err
	}
	if now == value {
		return nil
	}
	if err := t.fs.Write(path, value); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// list is empty for a directory that does not exist.
func (t *Tree) list(dir string) ([]Entry, error) {
	entries, err := t.fs.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return entries, err
}
