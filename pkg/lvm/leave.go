package lvm

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// ReduceVG implements Client.
func (t *tools) ReduceVG(ctx context.Context, name, device string) error {
	if err := t.change(ctx, nil, "vgreduce", append([]string{name}, t.linksOf([]string{device})...)...); err != nil {
		return fmt.Errorf("take %s out of volume group %s: %w", device, name, err)
	}
	return nil
}

// RemoveVG implements Client. Without --yes or --force, and with nobody to ask, vgremove declines
// to remove logical volumes, and fails.
func (t *tools) RemoveVG(ctx context.Context, name string) error {
	if err := t.change(ctx, nil, "vgremove", name); err != nil {
		return fmt.Errorf("remove volume group %s: %w", name, err)
	}
	return nil
}

// RemovePV implements Client. Without --force, pvremove declines what is of a group.
func (t *tools) RemovePV(ctx context.Context, device string) error {
	if err := t.change(ctx, nil, "pvremove", t.linksOf([]string{device})...); err != nil {
		return fmt.Errorf("remove physical volume %s: %w", device, err)
	}
	return nil
}

// OnDevices implements Client.
func (t *tools) OnDevices(ctx context.Context, vg string) (map[string][]string, error) {
	r, err := t.report(ctx, t.list(), "lvs", onColumns, "--all", vg)
	if err != nil {
		return nil, fmt.Errorf("devices of the logical volumes of %s: %w", vg, err)
	}
	return r.onDevices()
}

// onColumns are those of a row for each segment of each logical volume, internal ones too.
const onColumns = "lv_name,lv_parent,devices"

// onDevices resolves what each logical volume is made of: devices, or internal volumes, whose
// parents it is then. LVM writes the names of what is internal in brackets, and behind each part
// where it begins.
func (r report) onDevices() (map[string][]string, error) {
	parents, parts := map[string]string{}, map[string][]string{}
	for _, report := range r.Report {
		for _, row := range report.LV {
			c := columns{row: row}
			name := inner(c.text("lv_name"))
			parents[name] = inner(c.text("lv_parent"))
			for part := range strings.SplitSeq(c.text("devices"), ",") {
				part, _, _ = strings.Cut(part, "(")
				parts[name] = append(parts[name], part)
			}
			if c.err != nil {
				return nil, c.err
			}
		}
	}
	out := map[string][]string{}
	for name, below := range parts {
		for range parents { // no chain is longer
			if parents[name] == "" {
				break
			}
			name = parents[name]
		}
		for _, part := range below {
			if !strings.HasPrefix(part, "/") {
				continue
			}
			// A device of the device mapper has a link in /dev/mapper for a name.
			if real, err := filepath.EvalSymlinks(part); err == nil {
				part = real
			}
			if !slices.Contains(out[part], name) {
				out[part] = append(out[part], name)
			}
		}
	}
	for device := range out {
		slices.Sort(out[device])
	}
	return out, nil
}

// inner takes the brackets off the name of an internal volume.
func inner(name string) string { return strings.Trim(name, "[]") }
