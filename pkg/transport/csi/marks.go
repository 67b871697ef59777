package csi

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"

	"github.com/nearflash/nearflash/pkg/transport"
)

// Marks implements transport.Transport. The one path has the driver's name. Most disks count
// nothing; package ioerrors counts above them.
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
	m, err := d.mark()
	if err != nil {
		return nil, fmt.Errorf("path of %s by %s: %w", v, d.name, err)
	}
	return transport.Marks{v.source.Driver: m}, nil
}

func (d disk) mark() (m transport.PathMark, err error) {
	scsi, err := filepath.EvalSymlinks(filepath.Join(d.dir, "device"))
	if err != nil {
		scsi = "" // no disk of SCSI
	}
	link, err := link(scsi)
	if err != nil {
		return m, err
	}
	// A disk that came back is another path.
	m.Path = fmt.Sprintf("%s (%s) %s, %s%s", d.name, d.devno, d.sequence, d.identity, link)
	count, err := readAttr(d.dir, "device/ioerr_cnt")
	if err != nil {
		return m, err
	}
	// What SCSI refuses to send, because a remote port is lost, it does not count.
	if m.Uncounted = count == "" || remotePort.MatchString(scsi+"/"); m.Uncounted {
		return m, nil
	}
	late, err := readAttr(d.dir, "device/iotmo_cnt")
	if err != nil {
		return m, err
	}
	m.Errors, err = transport.FailedCommands(count, late)
	return m, err
}

// remotePort is in the path of a disk behind Fibre Channel or SRP, session behind iSCSI.
var (
	remotePort = regexp.MustCompile(`/rport-[^/]*/`)
	session    = regexp.MustCompile(`/session([0-9]+)/`)
)

// link names the connection of an iSCSI disk, given by its folder in sysfs, which after a new login
// has another port (pkg/transport/iscsi/marks.go); "" of any other disk.
func link(scsi string) (string, error) {
	found := session.FindStringSubmatchIndex(scsi + "/")
	if found == nil {
		return "", nil
	}
	id := scsi[found[2]:found[3]]
	dir := filepath.Join(scsi[:found[3]], "connection"+id+":0", "iscsi_connection", "connection"+id+":0")
	port, err := readAttr(dir, "local_port")
	if err != nil {
		return "", err
	}
	if port == "" {
		return "", fmt.Errorf("session%s has no connection", id)
	}
	return fmt.Sprintf(", session%s port %s", id, port), nil
}
