package volume_test

import (
	"testing"

	"github.com/nearflash/nearflash/pkg/volume"
)

func TestSourceSame(t *testing.T) {
	lun := func(iqn string) volume.Source { return volume.Source{ISCSI: volume.ISCSI{IQN: iqn}} }
	other := func(change func(*volume.CSISource)) volume.Source {
		c := &volume.CSISource{Driver: "d", Handle: "h", PV: "p", Admission: "1"}
		change(c)
		return volume.Source{CSI: c}
	}
	csi := other(func(*volume.CSISource) {})
	cases := map[string]struct {
		a, b volume.Source
		want bool
	}{
		"one target":         {lun("a"), lun("a"), true},
		"another target":     {lun("a"), lun("b"), false},
		"nothing":            {volume.Source{}, volume.Source{}, true},
		"nothing and a LUN":  {volume.Source{}, lun("a"), false},
		"a LUN and a volume": {lun(""), csi, false},
		"one attachment":     {csi, other(func(c *volume.CSISource) { c.CapacityBytes, c.Attachment = 1, map[string]string{"a": "b"} }), true},
		"attached anew":      {csi, other(func(c *volume.CSISource) { c.Admission = "2" }), false},
		"another volume":     {csi, other(func(c *volume.CSISource) { c.Handle = "x" }), false},
		"another PV":         {csi, other(func(c *volume.CSISource) { c.PV = "x" }), false},
		"another driver":     {csi, other(func(c *volume.CSISource) { c.Driver = "x" }), false},
	}
	for name, tc := range cases {
		if got := tc.a.Same(tc.b); got != tc.want || tc.b.Same(tc.a) != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
	if !(volume.Source{}).IsZero() || lun("a").IsZero() || csi.IsZero() {
		t.Error("a source that is none, or none that is one")
	}
}

func TestEmptyDetach(t *testing.T) {
	for driver, want := range map[string]bool{
		"rbd.csi.ceph.com": true, "rook-ceph.rbd.csi.ceph.com": true,
		"myrbd.csi.ceph.com": false, "cephfs.csi.ceph.com": false, "ebs.csi.aws.com": false, "": false,
	} {
		if got := volume.EmptyDetach(driver); got != want {
			t.Errorf("%s: %v", driver, got)
		}
	}
}

func TestSourceFenced(t *testing.T) {
	for want, s := range map[bool]volume.Source{
		true:  {CSI: &volume.CSISource{Driver: "d"}},
		false: {CSI: &volume.CSISource{Driver: "d", NoFence: true}},
	} {
		if s.Fenced() != want {
			t.Errorf("%+v: fenced %v", s.CSI, s.Fenced())
		}
	}
	if !(volume.Source{ISCSI: volume.ISCSI{IQN: "iqn.x"}}).Fenced() {
		t.Error("a LUN is not fenced")
	}
}
