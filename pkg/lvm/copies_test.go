package lvm

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestCopies: each copy of a mirror is named with its physical volume, also one that is missing; rows
// as of LVM 2.03.31.
func TestCopies(t *testing.T) {
	run, c, links := client(t)
	row := func(pv, uuid, missing, vg, lv, of, health string) string {
		return `{"pv_name":"` + pv + `", "pv_uuid":"` + uuid + `", "pv_missing":"` + missing + `", "vg_name":"` + vg + `", "lv_name":"` + lv +
			`", "lv_parent":"` + of + `", "lv_health_status":"` + health + `"}`
	}
	a, b, vg := links+"/dev/a", links+"/dev/b", "nearflash-0123456789"
	run.On("pvs").Return(`{"report": [{"pv": [` +
		row(a, "A", "", vg, "[v.data_rmeta_0]", "v.data", "refresh needed") + "," +
		row(a, "A", "", vg, "[v.data_rimage_0]", "v.data", "refresh needed") + "," +
		row(a, "A", "", vg, "[v.data_rimage_0]", "v.data", "refresh needed") + "," +
		row(a, "A", "", vg, "s.data", "", "partial") + "," +
		row(a, "A", "", vg, "", "", "") + "," +
		row(b, "B", "", vg, "[v.data_rimage_1]", "v.data", "") + "," +
		row(b, "B", "", vg, "[m.meta_rimage_0]", "m.meta", "") + "," +
		row("[unknown]", "C", "missing", vg, "[m.meta_rimage_1]", "m.meta", "partial") + "," +
		row(b, "D", "", "other", "[x_rimage_0]", "x", "") + `]}]}`)
	got, err := c.Copies(t.Context(), vg)
	if err != nil {
		t.Fatal(err)
	}
	want := []Copy{
		{LV: "m.meta", PV: "B", Device: "/dev/b"}, {LV: "m.meta", PV: "C", Missing: true},
		{LV: "v.data", PV: "A", Device: "/dev/a", Failed: true}, {LV: "v.data", PV: "B", Device: "/dev/b"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("copies (-want +got):\n%s", diff)
	}
}
