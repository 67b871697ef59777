// Package liotest has a stand-in for the kernel's target tree that keeps its
// rules: which directories and attributes appear by themselves, what is busy, what
// is not empty, what must be set first. What only a kernel can show (sessions,
// data, CHAP on the wire) is in the tests with the build tag "kernel".
package liotest

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/nearflash/nearflash/pkg/target/lio"
)

// Kernel is an in-memory target tree. The zero value is not usable, see New.
type Kernel struct {
	// Step, if set, is called before each change with a description of it; its
	// error ends the call instead of the change.
	Step func(change string) error
	// NoDiscard lists devices that cannot discard.
	NoDiscard map[string]bool

	mu   sync.Mutex
	root *node
	log  []string
}

type node struct {
	dir      bool
	auto     bool // made by the kernel along with its parent
	value    string
	link     string
	children map[string]*node
}

var _ lio.FS = (*Kernel)(nil)

// New returns the tree as it is when the modules have just been loaded.
func New() *Kernel {
	k := &Kernel{NoDiscard: map[string]bool{}, root: newDir(true)}
	k.root.children["core"] = newDir(true)
	k.root.children["version"] = &node{auto: true, value: "Target Engine Core ConfigFS Infrastructure"}
	return k
}

func newDir(auto bool) *node {
	return &node{dir: true, auto: auto, children: map[string]*node{}}
}

func (k *Kernel) lookup(p string) *node {
	n := k.root
	for _, part := range strings.Split(path.Clean(p), "/") {
		if n == nil || !n.dir {
			return nil
		}
		n = n.children[part]
	}
	return n
}

func fail(op, p string, err error) error {
	return &fs.PathError{Op: op, Path: p, Err: err}
}

func (k *Kernel) step(format string, args ...any) error {
	change := fmt.Sprintf(format, args...)
	if k.Step != nil {
		if err := k.Step(change); err != nil {
			return err
		}
	}
	k.log = append(k.log, change)
	return nil
}

// Changes lists all changes so far.
func (k *Kernel) Changes() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.log)
}

// templates maps a pattern of a made directory to what the kernel puts in it:
// names ending in / are directories, others attributes with a value.
var templates = []struct {
	pattern string
	content []string
}{
	{"core/iblock_*/*", []string{
		"control=", "udev_path=", "enable=0", "info=", "wwn/", "wwn/vpd_unit_serial=T10 VPD Unit Serial Number: ", "wwn/product_id=IBLOCK",
		"attrib/", "attrib/emulate_tpu=0", "attrib/emulate_tpws=0",
	}},
	{"iscsi", []string{"discovery_auth/", "lio_version=4"}},
	{"iscsi/*", []string{"param/", "fabric_statistics/"}},
	{"iscsi/*/tpgt_1", []string{
		"enable=0", "acls/", "np/", "lun/", "attrib/", "attrib/authentication=1", "attrib/generate_node_acls=0",
		"attrib/demo_mode_discovery=1", "attrib/cache_dynamic_acls=0", "attrib/default_cmdsn_depth=64", "param/",
		"param/AuthMethod=CHAP", "param/InitialR2T=Yes", "param/ImmediateData=Yes", "param/MaxRecvDataSegmentLength=8192",
		"param/FirstBurstLength=65536", "param/MaxBurstLength=262144",
	}},
	{"iscsi/*/tpgt_1/acls/*", []string{"auth/", "auth/userid=", "auth/password=", "info=No active iSCSI Session", "attrib/"}},
	{"iscsi/*/tpgt_1/acls/*/lun_0", []string{"write_protect=0", "statistics/"}},
	{"iscsi/*/tpgt_1/lun/lun_0", []string{"alua_tg_pt_gp=", "statistics/"}},
	{"iscsi/*/tpgt_1/np/*", []string{"iser="}},
	{"core/iblock_*", nil},
}

// Mkdir implements lio.FS.
func (k *Kernel) Mkdir(p string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	parent := k.lookup(path.Dir(p))
	if path.Dir(p) == "." {
		parent = k.root
	}
	if parent == nil || !parent.dir {
		return fail("mkdir", p, syscall.ENOENT)
	}
	if parent.children[path.Base(p)] != nil {
		return fail("mkdir", p, syscall.EEXIST)
	}
	for _, t := range templates {
		if ok, _ := path.Match(t.pattern, p); !ok {
			continue
		}
		if err := k.step("mkdir %s", p); err != nil {
			return err
		}
		made := newDir(false)
		parent.children[path.Base(p)] = made
		populate(made, t.content)
		return nil
	}
	return fail("mkdir", p, syscall.EPERM)
}

func populate(dir *node, content []string) {
	for _, c := range content {
		at := dir
		name, value, isFile := strings.Cut(c, "=")
		name = strings.TrimSuffix(name, "/")
		if sub, rest, ok := strings.Cut(name, "/"); ok {
			at, name = dir.children[sub], rest
		}
		if isFile {
			at.children[name] = &node{auto: true, value: value}
		} else {
			at.children[name] = newDir(true)
		}
	}
}

// Rmdir implements lio.FS.
func (k *Kernel) Rmdir(p string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := k.lookup(p)
	switch {
	case n == nil:
		return fail("rmdir", p, syscall.ENOENT)
	case !n.dir || n.auto:
		return fail("rmdir", p, syscall.EPERM)
	case k.linked(k.root, p):
		return fail("rmdir", p, syscall.EBUSY)
	case !onlyAuto(n):
		return fail("rmdir", p, syscall.ENOTEMPTY)
	}
	if err := k.step("rmdir %s", p); err != nil {
		return err
	}
	delete(k.lookupParent(p).children, path.Base(p))
	return nil
}

func (k *Kernel) lookupParent(p string) *node {
	if path.Dir(p) == "." {
		return k.root
	}
	return k.lookup(path.Dir(p))
}

func (k *Kernel) linked(n *node, target string) bool {
	if n.link == target {
		return true
	}
	for _, c := range n.children {
		if k.linked(c, target) {
			return true
		}
	}
	return false
}

func onlyAuto(n *node) bool {
	for _, c := range n.children {
		if !c.auto || !onlyAuto(c) {
			return false
		}
	}
	return true
}

// Symlink implements lio.FS.
func (k *Kernel) Symlink(target, link string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	to, parent := k.lookup(target), k.lookup(path.Dir(link))
	switch {
	case to == nil || parent == nil:
		return fail("symlink", link, syscall.ENOENT)
	case parent.children[path.Base(link)] != nil:
		return fail("symlink", link, syscall.EEXIST)
	case strings.HasPrefix(target, "core/") && to.children["enable"].value != "1":
		return fail("symlink", link, syscall.ENODEV)
	}
	if err := k.step("symlink %s", link); err != nil {
		return err
	}
	parent.children[path.Base(link)] = &node{link: target}
	return nil
}

// Unlink implements lio.FS.
func (k *Kernel) Unlink(link string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := k.lookup(link)
	if n == nil {
		return fail("unlink", link, syscall.ENOENT)
	}
	if n.link == "" {
		return fail("unlink", link, syscall.EPERM)
	}
	if err := k.step("unlink %s", link); err != nil {
		return err
	}
	delete(k.lookup(path.Dir(link)).children, path.Base(link))
	return nil
}

// Write implements lio.FS.
func (k *Kernel) Write(p, value string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := k.lookup(p)
	if n == nil {
		return fail("open", p, syscall.ENOENT)
	}
	dev := k.lookup(path.Dir(p))
	switch base := path.Base(p); {
	case n.dir:
		return fail("open", p, syscall.EISDIR)
	case strings.HasPrefix(p, "core/") && base == "enable" && dev.children["control"].value == "":
		return fail("write", p, syscall.EINVAL)
	case base == "product_id" && k.linked(k.root, path.Dir(path.Dir(p))):
		return fail("write", p, syscall.EINVAL)
	case base == "vpd_unit_serial":
		value = "T10 VPD Unit Serial Number: " + value
	case strings.HasPrefix(base, "emulate_tp") && value == "1" && k.NoDiscard[k.lookup(path.Dir(path.Dir(p))).children["udev_path"].value]:
		return fail("write", p, syscall.ENOSYS)
	}
	if err := k.step("write %s", p); err != nil {
		return err
	}
	n.value = value
	if strings.HasPrefix(p, "core/") && path.Base(p) == "enable" {
		dev.children["info"].value = "iBlock device: UDEV PATH: " + dev.children["udev_path"].value +
			"  readonly: " + flag(readOnly(dev))
	}
	return nil
}

// readOnly reports whether the backstore was told to open its device for reading.
func readOnly(store *node) bool {
	return strings.Contains(store.children["control"].value, "readonly=1")
}

func flag(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// Read implements lio.FS.
func (k *Kernel) Read(p string) (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := k.lookup(p)
	if n == nil {
		return "", fail("open", p, syscall.ENOENT)
	}
	if n.dir {
		return "", fail("read", p, syscall.EISDIR)
	}
	return n.value, nil
}

// List implements lio.FS.
func (k *Kernel) List(dir string) ([]lio.Entry, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := k.lookup(dir)
	if n == nil || !n.dir {
		return nil, fail("open", dir, syscall.ENOENT)
	}
	var out []lio.Entry
	for _, name := range slices.Sorted(maps.Keys(n.children)) {
		c := n.children[name]
		out = append(out, lio.Entry{Name: name, Dir: c.dir, Link: c.link != ""})
	}
	return out, nil
}

// ErrRefused is what an initiator would meet as a failed login.
var ErrRefused = errors.New("login refused")

// Login does what an initiator would: it succeeds with the backing device of the
// LUN if the target is enabled, listens on portal, knows the initiator and the
// account, and shows it the LUN.
func (k *Kernel) Login(iqn, portal, initiator, user, password string) (device string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	dir := "iscsi/" + iqn + "/tpgt_1"
	value := func(p string) string {
		if n := k.lookup(p); n != nil {
			return n.value
		}
		return ""
	}
	acl := dir + "/acls/" + initiator
	switch {
	case value(dir+"/enable") != "1":
		return "", fmt.Errorf("%w: not enabled", ErrRefused)
	case k.lookup(dir+"/np/"+portal) == nil:
		return "", fmt.Errorf("%w: not listening on %s", ErrRefused, portal)
	case k.lookup(acl) == nil:
		return "", fmt.Errorf("%w: no ACL for %s", ErrRefused, initiator)
	case value(dir+"/attrib/authentication") == "1" && (value(acl+"/auth/userid") != user || value(acl+"/auth/password") != password):
		return "", fmt.Errorf("%w: authentication", ErrRefused)
	}
	mapped := k.lookup(acl + "/lun_0/lun_0")
	if mapped == nil {
		return "", fmt.Errorf("%w: no LUN", ErrRefused)
	}
	for _, c := range k.lookup(mapped.link).children {
		if c.link != "" {
			return value(c.link + "/udev_path"), nil
		}
	}
	return "", fmt.Errorf("%w: empty LUN", ErrRefused)
}

// Session leaves an initiator that has an ACL logged in, as the kernel shows it.
func (k *Kernel) Session(iqn, initiator string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	// drivers/target/iscsi/iscsi_target_configfs.c, lio_target_nacl_info_show.
	k.lookup("iscsi/" + iqn + "/tpgt_1/acls/" + initiator + "/info").value = "InitiatorName: " + initiator + "\nSession State: TARG_SESS_STATE_LOGGED_IN"
}

// Writable reports whether an initiator that is let in may write to the LUN.
func (k *Kernel) Writable(iqn, initiator string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	dir := "iscsi/" + iqn + "/tpgt_1"
	mapped, lun := k.lookup(dir+"/acls/"+initiator+"/lun_0"), k.lookup(dir+"/lun/lun_0")
	if mapped == nil || lun == nil || mapped.children["write_protect"].value == "1" {
		return false
	}
	for _, c := range lun.children {
		if c.link != "" {
			return !readOnly(k.lookup(c.link))
		}
	}
	return false
}

// Reboot forgets everything.
func (k *Kernel) Reboot() {
	fresh := New()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.root = fresh.root
}
