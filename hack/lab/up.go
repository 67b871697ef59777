package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearflash/nearflash/hack/lab/artifact"
	"github.com/nearflash/nearflash/hack/lab/internal/cluster"
)

func newUp(o *options) *cobra.Command {
	var up cluster.UpOptions
	var noDriver bool
	var origin, zones string
	var limit time.Duration
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring the lab up, or a lab that is up to the state of the checkout",
		Long: `Makes what is absent (guest kernel, Kubernetes, images), starts a control plane,
two nodes and a storage server, waits until both nodes are Ready, and installs the
driver from the checkout. In a lab that is up it starts what has ended, loads
changed images and upgrades the chart. When it fails or is interrupted, everything
it started is ended.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			lab, err := o.lab()
			if err != nil {
				return err
			}
			up.Driver = !noDriver
			if up.Origin, err = cluster.ParseOrigin(origin, zones); err != nil {
				return err
			}
			up.Parts = func(ctx context.Context, origin string) (cluster.Parts, error) {
				return clusterParts(ctx, lab.Checkout, origin)
			}
			ctx, cancel := context.WithTimeoutCause(cmd.Context(), limit, fmt.Errorf("not up after %v", limit))
			defer cancel()
			return lab.Up(ctx, up)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&noDriver, "no-driver", false, "stop when both nodes are Ready")
	f.StringVar(&origin, "origin", "", "also run a CSI driver whose volumes can be cached: pd, Google's Persistent Disk driver over a cloud of files, or ceph, block devices of a Ceph on this machine")
	f.StringVar(&zones, "origin-zones", "", "NODE=ZONE,... of the cloud of pd, in a lab that has no origin yet (default: one zone for all)")
	f.Int64Var(&up.Sizes.SSDMiB, "ssd-size", 8192, "size of each node's SSD in MiB (sparse)")
	f.Int64Var(&up.Sizes.StorageMiB, "storage-size", 32768, "size of the storage server's disk in MiB (sparse)")
	f.IntVar(&up.Sizes.WorkerMemoryMiB, "node-memory", 2560, "memory of each node in MiB")
	f.IntVar(&up.Sizes.StorageMemoryMiB, "storage-memory", 1024, "memory of the storage server in MiB")
	f.DurationVar(&up.Sizes.StorageDelay, "storage-delay", 2*time.Millisecond, "latency of the storage server's network")
	f.BoolVar(&up.StoragePair, "storage-pair", false, "two storage servers with one disk, in a new lab: storage is active, storage-b stands by")
	f.BoolVar(&up.SecondStorage, "second-storage", false, "one more storage server, storage-2, in a new lab: classes choose it with target: second")
	f.BoolVar(&up.WithoutISCSID, "without-iscsid", false, "nodes without open-iscsi's daemon, in a new lab: the chart brings one")
	f.BoolVar(&up.ReadOnlyRoot, "read-only-root", false, "nodes whose root nobody can write, in a new lab, as systems for containers have it: /var, /run and /tmp can be written")
	f.DurationVar(&limit, "timeout", 45*time.Minute, "give up after this time; building everything for the first time takes most of it")
	return cmd
}

func clusterParts(ctx context.Context, checkout, origin string) (cluster.Parts, error) {
	groups := []artifact.Group{artifact.Cluster}
	switch origin {
	case cluster.OriginPD:
		groups = append(groups, artifact.PD)
	case cluster.OriginCeph:
		groups = append(groups, artifact.Ceph)
	}
	set, err := ensureArtifacts(ctx, checkout, groups...)
	if err != nil {
		return cluster.Parts{}, err
	}
	snapshots, err := artifact.SnapshotDefinitions(ctx, checkout)
	if err != nil {
		return cluster.Parts{}, err
	}
	return cluster.Parts{
		SnapshotDefinitions: snapshots,
		Kernel:              set.Kernel, NodeBase: set.NodeBase, Bin: set.Bin, Origin: originParts(set),
		// The storage server runs the program itself, no node needs its image.
		Images: slices.DeleteFunc(slices.Clone(set.DriverImages), func(path string) bool {
			return filepath.Base(path) == "nearflash-target.tar"
		}),
	}, nil
}

func originParts(set *artifact.Set) cluster.OriginParts {
	return cluster.OriginParts{
		Program: set.PD, Root: set.CephRoot, CephCSI: set.CephCSI, Tools: artifact.NodeTools,
		Provisioner: set.Sidecars.Provisioner, Attacher: set.Sidecars.Attacher, Resizer: set.Sidecars.Resizer,
		Snapshotter: set.Sidecars.Snapshotter,
	}
}

func newDown(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "End everything of the lab and remove its state",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			lab, err := o.lab()
			if err != nil {
				return err
			}
			return lab.Down(cmd.Context())
		},
	}
}

func newImages(o *options) *cobra.Command {
	cmd := &cobra.Command{Use: "images", Short: "Work with container images"}
	cmd.AddCommand(&cobra.Command{
		Use:   "load",
		Short: "Build the driver's images, load them on both nodes and roll them out",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			lab, err := o.lab()
			if err != nil {
				return err
			}
			if err := lab.MustBeUp(); err != nil { // reads the state, and so the checkout
				return err
			}
			parts, err := clusterParts(cmd.Context(), lab.Checkout, "")
			if err != nil {
				return err
			}
			return lab.LoadImages(cmd.Context(), parts.Images)
		},
	}, &cobra.Command{
		Use:   "add ARCHIVE...",
		Short: "Load archives of other images on both nodes",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			lab, err := o.labUp()
			if err != nil {
				return err
			}
			return lab.AddImages(cmd.Context(), args)
		},
	}, newOtherVersion())
	return cmd
}

func newValues(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "values",
		Short: "Print the values without which no version of the chart works in this lab, a private key among them",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			lab, err := o.labUp()
			if err != nil {
				return err
			}
			values, err := lab.LeastValues()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", values)
			return err
		},
	}
}

// newOtherVersion needs no lab: what it makes is for `images add` and for `target`.
func newOtherVersion() *cobra.Command {
	var dir, tag string
	cmd := &cobra.Command{
		Use:   "of CHECKOUT",
		Short: "Build the driver's images of another checkout, and print the archives and the folder of the programs",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			progress := func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
			archives, bin, err := artifact.OtherVersion(cmd.Context(), artifact.Options{Checkout: args[0], Version: tag, Progress: progress}, dir)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), strings.Join(append(archives, bin), "\n"))
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "where they are made")
	cmd.Flags().StringVar(&tag, "tag", "", "the images' tag, and the version that the programs name")
	for _, name := range []string{"dir", "tag"} {
		_ = cmd.MarkFlagRequired(name)
	}
	return cmd
}
