//go:build e2e

package e2e

import (
	"os"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/nearflash/nearflash/pkg/bench"
)

const (
	// databaseImage has Debian's PostgreSQL, and is in the archive that databaseVariable names;
	// hack/cluster-ring.sh sets it.
	databaseImage    = "nearflash.local/database:1"
	databaseVariable = "NEARFLASH_DATABASE_IMAGE"
)

var _ = Describe("kubectl nearflash bench", Label("bench-command", "database", "kubectl", "lab", "slow"), Serial, func() {
	// The lines that begin with "curve" are those of docs/database-move.csv.
	It("measures a database through a move, with its cache and without", func(ctx SpecContext) {
		archive := os.Getenv(databaseVariable)
		Expect(archive).NotTo(BeEmpty(), "%s is not set: name the archive of `lab artifacts database`", databaseVariable)
		Expect(k.Lab.AddImage(ctx, archive)).To(Succeed())
		s := newSpace(ctx)
		r, out, page := s.benched(ctx, databaseImage, "--profile", "postgres", "--size", "1Gi", "--runtime", "1m", "--warm-limit", "6m")

		By("measuring both modes")
		Expect(r.Databases).To(HaveLen(2))
		for _, d := range r.Databases {
			Expect(d.Measured.TPS).To(BeNumerically(">", 0), d.Mode)
			Expect(d.Measured.Latency).NotTo(BeNil(), d.Mode)
		}
		Expect(r.Databases[0].Moves).To(BeEmpty())

		By("showing the moves")
		Expect(r.Databases[1].Moves).To(HaveLen(2))
		warm, cold := r.Databases[1].Moves[0], r.Databases[1].Moves[1]
		Expect([]any{warm.Warm, warm.To, cold.Warm, cold.To}).To(Equal([]any{true, nodeB, false, nodeA}))
		Expect(warm.Method).NotTo(BeEmpty())
		for _, m := range []bench.DatabaseMove{warm, cold} {
			Expect(m.Phases).To(HaveLen(3))
			Expect(m.GapSeconds).To(BeNumerically(">", 0))
			for _, p := range m.Phases {
				Expect(p.Transactions).To(BeNumerically(">", 0), p.Name)
				Expect(p.HitPercent).NotTo(BeNil(), p.Name)
				Expect(p.Latency.P99Micros).To(BeNumerically(">", 0), p.Name)
			}
			for _, second := range m.Series {
				say("curve %s,%.1f,%.0f", map[bool]string{true: "with its cache", false: "without its cache"}[m.Warm], second.Seconds-m.AwayFrom, second.TPS)
			}
		}
		Expect(*warm.Phases[1].HitPercent).To(BeNumerically(">", *cold.Phases[1].HitPercent), "its cache came along")

		By("drawing it")
		expectDrawn("database", out, page, "transactions per second beside a move")
		s.expectNoBench(ctx)
	}, NodeTimeout(50*time.Minute))
})
