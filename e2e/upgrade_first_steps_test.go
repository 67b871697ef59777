//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/nearflash/nearflash/e2e/cluster"
)

// upgradeLimit bounds one `helm upgrade`, as in the document.
const upgradeLimit = "15m"

// upgrade follows docs/how-to/upgrade.md. first is done before the driver's pods are replaced, meanwhile once
// one was; nil for nothing.
func (f *firstVersion) upgrade(ctx context.Context, first, meanwhile func()) {
	GinkgoHelper()
	By("upgrading")
	plugin := os.Getenv(pluginVariable)
	if !f.early {
		f.expectDoctor(ctx, filepath.Join(f.dir, "bin", "kubectl-nearflash"))
	}
	f.shell(ctx, "helm get values -n nearflash nearflash -o yaml >"+f.values)
	f.shell(ctx, "helm show crds "+chart()+" | kubectl apply --server-side --force-conflicts -f -")
	f.replaceTarget(ctx, filepath.Join(checkout(), "_output", "lab-bin", "nearflash-target"))
	command := "helm upgrade nearflash " + chart() + " -n nearflash --values " + f.values + " --wait --timeout " + upgradeLimit
	f.editValues(ctx, command)
	if first != nil {
		first()
	}

	done := make(chan error, 1)
	go func() { done <- tryShell(ctx, command) }()
	if meanwhile != nil {
		Expect(f.awaitOne(ctx, f.next)).To(Succeed())
		meanwhile()
	}
	Expect(<-done).To(Succeed())
	Expect(k.AwaitDriver(ctx, late)).To(Succeed())
	(&release{}).expectImages(ctx, f.next)
	f.expectDoctor(ctx, plugin)
	f.early = false
	f.shell(ctx, plugin+" list -A -o wide")
}

// editValues does what an operator does: `helm upgrade` names the values that are gone, one after
// the other, and images come from where the nodes get them.
func (f *firstVersion) editValues(ctx context.Context, command string) {
	GinkgoHelper()
	text, err := os.ReadFile(f.values)
	Expect(err).NotTo(HaveOccurred())
	var values, all map[string]any
	Expect(yaml.Unmarshal(text, &values)).To(Succeed())
	// What the old chart had as its defaults.
	Expect(yaml.Unmarshal([]byte(f.shell(ctx, "helm get values -n nearflash nearflash --all -o yaml")), &all)).To(Succeed())
	images := all["images"].(map[string]any)
	for part, image := range f.next {
		images[part] = image
	}
	values["images"] = images
	write := func() {
		text, err := yaml.Marshal(values)
		Expect(err).NotTo(HaveOccurred())
		Expect(os.WriteFile(f.values, text, 0o600)).To(Succeed())
	}
	write()
	node, target := values["node"].(map[string]any), values["target"].(map[string]any)
	refusal := tryShell(ctx, command)
	Expect(refusal).To(MatchError(And(ContainSubstring("optional"), ContainSubstring("residencyTTL"))), "values that are gone must be named")
	delete(target, "optional")
	node["retainedCacheTTL"] = node["residencyTTL"]
	delete(node, "residencyTTL")
	write()
}

// rollBack follows "Go back" of the document, to the version that was installed first.
func (f *firstVersion) rollBack(ctx context.Context) {
	GinkgoHelper()
	By("rolling back")
	f.shell(ctx, "helm history -n nearflash nearflash")
	f.shell(ctx, "helm rollback -n nearflash nearflash 1 --wait --timeout "+upgradeLimit)
	// docs/how-to/storage-server.md: the server refuses a controller of a version without epochs.
	f.forgetEpoch(ctx)
	if f.early {
		// Its pools are not ready as long as there are entries that it cannot read.
		Expect(k.AwaitPlugins(ctx, late)).To(Succeed())
	} else {
		Expect(k.AwaitDriver(ctx, late)).To(Succeed())
	}
	(&release{}).expectImages(ctx, f.old)
}

// forgetEpoch removes the storage server's epoch. The service is stopped meanwhile: the agent starts it a
// second after it has ended, and replaces the program of none that does not run.
func (f *firstVersion) forgetEpoch(ctx context.Context) {
	GinkgoHelper()
	_, err := k.Host.Run(ctx, cluster.StorageMachine, "set -e; kill $(pidof nearflash-target); while pidof nearflash-target; do sleep 0.1; done; rm /var/lib/nearflash-target/epoch; for i in $(seq 300); do pidof nearflash-target && exit; sleep 0.1; done; exit 1")
	Expect(err).NotTo(HaveOccurred())
}

// replaceTarget replaces the storage server's program, and waits until that one runs and serves.
func (f *firstVersion) replaceTarget(ctx context.Context, program string) {
	GinkgoHelper()
	Expect(k.Lab.ReplaceTarget(ctx, program)).To(Succeed())
	sum := strings.Fields(f.shell(ctx, "sha256sum "+program))[0]
	Expect(cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		return k.Host.Run(ctx, cluster.StorageMachine, `pid=$(pidof nearflash-target) && sha256sum </proc/$pid/exe | grep -q `+sum+` && ss -Hltn sport = :9443 | grep -q . || echo another program serves, or none`)
	})).To(Succeed())
}

// shell runs a command line of the document.
func (f *firstVersion) shell(ctx context.Context, command string) string {
	GinkgoHelper()
	GinkgoWriter.Println("$ " + command)
	cmd := exec.CommandContext(ctx, "bash", "-o", "pipefail", "-c", command)
	var errOut strings.Builder
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	Expect(err).NotTo(HaveOccurred(), "%s: %s%s", command, out, errOut.String())
	return string(out)
}

func tryShell(ctx context.Context, command string) error {
	out, err := exec.CommandContext(ctx, "bash", "-o", "pipefail", "-c", command).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", command, err, out)
	}
	return nil
}

// expectDoctor waits until a plugin finds nothing wrong.
func (f *firstVersion) expectDoctor(ctx context.Context, plugin string) {
	GinkgoHelper()
	Expect(cluster.AwaitEvery(ctx, 2*time.Second, late, func(ctx context.Context) (string, error) {
		out, err := exec.CommandContext(ctx, plugin, "doctor").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "0 errors") {
			return fmt.Sprintf("%v: %s", err, out), nil
		}
		return "", nil
	})).To(Succeed())
}

// awaitOne waits until a pod of the driver has its new image.
func (f *firstVersion) awaitOne(ctx context.Context, images map[string]string) error {
	return cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		pods, err := k.DriverPods(ctx)
		if err != nil {
			return "", err
		}
		for _, p := range pods {
			if p.Spec.Containers[0].Image == images["node"] {
				return "", nil
			}
		}
		return "no node plugin is of the new version", nil
	})
}

// kernelState is what an upgrade must leave of a volume: by the UUID of each device, its number and its
// table; names change. And the pod, and the counters of a cached volume.
type kernelState struct {
	devices map[string]string
	pod     string
	counted figures
}

func (st kernelState) tables() string {
	return strings.Join(slices.Collect(maps.Values(st.devices)), "\n")
}

func (f *firstVersion) look(ctx context.Context, vols []*vol) map[*vol]kernelState {
	GinkgoHelper()
	out := map[*vol]kernelState{}
	for _, v := range vols {
		st := kernelState{devices: map[string]string{}}
		text, err := k.Host.Run(ctx, v.node, fmt.Sprintf(`set -e
dmsetup ls | awk '{print $1}' | grep -E '%s|%s' | while read -r d; do
  printf '%%s|%%s\n' "$(dmsetup info -c --noheadings -o uuid,major,minor "$d")" "$(dmsetup table "$d" | tr '\n' ';')"
done`, v.Handle, strings.ReplaceAll(v.Handle, "-", "--")))
		Expect(err).NotTo(HaveOccurred())
		for line := range strings.Lines(text) {
			uuid, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
			st.devices[uuid] = rest
		}
		Expect(st.devices).NotTo(BeEmpty())
		var pod corev1.Pod
		Expect(k.API.Get(ctx, client.ObjectKey{Namespace: v.space.name, Name: v.pod}, &pod)).To(Succeed())
		st.pod = fmt.Sprintf("%s, %d restarts", pod.UID, pod.Status.ContainerStatuses[0].RestartCount)
		if v != f.plain {
			Expect(v.awaitMetrics(ctx, f.token)).To(Succeed())
			st.counted, err = v.scrape(ctx, f.token)
			Expect(err).NotTo(HaveOccurred())
		}
		out[v] = st
	}
	return out
}

// expectKept fails unless pods, devices and counters are what they were. The devices of the volume that
// moves may be what the end of the move makes of them.
func (f *firstVersion) expectKept(before, after map[*vol]kernelState) {
	GinkgoHelper()
	for v, was := range before {
		is := after[v]
		Expect(is.pod).To(Equal(was.pod), v.claim)
		if v != f.plain {
			Expect(is.counted.notBehind(was.counted)).To(Succeed(), v.claim)
		}
		if v != f.moves {
			Expect(is.devices).To(Equal(was.devices), "devices of %s", v.claim)
			continue
		}
		for uuid, table := range was.devices {
			now, there := is.devices[uuid]
			if there && now != table {
				Expect(table+" "+now).To(And(ContainSubstring(" clone "), ContainSubstring(" linear ")), "the swap of the move")
			}
		}
	}
}

// formats returns the formats of the journal's entries of a volume, by node.
func (v *vol) formats(ctx context.Context) map[string]int {
	GinkgoHelper()
	out := map[string]int{}
	for _, node := range k.Workers {
		text, err := k.Host.Run(ctx, node, "grep -o '^{\"version\":[0-9]*' /var/lib/nearflash/volumes/"+v.Handle+".json | cut -d: -f2 || true")
		Expect(err).NotTo(HaveOccurred())
		if text = strings.TrimSpace(text); text != "" {
			out[node], err = strconv.Atoi(text)
			Expect(err).NotTo(HaveOccurred())
		}
	}
	return out
}

// expectFormats fails unless each volume has an entry, and ok is true for all of them.
func (f *firstVersion) expectFormats(ctx context.Context, ok func(int) bool) {
	GinkgoHelper()
	for _, v := range f.all() {
		formats := v.formats(ctx)
		GinkgoWriter.Printf("journal of %s: %v\n", v.claim, formats)
		Expect(formats).NotTo(BeEmpty(), v.claim)
		for node, format := range formats {
			Expect(ok(format)).To(BeTrue(), "volume %s on %s has format %d", v.claim, node, format)
		}
	}
}

// expectRefused ends the pod of a volume below the old version's plugin, which must leave the volume
// alone, and say why.
func (f *firstVersion) expectRefused(ctx context.Context, v *vol) {
	GinkgoHelper()
	By("ending a pod whose volume the old version must leave alone")
	Expect(k.API.Delete(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: v.space.name, Name: v.pod}})).To(Succeed())
	Expect(cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		plugin, err := k.NodePlugin(ctx, v.node)
		if err != nil {
			return "", err
		}
		log, err := k.Clients.CoreV1().Pods(plugin.Namespace).GetLogs(plugin.Name, &corev1.PodLogOptions{Container: plugin.Spec.Containers[0].Name}).DoRaw(ctx)
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(string(log)) {
			// Its repair says so too, and has not been asked for anything.
			if strings.Contains(line, "NodeUnstageVolume") && strings.Contains(line, v.Handle+": journal record was written by a newer version of this program") {
				return "", nil
			}
		}
		return "the plugin's log does not say that the entry is a newer version's", nil
	})).To(Succeed())
	attachments, err := k.Attachments(ctx, v.PV)
	Expect(err).NotTo(HaveOccurred())
	Expect(attachments).NotTo(BeEmpty(), "the volume must stay attached")
	cache, err := v.cacheUUID(ctx, v.node)
	Expect(err).NotTo(HaveOccurred())
	Expect(cache).To(Equal(f.caches[v]), "its cache must stay")
	f.off[v] = true
}

// leave lets all pods leave, and the caches be given up, with the new version.
func (f *firstVersion) leave(ctx context.Context) {
	GinkgoHelper()
	By("letting all pods and caches leave")
	for _, v := range f.running() {
		Expect(v.stop(ctx)).To(Succeed())
		f.off[v] = true
	}
	f.shell(ctx, "helm upgrade nearflash "+chart()+" -n nearflash --values "+f.values+" --set node.retainedCacheTTL=1s --wait --timeout "+upgradeLimit)
	for _, node := range k.Workers {
		Expect(awaitEmptyPool(ctx, node)).To(Succeed())
	}
	for _, v := range f.all() {
		Expect(cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
			if formats := v.formats(ctx); len(formats) > 0 {
				return fmt.Sprintf("volume %s has entries: %v", v.claim, formats), nil
			}
			return "", nil
		})).To(Succeed())
	}
}
