package devmapper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
	// control opens the control device, for statistics.
	control func() (messenger, error)
}

var _ Client = (*dmsetup)(nil)

// New returns the Client of this machine's kernel.
func New(run hostexec.Runner) Client { return &dmsetup{run: run, control: openControl} }

// Create implements Client. dmsetup takes the device away again if the kernel
// refuses its table.
func (d *dmsetup) Create(ctx context.Context, name, uuid string, t Table) (Info, error) {
	return d.create(ctx, name, uuid, t)
}

// CreateReadOnly implements Client.
func (d *dmsetup) CreateReadOnly(ctx context.Context, name, uuid string, t Table) (Info, error) {
	return d.create(ctx, name, uuid, t, readOnly)
}

// readOnly is dmsetup's option for a table that is not written through.
const readOnly = "--readonly"

func (d *dmsetup) create(ctx context.Context, name, uuid string, t Table, options ...string) (Info, error) {
	if err := t.validate(); err != nil {
		return Info{}, fmt.Errorf("create %s: %w", name, err)
	}
	if _, err := d.exec(ctx, []byte(t.String()), append([]string{"create", name, "--uuid", uuid}, options...)...); err != nil {
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
	_, err := d.exec(ctx, []byte(t.String()), append([]string{"load", name}, options...)...)
	return d.refusedTable(ctx, d.missing(ctx, name, "load", err), t)
}

// Resume implements Client.
func (d *dmsetup) Resume(ctx context.Context, name string) error {
	_, err := d.exec(ctx, nil, "resume", name)
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
	for {
		infos, err := d.Info(ctx, name)
		if err != nil {
			return err
		}
		if _, found := infos[name]; !found {
			return nil
		}
		_, err = d.exec(ctx, nil, "remove", name)
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

// Message implements Client.
func (d *dmsetup) Message(ctx context.Context, name string, sector uint64, words ...string) error {
	args := append([]string{"message", name, strconv.FormatUint(sector, 10)}, words...)
	_, err := d.exec(ctx, nil, args...)
	return d.missing(ctx, name, "message", err)
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

// StatusAll implements Client. Without --noflush the kernel would commit a cache's
// metadata for every look at it.
func (d *dmsetup) StatusAll(ctx context.Context) (map[string]CacheStatus, error) {
	out, err := d.exec(ctx, nil, "status", "--noflush", "--target", "cache")
	if err != nil {
		return nil, fmt.Errorf("status of all caches: %w", err)
	}
	return parseStatusAll(string(out))
}

// CloneStatusAll implements Client. As with caches, nothing is committed: the
// counts in memory are the newer ones.
func (d *dmsetup) CloneStatusAll(ctx context.Context) (map[string]CloneStatus, error) {
	out, err := d.exec(ctx, nil, "status", "--noflush", "--target", "clone")
	if err != nil {
		return nil, fmt.Errorf("status of all clones: %w", err)
	}
	return parseCloneStatusAll(string(out))
}

// MultipathStatusAll implements Client.
func (d *dmsetup) MultipathStatusAll(ctx context.Context) (map[string]MultipathStatus, error) {
	out, err := d.exec(ctx, nil, "status", "--noflush", "--target", "multipath")
	if err != nil {
		return nil, fmt.Errorf("status of all multipath devices: %w", err)
	}
	all := map[string]MultipathStatus{}
	err = eachStatus(string(out), "multipath", func(name string, l StatusLine) {
		if s, err := ParseMultipathStatus(l.Params); err == nil {
			all[name] = s
		}
	})
	return all, err
}

// MultipathStatus implements Client.
func (d *dmsetup) MultipathStatus(ctx context.Context, name string) (MultipathStatus, error) {
	out, err := d.exec(ctx, nil, "status", "--noflush", name)
	if err != nil {
		return MultipathStatus{}, d.missing(ctx, name, "status", err)
	}
	lines, err := parseLines(string(out))
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

// Info implements Client.
func (d *dmsetup) Info(ctx context.Context, prefix string) (map[string]Info, error) {
	out, err := d.exec(ctx, nil, "info", "--columns", "--noheadings", "--separator", "|",
		"--options", "name,uuid,major,minor,open,attr")
	if err != nil {
		return nil, fmt.Errorf("list device-mapper devices: %w", err)
	}
	all, err := parseInfo(string(out))
	if err != nil {
		return nil, err
	}
	for name := range all {
		if !strings.HasPrefix(name, prefix) {
			delete(all, name)
		}
	}
	return all, nil
}

// parseInfo reads the columns name|uuid|major|minor|open|attr. The attributes
// are four letters: L for a live table, I for an inactive one, s for suspended,
// and r or w.
func parseInfo(text string) (map[string]Info, error) {
	all := map[string]Info{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line == "No devices found" {
			continue
		}
		f := strings.Split(line, "|")
		if len(f) != 6 || len(f[5]) != 4 {
			return nil, fmt.Errorf("%w: info line %q", ErrParse, line)
		}
		info := Info{
			Name: f[0], UUID: f[1],
			HasLive: f[5][0] == 'L', HasInactive: f[5][1] == 'I', Suspended: f[5][2] == 's', ReadOnly: f[5][3] == 'r',
		}
		for i, dst := range []*int{&info.Major, &info.Minor, &info.OpenCount} {
			n, err := strconv.Atoi(f[2+i])
			if err != nil {
				return nil, fmt.Errorf("%w: info line %q: %w", ErrParse, line, err)
			}
			*dst = n
		}
		all[info.Name] = info
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
	cmd := hostexec.Command("dmsetup", args...)
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
