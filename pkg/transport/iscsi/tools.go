package iscsi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/openiscsi"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

// tools are an Initiator with the open-iscsi that it uses, for one call.
type tools struct {
	*Initiator
	place *openiscsi.Place
}

func (i *Initiator) tools() (tools, error) {
	place, err := i.host.Open()
	if err != nil {
		return tools{}, fmt.Errorf("open-iscsi of the host: %w", err)
	}
	return tools{Initiator: i, place: place}, nil
}

// record returns the path of the record of a portal, and the account that an earlier login
// has left in it. One that is made here has none: what iscsiadm puts into it is the host's
// default.
func (i tools) record(ctx context.Context, t transport.Target, portal string) (path string, known *volume.Credentials, err error) {
	found, err := i.knownRecords(ctx, t.IQN, portal)
	if err != nil {
		return "", nil, err
	}
	if len(found) == 1 {
		known, err = recordedAccount(found[0])
		return found[0], known, err
	}
	if _, err := i.iscsiadm(ctx, t.IQN, portal, "--op", "new"); err != nil {
		return "", nil, err
	}
	if found, err = i.recordPaths(t.IQN, portal); err != nil {
		return "", nil, err
	}
	if len(found) != 1 {
		return "", nil, fmt.Errorf("iscsiadm made %d records of %s below %s", len(found), t.IQN, strings.Join(i.records, " and "))
	}
	return found[0], nil, nil
}

// knownRecords is the record of a portal that this iscsiadm uses, if there is one. The image's and
// the host's may have them in different folders; what the other one has left is removed.
func (i tools) knownRecords(ctx context.Context, iqn, portal string) ([]string, error) {
	found, err := i.recordPaths(iqn, portal)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	if len(found) == 1 && i.host == nil && i.folder(found[0]) == filepath.Dir(i.records[0]) {
		return found, nil // where the image's has them
	}
	if len(found) == 1 {
		_, err := i.iscsiadm(ctx, iqn, portal)
		if err == nil || exitCode(err) != errNoObjects {
			return found, err
		}
	}
	klog.FromContext(ctx).Info("Removing records of another iscsiadm", "iqn", iqn, "portal", portal, "records", found)
	return nil, removeRecords(found)
}

// recordPaths are the records of a portal: a file <iqn>/<address>,<port>, or
// a file "default" in a folder of that name with the portal group behind it. There are several if
// two databases have one.
func (i tools) recordPaths(iqn, portal string) ([]string, error) {
	host, port, err := net.SplitHostPort(portal)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, records := range i.records {
		found, err := filepath.Glob(filepath.Join(i.place.Path(records), iqn, host+","+port+"*"))
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			continue
		}
		if len(found) > 1 {
			return nil, fmt.Errorf("%d records for portal %s of %s: remove all but one with iscsiadm", len(found), portal, iqn)
		}
		inner, err := filepath.Glob(filepath.Join(found[0], "*"))
		if err != nil {
			return nil, err
		}
		out = append(out, append(inner, found[0])[0])
	}
	return out, nil
}

// folder is the folder of the database that has a record.
func (i tools) folder(path string) string {
	for _, records := range i.records {
		if at := i.place.Path(records); strings.HasPrefix(path, at+"/") {
			return filepath.Dir(at)
		}
	}
	return filepath.Dir(path)
}

// removeRecords removes records, and the folders that are empty then: of their portal and target.
func removeRecords(paths []string) error {
	var errs []error
	for _, path := range paths {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("initiator record: %w", err))
			continue
		}
		dir := filepath.Dir(path)
		if filepath.Base(path) == "default" {
			_ = os.Remove(dir) // one that is not empty is in use
			dir = filepath.Dir(dir)
		}
		_ = os.Remove(dir) // likewise
	}
	return errors.Join(errs...)
}

// Exit statuses of iscsiadm, usr/iscsi_err.h of open-iscsi.
const (
	errTrans          = 4
	errDatabase       = 6
	errTransTimeout   = 8
	errTargetNotFound = 19 // the login was refused for good
	errSessionExists  = 15
	errNotConnected   = 20
	errNoObjects      = 21
	errLoginAuth      = 24
)

func exitCode(err error) int {
	var exit *hostexec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode
	}
	return 0
}

// commandTimeout ends an iscsiadm that hangs. It is above the 30 s for which one
// waits for the lock of the database, and the two tries of a login.
const commandTimeout = 60 * time.Second

// databaseTries is how often a command is repeated that met a record just going away,
// databasePause the pause before the second repetition, and what each following is
// longer by.
const (
	databaseTries = 10
	databasePause = 20 * time.Millisecond
)

// iscsiadm runs one command. It is not ended with ctx: killed at the wrong moment
// it leaves the lock of the database behind, and every later one would wait for
// that lock in vain.
func (i tools) iscsiadm(ctx context.Context, iqn, portal string, args ...string) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := i.removeStaleLock(ctx); err != nil {
		return nil, err
	}
	// It goes through the records, and fails where one of them is none.
	i.swept.Do(func() {
		for _, records := range i.records {
			at := i.place.Path(records)
			if err := sweep(filepath.Dir(at), at); err != nil {
				klog.FromContext(ctx).Error(err, "What was left of initiator records was not removed")
			}
		}
	})
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commandTimeout)
	defer cancel()
	args = append([]string{"--mode", "node", "--targetname", iqn, "--portal", portal}, args...)
	res, err := i.run.Run(ctx, i.place.In(hostexec.Command("iscsiadm", args...)))
	// It goes through the records of all targets, and fails when one that it is not
	// asked for goes away meanwhile: other volumes leave at the same time.
	for try := 0; exitCode(err) == errDatabase && try < databaseTries; try++ {
		time.Sleep(time.Duration(try) * databasePause)
		res, err = i.run.Run(ctx, i.place.In(hostexec.Command("iscsiadm", args...)))
	}
	if err == nil {
		return res.Stdout, nil
	}
	kinds := map[int]error{
		errTrans: transport.ErrUnreachable, errTransTimeout: transport.ErrUnreachable,
		errTargetNotFound: transport.ErrNoTarget, errLoginAuth: transport.ErrAuth,
	}
	if kind, ok := kinds[exitCode(err)]; ok {
		return nil, fmt.Errorf("%w: %w", kind, err)
	}
	if exitCode(err) == errNotConnected {
		return nil, fmt.Errorf("%w: no iscsid runs on this node (condition PreflightPassed of its CachePool has the remedy): %w", transport.ErrNoDaemon, err)
	}
	return nil, err
}
