package lvm

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// copyColumns are those of a row for each segment of each physical volume, which one that is missing
// has too.
const copyColumns = "pv_name,pv_uuid,pv_missing,vg_name,lv_name,lv_parent,lv_health_status"

// Copies implements Client.
func (t *tools) Copies(ctx context.Context, vg string) ([]Copy, error) {
	r, err := t.report(ctx, t.list(), "pvs", copyColumns)
	if err != nil {
		return nil, fmt.Errorf("copies of the logical volumes of %s: %w", vg, err)
	}
	copies, found, err := r.copies(vg)
	if err == nil && !found {
		err = fmt.Errorf("copies of the logical volumes of %s: %w", vg, ErrNotFound)
	}
	return copies, err
}

// copies reads the internal volumes that are the copies of a mirror, one after the other. found tells
// whether the group has a physical volume.
func (r report) copies(vg string) (out []Copy, found bool, err error) {
	images := map[string]Copy{}
	for _, part := range r.Report {
		for _, row := range part.PV {
			c := columns{row: row}
			image, of := inner(c.text("lv_name")), inner(c.text("lv_parent"))
			now := Copy{LV: of, PV: c.text("pv_uuid"), Missing: c.text("pv_missing") != ""}
			now.Failed = c.text("lv_health_status") == HealthRefresh
			if device := c.text("pv_name"); strings.HasPrefix(device, "/") && !now.Missing {
				now.Device = device
				// A device of the device mapper has a link in /dev/mapper for a name.
				if real, err := filepath.EvalSymlinks(device); err == nil {
					now.Device = real
				}
			}
			in := c.text("vg_name") == vg
			if c.err != nil {
				return nil, false, c.err
			}
			found = found || in
			if !in || !strings.HasPrefix(image, of+imageInfix) || of == "" {
				continue
			}
			if before, known := images[image]; known && (before.Missing || !now.Missing) {
				now.PV, now.Device, now.Missing = before.PV, before.Device, before.Missing
			}
			images[image] = now
		}
	}
	for _, image := range slices.Sorted(maps.Keys(images)) {
		out = append(out, images[image])
	}
	return out, found, nil
}

// imageInfix is between the name of a mirror and the number of a copy (lvmraid(7), SubLVs).
const imageInfix = "_rimage_"

// LVM's words for a mirror that has lost a copy, and for the copy: the kernel has given it up, though
// its device may be there (character D of dm-raid's status), or the device is missing.
const (
	HealthRefresh = "refresh needed"
	HealthPartial = "partial"
)
