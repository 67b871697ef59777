// Package metrics exports what the node plugin knows of its volumes and its pool, what the
// controller knows of all of them, and what a storage server knows of itself, to Prometheus.
//
// [Table] and [TargetTable] declare every metric once: the descriptors of [Collector],
// [Cluster] and [Target], and the reference in docs/reference/metrics.md are made from them.
// Values are read when they are scraped, but for those of [Target].
//
// Mode and health of a volume change while its pod runs. They are labels of
// nearflash_volume_info alone: as labels of counters they would begin new series.
package metrics
