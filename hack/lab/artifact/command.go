package artifact

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
)

// Command returns "artifacts [GROUP...]", which makes the groups' artifacts and
// prints where they are. Progress goes to standard error.
func Command() *cobra.Command {
	var checkout string
	var printDir, checkContent bool
	cmd := &cobra.Command{
		Use:   "artifacts [GROUP...]",
		Short: "Build or verify what the lab and the tests run, and print the paths",
		Long: "Groups: envtest (kube-apiserver, etcd, kubectl), helm, prometheus (and promtool), kernel (guest kernel and root),\n" +
			"cluster (all that a lab cluster needs; the default), images (the driver's images as archives),\n" +
			"images-arm64 (the same for nodes of arm64),\n" +
			"pd (Google's Persistent Disk driver, for `up --origin pd`),\n" +
			"ceph (Ceph's daemons and tools, for `up --origin ceph`),\n" +
			"upstream (Kubernetes' own tests and the images of their pods), debian-12, debian-13, debian-newest (kernels of distributions).",
		ValidArgs:    groupNames(),
		Args:         cobra.OnlyValidArgs,
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			groups := []Group{Cluster}
			if len(args) > 0 {
				groups = groups[:0]
			}
			for _, arg := range args {
				groups = append(groups, Group(arg))
			}
			if printDir && len(groups) != 1 {
				return errors.New("--print-dir wants exactly one group")
			}
			root, err := findCheckout(checkout)
			if err != nil {
				return err
			}
			set, err := Ensure(cmd.Context(), Options{
				Checkout: root, Groups: groups, Progress: progressTo(cmd.ErrOrStderr()),
				CheckContent: checkContent,
			})
			if err != nil {
				return err
			}
			if printDir {
				return printGroupDir(cmd.OutOrStdout(), set, groups[0])
			}
			return printSet(cmd.OutOrStdout(), set)
		},
	}
	cmd.Flags().StringVar(&checkout, "checkout", "", "root of the source tree (default: found from the working directory)")
	cmd.Flags().BoolVar(&checkContent, "check-content", false,
		"verify the hash of every file (default: only of files whose time has changed)")
	cmd.Flags().BoolVar(&printDir, "print-dir", false, "print only the directory of the group")
	return cmd
}

func groupNames() []string {
	var names []string
	for _, g := range Groups() {
		names = append(names, string(g))
	}
	return names
}

// findCheckout returns dir, or the nearest parent of the working directory that
// has the tool modules.
func findCheckout(dir string) (string, error) {
	if dir != "" {
		return dir, nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for !exists(filepath.Join(dir, "hack", "tools")) {
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("the working directory is not in a checkout: use --checkout")
		}
		dir = parent
	}
	return dir, nil
}

// progressTo writes lines with the seconds since the start.
func progressTo(w io.Writer) func(string, ...any) {
	start := time.Now()
	var mu sync.Mutex
	return func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = fmt.Fprintf(w, "[%4.0f s] %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}
}

func printGroupDir(w io.Writer, set *Set, g Group) error {
	dir, err := set.Dir(g)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, dir)
	return err
}

func printSet(w io.Writer, set *Set) error {
	var lines []string
	add := func(name, path string) {
		if path != "" {
			lines = append(lines, fmt.Sprintf("%-24s %s", name, path))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(set.Bin)) {
		add(name, set.Bin[name])
	}
	add("kernel", set.Kernel)
	add("node-root", set.NodeRoot)
	add("node-base", set.NodeBase)
	add("kind-guest", set.KindGuest)
	add("pd-driver", set.PD)
	add("ceph-root", set.CephRoot)
	for _, g := range StockKernels() {
		add(string(g), set.Stock[g].Vmlinuz)
	}
	for _, archive := range slices.Concat(set.DriverImages, set.FullImages, set.ARM64Images, set.OtherImages) {
		add("image", archive)
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}
