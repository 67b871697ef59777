// Package metrics exports what the node plugin knows of its volumes and its pool, and what
// the controller knows of all of them, to Prometheus.
//
// [Table] declares every metric once: the descriptors of [Collector] and [Cluster], and the
// reference in docs/reference/metrics.md are made from it. Values are read when
// they are scraped.
//
// Mode and health of a volume change while its pod runs. They are labels of
// nearflash_volume_info alone: as labels of counters they would begin new series.
package metrics
