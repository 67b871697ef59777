package preflight

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Kernel is what a kernel says of itself.
type Kernel struct {
	// Release is that of `uname -r`, Version that of `uname -v`.
	Release, Version string
	// Banner is /proc/version, which has both and the compiler. Bottlerocket's kernels,
	// which are Amazon's, have a release like kernel.org's and differ in that alone.
	Banner string
}

// runningKernel asks the kernel of this machine.
func runningKernel() (Kernel, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return Kernel{}, fmt.Errorf("uname: %w", err)
	}
	banner, err := os.ReadFile("/proc/version")
	if err != nil {
		return Kernel{}, fmt.Errorf("the kernel's version: %w", err)
	}
	return Kernel{
		Release: unix.ByteSliceToString(u.Release[:]), Version: unix.ByteSliceToString(u.Version[:]),
		Banner: strings.TrimSpace(string(banner)),
	}, nil
}

// release is a release of kernel.org: 6.1.176.
type release struct{ major, minor, patch int }

func (r release) compare(o release) int {
	return cmp.Or(cmp.Compare(r.major, o.major), cmp.Compare(r.minor, o.minor), cmp.Compare(r.patch, o.patch))
}

func (r release) sameSeries(o release) bool { return r.major == o.major && r.minor == o.minor }

func (r release) String() string {
	if r == fixedMainline {
		return fmt.Sprintf("%d.%d", r.major, r.minor)
	}
	return fmt.Sprintf("%d.%d.%d", r.major, r.minor, r.patch)
}

// A write hit in passthrough mode was broken from Linux 4.12 on (null dereference, hang,
// order of commit and write, no lock around smq's structures; Ming-Hung Tsai, dm-devel,
// February 2026, CVE-2026-53062 and -53063). The fixes came in 7.1 and in 6.1.175,
// 6.6.141, 6.12.91, 6.18.33 and 7.0.10; that of smq was repaired in 7.1 ("dm cache policy
// smq: check allocation under invalidate lock", CVE-2026-53265) and in the releases below.
//
// "dm cache: fix issue with background work locking" (6.1.192 and 6.12.115 of Debian) is not asked
// for: until then one task gives back a rw_semaphore that another took. Ordinary kernels count in it
// and warn at most. In real-time kernels such a lock belongs to its task, which may have ended by
// then: they are not allowed.
//
// Not allowed are 5.10 and 5.15: their 258 and 209 have those fixes but for "fix write hang
// in passthrough mode", and no later release was found that has it. Nor are series that
// ended before the fixes, such as 6.8, 6.17 or 6.19.
var (
	// fixedReleases has the first good release of each series of kernel.org's stable tree,
	// oldest first.
	fixedReleases = []release{{6, 1, 176}, {6, 6, 143}, {6, 12, 94}, {6, 18, 36}, {7, 0, 13}}
	// fixedMainline is the first series that was good from its start.
	fixedMainline = release{7, 1, 0}
)

var (
	// stableRelease is what kernel.org's own kernels have, and those of distributions that
	// build its stable tree. Release candidates and trees with changes ("+") do not match.
	stableRelease = regexp.MustCompile(`^(\d+)\.(\d+)\.(\d+)(?:-(talos|flatcar))?$`)
	// debianRelease begins with the series; the rest is an ABI number or a suite, then the
	// flavour, which ends in the architecture: amd64, or arm64 with pages of 4 KiB or 16 KiB.
	debianRelease = regexp.MustCompile(`^(\d+)\.(\d+)\.\d+[-+.0-9a-z]*-(?:amd64|arm64|arm64-16k)$`)
	// debianVersion has the package's version, whose upstream part is kernel.org's release.
	// Raspberry Pi's packages have an epoch before it.
	debianVersion = regexp.MustCompile(`(?:^|\s)Debian (\d+)\.(\d+)\.(\d+)-\d+(?:\.\d+)?(?:[~+](?:deb|bpo)\d+[+u]\d+)?(?:\s|$)`)
)

// vendors are the builders whose kernels are judged by the release of kernel.org that they
// are made from, as they add no changes of dm-cache to it; others were not checked.
const vendors = "those of kernel.org, Debian, Talos and Flatcar"

// TracksWrites returns nil if dm-cache's passthrough mode may be used to learn what is
// written (cache.rst: a write hit invalidates its block of the cache), and otherwise says
// why not, with the release and what is accepted.
//
// It goes by release and builder: backports keep the version of the target, and defective
// kernels pass a probe.
func (k Kernel) TracksWrites() error {
	r, vendor, ok := k.stable()
	if !ok {
		return fmt.Errorf("whether the dm-cache of Linux %s has the defects of passthrough mode is not known, as this vendor's kernels were not checked; accepted are %s from %s on", k.name(), vendors, listFixed())
	}
	if strings.Contains(k.Version, "PREEMPT_RT") {
		return fmt.Errorf("the dm-cache of Linux %s (%s) may give locks back from another task, which a real-time kernel (PREEMPT_RT) does not allow; accepted are kernels that are not", r, vendor)
	}
	if r.compare(fixedMainline) >= 0 {
		return nil
	}
	fixed := listFixed()
	if i := slices.IndexFunc(fixedReleases, r.sameSeries); i >= 0 {
		if r.compare(fixedReleases[i]) >= 0 {
			return nil
		}
		fixed = fixedReleases[i].String()
	}
	return fmt.Errorf("the dm-cache of Linux %s (%s) has defects in passthrough mode; fixed in %s", r, vendor, fixed)
}

// name is the release as it may be shown: it is the kernel's own text.
func (k Kernel) name() string {
	if k.Release == "" || strings.ContainsFunc(k.Release, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return strconv.Quote(k.Release)
	}
	return k.Release
}

// stable tells which release of kernel.org the kernel was made from, and by whom; not ok if
// that is not known, or nobody of [vendors].
func (k Kernel) stable() (r release, vendor string, ok bool) {
	if v := debianVersion.FindStringSubmatch(k.Version); v != nil {
		series := debianRelease.FindStringSubmatch(k.Release)
		r, ok = parseRelease(v[1:4])
		return r, "Debian", ok && series != nil && series[1] == v[1] && series[2] == v[2]
	}
	m := stableRelease.FindStringSubmatch(k.Release)
	if m == nil {
		return release{}, "", false
	}
	r, ok = parseRelease(m[1:4])
	switch m[4] {
	case "talos":
		return r, "Talos", ok
	case "flatcar":
		return r, "Flatcar", ok
	default:
		return r, "kernel.org", ok && strings.HasPrefix(k.Banner, "Linux version "+k.Release+" ") && !strings.Contains(k.Banner, "bottlerocket")
	}
}

// parseRelease reads three numbers; not ok if one is too large for any release.
func parseRelease(parts []string) (r release, ok bool) {
	for i, dst := range []*int{&r.major, &r.minor, &r.patch} {
		n, err := strconv.ParseUint(parts[i], 10, 16)
		if err != nil {
			return release{}, false
		}
		*dst = int(n)
	}
	return r, true
}

// listFixed are all first good releases, in words.
func listFixed() string {
	var names []string
	for _, r := range fixedReleases {
		names = append(names, r.String())
	}
	return strings.Join(names, ", ") + " and " + fixedMainline.String()
}
