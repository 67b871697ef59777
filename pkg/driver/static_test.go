package driver

import (
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/pkg/volume"
)

// TestVolumeContextFormat: a blank LUN of somebody else's is formatted only if the
// PersistentVolume says so.
func TestVolumeContextFormat(t *testing.T) {
	for value, want := range map[string]bool{"": false, "false": false, "true": true} {
		attributes := map[string]string{"portals": "192.0.2.1", "iqn": "iqn.2003-01.org.example:disk1"}
		if value != "" {
			attributes[keyFormat] = value
		}
		if spec, _, err := parseVolumeContext(attributes); err != nil || spec.FormatBlank != want {
			t.Errorf("%q: %+v, %v", value, spec, err)
		}
		attributes[keyFormat] = "yes"
		if _, _, err := parseVolumeContext(attributes); err == nil || !strings.Contains(err.Error(), `volumeAttribute formatIfBlank: "yes" is not accepted; accepted are true, false`) {
			t.Errorf("yes: %v", err)
		}
	}
	_, _, err := parseVolumeContext(map[string]string{keyFormat: "true"})
	if err == nil || !strings.Contains(err.Error(), `volumeAttribute formatIfBlank: "true" is for a static volume`) {
		t.Errorf("of a volume that was made by CreateVolume: %v", err)
	}
}

// TestVolumeContextWarmStart: a static volume says how it starts; of a volume that was
// made by CreateVolume the record does.
func TestVolumeContextWarmStart(t *testing.T) {
	static := func(more map[string]string) map[string]string {
		out := map[string]string{"portals": "192.0.2.1", "iqn": "iqn.2003-01.org.example:disk1"}
		for k, v := range more {
			out[k] = v
		}
		return out
	}
	tests := map[string]struct {
		attributes map[string]string
		want       volume.WarmStart
		wantErr    string
	}{
		"nothing": {attributes: static(nil), want: volume.WarmStart{From: volume.WarmPeer}},
		"all": {
			attributes: static(map[string]string{"warmStart": "peer", "warmStartMethod": "clone", "warmStartBandwidth": "1Gi", "warmStartDeadline": "24h", "preload": "all"}),
			want:       volume.WarmStart{From: volume.WarmPeer, Method: volume.MethodClone, Bandwidth: 1 << 30, Deadline: 24 * time.Hour, Preload: true},
		},
		"mistyped": {
			attributes: static(map[string]string{"warmstart": "off"}),
			wantErr:    `unknown volumeAttribute "warmstart" (value "off") (did you mean "warmStart"?)`,
		},
		"another preload": {
			attributes: static(map[string]string{"preload": "everything"}),
			wantErr:    `volumeAttribute preload: "everything" is not accepted; accepted are none, all`,
		},
		"another method": {
			attributes: static(map[string]string{"warmStartMethod": "copy"}),
			wantErr:    `volumeAttribute warmStartMethod: "copy" is not accepted; accepted are auto, clone, stream`,
		},
		"without a cache": {
			attributes: static(map[string]string{"cacheMode": "none", "warmStart": "origin"}),
			wantErr:    `volumeAttribute warmStart: "origin" contradicts cacheMode none`,
		},
		"not static": {
			attributes: map[string]string{"warmStart": "off"},
			wantErr:    `volumeAttribute warmStart: "off" is for a static volume`,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			spec, _, err := parseVolumeContext(tc.attributes)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Errorf("error %v, want %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, spec.WarmStart); diff != "" {
				t.Errorf("warm start (-want +got):\n%s", diff)
			}
		})
	}
}

// TestVolumeContextReservations: consent to a LUN without a fence is one word, and
// reaches the node.
func TestVolumeContextReservations(t *testing.T) {
	attributes := map[string]string{"portals": "192.0.2.1", "iqn": "iqn.2003-01.org.example:disk1"}
	if _, _, err := parseVolumeContext(attributes); err != nil {
		t.Error(err)
	}
	for value, accepted := range map[string]bool{"AcceptTwoWriters": true, "true": false} {
		attributes[keyNoReservations] = value
		_, _, err := parseVolumeContext(attributes)
		if (err == nil) != accepted {
			t.Errorf("%q: %v", value, err)
		}
		if !accepted && !strings.Contains(err.Error(), `volumeAttribute withoutReservations: "true" is not accepted; accepted are AcceptTwoWriters`) {
			t.Error(err)
		}
	}
}

// TestVolumeContextAdopt: what the record of a lost volume is made of goes with the word
// that it may be, and with nothing that contradicts it.
func TestVolumeContextAdopt(t *testing.T) {
	for name, tc := range map[string]struct {
		attributes map[string]string
		want       *volume.Spec
		wantErr    string
	}{
		"writeback": {
			attributes: map[string]string{"adopt": "true", "cacheMode": "writeback", "acceptDirtyLoss": "node-loss", "cacheSize": "10%", "fsType": "ext4"},
			want:       &volume.Spec{Mode: volume.ModeWriteback, AcceptNodeLoss: true, Cache: volume.Size{Percent: 10}},
		},
		"defaults":              {attributes: map[string]string{"adopt": "true"}, want: &volume.Spec{Mode: volume.ModeWritethrough, Cache: volume.Size{Percent: defaultCachePercent}}},
		"not":                   {attributes: map[string]string{"adopt": "false"}},
		"of a named server":     {attributes: map[string]string{"adopt": "true", "target": "second"}, want: &volume.Spec{Target: "second", Mode: volume.ModeWritethrough, Cache: volume.Size{Percent: defaultCachePercent}}},
		"of no such name":       {attributes: map[string]string{"adopt": "true", "target": "Second"}, wantErr: `volumeAttribute target: "Second" is not accepted; accepted is the name of a storage server`},
		"server without it":     {attributes: map[string]string{"target": "second"}, wantErr: `volumeAttribute target: "second" goes with adopt true only`},
		"server of a LUN":       {attributes: map[string]string{"target": "second", "portals": "192.0.2.1", "iqn": "iqn.2003-01.org.example:disk1"}, wantErr: `volumeAttribute target: "second" is for a volume of nearflash-target, and contradicts portals and iqn`},
		"server of a driver":    {attributes: map[string]string{"target": "second", "originPersistentVolume": "pv-1"}, wantErr: `volumeAttribute target: "second" is for a volume of nearflash-target`},
		"not, with a cache":     {attributes: map[string]string{"cacheMode": "none"}, wantErr: `volumeAttribute cacheMode: "none" is for a static volume`},
		"another word":          {attributes: map[string]string{"adopt": "yes"}, wantErr: `volumeAttribute adopt: "yes" is not accepted; accepted are true, false`},
		"static":                {attributes: map[string]string{"adopt": "true", "portals": "192.0.2.1", "iqn": "iqn.2003-01.org.example:disk1"}, wantErr: `volumeAttribute adopt: "true" contradicts portals and iqn`},
		"to be formatted":       {attributes: map[string]string{"adopt": "true", "formatIfBlank": "true"}, wantErr: `volumeAttribute formatIfBlank: "true" contradicts adopt`},
		"writeback, no consent": {attributes: map[string]string{"adopt": "true", "cacheMode": "writeback"}, wantErr: "acceptDirtyLoss"},
	} {
		t.Run(name, func(t *testing.T) {
			spec, _, err := parseVolumeContext(tc.attributes)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Errorf("error %v, want %q", err, tc.wantErr)
				}
				return
			}
			if err != nil || (spec == nil) != (tc.want == nil) {
				t.Fatalf("got %+v, %v", spec, err)
			}
			if spec != nil && (spec.Mode != tc.want.Mode || spec.AcceptNodeLoss != tc.want.AcceptNodeLoss || spec.Cache != tc.want.Cache || spec.Static != nil) {
				t.Errorf("got %+v, want %+v", spec, tc.want)
			}
		})
	}
}

// TestVolumeContextOrigin: a static volume may lie over one of another driver, which is named
// in the place of a LUN.
func TestVolumeContextOrigin(t *testing.T) {
	tests := map[string]struct {
		attributes map[string]string
		wantErr    string
	}{
		"named":         {attributes: map[string]string{"originPersistentVolume": "pv-1"}},
		"with its kind": {attributes: map[string]string{"backend": "csi", "originPersistentVolume": "pv-1", "formatIfBlank": "false"}},
		"and a LUN": {
			attributes: map[string]string{"originPersistentVolume": "pv-1", "iqn": "iqn.2003-01.org.example:disk1"},
			wantErr:    `volumeAttribute iqn: "iqn.2003-01.org.example:disk1" is for a LUN, and contradicts originPersistentVolume`,
		},
		"of another kind": {
			attributes: map[string]string{"backend": "iscsi", "originPersistentVolume": "pv-1"},
			wantErr:    `volumeAttribute originPersistentVolume: "pv-1" goes with backend csi only, and backend is iscsi`,
		},
		"no fence":     {attributes: map[string]string{"originPersistentVolume": "pv-1", "withoutFence": "AcceptTwoWriters"}},
		"not so":       {attributes: map[string]string{"originPersistentVolume": "pv-1", "withoutFence": "yes"}, wantErr: `volumeAttribute withoutFence: "yes" is not accepted; accepted are AcceptTwoWriters`},
		"mistyped":     {attributes: map[string]string{"originPersistentVolume": "PV_1"}, wantErr: `volumeAttribute originPersistentVolume: "PV_1" is not accepted; accepted is the name of a PersistentVolume`},
		"kind alone":   {attributes: map[string]string{"backend": "csi"}, wantErr: `volumeAttribute backend: "csi" is for a static volume, which also has portals and iqn, or originPersistentVolume`},
		"unknown kind": {attributes: map[string]string{"backend": "nvme", "originPersistentVolume": "pv-1"}, wantErr: `volumeAttribute backend: "nvme" is not accepted; accepted are iscsi, csi`},
		"adopted":      {attributes: map[string]string{"adopt": "true", "originPersistentVolume": "pv-1"}, wantErr: `volumeAttribute adopt: "true" contradicts portals and iqn, and originPersistentVolume`},
		"adopted kind": {attributes: map[string]string{"adopt": "true", "backend": "csi"}, wantErr: `volumeAttribute backend: "csi" is not accepted; accepted are iscsi`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			spec, _, err := parseVolumeContext(tc.attributes)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Errorf("error %v, want %q", err, tc.wantErr)
				}
				return
			}
			if err != nil || spec.Static != nil || spec.Origin == nil || *spec.Origin != (volume.Origin{PV: "pv-1", AcceptTwoWriters: tc.attributes["withoutFence"] != ""}) || !spec.IsStatic() {
				t.Errorf("%+v, %v", spec, err)
			}
		})
	}
}

// TestChosenNode: the node that the scheduler has chosen is the first that is preferred.
func TestChosenNode(t *testing.T) {
	chosen := &csi.TopologyRequirement{Preferred: []*csi.Topology{
		{Segments: map[string]string{TopologyNode: "node-1"}}, {Segments: map[string]string{TopologyNode: "node-2"}},
	}}
	foreign := &csi.TopologyRequirement{Preferred: []*csi.Topology{{Segments: map[string]string{"zone": "z"}}}}
	if got := chosenNode(chosen); got != "node-1" {
		t.Errorf("%v: %q, want node-1", chosen, got)
	}
	for _, req := range []*csi.TopologyRequirement{nil, {}, foreign} {
		if got := chosenNode(req); got != "" {
			t.Errorf("%v: %q, want none", req, got)
		}
	}
}
