package node

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nearflash/nearflash/pkg/devmapper"
)

// scrapeTimeout bounds the look at the kernel that a scrape causes.
const scrapeTimeout = 5 * time.Second

// metrics serves the CSI calls, the process and, read at each scrape, what
// dm-cache counts for each volume.
func (p *plugin) metrics(calls prometheus.Collector) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(calls, &cacheCollector{dm: p.attacher.DM},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

// cacheCollector turns the status of all caches into metrics, one dmsetup a
// scrape.
type cacheCollector struct{ dm devmapper.Client }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("nearflash_cache_"+name, help, append([]string{"volume"}, labels...), nil)
}

var (
	accesses   = desc("accesses_total", "Accesses by operation (read, write) and result (hit, miss), in units of at most one chunk. Kept in the cache's metadata, so they go on after a restart.", "operation", "result")
	promotions = desc("promotions_total", "Chunks copied into the cache.")
	demotions  = desc("demotions_total", "Chunks dropped from the cache.")
	dirty      = desc("dirty_bytes", "Bytes that only the cache has.")
	used       = desc("used_bytes", "Bytes of the cache in use.")
	size       = desc("size_bytes", "Size of the cache in bytes.")
	healthy    = desc("healthy", "1 while the cache works; 0 if it has failed, is read-only or needs a check.")
)

// Describe implements prometheus.Collector.
func (c *cacheCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{accesses, promotions, demotions, dirty, used, size, healthy} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *cacheCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	all, err := c.dm.StatusAll(ctx)
	if err != nil {
		ch <- prometheus.NewInvalidMetric(healthy, err)
		return
	}
	for name, st := range all {
		vol, ours := strings.CutPrefix(name, "nf-")
		if !ours {
			continue
		}
		ok := 1.0
		if st.Fail || st.ReadOnly || st.NeedsCheck {
			ok = 0
		}
		ch <- prometheus.MustNewConstMetric(healthy, prometheus.GaugeValue, ok, vol)
		if st.Fail {
			continue
		}
		count := func(d *prometheus.Desc, n uint64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), append([]string{vol}, labels...)...)
		}
		gauge := func(d *prometheus.Desc, n uint64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), vol)
		}
		chunk := st.ChunkSectors * devmapper.SectorSize
		count(accesses, st.ReadHits, "read", "hit")
		count(accesses, st.ReadMisses, "read", "miss")
		count(accesses, st.WriteHits, "write", "hit")
		count(accesses, st.WriteMisses, "write", "miss")
		count(promotions, st.Promotions)
		count(demotions, st.Demotions)
		gauge(dirty, st.DirtyBytes())
		gauge(used, st.CacheUsed*chunk)
		gauge(size, st.CacheTotal*chunk)
	}
}
