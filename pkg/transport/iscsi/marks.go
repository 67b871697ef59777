package iscsi

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/transport"
)

// Marks implements transport.Transport.
func (i *Initiator) Marks(_ context.Context, t transport.Target) (transport.Marks, error) {
	if err := check(t); err != nil {
		return nil, err
	}
	out := transport.Marks{}
	for _, portal := range t.Portals {
		s, up, err := i.sysfs.session(t.IQN, portal)
		if err != nil {
			return nil, err
		}
		if !up {
			continue
		}
		u, found, err := s.lunDevice(t.LUN)
		if err != nil {
			return nil, err
		}
		if !found || !u.ready() {
			continue
		}
		if out[portal], err = s.mark(u); err != nil {
			return nil, fmt.Errorf("path of %s by %s: %w", t, portal, err)
		}
	}
	return out, nil
}

// mark reads the mark of one path. The kernel counts failed commands, and
// does not count what it refuses to send: as long as the session is lost for longer than
// its replacement timeout, it fails requests by itself. So the connection is part of the
// name: after a new login it has another port. The LUN's number in sysfs is another one
// after the LUN was removed and found again.
func (s session) mark(u lunDevice) (transport.PathMark, error) {
	errors, err := transport.FailedCommands(readLine(u.dir, "ioerr_cnt"), readLine(u.dir, "iotmo_cnt"))
	if err != nil {
		return transport.PathMark{}, err
	}
	var st unix.Stat_t
	if err := unix.Stat(u.dir, &st); err != nil {
		return transport.PathMark{}, fmt.Errorf("LUN: %w", err)
	}
	port := readLine(filepath.Join(s.root, "class/iscsi_connection", "connection"+strings.TrimPrefix(s.name, "session")+":0"), "local_port")
	if port == "" {
		return transport.PathMark{}, fmt.Errorf("%s has no connection", s.name)
	}
	return transport.PathMark{Path: fmt.Sprintf("%s port %s, %s (%d)", s.name, port, filepath.Base(u.dir), st.Ino), Errors: errors}, nil
}
