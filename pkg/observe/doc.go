// Package observe measures the volumes of a node: what their caches answered,
// how long their devices took, what is dirty.
//
// A [Sampler] takes one pass over all volumes at a time: one dmsetup(8) for the
// status of every cache and one message to the kernel for each device's
// statistics. From the kernel's raw counters it makes totals that only grow, for
// as long as the node's journal knows the volume: over restarts of the plugin
// and of the machine, over tables that are swapped and over caches that come
// from elsewhere.
//
// Totals are made durable before they are served ([Sampler.Scrape]): a machine
// that loses power must not come back with counters smaller than those that
// Prometheus has seen, for a counter that goes back is taken for one that began
// anew, and all of it counted a second time.
//
// A [Reporter] writes what changed materially to the volumes' records.
package observe
