//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
	"github.com/nearflash/nearflash/pkg/bench"
)

// benchImage has fio, and is on the nodes of the lab.
const benchImage = "nearflash.local/workload:1"

var _ = Describe("kubectl nearflash bench", Label("bench-command", "kubectl", "lab", "slow"), Serial, func() {
	It("measures two modes and a move, and leaves nothing", func(ctx SpecContext) {
		s := newSpace(ctx)
		r, out, page := s.benched(ctx, benchImage, "--profile", "randread,oltp", "--size", "64Mi", "--runtime", "6s", "--warm-limit", "2m")

		By("comparing the modes")
		var rows []string
		for _, row := range r.Rows {
			rows = append(rows, row.Volume+" "+row.Profile)
			Expect(row.Load.IOPS).To(BeNumerically(">", 0))
			Expect(row.Verdict.Limit).NotTo(BeEmpty())
			Expect(row.Counted).NotTo(BeNil(), "%s: the node did not say what it counted: %v", row.Volume, r.Notes)
		}
		Expect(rows).To(Equal([]string{"none randread", "none oltp", "writethrough randread", "writethrough oltp"}))
		warm := r.Rows[2]
		Expect(warm.WarmUp).NotTo(BeNil())
		Expect(warm.WarmUp.Flat).To(BeTrue(), "%+v", warm.WarmUp)
		Expect(warm.Counted.ReadHitPercent).To(HaveValue(BeNumerically(">", 90)))
		Expect(warm.Alone.Latency.P50Micros).To(BeNumerically("<", r.Rows[0].Alone.Latency.P50Micros), "a hit is no faster than the origin")
		Expect(r.Link).NotTo(BeNil())

		By("comparing them with the SSD alone")
		Expect(r.SSD).NotTo(BeNil())
		Expect(r.SSD.NotMeasured).To(BeEmpty())
		rows = nil
		for _, row := range r.SSD.Rows {
			rows = append(rows, row.Profile)
			Expect(row.Load.IOPS).To(BeNumerically(">", 0))
			Expect(row.Verdict.Limit).NotTo(BeEmpty())
		}
		Expect(rows).To(Equal([]string{"randread", "oltp"}))
		Expect(r.SSD.Rows[0].Alone.Latency.P50Micros).To(BeNumerically("<", r.Rows[0].Alone.Latency.P50Micros), "the SSD is no faster than the origin")
		Expect(r.SSD.Rows[1].Load.Sync).NotTo(BeNil())
		devices, err := k.Host.Run(ctx, nodeA, "cat /sys/block/dm-*/dm/name 2>/dev/null || true")
		Expect(err).NotTo(HaveOccurred())
		Expect(devices).NotTo(ContainSubstring("scratch"), "the scratch volume is left")

		By("showing the move")
		Expect(r.Moves).To(HaveLen(2))
		Expect(r.Moves[0].Warm).To(BeTrue())
		Expect(r.Moves[0].To).To(Equal(nodeB))
		Expect(r.Moves[0].Method).NotTo(BeEmpty())
		Expect(r.Moves[1].Warm).To(BeFalse())
		Expect(r.Moves[1].To).To(Equal(nodeA))
		Expect(r.Moves[0].FirstHitPercent).NotTo(BeNil())
		Expect(r.Moves[1].FirstHitPercent).NotTo(BeNil())
		Expect(*r.Moves[0].FirstHitPercent).To(BeNumerically(">", *r.Moves[1].FirstHitPercent))

		By("drawing it")
		expectDrawn("report", out, page, "hit rate beside a move")
		s.expectNoBench(ctx)
	}, NodeTimeout(30*time.Minute))

	It("leaves nothing when it is interrupted, and a killed run is cleaned up after", func(ctx SpecContext) {
		s := newSpace(ctx)
		class, err := s.class(ctx, "bench", cluster.ClassSpec{Mode: v1alpha1.CacheModeWritethrough, CacheSize: "100%"})
		Expect(err).NotTo(HaveOccurred())
		args := []string{"bench", "-n", s.name, "--image", benchImage, "--class", class, "--mode", "writethrough", "--size", "64Mi", "--runtime", "5s", "--node", nodeA}
		stop := s.watchVolumes(ctx)

		By("interrupting it while it warms a cache")
		status, errOut, err := s.signalled(ctx, syscall.SIGINT, "warming", args...)
		Expect(err).NotTo(HaveOccurred())
		Expect(status).To(Equal(1), errOut)
		Expect(errOut).To(And(ContainSubstring("error: interrupted"), ContainSubstring("deleted: nothing is left of run")))
		s.expectNoBench(ctx)

		By("killing it while it makes a volume")
		_, errOut, err = s.signalled(ctx, syscall.SIGKILL, "a volume is made", args...)
		Expect(err).NotTo(HaveOccurred())
		_, run, _ := strings.Cut(errOut, "run ")
		run, _, _ = strings.Cut(run, " ")
		Expect(shown(ctx, "bench", "-n", s.name, "--clean-up", run)).To(HavePrefix("deleted: "))
		s.expectNoBench(ctx)
		stop()
	}, NodeTimeout(2*specLimit))
})

// benched measures a volume without a cache and one with it, which is moved to the other node and back.
// out is the report as it was printed, page the file with its plots.
func (s *space) benched(ctx SpecContext, image string, args ...string) (r bench.Report, out, page string) {
	class, err := s.class(ctx, "bench", cluster.ClassSpec{Mode: v1alpha1.CacheModeWritethrough, CacheSize: "100%"})
	Expect(err).NotTo(HaveOccurred())
	page = filepath.Join(GinkgoT().TempDir(), "report.html")
	stop := s.watchVolumes(ctx)
	out, errOut, status, err := plugin(ctx, append([]string{"bench", "-n", s.name, "--image", image, "--class", class, "--mode", "none,writethrough",
		"--node", nodeA, "--move", "--to", nodeB, "-o", "json", "--html", page}, args...)...)
	stop()
	say("bench:\n%s", errOut)
	Expect(err).NotTo(HaveOccurred())
	Expect(status).To(BeZero(), errOut)
	Expect(json.Unmarshal([]byte(out), &r)).To(Succeed(), out)
	table := &bytes.Buffer{}
	Expect(r.Table(table)).To(Succeed())
	say("\n%s", table)
	return r, out, page
}

// expectDrawn looks at the plots of a report, and keeps both where somebody wants them.
func expectDrawn(name, out, page, plot string) {
	GinkgoHelper()
	text, err := os.ReadFile(page)
	Expect(err).NotTo(HaveOccurred())
	Expect(string(text)).To(And(ContainSubstring("<svg"), ContainSubstring(plot), HaveSuffix("</html>\n")))
	Expect(keepReport(name, out, text)).To(Succeed())
}

// benchKeepVariable names a folder that reports are kept in, of which documents show some.
const benchKeepVariable = "NEARFLASH_BENCH_KEEP"

// keepReport keeps a report and its page where somebody wants them.
func keepReport(name, report string, page []byte) error {
	folder := os.Getenv(benchKeepVariable)
	if folder == "" {
		return nil
	}
	return errors.Join(os.MkdirAll(folder, 0o700), os.WriteFile(filepath.Join(folder, name+".json"), []byte(report), 0o600), os.WriteFile(filepath.Join(folder, name+".html"), page, 0o600))
}

// watchVolumes has the volumes of claims that a program makes in the space be searched for when the
// spec ends, until the function that it returns is called.
func (s *space) watchVolumes(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	known := map[string]bool{}
	done.Go(func() {
		for ctx.Err() == nil {
			var list corev1.PersistentVolumeList
			if err := k.API.List(ctx, &list); err != nil {
				list.Items = nil // the next look has them
			}
			for _, pv := range list.Items {
				if ref := pv.Spec.ClaimRef; ref == nil || ref.Namespace != s.name || pv.Spec.CSI == nil || known[pv.Name] {
					continue
				}
				known[pv.Name] = true
				v := cluster.Volume{PV: pv.Name, Handle: pv.Spec.CSI.VolumeHandle}
				remember(v)
				s.mu.Lock()
				s.volumes = append(s.volumes, &vol{space: s, Volume: v, claim: pv.Spec.ClaimRef.Name})
				s.mu.Unlock()
			}
			select {
			case <-ctx.Done():
			case <-time.After(500 * time.Millisecond):
			}
		}
	})
	return func() { cancel(); done.Wait() }
}

// expectNoBench fails if the cluster has anything that bench makes.
func (s *space) expectNoBench(ctx context.Context) {
	GinkgoHelper()
	for _, list := range []client.ObjectList{&corev1.PodList{}, &corev1.PersistentVolumeClaimList{}, &storagev1.StorageClassList{}} {
		Expect(k.API.List(ctx, list, client.HasLabels{bench.Label})).To(Succeed())
		Expect(meta.LenList(list)).To(BeZero(), "%T: %v", list, list)
	}
}

// signalled runs the plugin and sends a signal when it has said a word on standard error.
func (s *space) signalled(ctx context.Context, signal syscall.Signal, word string, args ...string) (status int, stderr string, err error) {
	path := os.Getenv(pluginVariable)
	if path == "" {
		return 0, "", fmt.Errorf("%s is not set: name the built kubectl-nearflash", pluginVariable)
	}
	text := &awaited{word: word, seen: make(chan struct{})}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stderr = text
	if err := cmd.Start(); err != nil {
		return 0, "", err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		return 0, text.String(), fmt.Errorf("it ended before it said %q: %w", word, err)
	case <-text.seen:
	}
	time.Sleep(2 * time.Second) // into the middle of it
	if err := cmd.Process.Signal(signal); err != nil {
		return 0, text.String(), err
	}
	<-ended
	return cmd.ProcessState.ExitCode(), text.String(), nil
}

// awaited is an output that tells when it has a word.
type awaited struct {
	word string
	seen chan struct{}

	mu   sync.Mutex
	text bytes.Buffer
	told bool
}

// Write implements io.Writer.
func (a *awaited) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.text.Write(p)
	if !a.told && strings.Contains(a.text.String(), a.word) {
		a.told = true
		close(a.seen)
	}
	return len(p), nil
}

// String implements fmt.Stringer.
func (a *awaited) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.text.String()
}
