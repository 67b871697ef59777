package devmapper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nearflash/nearflash/pkg/hostexec"
)

// removeRetry is how long Remove tries a device that is open, and removePause
// the time between two tries.
const (
	removeRetry = 5 * time.Second
	removePause = 100 * time.Millisecond
)

// dmsetup is Client over dmsetup(8).
type dmsetup struct {
	run hostexec.Runner
	// control opens the control device.
	control func() (kernelControl, error)
}

var _ Client = (*dmsetup)(nil)

// New returns the Client of this machine's kernel.
func New(run hostexec.Runner) Client { return &dmsetup{run: run, control: openControl} }

// Await implements Client.
func (d *dmsetup) Await(ctx context.Context, names ...string) error {
	if err := d.run.Await(ctx, names...); err != nil {
		return fmt.Errorf("device mapper: %w", err)
	}
	return nil
}

// Create implements Client. dmsetup takes the device away again if the kernel
// refuses its table.
func (d *dmsetup) Create(ctx context.Context, name, uuid string, t Table) (Info, error) {
	return d.create(ctx, name, uuid, t)
}

// CreateReadOnly implements Client.
func (d *dmsetup) CreateReadOnly(ctx context.Context, name, uuid string, t Table) (Info, error) {
	return d.create(ctx, name, uuid, t, readOnly)
}

// noUdevSync makes dmsetup return without waiting until udev has looked at a device: its
// node is there already, of devtmpfs, and of the links that udev makes none is used
// here. Waiting would cost more than all the rest of a stage.
const noUdevSync = "--noudevsync"

// readOnly is dmsetup's option for a table that is not written through.
const readOnly = "--readonly"

func (d *dmsetup) create(ctx context.Context, name, uuid string, t Table, options ...string) (Info, error) {
	if err := t.validate(); err != nil {
		return Info{}, fmt.Errorf("create %s: %w", name, err)
	}
	if len(t) >= bigTable {
		if err := d.createBig(ctx, name, uuid, t, options); err != nil {
			return Info{}, fmt.Errorf("create %s: %w", name, err)
		}
	} else if _, err := d.exec(ctx, []byte(t.String()), append([]string{"create", name, "--uuid", uuid, noUdevSync}, options...)...); err != nil {
		return Info{}, d.refusedTable(ctx, fmt.Errorf("create %s: %w", name, err), t)
	}
	infos, err := d.Info(ctx, name)
	if err != nil {
		return Info{}, err
	}
	info, ok := infos[name]
	if !ok {
		return Info{}, fmt.Errorf("create %s: %w: removed by somebody else", name, ErrNotExist)
	}
	return info, nil
}

// createBig makes a device with a table that dmsetup would refuse.
func (d *dmsetup) createBig(ctx context.Context, name, uuid string, t Table, options []string) error {
	if _, err := d.exec(ctx, nil, "create", name, "--uuid", uuid, "--notable", noUdevSync); err != nil {
		return err
	}
	err := d.loadBig(ctx, name, t, options)
	if err == nil {
		err = d.Resume(ctx, name)
	}
	if err != nil {
		return errors.Join(err, d.Remove(context.WithoutCancel(ctx), name))
	}
	return nil
}

// loadBig loads such a table.
func (d *dmsetup) loadBig(ctx context.Context, name string, t Table, options []string) error {
	c, err := d.control()
	if err != nil {
		return err
	}
	defer c.close()
	if err := d.Await(ctx, name); err != nil {
		return err
	}
	return c.load(name, t, slices.Contains(options, readOnly))
}

// Load implements Client.
func (d *dmsetup) Load(ctx context.Context, name string, t Table) error { return d.load(ctx, name, t) }

// LoadReadOnly implements Client.
func (d *dmsetup) LoadReadOnly(ctx context.Context, name string, t Table) error {
	return d.load(ctx, name, t, readOnly)
}

func (d *dmsetup) load(ctx context.Context, name string, t Table, options ...string) error {
	if err := t.validate(); err != nil {
		return fmt.Errorf("load %s: %w", name, err)
	}
	if len(t) >= bigTable {
		return d.missing(ctx, name, "load", d.loadBig(ctx, name, t, options))
	}
	_, err := d.exec(ctx, []byte(t.String()), append([]string{"load", name}, options...)...)
	return d.refusedTable(ctx, d.missing(ctx, name, "load", err), t)
}

// Resume implements Client.
func (d *dmsetup) Resume(ctx context.Context, name string) error {
	_, err := d.exec(ctx, nil, "resume", name, noUdevSync)
	return d.missing(ctx, name, "resume", err)
}

// ResumeUnfrozen implements Client.
func (d *dmsetup) ResumeUnfrozen(ctx context.Context, name string) error {
	_, err := d.exec(ctx, nil, "resume", name, noUdevSync, "--nolockfs")
	return d.missing(ctx, name, "resume", err)
}

// Clear implements Client.
func (d *dmsetup) Clear(ctx context.Context, name string) error {
	_, err := d.exec(ctx, nil, "clear", name)
	return d.missing(ctx, name, "clear", err)
}

// Remove implements Client.
func (d *dmsetup) Remove(ctx context.Context, name string) error {
	retry, cancel := context.WithTimeout(ctx, removeRetry)
	defer cancel()
	if err := d.Await(ctx, name); err != nil {
		return err // it may be about to appear
	}
	for {
		infos, err := d.Info(ctx, name)
		if err != nil {
			return err
		}
		if _, found := infos[name]; !found {
			return nil
		}
		_, err = d.exec(ctx, nil, "remove", name, noUdevSync)
		if err == nil {
			return nil
		}
		if err = d.missing(ctx, name, "remove", err); errors.Is(err, ErrNotExist) {
			return nil
		}
		if !errors.Is(err, ErrBusy) {
			return err
		}
		select {
		case <-retry.Done():
			return err
		case <-time.After(removePause):
		}
	}
}

// Rename implements Client.
func (d *dmsetup) Rename(ctx context.Context, name, to string) error {
	_, err := d.exec(ctx, nil, "rename", name, to, noUdevSync)
	if errors.Is(err, ErrBusy) {
		// dm_hash_rename in dm-ioctl.c: EBUSY is a name that is taken, and nothing else.
		err = fmt.Errorf("%w: %s: %w", ErrExist, to, err)
	}
	return d.missing(ctx, name, "rename", err)
}

// immediate are the messages that the kernel answers without waiting for any I/O
// (dm-clone.c, dm-mpath.c). They go without a process, which takes up to half a second
// to start on a busy node: in that time a copy that is to stop copies on at full speed.
var immediate = map[string]bool{
	"enable_hydration": true, "disable_hydration": true, "hydration_threshold": true, "reinstate_path": true, "fail_if_no_path": true,
	"queue_if_no_path": true,
}

// Message implements Client.
func (d *dmsetup) Message(ctx context.Context, name string, sector uint64, words ...string) error {
	if sector == 0 && len(words) > 0 && immediate[words[0]] {
		return d.messageAtOnce(name, strings.Join(words, " "))
	}
	args := append([]string{"message", name, strconv.FormatUint(sector, 10)}, words...)
	_, err := d.exec(ctx, nil, args...)
	return d.missing(ctx, name, "message", err)
}

// messageAtOnce sends a message to the first target without dmsetup.
func (d *dmsetup) messageAtOnce(name, text string) error {
	c, err := d.control()
	if err != nil {
		return err
	}
	defer c.close()
	_, err = c.message(name, text)
	if errors.Is(err, ErrNotExist) {
		// The kernel says the same of a device that has no live table.
		if _, infoErr := c.info(name); infoErr == nil {
			return fmt.Errorf("%w: %q to %s: it has no live table", ErrInvalid, text, name)
		}
	}
	return err
}

// Table implements Client.
func (d *dmsetup) Table(ctx context.Context, name string) (Table, error) {
	out, err := d.exec(ctx, nil, "table", name)
	if err != nil {
		return nil, d.missing(ctx, name, "table", err)
	}
	t, err := ParseTable(string(out))
	if err != nil {
		return nil, fmt.Errorf("table of %s: %w", name, err)
	}
	return t, nil
}

// Deps implements Client.
func (d *dmsetup) Deps(_ context.Context, name string) ([]string, error) {
	c, err := d.control()
	if err != nil {
		return nil, err
	}
	defer c.close()
	return c.deps(name)
}

// oneTarget selects, of all devices, those that can be a cache or a clone. dmsetup would
// else ask each device for its status, and fail for all when one has more targets than
// fit into 64 MiB: a table of a million segments below one volume would hide the caches of
// all others.
const oneTarget = "segments=1"

// Status implements Client.
func (d *dmsetup) Status(ctx context.Context, name string) (CacheStatus, bool, error) {
	l, found, err := d.oneStatus(ctx, name, "cache")
	if err != nil || !found {
		return CacheStatus{}, false, err
	}
	return cacheStatus(l), true, nil
}

// oneStatus is the status line of a device whose only target is of one kind; found is
// false of another device.
func (d *dmsetup) oneStatus(ctx context.Context, name, kind string) (l StatusLine, found bool, err error) {
	out, err := d.exec(ctx, nil, "status", "--noflush", name)
	if err != nil {
		return l, false, d.missing(ctx, name, "status", err)
	}
	lines, err := parseLines(string(out))
	if err != nil {
		return l, false, fmt.Errorf("status of %s: %w", name, err)
	}
	if len(lines) != 1 || lines[0].Type != kind {
		return l, false, nil
	}
	return lines[0], true, nil
}

// CommitAll implements Client.
func (d *dmsetup) CommitAll(ctx context.Context) error {
	if _, err := d.exec(ctx, nil, "status", "--target", "cache", "--select", oneTarget); err != nil {
		return fmt.Errorf("commit the metadata of all caches: %w", err)
	}
	return nil
}

// Commit implements Client.
func (d *dmsetup) Commit(ctx context.Context, name string) error {
	_, err := d.exec(ctx, nil, "status", name)
	return d.missing(ctx, name, "commit", err)
}

// CloneStatus implements Client.
func (d *dmsetup) CloneStatus(ctx context.Context, name string) (CloneStatus, bool, error) {
	l, found, err := d.oneStatus(ctx, name, "clone")
	if err != nil || !found {
		return CloneStatus{}, false, err
	}
	return cloneStatus(l), true, nil
}

// MultipathStatus implements Client. It starts no process, because it is asked as often
// as a lost path must be noticed soon, and waits for nothing (dm-mpath.c).
func (d *dmsetup) MultipathStatus(_ context.Context, name string) (MultipathStatus, error) {
	c, err := d.control()
	if err != nil {
		return MultipathStatus{}, err
	}
	defer c.close()
	text, err := c.status(name)
	if err != nil {
		return MultipathStatus{}, err
	}
	lines, err := parseLines(text)
	if err != nil {
		return MultipathStatus{}, fmt.Errorf("status of %s: %w", name, err)
	}
	if len(lines) != 1 || lines[0].Type != "multipath" {
		return MultipathStatus{}, fmt.Errorf("status of %s: %w: it is no multipath device", name, ErrParse)
	}
	s, err := ParseMultipathStatus(lines[0].Params)
	if err != nil {
		return MultipathStatus{}, fmt.Errorf("status of %s: %w", name, err)
	}
	return s, nil
}

// Info implements Client. It starts no process, because everything that changes a
// device looks before and after.
func (d *dmsetup) Info(ctx context.Context, prefix string) (map[string]Info, error) {
	c, err := d.control()
	if err != nil {
		return nil, err
	}
	defer c.close()
	names, err := c.names()
	if err != nil {
		return nil, err
	}
	all := map[string]Info{}
	for _, name := range names {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		switch info, err := c.info(name); {
		case errors.Is(err, ErrNotExist): // removed meanwhile
		case err != nil:
			return nil, err
		default:
			all[name] = info
		}
	}
	return all, nil
}

// Targets implements Client.
func (d *dmsetup) Targets(ctx context.Context) (map[string]Version, error) {
	out, err := d.exec(ctx, nil, "targets")
	if err != nil {
		return nil, fmt.Errorf("list device-mapper targets: %w", err)
	}
	return parseTargets(string(out))
}

// parseTargets reads lines such as "cache            v2.4.0".
func parseTargets(text string) (map[string]Version, error) {
	all := map[string]Version{}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		var v Version
		if len(f) != 2 {
			return nil, fmt.Errorf("%w: target line %q", ErrParse, line)
		}
		if n, err := fmt.Sscanf(f[1], "v%d.%d.%d", &v.Major, &v.Minor, &v.Patch); err != nil || n != 3 {
			return nil, fmt.Errorf("%w: target line %q", ErrParse, line)
		}
		all[f[0]] = v
	}
	return all, nil
}

func (d *dmsetup) exec(ctx context.Context, stdin []byte, args ...string) ([]byte, error) {
	cmd := hostexec.Query("dmsetup", args...)
	if args[0] != "table" && args[0] != "status" && args[0] != "targets" {
		device := args[1]
		if args[0] == "rename" { // which waits for no command that works on the device
			device = args[2]
		}
		cmd = hostexec.Change(device, "dmsetup", args...)
	}
	if stdin != nil {
		cmd.Stdin = bytes.NewReader(stdin)
	}
	res, err := d.run.Run(ctx, cmd)
	if err != nil {
		return nil, classify(err)
	}
	return res.Stdout, nil
}

// classify gives an error of dmsetup one of this package's sentinels. The words
// are the C library's for the errno of the ioctl, and libdm's own.
func classify(err error) error {
	var exit *hostexec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	text := string(exit.Stderr)
	busy := strings.Contains(text, "Device or resource busy")
	switch {
	case strings.Contains(text, "create ioctl") && busy, strings.Contains(text, "already exists"):
		// DM_DEV_CREATE answers EBUSY for a name or UUID that is taken.
		return fmt.Errorf("%w: %w", ErrExist, err)
	case busy:
		return fmt.Errorf("%w: %w", ErrBusy, err)
	case strings.Contains(text, "Is device-mapper driver missing from kernel?"),
		strings.Contains(text, "/dev/mapper/control: open failed"):
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	case strings.Contains(text, "Invalid argument"), strings.Contains(text, "Invalid table"):
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return err
}

// missing adds ErrNotExist when the device is not there. The text of the error
// cannot tell: "No such device or address" may speak of a device of the table.
func (d *dmsetup) missing(ctx context.Context, name, verb string, err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%s %s: %w", verb, name, err)
	infos, infoErr := d.Info(ctx, name)
	if infoErr != nil {
		return errors.Join(err, infoErr)
	}
	if _, found := infos[name]; !found {
		return fmt.Errorf("%w: %w", ErrNotExist, err)
	}
	return err
}

// refusedTable tells a table that the kernel refuses from one whose target it
// does not have; the errno is the same.
func (d *dmsetup) refusedTable(ctx context.Context, err error, t Table) error {
	if !errors.Is(err, ErrInvalid) {
		return err
	}
	targets, listErr := d.Targets(ctx)
	if listErr != nil {
		return errors.Join(err, listErr)
	}
	for _, l := range t {
		if _, known := targets[l.Target.Type()]; !known {
			return fmt.Errorf("%w: target %s: %w", ErrUnsupported, l.Target.Type(), err)
		}
	}
	return err
}

// validate checks what the kernel would refuse without saying why.
func (t Table) validate() error {
	if len(t) == 0 {
		return fmt.Errorf("%w: an empty table", ErrInvalid)
	}
	for _, l := range t {
		if v, ok := l.Target.(interface{ Validate() error }); ok {
			if err := v.Validate(); err != nil {
				return err
			}
		}
	}
	return nil
}
