//go:build e2e

// Upgrade, rollback and removal of the chart, below pods that work.
//
// There is one version to test: the checkout's. What is installed is N-1; N is the same
// chart packaged under another version, with the same images under another tag, so that
// helm replaces every pod of the driver as it would for a new release. A volume is being
// moved meanwhile, slowly. The kernel does all of the pods' I/O, so that none of it may
// fail or be wrong, no device-mapper table may change but the one that the move itself
// swaps, and no counter may go back. At the end the release is as it was found.

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
)

const (
	// nextTag and nextVersion are N's: of its images, and of its chart.
	nextTag, nextVersion = "e2e-next", "99.0.0-e2e"
	rolloutLimit         = "6m"
	// upgradeSet in MiB is what a slow hydration copies in two minutes.
	upgradeSet = 128
)

var _ = Describe("The chart", Label("upgrade", "lab"), Serial, func() {
	It("is upgraded and rolled back below pods that work, in the middle of a move", Label("slow"), func(ctx SpecContext) {
		s := newSpace(ctx)
		r := newRelease(ctx)
		token := readerToken(ctx, s)
		next, images := r.next(ctx)

		By("working with a volume that stays, and one that moves")
		stays, err := s.volume(ctx, volumeSpec{name: "stays", mode: v1alpha1.CacheModeWriteback, kind: block, size: "128Mi", cacheSize: "64Mi"})
		Expect(err).NotTo(HaveOccurred())
		Expect(stays.start(ctx, nodeA)).To(Succeed())
		moves, err := s.volume(ctx, volumeSpec{name: "moves", mode: v1alpha1.CacheModeWritethrough, kind: block, size: "192Mi", cacheSize: "100%", parameters: slowly})
		Expect(err).NotTo(HaveOccurred())
		moves.set = upgradeSet
		Expect(moves.start(ctx, nodeA)).To(Succeed())
		sum, err := moves.write(ctx, 0, upgradeSet)
		Expect(err).NotTo(HaveOccurred())
		Expect(moves.warmUp(ctx)).To(Succeed())
		Expect(moves.restart(ctx, nodeB)).To(Succeed())
		Expect(moves.awaitHydrating(ctx, 2)).To(Succeed())
		both := []*vol{stays, moves}
		var ends []func(context.Context) error
		for _, v := range both {
			ends = append(ends, v.work(ctx))
		}
		before := look(ctx, both, token)
		Expect(before.tables["moves"]["nf-"+moves.Handle+".data"]).To(ContainSubstring(" clone "), "the move must be under way")

		By("upgrading")
		args := []string{"upgrade", r.name, next, "--values", r.values}
		for part, image := range images {
			args = append(args, "--set", "images."+part+"="+image)
		}
		r.helm(ctx, append(args, "--wait", "--timeout", rolloutLimit)...)
		Expect(k.AwaitDriver(ctx, late)).To(Succeed())
		r.expectImages(ctx, images)
		expectUnmoved(before, look(ctx, both, token))
		cm, err := moves.migration(ctx, 2)
		Expect(err).NotTo(HaveOccurred())
		Expect(cm.Status.Outcome).To(Or(BeEmpty(), Equal(v1alpha1.MigrationCompleted)), cm.Status.OutcomeMessage)
		GinkgoWriter.Printf("after the upgrade the move has outcome %q, %d of %d bytes copied\n", cm.Status.Outcome,
			ptr.Deref(cm.Status.Progress.HydratedBytes, 0), ptr.Deref(cm.Status.Progress.TotalBytes, 0))

		By("rolling back")
		r.helm(ctx, "rollback", r.name, "--wait", "--timeout", rolloutLimit)
		Expect(k.AwaitDriver(ctx, late)).To(Succeed())
		r.expectImages(ctx, r.images)
		expectUnmoved(before, look(ctx, both, token))

		for _, end := range ends {
			Expect(end(ctx)).To(Succeed(), "no I/O may fail, no byte may be wrong")
		}

		By("letting the move end")
		cm, err = moves.awaitMoved(ctx, 2)
		Expect(err).NotTo(HaveOccurred())
		Expect(cm.Spec.SourceNode).To(Equal(nodeA))
		Expect(moves.expectWhole(ctx)).To(Succeed())
		Expect(moves.verify(ctx, 0, upgradeSet, sum)).To(Succeed())
		Expect(moves.awaitOwner(ctx, nodeB, 2)).To(Succeed())
		Expect(stays.awaitOwner(ctx, nodeA, 1)).To(Succeed())
		Expect(moves.expectTable(ctx, v1alpha1.CacheModeWritethrough)).To(Succeed())
		Expect(stays.expectTable(ctx, v1alpha1.CacheModeWriteback)).To(Succeed())

		By("moving what stayed, with the plugin that was put back")
		kept, err := stays.write(ctx, 0, workingSet)
		Expect(err).NotTo(HaveOccurred())
		Expect(stays.restart(ctx, nodeB)).To(Succeed())
		Expect(stays.verify(ctx, 0, workingSet, kept)).To(Succeed())
		Expect(stays.awaitOwner(ctx, nodeB, 2)).To(Succeed())
	}, NodeTimeout(2*specLimit))

	It("can be uninstalled below a pod that works, and comes back", Label("slow"), func(ctx SpecContext) {
		s := newSpace(ctx)
		r := newRelease(ctx)
		v, err := s.volume(ctx, volumeSpec{name: "orphaned", mode: v1alpha1.CacheModeWriteback, kind: block, size: "128Mi", cacheSize: "64Mi"})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.start(ctx, nodeA)).To(Succeed())
		sum, err := v.write(ctx, 0, workingSet)
		Expect(err).NotTo(HaveOccurred())
		end := v.work(ctx)
		tables := v.tables(ctx)
		crds := definitions(ctx)
		record, err := k.CachedVolume(ctx, v.Volume)
		Expect(err).NotTo(HaveOccurred())

		By("uninstalling")
		r.helm(ctx, "uninstall", r.name, "--wait", "--timeout", rolloutLimit)
		Expect(r.awaitNoPods(ctx)).To(Succeed())
		Expect(v.tables(ctx)).To(Equal(tables), "the tables below the pod")
		Expect(v.verify(ctx, 0, workingSet, sum)).To(Succeed())
		Expect(definitions(ctx)).To(Equal(crds), "helm must keep definitions and their objects")
		for _, node := range k.Workers {
			Expect(k.API.Get(ctx, client.ObjectKey{Name: node}, &v1alpha1.CachePool{})).To(Succeed())
		}

		By("installing it again")
		r.install(ctx)
		Expect(k.AwaitDriver(ctx, late)).To(Succeed())
		Expect(definitions(ctx)).To(Equal(crds))
		Expect(v.tables(ctx)).To(Equal(tables))
		Expect(end(ctx)).To(Succeed(), "no I/O may fail, no byte may be wrong")
		again, err := k.CachedVolume(ctx, v.Volume)
		Expect(err).NotTo(HaveOccurred())
		Expect(again.UID).To(Equal(record.UID))
		Expect(v.awaitOwner(ctx, nodeA, 1)).To(Succeed())
		Expect(v.restart(ctx, nodeB)).To(Succeed())
		Expect(v.verify(ctx, 0, workingSet, sum)).To(Succeed())
		Expect(v.awaitOwner(ctx, nodeB, 2)).To(Succeed())
	}, NodeTimeout(2*specLimit))
})

// release is the installed chart as it was found.
type release struct {
	name string
	// values is a file with the values that it was installed with.
	values string
	// revision is its number, images are those of its two parts.
	revision string
	images   map[string]string
}

// newRelease finds the release, and puts it back when the spec ends.
func newRelease(ctx context.Context) *release {
	GinkgoHelper()
	pod, err := k.Controller(ctx)
	Expect(err).NotTo(HaveOccurred())
	r := &release{name: pod.Labels["app.kubernetes.io/instance"], values: filepath.Join(GinkgoT().TempDir(), "values.json")}
	Expect(r.name).NotTo(BeEmpty())
	// They hold a private key.
	Expect(os.WriteFile(r.values, []byte(r.helm(ctx, "get", "values", r.name, "-o", "json")), 0o600)).To(Succeed())
	r.revision = r.current(ctx)
	r.images = r.running(ctx)
	DeferCleanup(func(ctx SpecContext) {
		switch {
		case r.current(ctx) == "":
			r.install(ctx)
		case r.running(ctx)["node"] != r.images["node"], r.running(ctx)["controller"] != r.images["controller"]:
			r.helm(ctx, "rollback", r.name, r.revision, "--wait", "--timeout", rolloutLimit)
		}
		Expect(k.AwaitDriver(ctx, late)).To(Succeed())
		r.expectImages(ctx, r.images)
	}, NodeTimeout(2*late))
	return r
}

// helm runs helm on the driver's namespace, and returns what it prints.
func (r *release) helm(ctx context.Context, args ...string) string {
	GinkgoHelper()
	cmd := exec.CommandContext(ctx, "helm", append(slices.Clone(args), "--namespace", k.Namespace)...)
	var errOut strings.Builder
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	Expect(err).NotTo(HaveOccurred(), "helm %s: %s%s", strings.Join(args, " "), out, errOut.String())
	return string(out)
}

func (r *release) install(ctx context.Context) {
	GinkgoHelper()
	r.helm(ctx, "install", r.name, chart(), "--values", r.values, "--wait", "--timeout", rolloutLimit)
}

// current is the number of the deployed revision, "" if the chart is not installed.
func (r *release) current(ctx context.Context) string {
	GinkgoHelper()
	var list []struct {
		Name     string `json:"name"`
		Revision string `json:"revision"`
	}
	Expect(json.Unmarshal([]byte(r.helm(ctx, "list", "-o", "json")), &list)).To(Succeed())
	for _, e := range list {
		if e.Name == r.name {
			return e.Revision
		}
	}
	return ""
}

// running are the images of node plugin and controller, by their names among the
// chart's values.
func (r *release) running(ctx context.Context) map[string]string {
	GinkgoHelper()
	node, err := k.NodePlugin(ctx, nodeA)
	Expect(err).NotTo(HaveOccurred())
	controller, err := k.Controller(ctx)
	Expect(err).NotTo(HaveOccurred())
	return map[string]string{"node": node.Spec.Containers[0].Image, "controller": controller.Spec.Containers[0].Image}
}

// expectImages fails unless every pod of the driver is ready with its image.
func (r *release) expectImages(ctx context.Context, images map[string]string) {
	GinkgoHelper()
	pods, err := k.DriverPods(ctx)
	Expect(err).NotTo(HaveOccurred())
	for _, p := range pods {
		Expect(p.Spec.Containers[0].Image).To(Equal(images[p.Labels["app.kubernetes.io/component"]]), "image of pod %s", p.Name)
	}
}

// next makes N: it packages the chart under another version and gives the images
// another tag on every node, until the spec ends.
func (r *release) next(ctx context.Context) (archive string, images map[string]string) {
	GinkgoHelper()
	dir := GinkgoT().TempDir()
	r.helm(ctx, "package", chart(), "--version", nextVersion, "--app-version", nextTag, "--destination", dir)
	images = map[string]string{}
	var tag, remove strings.Builder
	for part, image := range r.images {
		images[part] = image[:strings.LastIndexByte(image, ':')] + ":" + nextTag
		fmt.Fprintf(&tag, "ctr -n k8s.io images tag --force %s %s\n", image, images[part])
		fmt.Fprintf(&remove, "ctr -n k8s.io images rm %s\n", images[part])
	}
	onNodes := func(ctx context.Context, script string) {
		for _, node := range k.Workers {
			_, err := k.Host.Run(ctx, node, "set -e\n"+script)
			Expect(err).NotTo(HaveOccurred(), "images of node %s", node)
		}
	}
	onNodes(ctx, tag.String())
	DeferCleanup(func(ctx SpecContext) { onNodes(ctx, remove.String()) }, NodeTimeout(soon))
	return filepath.Join(dir, "nearflash-"+nextVersion+".tgz"), images
}

// state is what an upgrade must leave as it is.
type state struct {
	// tables are the device-mapper tables of each volume, by its claim.
	tables map[string]map[string]string
	// counted are the counters of each volume.
	counted map[string]figures
	// pods are the UIDs and restarts of the pods that work.
	pods map[string]string
}

// look takes the state of volumes in use.
func look(ctx context.Context, vols []*vol, token string) state {
	GinkgoHelper()
	st := state{tables: map[string]map[string]string{}, counted: map[string]figures{}, pods: map[string]string{}}
	for _, v := range vols {
		Expect(v.awaitMetrics(ctx, token)).To(Succeed())
		var f figures
		Expect(cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
			var err error
			if f, err = v.scrape(ctx, token); err != nil {
				return err.Error(), nil
			}
			// The kernel counts I/O from the plugin's first look on.
			if err := f.notBehind(f); err != nil {
				return err.Error(), nil
			}
			return "", nil
		})).To(Succeed())
		st.tables[v.claim], st.counted[v.claim] = v.tables(ctx), f
		var pod corev1.Pod
		Expect(k.API.Get(ctx, client.ObjectKey{Namespace: v.space.name, Name: v.pod}, &pod)).To(Succeed())
		st.pods[v.claim] = fmt.Sprintf("%s, %d restarts", pod.UID, pod.Status.ContainerStatuses[0].RestartCount)
	}
	return st
}

// expectUnmoved compares two looks at one volume that stays and one that is being
// moved.
func expectUnmoved(before, after state) {
	GinkgoHelper()
	Expect(after.pods).To(Equal(before.pods))
	Expect(after.tables["stays"]).To(Equal(before.tables["stays"]), "tables of the volume that stays")
	for device, was := range before.tables["moves"] {
		is, there := after.tables["moves"][device]
		switch {
		case is == was:
		case !there:
			// What the hydration needed goes when it is done.
			Expect(device).To(MatchRegexp(`\.(source|path|fill)$`), "device %s of the volume that moves is gone; it was %s", device, was)
		default:
			Expect(device).To(HaveSuffix(".data"), "the table of %s was %s and is %s", device, was, is)
			Expect(tableTarget(was)+" "+tableTarget(is)).To(Equal("clone linear"), "the swap of the move: %s was %s and is %s", device, was, is)
		}
	}
	for claim, was := range before.counted {
		Expect(after.counted[claim].notBehind(was)).To(Succeed(), claim)
	}
}

// tableTarget is the target of a table of one line.
func tableTarget(table string) string {
	if f := strings.Fields(table); len(f) > 2 {
		return f[2]
	}
	return table
}

// tables are the device-mapper tables of a volume on its node with their devices' UUIDs
// and numbers: a device that was made anew has another number, or another one's.
func (v *vol) tables(ctx context.Context) map[string]string {
	GinkgoHelper()
	out, err := k.Host.Run(ctx, v.node, fmt.Sprintf(`set -e
dmsetup ls | awk '{print $1}' | grep -E '^nf-%[1]s(\.|$)|%[2]s\.' | while read -r d; do
  printf '%%s|%%s|%%s\n' "$d" "$(dmsetup table "$d" | tr '\n' ';')" "$(dmsetup info -c --noheadings -o uuid,major,minor "$d")"
done`, v.Handle, strings.ReplaceAll(v.Handle, "-", "--")))
	Expect(err).NotTo(HaveOccurred())
	tables := map[string]string{}
	for line := range strings.Lines(out) {
		device, rest, _ := strings.Cut(strings.TrimSpace(line), "|")
		tables[device] = rest
	}
	Expect(tables).To(HaveKey("nf-" + v.Handle))
	return tables
}

// definitions are the UIDs of the chart's definitions, with the number of objects of
// each.
func definitions(ctx context.Context) map[string]string {
	GinkgoHelper()
	out := map[string]string{}
	for _, kind := range []string{"CachedVolume", "CachePool", "CacheMigration", "CacheHotSet"} {
		crd := &metav1.PartialObjectMetadata{}
		crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
		name := strings.ToLower(kind) + "s." + v1alpha1.GroupName
		Expect(k.API.Get(ctx, client.ObjectKey{Name: name}, crd)).To(Succeed())
		objects := &metav1.PartialObjectMetadataList{}
		objects.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind + "List"))
		Expect(k.API.List(ctx, objects)).To(Succeed())
		out[name] = string(crd.UID)
		if kind == "CachePool" || kind == "CachedVolume" {
			out[name] += fmt.Sprintf(", %d objects", len(objects.Items))
		}
	}
	return out
}

// work reads and writes at random behind the working set, every block verified, until the returned function is called, which returns the first error.
func (v *vol) work(ctx context.Context) func(context.Context) error {
	done := make(chan error, 1)
	go func() {
		out, err := v.run(ctx, `rm -f /tmp/enough
until [ -e /tmp/enough ]; do
  fio --name=work --filename=`+cluster.DevicePath+` --offset=`+strconv.Itoa(max(v.set, workingSet))+`m --size=32m --rw=randrw --bs=4k --direct=1 --ioengine=libaio --iodepth=1 --rate_iops=60 \
    --verify=crc32c --verify_fatal=1 --verify_backlog=64 --time_based --runtime=3 --minimal >/tmp/work.out 2>&1 || { tail -c 600 /tmp/work.out; exit 1; }
done`)
		if err != nil {
			err = fmt.Errorf("volume %s: %w: %s", v.claim, err, out)
		}
		done <- err
	}()
	return func(ctx context.Context) error {
		if _, err := v.run(ctx, "touch /tmp/enough"); err != nil {
			return err
		}
		select {
		case err := <-done:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// awaitNoPods waits until no pod of the driver is left.
func (r *release) awaitNoPods(ctx context.Context) error {
	return cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		var list corev1.PodList
		if err := k.API.List(ctx, &list, client.InNamespace(k.Namespace), client.MatchingLabels{"app.kubernetes.io/instance": r.name}); err != nil {
			return "", err
		}
		if n := len(list.Items); n > 0 {
			return fmt.Sprintf("%d pods of the driver are left", n), nil
		}
		return "", nil
	})
}
