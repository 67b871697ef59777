package metrics

import (
	"context"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/dirtylimit"
	"github.com/nearflash/nearflash/pkg/attach/scrub"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/observe"
	"github.com/nearflash/nearflash/pkg/reuse"
	"github.com/nearflash/nearflash/pkg/volume"
)

// scrapeTimeout bounds what a scrape waits for a pass.
const scrapeTimeout = 8 * time.Second

// Pool is the node's pool as its last reconciliation found it.
type Pool struct {
	Ready bool
	// Known is false if the pool's sizes could not be read, or there is no pool.
	Known                                   bool
	CapacityBytes, FreeBytes, RetainedBytes int64
	// Kept is how many caches with unflushed writes wait for an administrator.
	Kept    int
	Devices []PoolDevice
}

// PoolDevice is an SSD of the pool.
type PoolDevice struct {
	Path string
	// Health is empty, and WearPercent nil, if the device does not tell.
	Health      v1alpha1.DeviceHealth
	WearPercent *int32
}

// Collector reads volumes and pool when it is scraped.
type Collector struct {
	// Node is the node's name.
	Node string
	// Scrape is Sampler.Scrape.
	Scrape func(context.Context) observe.Snapshot
	// Pool returns the pool.
	Pool func() Pool
	// Now is the clock's.
	Now func() time.Time

	// Hydrations returns the hydrations under way, Leases the moves that this node serves
	// (volume.Lessor), and Moves has counted how moves ended. Without them the node
	// has no part in warm moves.
	Hydrations func() []Hydration
	Leases     func(context.Context) (map[volume.ID]volume.MoveID, error)
	Moves      *Moves
	// Failovers returns how many volumes failed over from a failing cache; nil is none.
	Failovers func() uint64
	// DirtyLimits returns the volumes with a dirty limit; nil if none can have one.
	DirtyLimits func() []dirtylimit.Use
	// Scrubs returns the volumes that were scrubbed; nil if none is.
	Scrubs func() []scrub.Use

	descs map[string]desc
}

type desc struct {
	*prometheus.Desc
	kind prometheus.ValueType
}

// NewCollector returns the Collector of a node.
func NewCollector(node string, scrape func(context.Context) observe.Snapshot, pool func() Pool, now func() time.Time) *Collector {
	return &Collector{Node: node, Scrape: scrape, Pool: pool, Now: now, descs: descsOf(nodeTables())}
}

// descsOf are the descriptors of metrics by their names.
func descsOf(table []Metric) map[string]desc {
	out := map[string]desc{}
	for _, m := range table {
		kind := prometheus.GaugeValue
		if m.Type == Counter {
			kind = prometheus.CounterValue
		}
		out[m.Name] = desc{prometheus.NewDesc(m.Name, m.Help, m.Labels, nil), kind}
	}
	return out
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d.Desc
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	snap, hydrations, limits, scrubs := c.Scrape(ctx), c.hydrations(), c.dirtyLimits(), c.scrubs()
	for _, s := range snap.Volumes {
		if !s.Attached {
			continue
		}
		e := c.collectVolume(ch, s)
		if f, found := hydrations[s.ID]; found {
			e.hydration(f)
		}
		if l, found := limits[s.ID]; found {
			e.dirtyLimit(l)
		}
		if u, found := scrubs[s.ID]; found {
			e.scrub(u)
		}
	}
	e := emitter{c.descs, ch, []string{c.Node}}
	e.put(namePassDuration, snap.Duration.Seconds())
	e.put(namePassSuccess, number(snap.Err == nil))
	failovers := uint64(0)
	if c.Failovers != nil {
		failovers = c.Failovers()
	}
	e.put(nameFailovers, float64(failovers))
	c.collectPool(ch, c.Pool())
	c.collectMoves(ctx, ch)
}

// emitter sends metrics that share their first labels.
type emitter struct {
	descs  map[string]desc
	ch     chan<- prometheus.Metric
	labels []string
}

func (e emitter) put(name string, value float64, labels ...string) {
	d := e.descs[name]
	m, err := prometheus.NewConstMetric(d.Desc, d.kind, value, with(e.labels, labels...)...)
	e.send(d.Desc, m, err)
}

// send turns a metric that cannot be made, which is a fault of this package, into
// an error of the scrape rather than a panic of the plugin.
func (e emitter) send(d *prometheus.Desc, m prometheus.Metric, err error) {
	if err != nil {
		m = prometheus.NewInvalidMetric(d, err)
	}
	e.ch <- m
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// collectVolume returns what sends more of the volume's metrics.
func (c *Collector) collectVolume(ch chan<- prometheus.Metric, s observe.Sample) emitter {
	pv := s.PV
	if pv == "" {
		// Two volumes without a name would be one series, and the scrape fail.
		pv = string(s.ID)
	}
	e := emitter{c.descs, ch, []string{pv, s.Namespace, s.Claim, c.Node}}
	mode, health := describe(s)
	e.put(nameInfo, 1, string(s.ID), mode, health)
	e.put(nameCached, number(s.Cached))
	e.put(nameHealthy, number(s.Healthy()))
	if s.Cached {
		n := s.Counts
		e.put(nameAccesses, float64(n.ReadHits), "read", "hit")
		e.put(nameAccesses, float64(n.ReadMisses), "read", "miss")
		e.put(nameAccesses, float64(n.WriteHits), "write", "hit")
		e.put(nameAccesses, float64(n.WriteMisses), "write", "miss")
		e.put(namePromotions, float64(n.Promotions))
		e.put(nameDemotions, float64(n.Demotions))
		e.ratio(s.Hits.Read, "read", "5m")
		e.ratio(s.Hits.Write, "write", "5m")
		e.ratio(s.Hits.ReadTotal, "read", "total")
		e.ratio(s.Hits.WriteTotal, "write", "total")
	}
	if s.Cache != nil && s.Cache.Health != observe.Failed {
		e.cache(*s.Cache, c.Now())
	}
	if s.Reuse != nil {
		e.reuse(*s.Reuse)
	}
	for _, d := range observe.Devices() {
		if io, measured := s.IO[d]; measured {
			e.device(string(d), io)
		}
	}
	return e
}

// describe returns the labels mode and health of a volume.
func describe(s observe.Sample) (mode, health string) {
	switch {
	case s.Cache != nil && s.Cache.Mode != "":
		return string(s.Cache.Mode), string(s.Cache.Health)
	case s.Cache != nil:
		return string(s.Mode), string(s.Cache.Health)
	case s.Cached:
		return string(s.Mode), "Missing"
	}
	return string(s.Mode), "None"
}

func (e emitter) ratio(r observe.Ratio, operation, window string) {
	if r.Known {
		e.put(nameHitRatio, r.Value, operation, window)
	}
}

// reuse sends at most three times six metrics.
func (e emitter) reuse(s reuse.Summary) {
	for _, w := range s.Windows {
		if w.Reads == 0 {
			continue
		}
		for i, f := range reuse.Fractions {
			e.put(namePredicted, w.Hits[i], strconv.FormatFloat(float64(f)/100, 'f', -1, 64), w.Window.String())
		}
	}
}

func (e emitter) cache(c observe.Cache, now time.Time) {
	e.put(nameSize, float64(c.SizeBytes))
	e.put(nameUsed, float64(c.UsedBytes))
	e.put(nameDirty, float64(c.DirtyBytes))
	age := 0.0
	if !c.DirtySince.IsZero() {
		age = max(0, now.Sub(c.DirtySince).Seconds())
	}
	e.put(nameDirtyAge, age)
	e.put(nameChunk, float64(c.ChunkBytes))
	e.put(nameMetaSize, float64(c.MetadataBytes))
	e.put(nameMetaUsed, float64(c.MetadataUsedBytes))
}

func (e emitter) device(device string, io observe.IO) {
	for operation, n := range map[string]devmapper.IOStats{"read": io.Read, "write": io.Write} {
		e.put(nameOperations, float64(n.Operations), device, operation)
		e.put(nameBytes, float64(n.Sectors)*devmapper.SectorSize, device, operation)
		e.put(nameTime, seconds(n.Nanoseconds), device, operation)
	}
	bounds := devmapper.StatsBounds()
	buckets, below := make(map[float64]uint64, len(bounds)), uint64(0)
	for i, b := range bounds {
		below += io.Histogram[i]
		buckets[b.Seconds()] = below
	}
	d := e.descs[nameDuration].Desc
	m, err := prometheus.NewConstHistogram(d, io.Histogram.Operations(), seconds(io.Read.Nanoseconds+io.Write.Nanoseconds),
		buckets, with(e.labels, device)...)
	e.send(d, m, err)
}

func seconds(ns uint64) float64 { return float64(ns) / float64(time.Second) }

func (c *Collector) collectPool(ch chan<- prometheus.Metric, p Pool) {
	e := emitter{c.descs, ch, []string{c.Node}}
	e.put(namePoolReady, number(p.Ready))
	e.put(namePoolKept, float64(p.Kept))
	if p.Known {
		e.put(namePoolCapacity, float64(p.CapacityBytes))
		e.put(namePoolFree, float64(p.FreeBytes))
		e.put(namePoolRetained, float64(p.RetainedBytes))
	}
	for _, d := range p.Devices {
		if d.Health != "" {
			e.put(nameDeviceHealth, number(d.Health == v1alpha1.DevicePassed), d.Path)
		}
		if d.WearPercent != nil {
			e.put(nameWear, float64(*d.WearPercent)/100, d.Path)
		}
	}
}
