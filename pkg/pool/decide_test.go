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
	used := withoutTaking(plan{Extend: []string{"/dev/x"}, Ready: true, Reason: v1alpha1.ReasonPoolReady}, true)
	if !used.Ready || len(used.Extend) > 0 {
		t.Errorf("an existing pool: %+v", used)
	}
}
