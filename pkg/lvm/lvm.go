package lvm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/nearflash/nearflash/pkg/hostexec"
)

// group stands for the volume group of the pool, of which one thing is changed at a time.
// LVM keeps others away by itself, but kills nobody's patience: a command that waits for
// its lock is one more that may wait for an SSD which does not answer.
const group = "volume group"

// stripeBytes is what one device of a stripe takes before the next.
const stripeBytes = 64 << 10

// tools is Client over the commands of lvm2.
type tools struct {
	run     hostexec.Runner
	devices atomic.Pointer[[]string]
	// links is the only place where LVM looks for devices.
	links string
}

var _ Client = (*tools)(nil)

// New returns a Client that has no devices yet. links is a directory of its own, in which
// the devices get links; it is made when it is needed.
func New(run hostexec.Runner, links string) Client { return &tools{run: run, links: links} }

// SetDevices implements Client.
func (t *tools) SetDevices(paths []string) {
	own := slices.Clone(paths)
	t.devices.Store(&own)
}

// VG implements Client.
func (t *tools) VG(ctx context.Context, name string) (VG, error) {
	vgs, err := t.vgs(ctx)
	if err != nil {
		return VG{}, fmt.Errorf("volume group %s: %w", name, err)
	}
	for _, vg := range vgs {
		if vg.Name == name {
			return vg, nil
		}
	}
	return VG{}, fmt.Errorf("volume group %s: %w", name, ErrNotFound)
}

// CreateVG implements Client. Without --yes, and with nobody to ask, vgcreate
// declines to wipe a signature and fails.
func (t *tools) CreateVG(ctx context.Context, name string, devices []string) error {
	if err := t.change(ctx, nil, "vgcreate", append([]string{name}, t.linksOf(devices)...)...); err != nil {
		return fmt.Errorf("create volume group %s: %w", name, err)
	}
	return nil
}

// ExtendVG implements Client.
func (t *tools) ExtendVG(ctx context.Context, name string, devices []string) error {
	if err := t.change(ctx, nil, "vgextend", append([]string{name}, t.linksOf(devices)...)...); err != nil {
		return fmt.Errorf("extend volume group %s: %w", name, err)
	}
	return nil
}

// LVs implements Client.
func (t *tools) LVs(ctx context.Context, vg string) ([]LV, error) {
	lvs, err := t.lvs(ctx, vg)
	if err != nil {
		return nil, fmt.Errorf("logical volumes of %s: %w", vg, err)
	}
	return lvs, nil
}

// CreateLV implements Client.
func (t *tools) CreateLV(ctx context.Context, spec CreateSpec) error {
	if err := t.createLV(ctx, spec); err != nil {
		return fmt.Errorf("create logical volume %s/%s: %w", spec.VG, spec.Name, err)
	}
	return nil
}

func (t *tools) createLV(ctx context.Context, spec CreateSpec) error {
	args := []string{"--yes", "--wipesignatures", "n", "--zero", "n", "--name", spec.Name, "--size", bytesArg(spec.SizeBytes)}
	for _, tag := range spec.Tags {
		args = append(args, "--addtag", tag)
	}
	switch {
	case spec.Mirror:
		// What nobody wrote is never read, so the copies need not agree there:
		// dm-cache reads a block only after it wrote it, and the head of the
		// metadata is zeroed.
		args = append(args, "--type", "raid1", "--mirrors", "1", "--nosync")
	case spec.Stripes > 1:
		args = append(args, "--stripes", strconv.Itoa(spec.Stripes), "--stripesize", bytesArg(stripeBytes))
	}
	var config []string
	if !spec.Mirror {
		// As in package devmapper: nothing waits for a link that udev makes, and
		// LVM tries again to remove what udev has open. A mirror is made in steps
		// that do wait for each other.
		config = append(config, "activation{udev_sync=0}")
	}
	return t.change(ctx, config, "lvcreate", slices.Concat(args, []string{spec.VG}, t.linksOf(spec.Devices))...)
}

// Activate implements Client.
func (t *tools) Activate(ctx context.Context, vg string, names ...string) error {
	args := append([]string{"--activate", "y"}, full(vg, names)...)
	if err := t.change(ctx, nil, "lvchange", args...); err != nil {
		return fmt.Errorf("activate logical volumes of %s: %w", vg, err)
	}
	return nil
}

// ExtendLV implements Client. By the policy "cling" each stripe and each copy grows on the
// device that it is on (lvm(8), Allocation).
func (t *tools) ExtendLV(ctx context.Context, vg, name string, sizeBytes int64) error {
	lvs, err := t.LVs(ctx, vg)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(lvs, func(lv LV) bool { return lv.Name == name })
	if at < 0 {
		return fmt.Errorf("extend logical volume %s/%s: %w", vg, name, ErrNotFound)
	}
	if lvs[at].SizeBytes >= sizeBytes {
		return nil
	}
	if err := t.change(ctx, nil, "lvextend", "--alloc", "cling", "--size", bytesArg(sizeBytes), vg+"/"+name); err != nil {
		return fmt.Errorf("extend logical volume %s/%s: %w", vg, name, err)
	}
	return nil
}

// Refresh implements Client.
func (t *tools) Refresh(ctx context.Context, vg string, names ...string) error {
	if err := t.change(ctx, nil, "lvchange", append([]string{"--refresh"}, full(vg, names)...)...); err != nil {
		return fmt.Errorf("refresh logical volumes of %s: %w", vg, err)
	}
	return nil
}

// ChangeTags implements Client.
func (t *tools) ChangeTags(ctx context.Context, vg string, add, remove []string, names ...string) error {
	var args []string
	for _, tag := range add {
		args = append(args, "--addtag", tag)
	}
	for _, tag := range remove {
		args = append(args, "--deltag", tag)
	}
	if err := t.change(ctx, nil, "lvchange", append(args, full(vg, names)...)...); err != nil {
		return fmt.Errorf("tags of logical volumes of %s: %w", vg, err)
	}
	return nil
}

// Rest implements Client: there is nothing.
func (t *tools) Rest(context.Context, string, ...string) error { return nil }

// RemoveLVs implements Client. The volumes go one by one, in the order given.
func (t *tools) RemoveLVs(ctx context.Context, vg string, names ...string) error {
	present, err := t.present(ctx, vg, names)
	if err != nil {
		return err
	}
	for _, name := range present {
		if err := t.change(ctx, nil, "lvremove", "--yes", vg+"/"+name); err != nil {
			return fmt.Errorf("remove logical volume %s/%s: %w", vg, name, err)
		}
	}
	return nil
}

// present returns those of the names that exist, in their order; none for a
// missing group.
func (t *tools) present(ctx context.Context, vg string, names []string) ([]string, error) {
	lvs, err := t.LVs(ctx, vg)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []string
	for _, name := range names {
		if slices.ContainsFunc(lvs, func(lv LV) bool { return lv.Name == name }) {
			out = append(out, name)
		}
	}
	return out, nil
}

func (t *tools) list() []string {
	if p := t.devices.Load(); p != nil {
		return *p
	}
	return nil
}

// change runs a command that changes a group. config is in the form of lvm.conf.
func (t *tools) change(ctx context.Context, config []string, name string, args ...string) error {
	_, err := t.execOn(ctx, t.list(), config, name, args...)
	return err
}

// noCopies: LVM writes two copies of a group's metadata to /etc/lvm, at each change and
// when a command that reads does not find them, and keeps the older ones for thirty days
// (lvm.conf(5), section backup). With hundreds of caches that come and go these would be
// gigabytes, in a container that nobody would look into.
const noCopies = "backup{backup=0 archive=0}"

// execOn runs a command of LVM on devices.
func (t *tools) execOn(ctx context.Context, devices, config []string, name string, args ...string) ([]byte, error) {
	if len(devices) == 0 {
		return nil, ErrNoDevices
	}
	links, look, err := t.link(devices)
	if err != nil {
		return nil, err
	}
	config = append(slices.Clone(config), noCopies, look)
	args = append([]string{"--devices", strings.Join(links, ",")}, args...)
	args = append(args, "--config", strings.Join(config, " "))
	cmd := hostexec.Change(group, name, args...)
	if name == "lvs" || name == "vgs" || name == "pvs" {
		cmd = hostexec.Query(name, args...)
	}
	res, err := t.run.Run(ctx, cmd)
	if err != nil {
		return nil, classify(WithReportedErrors(cmd, res, err))
	}
	return t.unlink(res.Stdout), nil
}

// classify gives an error of LVM one of this package's sentinels; LVM's exit
// status is 5 for nearly all of them.
func classify(err error) error {
	var exit *hostexec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	text := string(exit.Stderr)
	has := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(text, w) })
	}
	switch {
	case has("nsufficient free space", "nsufficient suitable", "nsufficient free extents", "too few"):
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	case has("already exists"):
		return fmt.Errorf("%w: %w", ErrExists, err)
	case has("not found", "Failed to find logical volume", "Failed to find VG"):
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	case has("in use", "is used by another device"):
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return err
}

func bytesArg(n int64) string { return strconv.FormatInt(n, 10) + "b" }

func full(vg string, names []string) []string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = vg + "/" + n
	}
	return out
}
