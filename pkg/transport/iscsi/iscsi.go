package iscsi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/keylock"
	"github.com/nearflash/nearflash/pkg/openiscsi"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Replacement timeouts: how long the kernel holds I/O back while a session is
// lost. One path waits as open-iscsi does by default; with several, the device
// above them waits and a dead path must fail over soon.
const (
	replacementSingle = 120 * time.Second
	replacementMulti  = 15 * time.Second
)

// lunTimeout is how long the disk driver may take with a LUN that the session
// has found; pollInterval is the time between two looks for it.
const (
	lunTimeout   = 30 * time.Second
	pollInterval = 50 * time.Millisecond
)

// Config are the places of the host; the zero value is right outside tests.
type Config struct {
	// Sysfs is where sysfs is mounted, /sys, and Dev where device nodes are, /dev.
	Sysfs, Dev string
	// Records are where the initiator's record database may be, /var/lib/iscsi/nodes and
	// /etc/iscsi/nodes: that differs between distributions.
	Records []string
	// LockDir is where iscsiadm locks that database, /run/lock/iscsi.
	LockDir string
	// Host is the host's open-iscsi, if its iscsiadm is used; nil is that of this container.
	Host *openiscsi.Host
	// InitiatorName is the name that sessions log in with, the one that targets are
	// told to let in. Empty is the name that iscsid was started with, which is another
	// node's too where nodes share a kernel, and so an iscsid.
	InitiatorName string
}

// Initiator is transport.Transport over iSCSI.
type Initiator struct {
	run     hostexec.Runner
	host    *openiscsi.Host
	sysfs   sysfs
	dev     string
	records []string
	// swept is done once what a killed plugin left beside the records was removed.
	swept   sync.Once
	lockDir string
	name    string
	locks   keylock.Queue
}

var _ transport.Transport = (*Initiator)(nil)

// New returns an Initiator.
func New(run hostexec.Runner, c Config) *Initiator {
	if c.Sysfs == "" {
		c.Sysfs = "/sys"
	}
	if c.Dev == "" {
		c.Dev = "/dev"
	}
	if len(c.Records) == 0 {
		c.Records = []string{"/var/lib/iscsi/nodes", "/etc/iscsi/nodes"}
	}
	if c.LockDir == "" {
		c.LockDir = "/run/lock/iscsi"
	}
	return &Initiator{run: run, host: c.Host, sysfs: sysfs{root: c.Sysfs}, dev: c.Dev, records: c.Records, lockDir: c.LockDir, name: c.InitiatorName}
}

// lock serialises the work on one target: LUNs of several volumes may share its
// sessions.
func (i *Initiator) lock(iqn string) func() {
	unlock, _ := i.locks.Lock(context.Background(), iqn) // which never ends
	return unlock
}

// iqnPattern is RFC 3720, 3.2.6.3, in the characters that RFC 3722 leaves. The
// name is part of a path, so that nothing else may pass.
var iqnPattern = regexp.MustCompile(`^(iqn|eui|naa)\.[a-z0-9.:-]{1,219}$`)

func check(t transport.Target) error {
	if !iqnPattern.MatchString(t.IQN) {
		return fmt.Errorf("%w: IQN %q", transport.ErrInvalid, t.IQN)
	}
	if len(t.Portals) == 0 {
		return fmt.Errorf("%w: %s has no portal", transport.ErrInvalid, t.IQN)
	}
	for _, p := range t.Portals {
		host, port, err := net.SplitHostPort(p)
		if err != nil || host == "" || strings.ContainsAny(host, "/,") {
			return fmt.Errorf("%w: portal %q: accepted is address:port", transport.ErrInvalid, p)
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return fmt.Errorf("%w: portal %q: port %q is no number from 1 to 65535", transport.ErrInvalid, p, port)
		}
	}
	if t.LUN < 0 || t.LUN > 16383 {
		return fmt.Errorf("%w: LUN %d: accepted are 0 to 16383", transport.ErrInvalid, t.LUN)
	}
	return nil
}

// Connect implements transport.Transport.
func (i *Initiator) Connect(ctx context.Context, t transport.Target, cred *volume.Credentials) (transport.Origin, error) {
	if err := check(t); err != nil {
		return transport.Origin{}, err
	}
	defer i.lock(t.IQN)()
	tools, err := i.tools()
	if err != nil {
		return transport.Origin{}, fmt.Errorf("connect %s: %w", t, err)
	}
	defer tools.place.Close()
	var problems []error
	for _, portal := range t.Portals {
		if err := tools.connectPortal(ctx, t, portal, cred); err != nil {
			problems = append(problems, fmt.Errorf("portal %s: %w", portal, err))
		}
	}
	if len(problems) == len(t.Portals) {
		return transport.Origin{}, fmt.Errorf("connect %s: %w", t, errors.Join(problems...))
	}
	for _, err := range problems {
		klog.FromContext(ctx).Error(err, "One path of the target is down", "iqn", t.IQN)
	}
	o, found, err := i.sysfs.lookup(t)
	if err == nil && !found {
		err = transport.ErrNoLUN
	}
	if err != nil {
		return transport.Origin{}, fmt.Errorf("connect %s: %w", t, err)
	}
	return o, nil
}

// connectPortal brings up one path: record, session, LUN.
func (i tools) connectPortal(ctx context.Context, t transport.Target, portal string, cred *volume.Credentials) error {
	s, up, err := i.sysfs.session(t.IQN, portal)
	if err != nil {
		return err
	}
	if up && t.FailFast && s.lost() {
		// Left from an earlier time: iscsid would go on with what it knew then.
		if err := i.disconnectPortal(ctx, t, portal); err != nil {
			return err
		}
		up = false
	}
	if !up {
		if err := i.login(ctx, t, portal, cred); err != nil {
			return err
		}
		if s, up, err = i.sysfs.session(t.IQN, portal); err != nil {
			return err
		}
		if !up {
			return fmt.Errorf("%w: no session after the login", transport.ErrUnreachable)
		}
	}
	return i.addLUN(ctx, s, t.LUN)
}

// login logs in with the first account that the target takes. A record is replaced only
// after the target has refused what it has (states.md, The account of an admission).
func (i tools) login(ctx context.Context, t transport.Target, portal string, cred *volume.Credentials) error {
	path, known, err := i.record(ctx, t, portal)
	if err != nil {
		return err
	}
	for n, account := range accounts(known, cred, t.FailFast) {
		if n > 0 {
			klog.FromContext(ctx).Info("The target refuses the account, trying the next one", "iqn", t.IQN, "portal", portal)
		}
		if err = i.loginWith(ctx, t, portal, path, account); !errors.Is(err, transport.ErrAuth) {
			return err
		}
	}
	return err
}

// loginWith writes the record of one portal, without an account what that has stays, and
// logs in.
func (i tools) loginWith(ctx context.Context, t transport.Target, portal, path string, account *volume.Credentials) error {
	if err := editRecord(path, i.folder(path), i.recordSettings(t, account)); err != nil {
		return err
	}
	_, err := i.iscsiadm(ctx, t.IQN, portal, "--login")
	if exitCode(err) == errSessionExists {
		return nil
	}
	return err
}

// addLUN makes the kernel add one LUN to a session, and waits for its device.
func (i tools) addLUN(ctx context.Context, s session, lun int) error {
	ctx, cancel := context.WithTimeout(ctx, lunTimeout)
	defer cancel()
	for first := true; ; first = false {
		u, found, err := s.lunDevice(lun)
		if err != nil {
			return err
		}
		if found && u.ready() && (first || u.opens(i.dev)) {
			return nil
		}
		if first {
			if err := s.scan(lun); err != nil {
				return err
			}
			continue
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: LUN %d did not become a disk: %w", transport.ErrNoLUN, lun, ctx.Err())
		case <-time.After(pollInterval):
		}
		if !found {
			// The scan has answered; what it did not find is not there.
			return fmt.Errorf("%w: the target has no disk as LUN %d", transport.ErrNoLUN, lun)
		}
	}
}

// Disconnect implements transport.Transport.
func (i *Initiator) Disconnect(ctx context.Context, t transport.Target) error {
	if err := check(t); err != nil {
		return err
	}
	defer i.lock(t.IQN)()
	tools, err := i.tools()
	if err != nil {
		return fmt.Errorf("disconnect %s: %w", t, err)
	}
	defer tools.place.Close()
	var problems []error
	for _, portal := range t.Portals {
		if err := tools.disconnectPortal(ctx, t, portal); err != nil {
			problems = append(problems, fmt.Errorf("disconnect %s at %s: %w", t.IQN, portal, err))
		}
	}
	return errors.Join(problems...)
}

func (i tools) disconnectPortal(ctx context.Context, t transport.Target, portal string) error {
	s, up, err := i.sysfs.session(t.IQN, portal)
	if err != nil {
		return err
	}
	if up {
		u, found, err := s.lunDevice(t.LUN)
		if err != nil {
			return err
		}
		if found {
			if err := u.remove(); err != nil {
				return err
			}
		}
		others, err := s.lunDirs()
		if err != nil || len(others) > 0 {
			return err // another volume uses the session
		}
		if _, err := i.iscsiadm(ctx, t.IQN, portal, "--logout"); err != nil && exitCode(err) != errNoObjects {
			return err
		}
	}
	found, err := i.recordPaths(t.IQN, portal)
	if err != nil || len(found) == 0 {
		return err
	}
	if _, err := i.iscsiadm(ctx, t.IQN, portal, "--op", "delete"); err != nil && exitCode(err) != errNoObjects {
		return err
	}
	// What another iscsiadm has made, this one may not know.
	if found, err = i.recordPaths(t.IQN, portal); err != nil {
		return err
	}
	return removeRecords(found)
}

// Lookup implements transport.Transport.
func (i *Initiator) Lookup(_ context.Context, t transport.Target) (transport.Origin, bool, error) {
	if err := check(t); err != nil {
		return transport.Origin{}, false, err
	}
	return i.sysfs.lookup(t)
}

// Rescan implements transport.Transport.
func (i *Initiator) Rescan(_ context.Context, t transport.Target, _ *volume.Credentials) error {
	if err := check(t); err != nil {
		return err
	}
	seen := false
	for _, portal := range t.Portals {
		s, up, err := i.sysfs.session(t.IQN, portal)
		if err != nil {
			return err
		}
		if !up {
			continue
		}
		u, found, err := s.lunDevice(t.LUN)
		if err != nil {
			return err
		}
		if !found {
			continue
		}
		seen = true
		if err := u.rescan(); err != nil {
			return fmt.Errorf("rescan %s at %s: %w", t.IQN, portal, err)
		}
	}
	if !seen {
		return fmt.Errorf("rescan %s: %w", t, transport.ErrNoLUN)
	}
	return nil
}
