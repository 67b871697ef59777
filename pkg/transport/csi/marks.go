package csi

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"

	"github.com/nearflash/nearflash/pkg/transport"
)

// Marks implements transport.Transport. The one path has the driver's name, and no count: most
// disks have none, and package ioerrors counts above all of them.
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
	link, err := d.link()
	if err != nil {
		return nil, fmt.Errorf("path of %s by %s: %w", v, d.name, err)
	}
	// A disk that came back is another path.
	path := fmt.Sprintf("%s (%s) %s, %s%s", d.name, d.devno, d.sequence, d.identity, link)
	return transport.Marks{v.source.Driver: {Path: path}}, nil
}

// session is in the path of a disk behind iSCSI.
var session = regexp.MustCompile(`/session([0-9]+)/`)

// link names the connection of an iSCSI disk, which after a new login has another port
// (pkg/transport/iscsi/marks.go); "" of any other disk.
func (d disk) link() (string, error) {
	scsi, err := filepath.EvalSymlinks(filepath.Join(d.dir, "device"))
	if err != nil {
		return "", nil // no disk of SCSI
	}
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
