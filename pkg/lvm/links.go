package lvm

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// linksOf returns the names by which LVM knows devices.
func (t *tools) linksOf(devices []string) []string {
	out := make([]string, len(devices))
	for i, device := range devices {
		out[i] = filepath.Join(t.links, device)
	}
	return out
}

// link makes the devices known in t.links, by their own path below it, and returns these
// paths and the setting with which LVM looks nowhere else (lvm.conf(5), devices/scan).
// Before it turns to the devices that it is given, a command of LVM looks at each name
// below that directory. In /dev these are those of every logical volume and of every
// volume that is attached, several of each: with 400 logical volumes in a group that was
// three quarters of the time of a command.
func (t *tools) link(devices []string) (links []string, setting string, err error) {
	links = t.linksOf(devices)
	for i, device := range devices {
		link := links[i]
		if err := os.MkdirAll(filepath.Dir(link), 0o700); err != nil {
			return nil, "", fmt.Errorf("device %s for LVM: %w", device, err)
		}
		if err := os.Symlink(device, link); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, "", fmt.Errorf("device %s for LVM: %w", device, err)
		}
		to, err := os.Readlink(link)
		if err != nil {
			return nil, "", fmt.Errorf("device %s for LVM: %w", device, err)
		}
		if to != device {
			return nil, "", fmt.Errorf("device %s for LVM: %s leads to %q: remove it", device, link, to)
		}
	}
	return links, fmt.Sprintf("devices{scan=[%q] obtain_device_list_from_udev=0}", t.links), nil
}

// unlink gives the devices in a report their names back.
func (t *tools) unlink(report []byte) []byte {
	return bytes.ReplaceAll(report, []byte(t.links+"/"), []byte("/"))
}
