//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/checker"
	"github.com/nearflash/nearflash/e2e/cluster"
)

// spareMachine is the second storage server of a lab with a pair.
const spareMachine = "storage-b"

// heldBack is how long nodes hold I/O back (storage-server-pair.md).
const heldBack = 120 * time.Second

// pairPage says how a pair is run. Its scripts are, in their order:
const (
	pairPage = "docs/how-to/storage-server-pair.md"

	scriptGroup = iota - 1
	scriptNotAtBoot
	scriptServe
	scriptTake
	scriptGive
	pairScripts
)

var _ = Describe("A pair of storage servers", Label("storage-pair", "lab", "slow"), Serial, Ordered, func() {
	BeforeAll(func(ctx SpecContext) {
		if !isPair(ctx) {
			Skip("the lab has one storage server (`lab up --storage-pair`)")
		}
	}, NodeTimeout(soon))

	It("changes nothing on the disk when the standby is started beside the active one", func(ctx SpecContext) {
		s := newSpace(ctx)
		v := s.inUse(ctx, "beside", v1alpha1.CacheModeWritethrough)
		before, wrote := sharedDisk(ctx), writesOfSpare(ctx)
		for _, command := range []string{
			"nearflash-target --config /etc/nearflash-target/config.yaml",
			"nearflash-target --config /etc/nearflash-target/config.yaml --withdraw", // what a cluster manager does to be sure
			"vgchange --activate y storage",
		} {
			out, err := k.Host.Run(ctx, spareMachine, "timeout 60 "+command+" 2>&1 && echo succeeded || echo failed with $?; dmsetup ls")
			Expect(err).NotTo(HaveOccurred())
			GinkgoWriter.Println(command + ":\n" + out)
			Expect(out).NotTo(ContainSubstring("storage-pool"), "the pool is active on both machines")
			if !strings.Contains(command, "--withdraw") {
				Expect(out).NotTo(ContainSubstring("failed with 124"), "it did not end")
				Expect(out).To(MatchRegexp(`(?i)system ID|foreign`), "it says why")
			}
		}
		Expect(sharedDisk(ctx)).To(Equal(before))
		Expect(writesOfSpare(ctx)).To(Equal(wrote))
		Expect(v.write(ctx, 0, 4)).NotTo(BeEmpty())
	}, NodeTimeout(specLimit))

	It("refuses a state directory that is not the shared one", func(ctx SpecContext) {
		s := newSpace(ctx)
		v := s.inUse(ctx, "stateless", v1alpha1.CacheModeWritethrough)
		out, err := k.Host.Run(ctx, cluster.StorageMachine, `
sed 's|/var/lib/nearflash-target|/var/lib/elsewhere|' /etc/nearflash-target/config.yaml >/run/elsewhere.yaml
timeout 60 nearflash-target --config /run/elsewhere.yaml 2>&1 && exit 1
test ! -e /var/lib/elsewhere`)
		Expect(err).NotTo(HaveOccurred(), out)
		Expect(out).To(ContainSubstring("is not mounted at /var/lib/elsewhere"))
		Expect(v.write(ctx, 0, 4)).NotTo(BeEmpty())
	}, NodeTimeout(specLimit))

	It("fails over and back below a verified load", func(ctx SpecContext) {
		s := newSpace(ctx)
		l := newPairLoad(ctx, s)
		DeferCleanup(func(ctx SpecContext) { serveAgain(ctx) }, NodeTimeout(2*late))

		By("killing the active server, and taking over as the page says")
		l.begin(ctx)
		time.Sleep(10 * time.Second)
		down := time.Now()
		Expect(k.Lab.Kill(ctx, cluster.StorageMachine)).To(Succeed()) // which is the fence, too
		l.note("fenced", down)
		typePair(ctx, spareMachine, scriptTake)
		l.note("group taken", down)
		typePair(ctx, spareMachine, scriptServe)
		l.note("serves", down)
		l.end(ctx, "failover")

		By("making, growing and deleting a volume on the new server")
		v := s.inUse(ctx, "new", v1alpha1.CacheModeWriteback)
		sum, err := v.write(ctx, 0, 16)
		Expect(err).NotTo(HaveOccurred())
		_, err = growInUse(ctx, v, sum)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.restart(ctx, nodeB)).To(Succeed())
		Expect(v.verify(ctx, 0, 16, sum)).To(Succeed())

		By("booting the old server: it leaves the group alone")
		Expect(k.Lab.Start(ctx, cluster.StorageMachine)).To(Succeed())
		Expect(k.Host.Run(ctx, cluster.StorageMachine, "dmsetup ls")).NotTo(ContainSubstring("storage-pool"))

		By("switching back in order")
		l.begin(ctx)
		time.Sleep(10 * time.Second)
		down = time.Now()
		typePair(ctx, spareMachine, scriptGive)
		l.note("given", down)
		typePair(ctx, cluster.StorageMachine, scriptServe)
		l.note("serves", down)
		l.end(ctx, "switch")

		By("reading everything from the disk, on the other node")
		Expect(recovered(ctx)).To(Succeed())
		l.move(ctx)
	}, NodeTimeout(3*specLimit))

	It("lets a pod move warm afterwards", func(ctx SpecContext) {
		v, sum, before, _ := startWarm(ctx, volumeSpec{name: "warm", mode: v1alpha1.CacheModeWritethrough, kind: block, size: "128Mi", cacheSize: "100%"})
		Expect(v.restart(ctx, nodeB)).To(Succeed())
		rate, err := v.hitRate(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(rate).To(BeNumerically(">=", 0.95*before))
		Expect(v.verify(ctx, 0, workingSet, sum)).To(Succeed())
	}, NodeTimeout(specLimit))
})

// typePair types a script of the page on a machine.
func typePair(ctx context.Context, machine string, script int) {
	GinkgoHelper()
	scripts, err := scriptsOf(pairPage)
	Expect(err).NotTo(HaveOccurred())
	Expect(scripts).To(HaveLen(pairScripts), "%s has other scripts than this spec knows", pairPage)
	w := &walk{path: pairPage, words: []word{
		{`192\.0\.2\.10`, "10.88.0.25"}, {`\beth0\b`, "vec0"}, {`\bstorage-1\b`, cluster.StorageMachine}, {`\bstorage-2\b`, spareMachine},
		{`/dev/nearflash/`, "/dev/storage/"}, {` nearflash$`, " storage"},
	}}
	for _, command := range scripts[script].Commands {
		command = w.worded(command)
		began := time.Now()
		out, err := k.Host.Run(ctx, machine, command)
		GinkgoWriter.Printf("%s: %s (%.1f s)\n%s", machine, command, time.Since(began).Seconds(), out)
		Expect(err).NotTo(HaveOccurred(), "%s:%d: %s", pairPage, scripts[script].Line, command)
	}
}

// isPair says whether the lab has two storage servers.
func isPair(ctx context.Context) bool {
	_, err := k.Host.Run(ctx, cluster.StorageMachine, "grep -q ' "+spareMachine+"$' /etc/hosts")
	return err == nil
}

// serveAgain has the first storage server serve, however a spec has left it, or the pair.
func serveAgain(ctx context.Context) {
	GinkgoHelper()
	Expect(k.Lab.Start(ctx, cluster.StorageMachine)).To(Succeed())
	if !isPair(ctx) {
		return
	}
	if out, err := k.Host.Run(ctx, cluster.StorageMachine, "mountpoint /var/lib/nearflash-target"); err == nil {
		GinkgoWriter.Println(out)
		return
	}
	for _, machine := range []string{spareMachine, cluster.StorageMachine} {
		_ = k.Lab.Kill(ctx, machine) // it may be off
		Expect(k.Lab.Start(ctx, machine)).To(Succeed())
	}
	_, err := k.Host.Run(ctx, cluster.StorageMachine, `vgchange --yes --config 'local/extra_system_ids=["storage-b"]' --systemid storage storage || true`)
	Expect(err).NotTo(HaveOccurred())
	typePair(ctx, cluster.StorageMachine, scriptServe)
}

// sharedDisk is a digest of LVM's metadata on the disk, as the active machine reads them past
// its page cache.
func sharedDisk(ctx context.Context) string {
	GinkgoHelper()
	out, err := k.Host.Run(ctx, cluster.StorageMachine, `dd if=/dev/mapper/array iflag=direct bs=1M count=1 status=none | sha256sum
lvs --noheadings -o lv_name,lv_active,lv_tags storage; findmnt -n /var/lib/nearflash-target`)
	Expect(err).NotTo(HaveOccurred())
	return out
}

// writesOfSpare counts the requests with which the second machine has written to the disk
// (Documentation/admin-guide/iostats.rst).
func writesOfSpare(ctx context.Context) string {
	GinkgoHelper()
	out, err := k.Host.Run(ctx, spareMachine, "awk '$3 == \"ubdb\" {print $8, $15, $19}' /proc/diskstats | grep .")
	Expect(err).NotTo(HaveOccurred())
	return out
}

// pairLoad is what pods do while servers come and go: volumes whose every block the checker
// knows, and filesystems of which each file is flushed, and read back past the page cache.
type pairLoad struct {
	witnesses []*witness
	files     []*vol
	stop      chan struct{}
	gaps      *errgroup.Group
	longest   []time.Duration
	written   []func() (string, error)
}

func newPairLoad(ctx context.Context, s *space) *pairLoad {
	GinkgoHelper()
	l := &pairLoad{}
	for i, mode := range []checker.Mode{checker.None, checker.Writethrough, checker.Writeback} {
		w, err := newWitness(ctx, s, mode, uint64(i+1))
		Expect(err).NotTo(HaveOccurred())
		// Every block has its place in the thin pool afterwards: then a crash of the server
		// loses nothing that was acknowledged, and the verdict below can be strict.
		for at := int64(0); at < witnessBlocks; at += 16 {
			var batch []int64
			for n := range int64(16) {
				batch = append(batch, at+n)
			}
			Expect(w.s.Write(batch...)).To(Succeed())
		}
		Expect(w.s.Flush()).To(Succeed())
		l.witnesses = append(l.witnesses, w)
	}
	for _, mode := range []v1alpha1.CacheMode{v1alpha1.CacheModeWritethrough, v1alpha1.CacheModeWriteback} {
		l.files = append(l.files, s.inUse(ctx, "files-"+string(mode), mode))
	}
	return l
}

// filesLoad writes, flushes and reads until /tmp/stop is there, and prints the number of files
// and the longest time that one took, in milliseconds.
const filesLoad = `rm -f /tmp/stop; i=0; longest=0
while test ! -e /tmp/stop; do
  s=$(date +%s%N)
  head -c 65536 /dev/urandom >/tmp/new
  dd if=/tmp/new of=/data/f$((i % 16)) bs=64k conv=fsync status=none
  dd if=/data/f$((i % 16)) iflag=direct bs=64k status=none | cmp - /tmp/new
  took=$((($(date +%s%N) - s) / 1000000)); i=$((i + 1))
  if ((took > longest)); then longest=$took; fi
done
echo $i $longest`

func (l *pairLoad) begin(ctx context.Context) {
	l.stop, l.gaps, l.longest, l.written = make(chan struct{}), new(errgroup.Group), make([]time.Duration, len(l.witnesses)), nil
	for i, w := range l.witnesses {
		w.begin(ctx)
		l.gaps.Go(func() error {
			l.longest[i] = longestGap(ctx, w.s, l.stop)
			return nil
		})
	}
	for _, v := range l.files {
		type result struct {
			out string
			err error
		}
		done := make(chan result, 1)
		go func() {
			out, err := v.run(ctx, filesLoad)
			done <- result{out, err}
		}()
		l.written = append(l.written, func() (string, error) { r := <-done; return r.out, r.err })
	}
}

// longestGap is the longest time without an acknowledged write.
func longestGap(ctx context.Context, s *checker.Session, stop <-chan struct{}) time.Duration {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	longest, last := time.Duration(0), time.Now()
	before, _ := s.Counts()
	for {
		select {
		case <-ctx.Done():
			return longest
		case <-stop:
			return longest
		case now := <-tick.C:
			if acked, _ := s.Counts(); acked != before {
				longest, before, last = max(longest, now.Sub(last)), acked, now
			}
		}
	}
}

func (l *pairLoad) note(what string, since time.Time) {
	AddReportEntry(fmt.Sprintf("%s after %.1f s", what, time.Since(since).Seconds()))
	GinkgoWriter.Printf("%s after %.1f s\n", what, time.Since(since).Seconds())
}

// end waits until every volume is served again, ends the load, and judges: nothing may have
// failed, no byte may be wrong, and no pause may be as long as the kernel's patience.
func (l *pairLoad) end(ctx context.Context, what string) {
	GinkgoHelper()
	for _, w := range l.witnesses {
		before, _ := w.s.Counts()
		Eventually(ctx, func() int { acked, _ := w.s.Counts(); return acked }).WithTimeout(late).Should(BeNumerically(">", before+500), "%s goes on", w.mode)
	}
	time.Sleep(5 * time.Second)
	close(l.stop)
	Expect(l.gaps.Wait()).To(Succeed())
	for i, w := range l.witnesses {
		Expect(w.rest(ctx)).To(Succeed())
		acked, failed := w.s.Counts()
		Expect(failed).To(BeZero(), "writes of %s", w.mode)
		report, err := w.judge(checker.LossNothing)
		Expect(err).NotTo(HaveOccurred(), "%s", w.mode)
		GinkgoWriter.Printf("%s: %s without an acknowledged write in mode %s; %d acknowledged, %s\n", what, l.longest[i].Round(10*time.Millisecond), w.mode, acked, report)
		Expect(l.longest[i]).To(BeNumerically("<", heldBack))
	}
	for i, v := range l.files {
		_, err := v.run(ctx, "touch /tmp/stop")
		Expect(err).NotTo(HaveOccurred())
		out, err := l.written[i]()
		Expect(err).NotTo(HaveOccurred(), "%s: files of %s: %s", what, v.claim, out)
		n, ms, _ := strings.Cut(out, " ")
		longest, err := strconv.Atoi(ms)
		Expect(err).NotTo(HaveOccurred())
		GinkgoWriter.Printf("%s: %.1f s for a flushed file of %s; %s files\n", what, float64(longest)/1000, v.claim, n)
	}
}

// move takes every volume to the other node and judges it there.
func (l *pairLoad) move(ctx context.Context) {
	GinkgoHelper()
	g, gctx := errgroup.WithContext(ctx)
	for _, w := range l.witnesses {
		g.Go(func() error {
			if err := w.again(gctx, nodeB); err != nil {
				return err
			}
			_, err := w.judge(checker.LossNothing)
			return err
		})
	}
	for _, v := range l.files {
		g.Go(func() error {
			sums, err := v.run(gctx, "cd /data && sha256sum f*")
			if err != nil {
				return err
			}
			if err := v.restart(gctx, nodeB); err != nil {
				return err
			}
			now, err := v.run(gctx, "cd /data && sha256sum f*")
			if err == nil && now != sums {
				err = errors.New("files of " + v.claim + " are others than before")
			}
			return err
		})
	}
	Expect(g.Wait()).To(Succeed())
}
