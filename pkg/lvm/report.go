package lvm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nearflash/nearflash/pkg/hostexec"
)

// ErrParse is wrapped by every error of reading a report.
var ErrParse = errors.New("unexpected LVM report")

const (
	pvColumns = "pv_name,pv_uuid,vg_name,pv_size,pv_free,pv_missing"
	vgColumns = "vg_name,vg_uuid,vg_size,vg_free,vg_extent_size,pv_count,vg_missing_pv_count,lv_count,vg_partial,vg_permissions,vg_tags"
	lvColumns = "vg_name,lv_name,lv_uuid,lv_size,lv_tags,lv_active,lv_kernel_major,lv_kernel_minor,segtype,sync_percent,raid_sync_action,lv_health_status,lv_device_open"
)

// report is what `--reportformat json` prints; all values are strings.
type report struct {
	Report []struct {
		PV []map[string]string `json:"pv"`
		VG []map[string]string `json:"vg"`
		LV []map[string]string `json:"lv"`
	} `json:"report"`
	Log []struct {
		Type    string `json:"log_type"`
		Message string `json:"log_message"`
	} `json:"log"`
}

func parseReport(text []byte) (report, error) {
	var r report
	if err := json.Unmarshal(text, &r); err != nil {
		return report{}, fmt.Errorf("%w: %w", ErrParse, err)
	}
	return r, nil
}

// WithReportedErrors adds to an error what the tool said. With --reportformat
// json LVM writes its messages into the report and nothing to stderr.
func WithReportedErrors(cmd hostexec.Cmd, res hostexec.Result, err error) error {
	var exit *hostexec.ExitError
	var r report
	if !errors.As(err, &exit) || json.Unmarshal(res.Stdout, &r) != nil {
		return err
	}
	text := string(exit.Stderr)
	for _, l := range r.Log {
		if l.Type == "error" {
			text += l.Message + "\n"
		}
	}
	return hostexec.NewExitError(cmd, exit.ExitCode, []byte(text))
}

func (t *tools) report(ctx context.Context, devices []string, tool, columns string, args ...string) (report, error) {
	fixed := []string{"--reportformat", "json", "--units", "b", "--nosuffix", "--options", columns}
	out, err := t.execOn(ctx, devices, nil, tool, append(fixed, args...)...)
	if err != nil {
		return report{}, err
	}
	return parseReport(out)
}

// PVs implements Client.
func (t *tools) PVs(ctx context.Context, devices []string) ([]PV, error) {
	if len(devices) == 0 {
		return nil, nil
	}
	r, err := t.report(ctx, devices, "pvs", pvColumns)
	if err != nil {
		return nil, fmt.Errorf("physical volumes: %w", err)
	}
	return r.pvs()
}

func (t *tools) vgs(ctx context.Context) ([]VG, error) {
	r, err := t.report(ctx, t.list(), "vgs", vgColumns)
	if err != nil {
		return nil, err
	}
	return r.vgs()
}

func (t *tools) lvs(ctx context.Context, vg string) ([]LV, error) {
	r, err := t.report(ctx, t.list(), "lvs", lvColumns, vg)
	if err != nil {
		return nil, err
	}
	return r.lvs()
}

func (r report) pvs() ([]PV, error) {
	var out []PV
	for _, part := range r.Report {
		for _, row := range part.PV {
			c := columns{row: row}
			out = append(out, PV{
				Device: c.text("pv_name"), UUID: c.text("pv_uuid"), VG: c.text("vg_name"),
				SizeBytes: c.number("pv_size"), FreeBytes: c.number("pv_free"), Missing: c.text("pv_missing") != "",
			})
			if c.err != nil {
				return nil, c.err
			}
		}
	}
	return out, nil
}

func (r report) vgs() ([]VG, error) {
	var out []VG
	for _, part := range r.Report {
		for _, row := range part.VG {
			c := columns{row: row}
			out = append(out, VG{
				Name: c.text("vg_name"), UUID: c.text("vg_uuid"),
				SizeBytes: c.number("vg_size"), FreeBytes: c.number("vg_free"), ExtentBytes: c.number("vg_extent_size"),
				PVCount: int(c.number("pv_count")), MissingPVs: int(c.number("vg_missing_pv_count")), LVCount: int(c.number("lv_count")),
				Partial: c.text("vg_partial") != "", ReadOnly: c.text("vg_permissions") == "read-only", Tags: c.tags("vg_tags"),
			})
			if c.err != nil {
				return nil, c.err
			}
		}
	}
	return out, nil
}

// lvs reads logical volumes. One with several segments has several rows.
func (r report) lvs() ([]LV, error) {
	var out []LV
	seen := map[string]bool{}
	for _, part := range r.Report {
		for _, row := range part.LV {
			c := columns{row: row}
			lv := LV{
				VG: c.text("vg_name"), Name: c.text("lv_name"), UUID: c.text("lv_uuid"),
				SizeBytes: c.number("lv_size"), Tags: c.tags("lv_tags"), Active: c.text("lv_active") == "active",
				Major: int(c.number("lv_kernel_major")), Minor: int(c.number("lv_kernel_minor")),
				SegType: c.text("segtype"), SyncPercent: c.percent("sync_percent"), SyncAction: c.text("raid_sync_action"),
				Health: c.text("lv_health_status"), Open: c.text("lv_device_open") == "open",
			}
			if c.err != nil {
				return nil, c.err
			}
			if !seen[lv.UUID] {
				seen[lv.UUID] = true
				out = append(out, lv)
			}
		}
	}
	return out, nil
}

// columns reads the values of one row; the first error sticks.
type columns struct {
	row map[string]string
	err error
}

func (c *columns) text(name string) string {
	v, ok := c.row[name]
	if !ok && c.err == nil {
		c.err = fmt.Errorf("%w: a row has no column %s", ErrParse, name)
	}
	return v
}

func (c *columns) number(name string) int64 {
	v := c.text(name)
	if c.err != nil {
		return 0
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		c.err = fmt.Errorf("%w: column %s: %w", ErrParse, name, err)
	}
	return n
}

// percent is -1 for an empty column.
func (c *columns) percent(name string) float64 {
	v := c.text(name)
	if c.err != nil || v == "" {
		return -1
	}
	f, err := strconv.ParseFloat(v, 64)
	if err != nil {
		c.err = fmt.Errorf("%w: column %s: %w", ErrParse, name, err)
	}
	return f
}

func (c *columns) tags(name string) []string {
	v := c.text(name)
	if v == "" {
		return nil
	}
	return strings.Split(v, ",")
}
