//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// What a stream is compared with, for docs/benchmarks.md: LABELS='bench && wire'.
var _ = Describe("A connection between nodes, measured", Label("bench", "wire", "slow", "lab"), Serial, func() {
	const (
		port    = 5598
		volume  = "wire"
		program = "/var/lib/nearflash/agent"
	)
	BeforeEach(func(ctx SpecContext) {
		agent, err := os.ReadFile(os.Getenv(agentVariable))
		Expect(err).NotTo(HaveOccurred(), agentVariable)
		Expect(k.AwaitDriver(ctx, late)).To(Succeed())
		for _, node := range []string{nodeA, nodeB} {
			pod, err := k.NodePlugin(ctx, node)
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(func(ctx SpecContext) error {
				_, err := k.Host.Run(ctx, node, fmt.Sprintf("rm -f %s; lvremove -qfy $(vgs --noheadings -o vg_name | tr -d ' ')/%s", program, volume))
				return err
			})
			Expect(k.ExecPipe(ctx, pod.Namespace, pod.Name, "", "cat >"+program, bytes.NewReader(agent), io.Discard)).To(Succeed())
			_, err = k.Host.Run(ctx, node, fmt.Sprintf("chmod +x %s && lvcreate -qqy -L 1G -n %s $(vgs --noheadings -o vg_name | tr -d ' ')", program, volume))
			Expect(err).NotTo(HaveOccurred())
		}
	})

	// rate is that of a program that reads an SSD, sends, and writes another SSD.
	rate := func(ctx context.Context, from, to, flags string) (float64, error) {
		plugin, err := k.NodePlugin(ctx, from)
		if err != nil {
			return 0, err
		}
		run := func(node, side string) (string, error) {
			return k.Host.Run(ctx, node, fmt.Sprintf("%s wire %s -device /dev/$(vgs --noheadings -o vg_name | tr -d ' ')/%s -mib 1024 %s", program, side, volume, flags))
		}
		sent := make(chan error, 1)
		go func() {
			_, err := run(from, fmt.Sprintf("-listen :%d", port))
			sent <- err
		}()
		time.Sleep(3 * time.Second) // it listens
		out, err := run(to, fmt.Sprintf("-connect %s:%d", plugin.Status.HostIP, port))
		if err != nil {
			return 0, err
		}
		if err := <-sent; err != nil {
			return 0, err
		}
		return strconv.ParseFloat(strings.TrimSpace(out), 64)
	}

	It("is encrypted at a price", func(ctx SpecContext) {
		var plain, secure []float64
		for i := range 4 {
			from, to := nodeA, nodeB
			if i%2 == 1 {
				from, to = to, from
			}
			before, err := networkRate(ctx, from, to)
			Expect(err).NotTo(HaveOccurred())
			unencrypted, err := rate(ctx, from, to, "")
			Expect(err).NotTo(HaveOccurred())
			encrypted, err := rate(ctx, from, to, "-tls")
			Expect(err).NotTo(HaveOccurred())
			after, err := networkRate(ctx, from, to)
			Expect(err).NotTo(HaveOccurred())
			tcp := (before + after) / 2
			plain, secure = append(plain, 100*unencrypted/tcp), append(secure, 100*encrypted/tcp)
			say("TCP %.1f and %.1f MiB/s; from SSD to SSD %.1f MiB/s, %.0f %%; by TLS %.1f MiB/s, %.0f %%", before, after, unencrypted, plain[i], encrypted, secure[i])
		}
		say("of the rate of TCP, mean of %d: from SSD to SSD %.0f %%, by TLS %.0f %%", len(plain), mean(plain), mean(secure))
	}, NodeTimeout(20*time.Minute))
})
