package guest

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// kernelTests are the names of all tests of one kernel.
func kernelTests(t *testing.T) []string {
	t.Helper()
	var names []string
	declared := regexp.MustCompile(`(?m)^func (TestKernel\w*)\(t `)
	err := filepath.WalkDir("../../..", func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), "_") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range declared.FindAllStringSubmatch(string(b), -1) {
			names = append(names, m[1])
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestNames: what is skipped exists, and needs something that a kernel lacks.
func TestNames(t *testing.T) {
	all := kernelTests(t)
	for test, target := range needs {
		if !slices.Contains(all, test) {
			t.Errorf("there is no test %s", test)
		}
		if !slices.Contains(Targets(), target) {
			t.Errorf("%s needs %s, which no kernel lacks", test, target)
		}
	}
}

func TestSkip(t *testing.T) {
	before := map[string]string{}
	for _, name := range []string{"test.skip", "test.run"} {
		before[name] = flag.Lookup(name).Value.String()
	}
	t.Cleanup(func() {
		for name, value := range before {
			if err := flag.Set(name, value); err != nil {
				t.Error(err)
			}
		}
	})
	if err := flag.Set("test.run", "^TestKernel(Move|Lifecycle)$/x"); err != nil {
		t.Fatal(err)
	}
	for kernel, want := range map[string]bool{"": false, "debian-12": true, "debian-newest": false} {
		if err := flag.Set("test.skip", "^X$"); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := skip(&out, kernel); err != nil {
			t.Fatal(err)
		}
		expr := regexp.MustCompile(flag.Lookup("test.skip").Value.String())
		if got := expr.MatchString("TestKernelMove"); got != want || !expr.MatchString("X") || expr.MatchString("TestKernelLifecycle") {
			t.Errorf("%q: skipped is %s", kernel, expr)
		}
		if strings.Contains(out.String(), "TestKernelMove\n") != want || strings.Contains(out.String(), "Prewarm") {
			t.Errorf("%q: it says %q", kernel, out.String())
		}
	}
	if err := skip(&strings.Builder{}, "debian-1"); err == nil || !strings.Contains(err.Error(), "debian-12") {
		t.Errorf("got %v, want an error that names the known kernels", err)
	}
}
