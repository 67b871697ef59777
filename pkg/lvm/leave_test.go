package lvm

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestOnDevices: what is internal counts as the volume that it is of, whatever lies between, and each
// volume counts once.
func TestOnDevices(t *testing.T) {
	run, c, links := client(t)
	run.On("lvs").Return(`{"report": [{"lv": [
		{"lv_name":"one", "lv_parent":"", "devices":"` + links + `/dev/a(0)"},
		{"lv_name":"one", "lv_parent":"", "devices":"` + links + `/dev/b(7)"},
		{"lv_name":"two", "lv_parent":"", "devices":"` + links + `/dev/a(9),` + links + `/dev/b(9)"},
		{"lv_name":"mirror", "lv_parent":"", "devices":"mirror_rimage_0(0),mirror_rimage_1(0)"},
		{"lv_name":"[mirror_rimage_0]", "lv_parent":"mirror", "devices":"mirror_rimage_0_imeta(0)"},
		{"lv_name":"[mirror_rimage_0_imeta]", "lv_parent":"[mirror_rimage_0]", "devices":"` + links + `/dev/b(30)"},
		{"lv_name":"[mirror_rimage_1]", "lv_parent":"mirror", "devices":"` + links + `/dev/b(40)"}
	]}]}`)
	got, err := c.OnDevices(t.Context(), "nearflash-0123456789")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string][]string{"/dev/a": {"one", "two"}, "/dev/b": {"mirror", "one", "two"}}, got); diff != "" {
		t.Errorf("on devices (-want +got):\n%s", diff)
	}
}
