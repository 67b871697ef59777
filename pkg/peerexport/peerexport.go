// Package peerexport exports devices of a node to another node: read-only, over
// iSCSI, with the kernel's target (package lio).
//
// Each device is a target of its own with one LUN, one initiator and one
// CHAP account. The names contain the node's, because two nodes may share a kernel,
// and none of them can be one of nearflash-target, which may run on the same
// machine. The kernel keeps no export over a restart, and this package keeps no
// record: whoever exports decides what is to be there.
package peerexport

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/nearflash/nearflash/pkg/target/lio"
	"github.com/nearflash/nearflash/pkg/volume"
)

// DefaultPort is IANA's port of iSCSI.
const DefaultPort = 3260

// serialDigits is the length of a unit serial, of which the kernel uses 25.
const serialDigits = 32

// Exporter exports devices of one node. Calls for different names may run at the
// same time; calls for one name must not.
type Exporter struct {
	// Tree is the kernel's target tree.
	Tree *lio.Tree
	// Prepare makes the kernel able to export (lio.Host); nil does nothing.
	Prepare func(context.Context) error
	// Node is the node's name.
	Node string
	// NodeIP is the address at which other nodes reach this one, and Port the TCP
	// port; 0 is DefaultPort.
	NodeIP string
	Port   int
}

// Export exports a device to one initiator, and to nobody else. It is idempotent: a
// new password replaces the old one, a new initiator or device too, and sessions
// that fit are not disturbed. name is that of the volume.
//
// Errors: ErrInvalid; ErrUnavailable if the kernel does not export it.
func (e *Exporter) Export(ctx context.Context, name, device, initiator string, cred volume.Credentials) (volume.ISCSI, error) {
	if _, err := volume.ParseID(name); err != nil {
		return volume.ISCSI{}, err
	}
	if net.ParseIP(e.NodeIP) == nil {
		return volume.ISCSI{}, fmt.Errorf("%w: address of the node %q is no IP address", volume.ErrInvalid, e.NodeIP)
	}
	if e.Prepare != nil {
		if err := e.Prepare(ctx); err != nil {
			return volume.ISCSI{}, fmt.Errorf("%w: export of volume %s: %w", volume.ErrUnavailable, name, err)
		}
	}
	want := e.target(name)
	want.Device = device
	// As the kernel compares names (RFC 3720, 3.2.6.1).
	want.ACLs = []lio.ACL{{Initiator: strings.ToLower(initiator), Username: cred.Username, Password: cred.Password}}
	if err := e.Tree.Ensure(ctx, want); err != nil {
		return volume.ISCSI{}, fmt.Errorf("%w: export of volume %s: %w", volume.ErrUnavailable, name, err)
	}
	return volume.ISCSI{Portals: want.Portals, IQN: want.IQN, LUN: lio.LUN}, nil
}

// Unexport ends an export and cuts its session; one that is not there is success.
func (e *Exporter) Unexport(ctx context.Context, name string) error {
	t := e.target(name)
	if err := e.Tree.Remove(ctx, t.IQN, t.Backstore); err != nil {
		return fmt.Errorf("end the export of volume %s: %w", name, err)
	}
	return nil
}

// InUse reports whether an initiator has a session with an export now; one that is not
// there has none.
func (e *Exporter) InUse(_ context.Context, name string) (bool, error) {
	in, err := e.Tree.InUse(e.target(name).IQN)
	if err != nil {
		return false, fmt.Errorf("sessions of the export of volume %s: %w", name, err)
	}
	return in, nil
}

// List returns the names of what this node exports, in order. Halves of exports
// that a crash has left are among them.
func (e *Exporter) List(context.Context) ([]string, error) {
	t := e.target("")
	targets, terr := e.Tree.Targets(t.IQN)
	stores, serr := e.Tree.Backstores(t.Backstore)
	if err := errors.Join(terr, serr); err != nil {
		return nil, fmt.Errorf("read the kernel's targets: %w", err)
	}
	names := map[string]bool{}
	for _, iqn := range targets {
		names[strings.TrimPrefix(iqn, t.IQN)] = true
	}
	for _, s := range stores {
		names[strings.TrimPrefix(s, t.Backstore)] = true
	}
	return slices.Sorted(maps.Keys(names)), nil
}

// target returns the export of a name without its device and its initiator.
//
// nearflash-target names "iqn.2026-11.io.nearflash:<server>:<volume>:g<generation>" and
// "<server>:<volume>"; a server's name never begins with an underscore.
func (e *Exporter) target(name string) lio.Target {
	port := e.Port
	if port == 0 {
		port = DefaultPort
	}
	return lio.Target{
		IQN:       volume.ExportIQN(e.Node, volume.ID(name)),
		Backstore: "_" + volume.ExportName(e.Node) + name,
		Serial:    digits(e.Node+"\x00"+name, serialDigits),
		Portals:   []string{net.JoinHostPort(e.NodeIP, strconv.Itoa(port))},
		ReadOnly:  true,
	}
}

// digits are the first n hexadecimal digits of a hash.
func digits(text string, n int) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])[:n]
}
