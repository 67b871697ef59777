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
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
)

// pluginVariable names the built plugin.
const pluginVariable = "NEARFLASH_KUBECTL_PLUGIN"

// plugin calls the kubectl plugin. Its own failure is no error, but a status.
func plugin(ctx context.Context, args ...string) (stdout, stderr string, status int, err error) {
	path := os.Getenv(pluginVariable)
	if path == "" {
		return "", "", 0, fmt.Errorf("%s is not set: name the built kubectl-nearflash", pluginVariable)
	}
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return out.String(), errOut.String(), exit.ExitCode(), nil
	}
	return out.String(), errOut.String(), 0, err
}

// shown calls the plugin and returns what it prints.
func shown(ctx context.Context, args ...string) (string, error) {
	out, errOut, status, err := plugin(ctx, args...)
	if err == nil && status != 0 {
		err = fmt.Errorf("kubectl nearflash %s: status %d: %s", strings.Join(args, " "), status, errOut)
	}
	return out, err
}

// awaitShown waits until the plugin prints all of some words.
func awaitShown(ctx context.Context, words []string, args ...string) error {
	return cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		out, err := shown(ctx, args...)
		if err != nil {
			return "", err
		}
		for _, w := range words {
			if !strings.Contains(out, w) {
				return fmt.Sprintf("no %q in what %q shows:\n%s", w, args, out), nil
			}
		}
		return "", nil
	})
}

// measuredNow is what top shows of a volume on node A. It fails if that is older than the question,
// by the clock of the node.
func measuredNow(ctx context.Context, v *vol) (*v1alpha1.CacheStatus, error) {
	clock, err := k.Host.Run(ctx, nodeA, "date +%s")
	if err != nil {
		return nil, err
	}
	asked, err := strconv.ParseInt(strings.TrimSpace(clock), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("clock of %s: %w", nodeA, err)
	}
	out, errOut, status, err := plugin(ctx, "top", "-n", v.space.name, v.claim, "-o", "json")
	if err != nil {
		return nil, err
	}
	if status != 0 || errOut != "" {
		return nil, fmt.Errorf("top: status %d: %s", status, errOut)
	}
	var list struct{ Items []v1alpha1.CachedVolume }
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, fmt.Errorf("top: %w", err)
	}
	if len(list.Items) != 1 {
		return nil, fmt.Errorf("top shows %d volumes, not one:\n%s", len(list.Items), out)
	}
	cache := &list.Items[0].Status.Cache
	if cache.ObservedTime.Unix() < asked-1 { // one look serves who asks within a second
		return nil, fmt.Errorf("asked at %s, top shows what was measured at %s", time.Unix(asked, 0).UTC(), cache.ObservedTime.UTC())
	}
	return cache, nil
}

var _ = Describe("The kubectl plugin", Label("kubectl"), func() {
	It("shows a volume in use, the pools and a healthy cluster", func(ctx SpecContext) {
		s := newSpace(ctx)
		v, err := s.volume(ctx, volumeSpec{name: "shown", mode: v1alpha1.CacheModeWriteback, kind: ext4, cacheSize: "64Mi"})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.start(ctx, nodeA)).To(Succeed())
		_, err = v.write(ctx, 0, 16)
		Expect(err).NotTo(HaveOccurred())

		By("listing it by namespace, by claim and as an object")
		Expect(awaitShown(ctx, []string{"CLAIM", v.claim, "writeback", "64Mi", nodeA, "yes"}, "list", "-n", s.name)).To(Succeed())
		Expect(shown(ctx, "list", "-n", s.name, v.claim, "-o", "name")).To(Equal("cachedvolume.nearflash.io/" + v.Handle + "\n"))
		Expect(shown(ctx, "list", "pv/"+v.PV, "-o", "jsonpath={.items[0].status.ownerNode}")).To(Equal(nodeA))
		Expect(shown(ctx, "list", "-A", "-o", "wide")).To(And(ContainSubstring(s.name), ContainSubstring(v.Handle), ContainSubstring("Published")))

		By("measuring it")
		Expect(awaitShown(ctx, []string{"MISS-P99", v.claim, nodeA}, "top", "-n", s.name)).To(Succeed())

		By("describing it")
		Expect(awaitShown(ctx, []string{
			s.name + "/" + v.claim, "pod " + v.pod + " on " + nodeA + " (Running)", "Published, PossiblyDirty, generation 1",
			"mode writeback, Healthy", "is lost if that node or its SSD is lost now", "CacheActive",
		}, "describe", "-n", s.name, v.claim)).To(Succeed())

		By("listing the pools")
		for _, node := range k.Workers {
			Expect(shown(ctx, "pools", node)).To(And(ContainSubstring(node), ContainSubstring("PoolReady")))
		}

		By("examining the cluster")
		Expect(awaitShown(ctx, []string{
			"serves v1alpha1 with all fields", "node/" + nodeA + ": plugin ready and registered", "node/" + nodeB + ": plugin ready and registered", "0 errors",
		}, "doctor")).To(Succeed())
		text, err := shown(ctx, "doctor", "-o", "json")
		Expect(err).NotTo(HaveOccurred())
		var report struct {
			Errors   int              `json:"errors"`
			Findings []map[string]any `json:"findings"`
		}
		Expect(json.Unmarshal([]byte(text), &report)).To(Succeed())
		Expect(report.Findings).NotTo(BeEmpty())

		By("completing its name")
		Expect(shown(ctx, "__complete", "describe", "-n", s.name, "sh")).To(HavePrefix(v.claim + "\n"))
	}, NodeTimeout(specLimit))

	It("shows what a volume does now", func(ctx SpecContext) {
		s := newSpace(ctx)
		v, err := s.volume(ctx, volumeSpec{name: "live", mode: v1alpha1.CacheModeWriteback, kind: ext4, cacheSize: "64Mi"})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.start(ctx, nodeA)).To(Succeed())

		By("measuring it when it is asked for, right after it was attached")
		first, err := measuredNow(ctx, v)
		Expect(err).NotTo(HaveOccurred())
		Expect(first.Mode).To(Equal(v1alpha1.CacheModeWriteback))

		By("having its rates at the second look")
		_, err = v.write(ctx, 0, 16)
		Expect(err).NotTo(HaveOccurred())
		time.Sleep(2 * time.Second) // two measurements a second apart
		second, err := measuredNow(ctx, v)
		Expect(err).NotTo(HaveOccurred())
		Expect(second.Performance.WriteIOPS).To(HaveValue(BeNumerically(">", 0)), "%+v", second)
		Expect(second.Performance.Volume.P99Micros).NotTo(BeNil(), "%+v", second)

		By("asking no node if what was reported is enough")
		_, errOut, status, err := plugin(ctx, "top", "-n", s.name, v.claim, "--reported")
		Expect(err).NotTo(HaveOccurred())
		Expect(status).To(BeZero(), errOut)
	}, NodeTimeout(specLimit))

	It("answers bad input with one line that says what to do", func(ctx SpecContext) {
		for _, bad := range []struct{ args, want string }{
			{"list --nonsense", "see `kubectl nearflash list --help`"},
			{"list missing", "name its namespace with -n"},
			{"top --sort-by colour", "accepted are hit, iops"},
			{"describe", "write `kubectl nearflash describe PVC`"},
			{"describe cvol/missing", "`kubectl nearflash list -A` shows all volumes"},
			{"flush pv/missing", "`kubectl get pv` lists them"},
			{"mode missing fast", "accepted are none, writethrough, writeback, writeback-unsafe"},
			{"resize missing much", "accepted are quantities"},
			{"drop missing", "add --yes"},
			{"abandon missing", "name its namespace with -n"},
			{"pools missing", "`kubectl nearflash pools` lists those there are"},
			{"doctor -o table", "accepted are json, yaml"},
			{"bench", "--image is missing"},
			{"version -o table", "accepted are json, yaml"},
			{"completion", "one of bash, zsh, fish, powershell"},
			{"nonsense", "`kubectl nearflash --help` lists them"},
			{"list --kubeconfig=/nonexistent/config", "/nonexistent/config"},
		} {
			_, errOut, status, err := plugin(ctx, strings.Fields(bad.args)...)
			Expect(err).NotTo(HaveOccurred())
			Expect(status).To(Equal(1), bad.args)
			Expect(errOut).To(And(HavePrefix("error: "), ContainSubstring(bad.want), HaveSuffix("\n")), bad.args)
			Expect(strings.Count(errOut, "\n")).To(Equal(1), "%s: %s", bad.args, errOut)
		}
	}, NodeTimeout(specLimit))
})
