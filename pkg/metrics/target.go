package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Names of the metrics that a storage server exports itself.
const (
	nameTargetInfo         = "nearflash_target_info"
	nameTargetProblems     = "nearflash_target_problems"
	nameTargetCheckOK      = "nearflash_target_check_success"
	nameTargetCheckTook    = "nearflash_target_check_duration_seconds"
	nameTargetCheckTime    = "nearflash_target_check_timestamp_seconds"
	nameTargetGroup        = "nearflash_target_volume_group_capacity_bytes"
	nameTargetGroupFree    = "nearflash_target_volume_group_free_bytes"
	nameTargetPool         = "nearflash_target_pool_capacity_bytes"
	nameTargetPoolUsed     = "nearflash_target_pool_used_ratio"
	nameTargetPoolPromised = "nearflash_target_pool_promised_bytes"
	nameTargetMetadata     = "nearflash_target_pool_metadata_capacity_bytes"
	nameTargetMetadataUsed = "nearflash_target_pool_metadata_used_ratio"
	nameTargetVolumes      = "nearflash_target_volumes"
	nameTargetSnapshots    = "nearflash_target_snapshots"
	nameTargetExports      = "nearflash_target_exports"
	nameTargetAdmissions   = "nearflash_target_admissions"
	nameTargetSessions     = "nearflash_target_sessions"
	nameTargetExported     = "nearflash_target_exported_bytes"
	nameTargetCertificate  = "nearflash_target_certificate_not_after_timestamp_seconds"
	nameTargetCalls        = "nearflash_target_call_duration_seconds"
)

// TargetTable lists what a storage server exports, besides its build. It is no part of Table:
// the servers are outside of the cluster, and so may be the Prometheus that asks them.
func TargetTable() []Metric {
	return append(targetTable(), Metric{
		Name: nameTargetCalls, Type: Histogram, Labels: []string{"method", "code"},
		Help: "Duration of the calls of the management service, by method and gRPC code. A call that outlives its deadline goes on, and is counted with the code DeadlineExceeded.",
	})
}

// targetTable is what the periodic check finds.
func targetTable() []Metric {
	m := func(name, help string, labels ...string) Metric {
		return Metric{Name: name, Type: Gauge, Help: help, Labels: labels}
	}
	return []Metric{
		m(nameTargetInfo, "1, with the server's ID and the epoch in force; empty before a controller has set one.", "server_id", "epoch"),
		m(nameTargetProblems, "Problems that the server has, as Health lists them in words."),
		m(nameTargetCheckOK, "1 if the last check, every half minute, was complete, else 0: figures that it could not read are absent then."),
		m(nameTargetCheckTook, "Time that the last check took."),
		m(nameTargetCheckTime, "When the last check ended. All other figures but those of calls are of that moment."),
		m(nameTargetGroup, "Size of the volume group."),
		m(nameTargetGroupFree, "Part of the volume group that nothing occupies: room for thick volumes, and for the thin pool to grow."),
		m(nameTargetPool, "Size of the thin pool's data. Absent without a thin pool, as all that follow of it."),
		m(nameTargetPoolUsed, "Part of the thin pool's data that is in use. At 1 the writes of every thin volume fail."),
		m(nameTargetPoolPromised, "Sum of the sizes of all thin volumes of the pool, and of their snapshots."),
		m(nameTargetMetadata, "Size of the thin pool's metadata."),
		m(nameTargetMetadataUsed, "Part of the thin pool's metadata that is in use. At 1 the writes of every thin volume fail."),
		m(nameTargetVolumes, "Volumes, by their provisioning: thin or thick.", "provisioning"),
		m(nameTargetSnapshots, "Snapshots."),
		m(nameTargetExports, "LUNs that the kernel exports for the server."),
		m(nameTargetAdmissions, "Recorded admissions of initiators to volumes. There is a LUN for each, unless something is wrong."),
		m(nameTargetSessions, "Admissions whose initiator is logged in."),
		m(nameTargetExported, "Sum of the sizes of the volumes that an initiator is admitted to."),
		m(nameTargetCertificate, "When the first certificate of a file ends: of the server's own (certificate=server), of the CAs of the management service's clients (certificate=client_ca) and of those of the clients of /metrics (certificate=metrics_client_ca), if they are others.", "certificate"),
	}
}

// TargetFacts are what a storage server found in its last check.
type TargetFacts struct {
	ServerID string
	// Epoch is nil if it could not be read.
	Epoch *string
	// Ended is when the check ended, Took how long it took, Complete that nothing failed.
	Ended    time.Time
	Took     time.Duration
	Complete bool
	Problems int
	// Group, Pool, Volumes and Exports are nil if they could not be read, Pool also if there is
	// none.
	Group   *TargetGroup
	Pool    *TargetPool
	Volumes *TargetVolumes
	// Exports is how many LUNs the kernel exports.
	Exports *int
	// Certificates are the ends of those that could be read, by the label's value.
	Certificates map[string]time.Time
}

// TargetGroup is the volume group's room.
type TargetGroup struct{ CapacityBytes, FreeBytes int64 }

// TargetPool is the thin pool's room.
type TargetPool struct {
	CapacityBytes, PromisedBytes, MetadataBytes int64
	// UsedRatio and MetadataUsedRatio are from 0 to 1.
	UsedRatio, MetadataUsedRatio float64
}

// TargetVolumes counts volumes, and who is admitted to them.
type TargetVolumes struct {
	Thin, Thick, Snapshots, Admissions, Sessions int
	ExportedBytes                                int64
}

// Target exports the facts of a storage server's last check. It gathers nothing itself, so that
// no scrape costs the server a command.
type Target struct {
	last  func() *TargetFacts
	descs map[string]desc
}

// NewTarget returns a Target; last returns nil before the first check has ended.
func NewTarget(last func() *TargetFacts) *Target {
	return &Target{last: last, descs: descsOf(targetTable())}
}

// Describe implements prometheus.Collector.
func (t *Target) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range t.descs {
		ch <- d.Desc
	}
}

// Collect implements prometheus.Collector.
func (t *Target) Collect(ch chan<- prometheus.Metric) {
	f := t.last()
	if f == nil {
		return
	}
	e := emitter{t.descs, ch, nil}
	if f.Epoch != nil {
		e.put(nameTargetInfo, 1, f.ServerID, *f.Epoch)
	}
	e.put(nameTargetProblems, float64(f.Problems))
	e.put(nameTargetCheckOK, number(f.Complete))
	e.put(nameTargetCheckTook, f.Took.Seconds())
	e.put(nameTargetCheckTime, float64(f.Ended.UnixMilli())/1000)
	if g := f.Group; g != nil {
		e.put(nameTargetGroup, float64(g.CapacityBytes))
		e.put(nameTargetGroupFree, float64(g.FreeBytes))
	}
	if p := f.Pool; p != nil {
		e.put(nameTargetPool, float64(p.CapacityBytes))
		e.put(nameTargetPoolUsed, p.UsedRatio)
		e.put(nameTargetPoolPromised, float64(p.PromisedBytes))
		e.put(nameTargetMetadata, float64(p.MetadataBytes))
		e.put(nameTargetMetadataUsed, p.MetadataUsedRatio)
	}
	if v := f.Volumes; v != nil {
		e.put(nameTargetVolumes, float64(v.Thin), "thin")
		e.put(nameTargetVolumes, float64(v.Thick), "thick")
		e.put(nameTargetSnapshots, float64(v.Snapshots))
		e.put(nameTargetAdmissions, float64(v.Admissions))
		e.put(nameTargetSessions, float64(v.Sessions))
		e.put(nameTargetExported, float64(v.ExportedBytes))
	}
	if f.Exports != nil {
		e.put(nameTargetExports, float64(*f.Exports))
	}
	for certificate, end := range f.Certificates {
		e.put(nameTargetCertificate, float64(end.Unix()), certificate)
	}
}

// NewTargetCalls returns the histogram of a storage server's calls, without any. Its buckets
// reach from a read of a record to the zeroing of a large volume.
func NewTargetCalls() *prometheus.HistogramVec {
	table := TargetTable()
	m := table[len(table)-1]
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: m.Name, Help: m.Help, Buckets: []float64{.005, .025, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600},
	}, m.Labels)
}
