package preflight

import (
	"context"
	"errors"
	"strings"
	"testing"
)

const (
	// vanilla is `uname -v` of a kernel that nobody marked.
	vanilla = "#1 SMP PREEMPT_DYNAMIC Thu Nov 19 12:00:00 UTC 2026"
	ubuntu  = "#134-Ubuntu SMP PREEMPT_DYNAMIC Fri Oct  9 10:00:00 UTC 2026"
)

// debian is `uname -v` of a package of Debian.
func debian(version string) string {
	return "#1 SMP PREEMPT_DYNAMIC Debian " + version + " (2026-11-05)"
}

// kernelOf is the kernel that says so of itself, made by an ordinary compiler.
func kernelOf(release, version string) Kernel {
	return Kernel{release, version, "Linux version " + release + " (root@build) (gcc (Debian 14.2.0-19) 14.2.0, GNU ld 2.44) " + version}
}

func TestTracksWrites(t *testing.T) {
	const all = "6.1.176, 6.6.143, 6.12.94, 6.18.36, 7.0.13 and 7.1"
	cases := map[string]struct {
		release, version string
		// want are words of the reason; none if the mode may be used.
		want []string
	}{
		"mainline, of the lab":           {"7.2.7", vanilla, nil},
		"mainline, first good":           {"7.1.0", vanilla, nil},
		"mainline, later":                {"8.0.0", vanilla, nil},
		"mainline, last bad":             {"7.0.12", vanilla, []string{"Linux 7.0.12 (kernel.org) has defects in passthrough mode; fixed in 7.0.13"}},
		"mainline, end of 7.0":           {"7.0.13", vanilla, nil},
		"6.18, CVE-2026-53062 alone":     {"6.18.33", vanilla, []string{"Linux 6.18.33 (kernel.org)", "fixed in 6.18.36"}},
		"6.18, good":                     {"6.18.36", vanilla, nil},
		"6.12, CVE-2026-53062 alone":     {"6.12.91", vanilla, []string{"fixed in 6.12.94"}},
		"6.12, last bad":                 {"6.12.93", vanilla, []string{"fixed in 6.12.94"}},
		"6.12, good":                     {"6.12.94", vanilla, nil},
		"6.6, last bad":                  {"6.6.142", vanilla, []string{"fixed in 6.6.143"}},
		"6.6, good":                      {"6.6.143", vanilla, nil},
		"6.1, last bad":                  {"6.1.175", vanilla, []string{"fixed in 6.1.176"}},
		"6.1, good":                      {"6.1.176", vanilla, nil},
		"numbers, not text":              {"6.1.1000", vanilla, nil},
		"5.15 lacks one fix":             {"5.15.300", vanilla, []string{"Linux 5.15.300 (kernel.org) has defects", "fixed in " + all}},
		"5.10 lacks one fix":             {"5.10.300", vanilla, []string{"Linux 5.10.300", "fixed in " + all}},
		"series without fixes":           {"6.17.13", vanilla, []string{"Linux 6.17.13", "fixed in " + all}},
		"series that ended before 7.0":   {"6.19.14", vanilla, []string{"Linux 6.19.14", "fixed in " + all}},
		"ancient":                        {"4.4.302", vanilla, []string{"Linux 4.4.302"}},
		"Talos, good":                    {"6.18.36-talos", vanilla, nil},
		"Talos, bad":                     {"6.18.33-talos", vanilla, []string{"Linux 6.18.33 (Talos)", "fixed in 6.18.36"}},
		"Flatcar, good":                  {"6.12.94-flatcar", vanilla, nil},
		"Flatcar, bad":                   {"6.12.93-flatcar", vanilla, []string{"Linux 6.12.93 (Flatcar)", "fixed in 6.12.94"}},
		"Debian 12":                      {"6.1.0-50-amd64", debian("6.1.176-1"), nil},
		"Debian 12, bad":                 {"6.1.0-48-amd64", debian("6.1.170-3"), []string{"Linux 6.1.170 (Debian) has defects in passthrough mode; fixed in 6.1.176"}},
		"Debian 12, stable point update": {"6.1.0-50-amd64", debian("6.1.176-1+deb12u1"), nil},
		"Debian 12, cloud":               {"6.1.0-50-cloud-amd64", debian("6.1.187-1"), nil},
		"Debian 12, real time":           {"6.1.0-50-rt-amd64", "#1 SMP PREEMPT_RT Debian 6.1.187-1 (2026-09-19)", []string{"6.1.187 (Debian)", "real-time"}},
		"Debian 12, backports":           {"6.12.94+deb12-amd64", debian("6.12.94-1~bpo12+1"), nil},
		"Debian 12, backports, bad":      {"6.12.90+deb12-amd64", debian("6.12.90-1~bpo12+1"), []string{"6.12.90 (Debian)"}},
		"Debian 13":                      {"6.12.117+deb13-amd64", debian("6.12.117-1"), nil},
		"Debian sid":                     {"7.2.13+deb14-amd64", debian("7.2.13-1"), nil},
		"Debian sid, without a suite":    {"7.2.13-amd64", debian("7.2.13-1"), nil},
		"Debian 12, arm64":               {"6.1.0-50-arm64", debian("6.1.176-1"), nil},
		"Debian 12, arm64, bad":          {"6.1.0-48-arm64", debian("6.1.170-3"), []string{"Linux 6.1.170 (Debian) has defects in passthrough mode; fixed in 6.1.176"}},
		"Debian 12, arm64, cloud":        {"6.1.0-50-cloud-arm64", debian("6.1.187-1"), nil},
		"Debian 12, arm64, real time":    {"6.1.0-50-rt-arm64", "#1 SMP PREEMPT_RT Debian 6.1.187-1 (2026-09-19)", []string{"6.1.187 (Debian)", "real-time"}},
		"Debian 13, arm64":               {"6.12.117+deb13-arm64", debian("6.12.117-1"), nil},
		"Debian 13, arm64, large pages":  {"6.12.117+deb13-arm64-16k", debian("6.12.117-1"), nil},
		"Debian, arm64, of somebody":     {"6.12.117+deb13-arm64-custom", debian("6.12.117-1"), []string{"6.12.117+deb13-arm64-custom", "not checked"}},
		"Debian, another size of pages":  {"6.12.117+deb13-amd64-16k", debian("6.12.117-1"), []string{"6.12.117+deb13-amd64-16k", "not checked"}},
		"Debian, another architecture":   {"6.12.117+deb13-riscv64", debian("6.12.117-1"), []string{"6.12.117+deb13-riscv64", "not checked"}},
		"Debian, cut off":                {"6.12.117+deb13-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.12.117-1", nil},
		"Debian 11":                      {"5.10.0-40-amd64", debian("5.10.260-1"), []string{"5.10.260 (Debian)", "fixed in " + all}},
		"Debian, the release alone":      {"6.1.0-50-amd64", vanilla, []string{"Linux 6.1.0-50-amd64", "vendor's kernels were not checked"}},
		"Debian, of another series":      {"6.6.0-50-amd64", debian("6.1.176-1"), []string{"6.6.0-50-amd64", "not checked"}},
		"Debian, release candidate":      {"7.2-amd64", debian("7.2~rc6-1~exp1"), []string{"7.2-amd64", "not checked"}},
		"Debian, of somebody else":       {"6.12.117-custom", debian("6.12.117-1"), []string{"6.12.117-custom", "not checked"}},
		"Debian, rebuilt":                {"6.12.117+deb13-amd64", debian("6.12.117-1+rpt1"), []string{"not checked"}},
		"Raspberry Pi":                   {"6.12.100+rpt-rpi-v8", debian("1:6.12.100-1+rpt1"), []string{"6.12.100+rpt-rpi-v8", "not checked"}},
		"Proxmox":                        {"6.17.2-1-pve", "#1 SMP PREEMPT_DYNAMIC PMX 6.17.2-1 (2025-10-21T11:55Z)", []string{"6.17.2-1-pve", "not checked"}},
		"Ubuntu":                         {"6.8.0-134-generic", ubuntu, []string{"Linux 6.8.0-134-generic", "this vendor's kernels were not checked", "kernel.org, Debian, Talos and Flatcar from " + all}},
		"Ubuntu on GKE":                  {"6.8.0-1030-gke", ubuntu, []string{"6.8.0-1030-gke", "not checked"}},
		"RHEL 9":                         {"5.14.0-687.50.1.el9_8.x86_64", "#1 SMP PREEMPT_DYNAMIC Thu Sep 24 2026", []string{"5.14.0-687.50.1.el9_8.x86_64", "not checked"}},
		"RHEL 9, arm64, large pages":     {"5.14.0-687.50.1.el9_8.aarch64+64k", vanilla, []string{"5.14.0-687.50.1.el9_8.aarch64+64k", "not checked"}},
		"RHEL 10":                        {"6.12.0-211.el10.x86_64", vanilla, []string{"not checked"}},
		"Fedora":                         {"7.2.8-200.fc44.x86_64", vanilla, []string{"not checked"}},
		"Amazon Linux":                   {"6.12.100-130.amzn2023.x86_64", vanilla, []string{"not checked"}},
		"Azure Linux":                    {"6.6.150.1-1.azl3", vanilla, []string{"6.6.150.1-1.azl3", "not checked"}},
		"Container-Optimized OS":         {"6.12.100+", vanilla, []string{"6.12.100+", "not checked"}},
		"release candidate":              {"7.3.0-rc1", vanilla, []string{"7.3.0-rc1", "not checked"}},
		"changed tree":                   {"7.2.7-dirty", vanilla, []string{"not checked"}},
		"Talos, changed":                 {"6.18.40-talos-custom", vanilla, []string{"not checked"}},
		"nothing":                        {"", "", []string{`Linux ""`, "not checked"}},
		"two numbers":                    {"7.2", vanilla, []string{"not checked"}},
		"no number":                      {"linux", vanilla, []string{"not checked"}},
		"negative":                       {"7.-2.7", vanilla, []string{"not checked"}},
		"a number out of bounds":         {"99999999999999999999.1.1", vanilla, []string{"not checked"}},
		"a Debian number out of bounds":  {"6.1.0-50-amd64", debian("6.1.99999999999999999999-1"), []string{"not checked"}},
		"a line more":                    {"7.2.7\n6.1.1", vanilla, []string{`"7.2.7\n6.1.1"`, "not checked"}},
		"a blank more":                   {" 7.2.7", vanilla, []string{"not checked"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			err := kernelOf(tc.release, tc.version).TracksWrites()
			if (err != nil) != (len(tc.want) > 0) {
				t.Fatalf("got %v", err)
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q lacks %q", err, w)
				}
			}
		})
	}
}

// TestUnmarkedVendor: Bottlerocket's releases are like kernel.org's; what compiled them
// tells them apart, so that a release alone is not taken for kernel.org's.
func TestUnmarkedVendor(t *testing.T) {
	for name, banner := range map[string]string{
		"Bottlerocket":       "Linux version 6.12.100 (builder@buildkitsandbox) (x86_64-bottlerocket-linux-gnu-gcc (Buildroot 2024.02) 13.3.0, GNU ld (GNU Binutils) 2.41) " + vanilla,
		"unknown":            "",
		"of another release": "Linux version 6.12.1001 (root@build) (gcc 14.2.0) " + vanilla,
	} {
		if err := (Kernel{"6.12.100", vanilla, banner}).TracksWrites(); err == nil || !strings.Contains(err.Error(), "not checked") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestRunningKernel(t *testing.T) {
	k, err := runningKernel()
	if err != nil {
		t.Fatal(err)
	}
	if k.Release == "" || k.Version == "" || !strings.HasPrefix(k.Banner, "Linux version "+k.Release+" ") || !strings.HasSuffix(k.Banner, k.Version) {
		t.Errorf("got %+v", k)
	}
}

// TestExamineWriteTracking: what the kernel says reaches the findings, and a kernel that
// says nothing is not trusted.
func TestExamineWriteTracking(t *testing.T) {
	for name, tc := range map[string]struct {
		kernel Kernel
		err    error
		want   string
	}{
		"good":   {kernel: kernelOf("7.2.7", vanilla)},
		"bad":    {kernel: kernelOf("6.1.0-48-amd64", debian("6.1.170-3")), want: "Linux 6.1.170 (Debian) has defects"},
		"silent": {kernel: kernelOf("7.2.7", vanilla), err: errors.New("not permitted"), want: "not permitted"},
	} {
		t.Run(name, func(t *testing.T) {
			n, run, _ := goodNode(t)
			for _, command := range []string{"dmsetup targets", "iscsiadm --version", "lvm version", "cache_check -V", "cache_dump -V", "cache_restore -V"} {
				run.On(command)
			}
			n.Exports = func(context.Context) error { return nil }
			n.Kernel = func() (Kernel, error) { return tc.kernel, tc.err }
			got := n.Examine(t.Context()).WriteTracking
			if (got != nil) != (tc.want != "") || got != nil && !strings.Contains(got.Error(), tc.want) {
				t.Errorf("got %v", got)
			}
		})
	}
}

// FuzzTracksWrites: whatever a kernel says, it is accepted only if a good release is in
// what it says, and a reason is one line.
func FuzzTracksWrites(f *testing.F) {
	f.Add("7.2.7", vanilla)
	f.Add("6.1.0-50-amd64", debian("6.1.176-1"))
	f.Add("6.12.117+deb13-arm64-16k", debian("6.12.117-1"))
	f.Add("6.12.94-flatcar", "")
	f.Add("6.8.0-134-generic", ubuntu)
	f.Fuzz(func(t *testing.T, release, version string) {
		k := kernelOf(release, version)
		if err := k.TracksWrites(); err != nil {
			if text := err.Error(); !strings.Contains(text, "Linux ") || strings.ContainsAny(text, "\n\x00") {
				t.Errorf("%q", text)
			}
			return
		}
		r, vendor, ok := k.stable()
		if !ok || vendor == "" || !strings.Contains(k.Release+" "+k.Version, strings.TrimSuffix(r.String(), ".0")) {
			t.Errorf("%+v is accepted as %s of %q", k, r, vendor)
		}
		for _, first := range fixedReleases {
			if r.sameSeries(first) && r.patch < first.patch {
				t.Errorf("%+v is accepted, %s is before %s", k, r, first)
			}
		}
	})
}
