//go:build kernel

package kernel

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/volume"
)

// fioRates runs a load on what is cached, and returns accesses and bytes per second.
func (d *disk) fioRates(rw, size string, depth int) (iops, bytes float64) {
	t := d.m.t
	t.Helper()
	out := d.m.must("fio", "--name=cost", "--filename="+d.device(), "--rw="+rw, "--bs="+size, "--size=32m", "--direct=1", "--ioengine=libaio", fmt.Sprintf("--iodepth=%d", depth),
		"--time_based", "--runtime=4", "--randrepeat=0", "--output-format=json")
	var r struct {
		Jobs []struct {
			Read, Write struct {
				IOPS float64 `json:"iops"`
				BW   float64 `json:"bw_bytes"`
			}
		} `json:"jobs"`
	}
	mustPass(t, "fio", json.Unmarshal([]byte(out), &r))
	j := r.Jobs[0]
	return j.Read.IOPS + j.Write.IOPS, j.Read.BW + j.Write.BW
}

// TestKernelIntegrityCost measures what checksums cost of a cache that has all that is read and written,
// beside the same without, in turns.
func TestKernelIntegrityCost(t *testing.T) {
	m := newMachine(t)
	const rounds = 2
	for round := range rounds {
		for name, spec := range map[string]v1alpha1.CachePoolSpec{"without": onOneSSD(), "with": checkedSSD()} {
			for _, mode := range []volume.CacheMode{volume.ModeWritethrough, volume.ModeWriteback} {
				t.Run(fmt.Sprintf("%s/%s/%d", name, mode, round), func(t *testing.T) {
					m.t = t
					n := m.node(t.TempDir(), spec)
					d := m.volume(n, fmt.Sprintf("cost-%s-%s-%d", name, mode, round), 64*mib, cached(mode, 64*mib))
					d.req.Block = true
					d.stage()
					d.change()
					d.heat(32 * mib)
					d.heat(32 * mib)
					for _, load := range []struct {
						rw, size string
						depth    int
					}{{"randread", "4k", 16}, {"randwrite", "4k", 16}, {"randwrite", "4k", 1}, {"read", "128k", 4}, {"write", "128k", 4}} {
						iops, bytes := d.fioRates(load.rw, load.size, load.depth)
						st, _ := d.cache()
						t.Logf("%s checksums, %s: %s of %s, %d at once: %.0f accesses, %.1f MiB a second; %d chunks cached", name, mode, load.rw, load.size, load.depth, iops, bytes/(1<<20), st.CacheUsed)
					}
					d.unstage()
					d.remove()
				})
			}
		}
	}
	m.t = t
}
