package lvol

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/lvm"
)

const (
	lvColumns = "vg_uuid,lv_name,lv_uuid,lv_size,lv_tags,lv_active,lv_path,segtype,pool_lv,data_percent,metadata_percent,lv_metadata_size,zero"
	vgColumns = "vg_uuid,vg_size,vg_free,vg_extent_size"
)

// lvRow is one LV as `lvs --reportformat json` prints it; all values are strings.
type lvRow struct {
	VGUUID          string `json:"vg_uuid"`
	LVName          string `json:"lv_name"`
	LVUUID          string `json:"lv_uuid"`
	Size            string `json:"lv_size"`
	Tags            string `json:"lv_tags"`
	Active          string `json:"lv_active"`
	Path            string `json:"lv_path"`
	SegType         string `json:"segtype"`
	Pool            string `json:"pool_lv"`
	DataPercent     string `json:"data_percent"`
	MetadataPercent string `json:"metadata_percent"`
	MetadataSize    string `json:"lv_metadata_size"`
	Zero            string `json:"zero"`
}

type segRow struct {
	PERanges string `json:"seg_pe_ranges"`
}

type vgRow struct {
	UUID   string `json:"vg_uuid"`
	Size   string `json:"vg_size"`
	Free   string `json:"vg_free"`
	Extent string `json:"vg_extent_size"`
}

type report struct {
	Report []struct {
		LV  []lvRow  `json:"lv"`
		VG  []vgRow  `json:"vg"`
		Seg []segRow `json:"seg"`
	} `json:"report"`
}

type vgInfo struct {
	uuid               string
	size, free, extent int64
}

type poolInfo struct {
	size, metadata  int64
	dataPercent     float64
	metadataPercent float64
}

// lvmTimeout is how long a command is waited for, so that its volume is not locked for ever.
const lvmTimeout = 10 * time.Minute

// lvm runs an LVM command that changes something. It is not given up with ctx: it would go
// on behind whoever comes next.
func (m *Manager) lvm(ctx context.Context, name string, args ...string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lvmTimeout)
	defer cancel()
	_, err := m.exec(ctx, hostexec.Change(m.cfg.VolumeGroup, name, args...))
	return err
}

func (m *Manager) exec(ctx context.Context, cmd hostexec.Cmd) ([]byte, error) {
	if len(m.cfg.Devices) > 0 {
		cmd.Args = append([]string{"--devices", strings.Join(m.cfg.Devices, ",")}, cmd.Args...)
	}
	res, err := m.run.Run(ctx, cmd)
	if err != nil {
		return nil, classify(lvm.WithReportedErrors(cmd, res, err))
	}
	return res.Stdout, nil
}

func (m *Manager) report(ctx context.Context, tool, columns string, args ...string) (report, error) {
	fixed := []string{"--reportformat", "json", "--units", "b", "--nosuffix", "--options", columns}
	out, err := m.exec(ctx, hostexec.Command(tool, append(fixed, args...)...))
	if err != nil {
		return report{}, err
	}
	var r report
	if err := json.Unmarshal(out, &r); err != nil {
		return report{}, fmt.Errorf("%s: parse report: %w", tool, err)
	}
	return r, nil
}

func (m *Manager) lvs(ctx context.Context, what string) ([]lvRow, error) {
	r, err := m.report(ctx, "lvs", lvColumns, what)
	if err != nil {
		return nil, err
	}
	var rows []lvRow
	for _, part := range r.Report {
		for _, row := range part.LV {
			// A column of segments makes a row of each segment (lvs(8), segtype).
			if !slices.ContainsFunc(rows, func(r lvRow) bool { return r.LVUUID == row.LVUUID }) {
				rows = append(rows, row)
			}
		}
	}
	return rows, nil
}

func (m *Manager) readVG(ctx context.Context) (vgInfo, error) {
	r, err := m.report(ctx, "vgs", vgColumns, m.cfg.VolumeGroup)
	if err != nil {
		return vgInfo{}, fmt.Errorf("volume group %s: %w", m.cfg.VolumeGroup, err)
	}
	for _, part := range r.Report {
		for _, row := range part.VG {
			return row.info()
		}
	}
	return vgInfo{}, fmt.Errorf("volume group %s: not in the report of vgs", m.cfg.VolumeGroup)
}

func (r vgRow) info() (vgInfo, error) {
	v := vgInfo{uuid: r.UUID}
	for _, f := range []struct {
		to   *int64
		text string
	}{{&v.size, r.Size}, {&v.free, r.Free}, {&v.extent, r.Extent}} {
		n, err := strconv.ParseInt(f.text, 10, 64)
		if err != nil {
			return vgInfo{}, fmt.Errorf("vgs: size %q: %w", f.text, err)
		}
		*f.to = n
	}
	if v.uuid == "" || v.extent <= 0 {
		return vgInfo{}, fmt.Errorf("vgs: uuid %q, extent size %d", v.uuid, v.extent)
	}
	return v, nil
}

// readPool finds the thin pool among the LVs of the group and refuses one that
// would show old data.
func (m *Manager) readPool(rows []lvRow) (poolInfo, error) {
	name := m.full(m.cfg.ThinPool)
	for _, r := range rows {
		if r.LVName != m.cfg.ThinPool {
			continue
		}
		if r.SegType != "thin-pool" {
			return poolInfo{}, fmt.Errorf("%s is of type %s, not a thin pool", name, r.SegType)
		}
		if r.Zero != "zero" {
			return poolInfo{}, fmt.Errorf("thin pool %s does not zero new blocks, so that a volume would show the data of deleted ones: run `lvchange --zero y %s`", name, name)
		}
		return poolInfo{
			size: parseSize(r.Size), metadata: parseSize(r.MetadataSize),
			dataPercent: parsePercent(r.DataPercent), metadataPercent: parsePercent(r.MetadataPercent),
		}, nil
	}
	return poolInfo{}, fmt.Errorf("thin pool %s does not exist: create it with `lvcreate --type thin-pool --zero y ...`", name)
}

// volume converts a row; ok is false for LVs that are not volumes of ours.
func (r lvRow) volume() (v Volume, ok bool) {
	v = Volume{
		LV: r.LVName, UUID: r.LVUUID, VGUUID: r.VGUUID, Path: r.Path, SizeBytes: parseSize(r.Size),
		Thin: r.SegType == "thin", Active: r.Active == "active",
	}
	v.UsedBytes = v.SizeBytes
	if v.Thin {
		v.UsedBytes = int64(float64(v.SizeBytes) * parsePercent(r.DataPercent) / 100)
	}
	for _, tag := range strings.Split(r.Tags, ",") {
		switch {
		case strings.HasPrefix(tag, tagVolume):
			v.Name = strings.TrimPrefix(tag, tagVolume)
		case strings.HasPrefix(tag, tagGen):
			v.generations = append(v.generations, tag)
			if n, err := strconv.ParseInt(strings.TrimPrefix(tag, tagGen), 10, 64); err == nil {
				v.Generation = max(v.Generation, n)
			}
		case strings.HasPrefix(tag, tagFrom):
			v.From = strings.TrimPrefix(tag, tagFrom)
		case tag == tagDeleting:
			v.State = Deleting
		case tag == tagUnzeroed && v.State != Deleting:
			v.State = Unzeroed
		}
	}
	return v, v.Name != "" && r.LVName == lvPrefix+v.Name
}

// room is the volume that a row is room for the growth of; ok is false for any other LV.
func (r lvRow) room() (name string, ok bool) {
	name, ok = strings.CutPrefix(r.LVName, growPrefix)
	return name, ok && slices.ContainsFunc(strings.Split(r.Tags, ","), func(tag string) bool { return strings.HasPrefix(tag, tagGrow) })
}

// parseSize reads a size in bytes; what LVM does not know it prints as empty.
func parseSize(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func parsePercent(s string) float64 {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0
	}
	return f
}

// classify turns what LVM says into the errors of this package. LVM ends with 5
// for all of it, so the text (LC_ALL=C) has to tell.
func classify(err error) error {
	var exit *hostexec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	text := strings.ToLower(string(exit.Stderr))
	for _, c := range []struct {
		text string
		is   error
	}{
		{"failed to find logical volume", ErrNotFound},
		{"not found in volume group", ErrNotFound}, // the origin of a snapshot
		{"already exists in volume group", ErrExists},
		{"insufficient free space", ErrNoSpace},
		{"insufficient suitable", ErrNoSpace},
		{"not enough free", ErrNoSpace},
		{"no free data space", ErrNoSpace},
		{" in use.", ErrBusy},
		{"is in use", ErrBusy},
		{"is used by another device", ErrBusy},
	} {
		if strings.Contains(text, c.text) {
			return fmt.Errorf("%w: %w", c.is, err)
		}
	}
	return err
}
