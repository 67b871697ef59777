// Package guest tells the tests of one kernel where they run: which disks they have,
// and what a distribution's kernel lacks, so that a test is skipped by its name, with
// the reason, or fails.
package guest

import (
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// KernelEnv names the distribution's kernel; without it the kernel is the lab's own,
// which has everything.
const KernelEnv = "NEARFLASH_STOCK_KERNEL"

// lacking are the targets of the device mapper that tests need and a kernel does not
// have. TestKernelTargets proves that it is so.
var lacking = map[string][]string{
	"debian-12":     {"clone", "dust"},
	"debian-13":     {"clone", "dust"},
	"debian-newest": {"dust"},
}

// needs are the tests that need a target which some kernel lacks.
var needs = map[string]string{
	"TestKernelFailoverHydration":       "clone",
	"TestKernelHydrationFromRemapTable": "clone",
	"TestKernelHydrationReader":         "clone",
	"TestKernelHydrationStopped":        "clone",
	"TestKernelHandOver":                "clone",
	"TestKernelHotSet":                  "clone",
	"TestKernelKillHydration":           "clone",
	"TestKernelKillRemap":               "clone",
	"TestKernelKillPrestage":            "clone",
	"TestKernelKillPrewarm":             "clone",
	"TestKernelMillion":                 "clone",
	"TestKernelMove":                    "clone",
	"TestKernelMoveAgain":               "clone",
	"TestKernelMoveSourceLost":          "clone",
	"TestKernelPreload":                 "clone",
	"TestKernelPrestage":                "clone",
	"TestKernelPrestageInVain":          "clone",
	"TestKernelPrewarm":                 "clone",
	"TestKernelPrewarmCutShort":         "clone",
	"TestKernelPrewarmForgotten":        "clone",
	"TestKernelPrewarmUnused":           "clone",
	"TestKernelSecrets":                 "clone",
	"TestKernelSecretsDiscarded":        "clone",
	"TestKernelSecretsFull":             "clone",
	"TestKernelSecretsReleased":         "clone",
	"TestKernelUpgradeMove":             "clone",
}

// Kernel is the name of the distribution's kernel, "" for the lab's own.
func Kernel() string { return os.Getenv(KernelEnv) }

// Lacking returns the targets that this kernel does not have.
func Lacking() []string { return lacking[Kernel()] }

// Lacks reports whether this kernel does not have a target.
func Lacks(target string) bool { return slices.Contains(Lacking(), target) }

// Targets returns all targets that some kernel lacks.
func Targets() []string {
	var all []string
	for _, targets := range lacking {
		all = append(all, targets...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Disk returns one of the guest's empty disks: b, c or d.
func Disk(letter string) string {
	if Kernel() != "" {
		return "/dev/vd" + letter
	}
	return "/dev/ubd" + letter
}

// Main runs the tests of a package, but for those that need what this kernel does not
// have, which it names.
func Main(m *testing.M) int {
	flag.Parse()
	if err := skip(os.Stdout, Kernel()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	return m.Run()
}

// skip makes the flags of package testing leave out what a kernel cannot do.
func skip(out io.Writer, kernel string) error {
	targets, known := lacking[kernel]
	if kernel != "" && !known {
		return fmt.Errorf("%s=%q: known are %v", KernelEnv, kernel, slices.Sorted(maps.Keys(lacking)))
	}
	wanted, err := regexp.Compile(strings.Split(flag.Lookup("test.run").Value.String(), "/")[0])
	if err != nil {
		return fmt.Errorf("-test.run: %w", err)
	}
	var names []string
	for _, test := range slices.Sorted(maps.Keys(needs)) {
		if slices.Contains(targets, needs[test]) && wanted.MatchString(test) {
			names = append(names, test)
			fmt.Fprintf(out, "skipped on %s, which has no dm-%s: %s\n", kernel, needs[test], test)
		}
	}
	if len(names) == 0 {
		return nil
	}
	expr := "^(" + strings.Join(names, "|") + ")$"
	if already := flag.Lookup("test.skip").Value.String(); already != "" {
		expr = already + "|" + expr
	}
	return flag.Set("test.skip", expr)
}
