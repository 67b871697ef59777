package csi

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"

	"github.com/nearflash/nearflash/pkg/transport"
)

// ErrNotCounted means that nobody counts the failed requests of a device.
var ErrNotCounted = errors.New("failed requests of the device are not counted")

// Marks implements transport.Transport. The one path has the driver's name.
func (t *Transport) Marks(_ context.Context, at transport.Target) (transport.Marks, error) {
	v, err := t.volume(at)
	if err != nil {
		return nil, err
	}
	d, found, err := t.attached(v)
	if err != nil {
		return nil, fmt.Errorf("path of %s: %w", v, err)
	}
	if !found {
		return nil, nil
	}
	m, err := t.mark(d)
	if err != nil {
		return nil, fmt.Errorf("path of %s by %s: %w", v, d.name, err)
	}
	return transport.Marks{v.source.Driver: m}, nil
}

func (t *Transport) mark(d disk) (transport.PathMark, error) {
	// A disk that came back is another path: what was sent to the one before may have failed
	// without being counted.
	path := fmt.Sprintf("%s (%s) %s, %s", d.name, d.devno, d.sequence, d.identity)
	if d.counts() {
		n, link, err := d.failed()
		if err != nil {
			return transport.PathMark{}, err
		}
		return transport.PathMark{Path: path + link, Errors: n}, nil
	}
	if t.errors == nil {
		return transport.PathMark{}, ErrNotCounted
	}
	n, id, err := t.errors.Count(d.devno)
	if err != nil {
		return transport.PathMark{}, fmt.Errorf("count of errors: %w", err)
	}
	return transport.PathMark{Path: path + ", counter " + id, Errors: n}, nil
}

var (
	// remotePort is in the path of a disk behind Fibre Channel or SRP, session behind iSCSI.
	remotePort = regexp.MustCompile(`/rport-[^/]*/`)
	session    = regexp.MustCompile(`/session([0-9]+)/`)
)

// counts reports whether the kernel counts each failed command of the disk: it does for SCSI
// disks (scsi_complete in drivers/scsi/scsi_lib.c). What it refuses to send, because a remote
// port is lost, it does not count; of iSCSI the connection tells that, of others nothing.
func (d disk) counts() bool {
	count, err := readAttr(d.dir, "device/ioerr_cnt")
	if err != nil || count == "" {
		return false
	}
	scsi, err := filepath.EvalSymlinks(filepath.Join(d.dir, "device"))
	return err == nil && !remotePort.MatchString(scsi+"/")
}

// failed is how many commands of a SCSI disk have failed. link names the connection of an
// iSCSI disk, which after a new login has another port (pkg/transport/iscsi/marks.go).
func (d disk) failed() (n uint64, link string, err error) {
	for i, name := range []string{"device/ioerr_cnt", "device/iotmo_cnt"} {
		text, err := readAttr(d.dir, name)
		if err != nil {
			return 0, "", err
		}
		if text == "" && i > 0 {
			continue // a kernel that counts timeouts with the errors, or not at all
		}
		count, err := strconv.ParseUint(text, 0, 64)
		if err != nil {
			return 0, "", fmt.Errorf("%s: %w", filepath.Base(name), err)
		}
		n += count
	}
	scsi, err := filepath.EvalSymlinks(filepath.Join(d.dir, "device"))
	if err != nil {
		return 0, "", err
	}
	found := session.FindStringSubmatchIndex(scsi + "/")
	if found == nil {
		return n, "", nil
	}
	id := scsi[found[2]:found[3]]
	dir := filepath.Join(scsi[:found[3]], "connection"+id+":0", "iscsi_connection", "connection"+id+":0")
	port, err := readAttr(dir, "local_port")
	if err != nil {
		return 0, "", err
	}
	if port == "" {
		return 0, "", fmt.Errorf("session%s has no connection", id)
	}
	return n, fmt.Sprintf(", session%s port %s", id, port), nil
}
