package pool

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

func TestDecide(t *testing.T) {
	blank := func(p string) DeviceFacts { return DeviceFacts{Path: p, SizeBytes: 1 << 30} }
	inPool := func(p string) DeviceFacts { return DeviceFacts{Path: p, InPool: true} }
	taken := func(p string) DeviceFacts { return DeviceFacts{Path: p, Problem: "ext4 signature"} }
	out := func(d DeviceFacts) DeviceFacts { d.Evacuate = true; return d }
	leaving := func(p string, used int64) DeviceFacts {
		return DeviceFacts{Path: p, InPool: true, Evacuate: true, Announced: true, UsedBytes: used}
	}
	noted := func(p string) DeviceFacts { return DeviceFacts{Path: p, Noted: true} }
	unannounced := func(d DeviceFacts) DeviceFacts { d.Announced = false; return d }
	ready := func(p plan) plan { p.Ready, p.Reason = true, v1alpha1.ReasonPoolReady; return p }
	one, two := []string{"/dev/x1"}, []string{"/dev/x2"}
	glob := v1alpha1.CachePoolSpec{Devices: []string{"/dev/x*"}}
	mirror := v1alpha1.CachePoolSpec{Devices: glob.Devices, Redundancy: v1alpha1.RedundancyMirror}
	cases := map[string]struct {
		spec        v1alpha1.CachePoolSpec
		f           facts
		want        plan
		wantMessage string
	}{
		"nothing configured": {want: plan{Reason: v1alpha1.ReasonNoDevices}, wantMessage: "node.pool.devices"},
		"nothing matches":    {spec: glob, want: plan{Reason: v1alpha1.ReasonNoDevices}, wantMessage: "/dev/x*"},
		"first devices": {
			spec: glob, f: facts{Devices: []DeviceFacts{blank("/dev/x1"), blank("/dev/x2")}},
			want: plan{Create: []string{"/dev/x1", "/dev/x2"}, Ready: true, Reason: v1alpha1.ReasonPoolReady},
		},
		"checksums and two copies": {
			spec: v1alpha1.CachePoolSpec{Devices: glob.Devices, Redundancy: v1alpha1.RedundancyMirror, Integrity: true}, f: facts{VGExists: true, Devices: []DeviceFacts{inPool("/dev/x1"), blank("/dev/x2")}},
			want: plan{Reason: v1alpha1.ReasonPoolError}, wantMessage: "integrity does not go with redundancy mirror",
		},
		"settled": {
			spec: glob, f: facts{VGExists: true, Devices: []DeviceFacts{inPool("/dev/x1")}},
			want: plan{Ready: true, Reason: v1alpha1.ReasonPoolReady},
		},
		"a device joins": {
			spec: glob, f: facts{VGExists: true, Devices: []DeviceFacts{inPool("/dev/x1"), blank("/dev/x2")}},
			want: plan{Extend: []string{"/dev/x2"}, Ready: true, Reason: v1alpha1.ReasonPoolReady},
		},
		"a signature is refused, the rest is used": {
			spec: glob, f: facts{Devices: []DeviceFacts{taken("/dev/x1"), blank("/dev/x2")}},
			want:        plan{Create: []string{"/dev/x2"}, Ready: true, Reason: v1alpha1.ReasonPoolReady},
			wantMessage: "refused, not wiped: /dev/x1: ext4 signature",
		},
		"only refused devices": {
			spec: glob, f: facts{Devices: []DeviceFacts{taken("/dev/x1")}},
			want: plan{Reason: v1alpha1.ReasonDeviceNotBlank}, wantMessage: "ext4 signature",
		},
		"a mirror needs two": {
			spec: mirror, f: facts{Devices: []DeviceFacts{blank("/dev/x1")}},
			want: plan{Reason: v1alpha1.ReasonTooFewDevices}, wantMessage: "at least two",
		},
		"a mirror of two": {
			spec: mirror, f: facts{Devices: []DeviceFacts{blank("/dev/x1"), blank("/dev/x2")}},
			want: plan{Create: []string{"/dev/x1", "/dev/x2"}, Ready: true, Reason: v1alpha1.ReasonPoolReady},
		},
		"a device leaves": {
			spec: glob, f: facts{VGExists: true, Devices: []DeviceFacts{leaving("/dev/x1", 1), inPool("/dev/x2")}},
			want: ready(plan{Leaving: one}), wantMessage: "1 device(s) in use",
		},
		"a device on which nothing lies": {
			spec: glob, f: facts{VGExists: true, Devices: []DeviceFacts{leaving("/dev/x1", 0), inPool("/dev/x2")}},
			want: ready(plan{Leaving: one, Reduce: one}),
		},
		"nothing lies on it, and nobody has heard of it": {
			spec: glob, f: facts{VGExists: true, Devices: []DeviceFacts{unannounced(leaving("/dev/x1", 0)), inPool("/dev/x2")}},
			want: ready(plan{Leaving: one}),
		},
		"a device leaves while another joins": {
			spec: glob, f: facts{VGExists: true, Devices: []DeviceFacts{leaving("/dev/x1", 0), blank("/dev/x2")}},
			want: ready(plan{Leaving: one, Reduce: one, Extend: two}),
		},
		"out, and blank": {
			spec: glob, f: facts{VGExists: true, Devices: []DeviceFacts{out(blank("/dev/x1")), inPool("/dev/x2")}},
			want: ready(plan{}),
		},
		"out, before there is a pool": {
			spec: glob, f: facts{Devices: []DeviceFacts{out(blank("/dev/x1")), blank("/dev/x2")}},
			want: ready(plan{Create: two}),
		},
		"out, and with something of somebody": {
			spec: glob, f: facts{VGExists: true, Devices: []DeviceFacts{out(taken("/dev/x1")), inPool("/dev/x2")}},
			want: ready(plan{}), wantMessage: "1 device(s) in use",
		},
		"taken out, its label is left": {
			spec: glob, f: facts{VGExists: true, Devices: []DeviceFacts{out(noted("/dev/x1")), inPool("/dev/x2")}},
			want: ready(plan{Wipe: one}),
		},
		"the same, named no more": {
			spec: glob, f: facts{VGExists: true, Devices: []DeviceFacts{noted("/dev/x1"), inPool("/dev/x2")}},
			want: ready(plan{Wipe: one}),
		},
		"the last device leaves": {
			spec: glob, f: facts{VGExists: true, Devices: []DeviceFacts{leaving("/dev/x1", 1)}},
			want: plan{Reason: v1alpha1.ReasonEvacuated, Leaving: one}, wantMessage: "spec.evacuate",
		},
		"nothing lies on the last device": {
			spec: glob, f: facts{VGExists: true, Devices: []DeviceFacts{leaving("/dev/x1", 0)}},
			want: plan{Reason: v1alpha1.ReasonEvacuated, Leaving: one, Reduce: one, Dissolve: true},
		},
		"the last two, of which one is empty": {
			spec: glob, f: facts{VGExists: true, Devices: []DeviceFacts{leaving("/dev/x1", 0), leaving("/dev/x2", 1)}},
			want: plan{Reason: v1alpha1.ReasonEvacuated, Leaving: []string{"/dev/x1", "/dev/x2"}, Reduce: one},
		},
		"half a mirror leaves": {
			spec: mirror, f: facts{VGExists: true, Devices: []DeviceFacts{leaving("/dev/x1", 1), inPool("/dev/x2")}},
			want: plan{Reason: v1alpha1.ReasonTooFewDevices, Leaving: one}, wantMessage: "at least two",
		},
		"a mirror leaves, and one that is to join it is too few": {
			spec: mirror, f: facts{VGExists: true, Devices: []DeviceFacts{leaving("/dev/x1", 0), leaving("/dev/x2", 0), blank("/dev/x3")}},
			want: plan{Reason: v1alpha1.ReasonTooFewDevices, Leaving: []string{"/dev/x1", "/dev/x2"}, Reduce: []string{"/dev/x1", "/dev/x2"}, Dissolve: true}, wantMessage: "at least two",
		},
		"a third of a mirror leaves": {
			spec: mirror, f: facts{VGExists: true, Devices: []DeviceFacts{leaving("/dev/x1", 1), inPool("/dev/x2"), inPool("/dev/x3")}},
			want: ready(plan{Leaving: one}),
		},
		"a device leaves while another is missing": {
			spec: glob, f: facts{VGExists: true, MissingPVs: 1, Devices: []DeviceFacts{leaving("/dev/x1", 0), inPool("/dev/x2")}},
			want: plan{Reason: v1alpha1.ReasonDeviceMissing}, wantMessage: "missing",
		},
		"a lost device": {
			spec: glob, f: facts{VGExists: true, MissingPVs: 1, Devices: []DeviceFacts{inPool("/dev/x1"), blank("/dev/x2")}},
			want: plan{Reason: v1alpha1.ReasonDeviceMissing}, wantMessage: "missing",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := decide(tc.spec, tc.f)
			if !strings.Contains(got.Message, tc.wantMessage) {
				t.Errorf("message %q does not contain %q", got.Message, tc.wantMessage)
			}
			got.Message = ""
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("plan differs (-want +got):\n%s", diff)
			}
		})
	}
}

// While the CachePool cannot be read, an existing pool is used and no device
// taken: the object may name others than the flags.
func TestWithoutTaking(t *testing.T) {
	made := withoutTaking(plan{Create: []string{"/dev/x"}, Ready: true, Reason: v1alpha1.ReasonPoolReady}, false)
	if made.Ready || len(made.Create) > 0 || made.Message == "" {
		t.Errorf("a pool would be made: %+v", made)
	}
	used := withoutTaking(plan{Extend: []string{"/dev/x"}, Leaving: []string{"/dev/y", "/dev/z"}, Reduce: []string{"/dev/y"}, Wipe: []string{"/dev/v"}, Ready: true, Reason: v1alpha1.ReasonPoolReady}, true)
	if !used.Ready || len(used.Extend) > 0 || len(used.Reduce) > 0 || len(used.Wipe) > 0 || len(used.Leaving) != 2 {
		t.Errorf("an existing pool: %+v", used)
	}
}
