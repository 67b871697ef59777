package metrics

import "slices"

// Type is the type of a metric in the exposition format.
type Type string

// The types that are used.
const (
	Counter   Type = "counter"
	Gauge     Type = "gauge"
	Histogram Type = "histogram"
)

// Metric declares a metric.
type Metric struct {
	// Name is the whole name, Help one sentence or more.
	Name, Help string
	Type       Type
	// Labels are in the order in which values are given.
	Labels []string
}

// Labels that several metrics have.
var (
	volumeLabels = []string{"pv", "namespace", "pvc", "node"}
	nodeLabels   = []string{"node"}
	deviceLabels = []string{"node", "device"}
)

func with(labels []string, more ...string) []string {
	return append(append([]string(nil), labels...), more...)
}

// Names of the metrics.
const (
	nameInfo              = "nearflash_volume_info"
	nameAccesses          = "nearflash_volume_cache_accesses_total"
	namePromotions        = "nearflash_volume_cache_promotions_total"
	nameDemotions         = "nearflash_volume_cache_demotions_total"
	nameCached            = "nearflash_volume_cached"
	nameHealthy           = "nearflash_volume_healthy"
	nameSize              = "nearflash_volume_cache_size_bytes"
	nameUsed              = "nearflash_volume_cache_used_bytes"
	nameDirty             = "nearflash_volume_cache_dirty_bytes"
	nameDirtyAge          = "nearflash_volume_cache_dirty_age_seconds"
	nameDirtyLimit        = "nearflash_volume_cache_dirty_limit_bytes"
	nameDirtyAgeMax       = "nearflash_volume_cache_dirty_limit_age_seconds"
	nameLimitActive       = "nearflash_volume_cache_dirty_limit_active_seconds_total"
	nameActivations       = "nearflash_volume_cache_dirty_limit_activations_total"
	nameScrubBytes        = "nearflash_volume_scrub_checked_bytes_total"
	nameScrubFound        = "nearflash_volume_scrub_corrupted_chunks_total"
	nameScrubUnjudged     = "nearflash_volume_scrub_unjudged_pieces_total"
	nameScrubPauses       = "nearflash_volume_scrub_suspensions_total"
	nameScrubPaused       = "nearflash_volume_scrub_suspended_seconds_total"
	nameScrubLongest      = "nearflash_volume_scrub_longest_suspension_seconds"
	nameChunk             = "nearflash_volume_cache_chunk_bytes"
	nameMetaSize          = "nearflash_volume_cache_metadata_size_bytes"
	nameMetaUsed          = "nearflash_volume_cache_metadata_used_bytes"
	nameHitRatio          = "nearflash_volume_cache_hit_ratio"
	namePredicted         = "nearflash_volume_predicted_hit_ratio"
	nameHydrationSize     = "nearflash_volume_hydration_size_bytes"
	nameHydrationHydrated = "nearflash_volume_hydration_done_bytes"
	nameHydrationInfo     = "nearflash_volume_hydration_info"
	nameDuration          = "nearflash_volume_io_duration_seconds"
	nameOperations        = "nearflash_volume_io_operations_total"
	nameBytes             = "nearflash_volume_io_bytes_total"
	nameTime              = "nearflash_volume_io_time_seconds_total"
	namePoolCapacity      = "nearflash_pool_capacity_bytes"
	namePoolFree          = "nearflash_pool_free_bytes"
	namePoolRetained      = "nearflash_pool_retained_bytes"
	namePoolReady         = "nearflash_pool_ready"
	namePoolKept          = "nearflash_pool_kept_caches"
	nameWear              = "nearflash_pool_device_wear_ratio"
	nameDeviceHealth      = "nearflash_pool_device_healthy"
	nameMoves             = "nearflash_moves_total"
	nameLeases            = "nearflash_exported_caches"
	nameFailovers         = "nearflash_cache_failovers_total"
	namePassDuration      = "nearflash_pass_duration_seconds"
	namePassSuccess       = "nearflash_pass_success"
	nameBuildInfo         = "nearflash_build_info"

	nameControllerLeads    = "nearflash_controller_leads"
	nameControllerSees     = "nearflash_controller_cluster_visible"
	nameAtRiskLost         = "nearflash_unflushed_volume_node_lost"
	nameAtRiskBytes        = "nearflash_unflushed_volume_bytes"
	nameAtRiskAge          = "nearflash_unflushed_volume_age_seconds"
	nameNodeRegistered     = "nearflash_node_plugin_registered"
	nameNodePoolReady      = "nearflash_node_pool_ready"
	nameClusterMoves       = "nearflash_cachemigrations"
	nameStorageUp          = "nearflash_storage_server_up"
	nameStorageHealthy     = "nearflash_storage_server_healthy"
	nameStorageCapacity    = "nearflash_storage_server_capacity_bytes"
	nameStorageUsed        = "nearflash_storage_server_used_bytes"
	nameStorageMetadata    = "nearflash_storage_server_metadata_used_ratio"
	nameStorageCertificate = "nearflash_storage_server_certificate_not_after_timestamp_seconds"
)

// Table lists every metric of node plugins and controllers; TargetTable has those of storage servers.
func Table() []Metric {
	return slices.Concat(nodeTables(), clusterTable(), []Metric{buildInfo()})
}

// nodeTables are what a node exports.
func nodeTables() []Metric {
	return slices.Concat(volumeTable(), scrubTable(), hydrationTable(), ioTable(), nodeTable())
}

func buildInfo() Metric {
	return Metric{
		Name: nameBuildInfo, Type: Gauge, Labels: []string{"component", "version", "commit", "go_version"}, Help: "1, with the component and what it was built from.",
	}
}

func volumeTable() []Metric {
	m := func(name string, t Type, help string, labels ...string) Metric {
		return Metric{Name: name, Type: t, Help: help, Labels: with(volumeLabels, labels...)}
	}
	return []Metric{
		m(nameInfo, Gauge, "1 for each attached volume, with its name on the node, its cache mode (the one that is asked for while it has no cache) and the health of its cache: Healthy, ReadOnly, NeedsCheck, Failed, None without a cache, Missing if it should have one and has not.", "volume", "mode", "health"),
		m(nameAccesses, Counter, "Accesses to a cached volume, by whether the cache had the chunk. A request over several chunks is one access for each.", "operation", "result"),
		m(namePromotions, Counter, "Chunks copied into the cache."),
		m(nameDemotions, Counter, "Chunks dropped from the cache."),
		m(nameCached, Gauge, "1 if the volume's data pass through a cache, else 0."),
		m(nameHealthy, Gauge, "1 if nothing is wrong with the volume's cache, 0 if it has failed, is read-only, needs a check or is missing. A volume that should have none is healthy."),
		m(nameSize, Gauge, "Size of the cache."),
		m(nameUsed, Gauge, "Part of the cache that holds data."),
		m(nameDirty, Gauge, "Data that the origin does not have yet."),
		m(nameDirtyAge, Gauge, "Upper bound of the age of the oldest data that the origin does not have yet: the time since the cache was last seen without any. 0 if there is none."),
		m(nameDirtyLimit, Gauge, "Most that the origin may lack (maxDirtyBytes). Absent without a limit."),
		m(nameDirtyAgeMax, Gauge, "Most that the age of such data may be (maxDirtyAge). Absent without a limit."),
		m(nameLimitActive, Counter, "Time for which the dirty limit has sent writes to the origin since the plugin started: writing back in pauses (level=writethrough), or at once (level=draining). Absent without a limit.", "level"),
		m(nameActivations, Counter, "How often that began. Absent without a limit."),
		m(nameChunk, Gauge, "Size of the chunks that the cache holds."),
		m(nameMetaSize, Gauge, "Size of the cache's metadata."),
		m(nameMetaUsed, Gauge, "Part of the cache's metadata that is in use."),
		m(nameHitRatio, Gauge, "Part of the accesses that hit, from 0 to 1, in the last five minutes (window=5m) and of all that were counted (window=total). Absent if there was no access.", "operation", "window"),
		m(namePredicted, Gauge, "Part of the reads, from 0 to 1, that a cache of such a part of the volume would answer (fraction, from 0.01 to 1), by what was read of late (window=hour, day or week). Absent until enough was seen. Attached volumes without a cache have it too.", "fraction", "window"),
	}
}

func hydrationTable() []Metric {
	m := func(name, help string, labels ...string) Metric {
		return Metric{Name: name, Type: Gauge, Help: help, Labels: with(volumeLabels, labels...)}
	}
	return []Metric{
		m(nameHydrationSize, "Size of a cache that is being hydrated. Absent once it is whole."),
		m(nameHydrationHydrated, "Part of that which need not be copied any more: what was copied, and what holds nothing."),
		m(nameHydrationInfo, "1 for each cache that is being hydrated, with where it reads what was not copied yet: peer, the node that had the volume before, or origin.", "from"),
	}
}

func ioTable() []Metric {
	m := func(name string, t Type, help string, labels ...string) Metric {
		return Metric{Name: name, Type: t, Help: help, Labels: with(volumeLabels, append([]string{"device"}, labels...)...)}
	}
	return []Metric{
		m(nameDuration, Histogram, "Duration of reads and writes, which the kernel does not tell apart here: of the volume as the pod sees it (device=volume), of its SSD, which is what hits cost (device=ssd), and of the remote storage, which is what misses cost (device=origin)."),
		m(nameOperations, Counter, "Reads and writes that a device of the volume completed.", "operation"),
		m(nameBytes, Counter, "Data that a device of the volume read and wrote.", "operation"),
		m(nameTime, Counter, "Sum of the durations of a device's reads and writes.", "operation"),
	}
}

func nodeTable() []Metric {
	return []Metric{
		{Name: namePoolCapacity, Type: Gauge, Labels: nodeLabels, Help: "Size of the node's pool of SSDs."},
		{Name: namePoolFree, Type: Gauge, Labels: nodeLabels, Help: "Part of the pool that nothing occupies."},
		{Name: namePoolRetained, Type: Gauge, Labels: nodeLabels, Help: "Part of the pool that retained caches occupy: clean caches of volumes that are not attached. It is given up when space is needed."},
		{Name: namePoolReady, Type: Gauge, Labels: nodeLabels, Help: "1 if the pool can hold caches, else 0."},
		{Name: namePoolKept, Type: Gauge, Labels: nodeLabels, Help: "Caches with writes that may be on this node alone, and of which nobody knows whether they are still wanted. They wait for an administrator."},
		{Name: nameWear, Type: Gauge, Labels: deviceLabels, Help: "Part of its rated endurance that an SSD of the pool has used; it may exceed 1. Absent if the device does not tell."},
		{Name: nameDeviceHealth, Type: Gauge, Labels: deviceLabels, Help: "1 if an SSD of the pool passes its own test and is not worn out, else 0. Absent if the device does not tell."},
		{Name: nameMoves, Type: Counter, Labels: with(nodeLabels, "from", "outcome"), Help: "Warm moves to the node that ended since the plugin started, by where they were to begin (from=peer, another node's cache, or from=origin, a list of blocks) and how they ended: completed, everything was copied; ended, the volume left or its cache was taken away before that; failed, the cache began colder."},
		{Name: nameLeases, Type: Gauge, Labels: nodeLabels, Help: "Retained caches that the node exports to the new nodes of their volumes."},
		{Name: nameFailovers, Type: Counter, Labels: nodeLabels, Help: "Attached volumes that failed over to the origin since the plugin started, because the SSD of their cache failed."},
		{Name: namePassDuration, Type: Gauge, Labels: nodeLabels, Help: "Time that the last look at all volumes took."},
		{Name: namePassSuccess, Type: Gauge, Labels: nodeLabels, Help: "1 if the last look at all volumes was complete, else 0: some figures are old or missing then."},
	}
}

// clusterTable is what the controller exports.
func clusterTable() []Metric {
	m := func(labels []string, name, help string, more ...string) Metric {
		return Metric{Name: name, Type: Gauge, Help: help, Labels: with(labels, more...)}
	}
	server := []string{"address"}
	return []Metric{
		m(nil, nameControllerLeads, "1 if this controller leads, else 0. The figures below are those of the one that leads."),
		m(nil, nameControllerSees, "1 if the controller that leads can read the records of volumes and nodes, else 0: then the figures that rest on them are absent or old, and alerts on them silent. Those of storage servers do not rest on them."),
		m(volumeLabels, nameAtRiskLost, "There for each volume whose newest writes may be on the SSD of one node alone, where no pod works with it: 1 if Kubernetes does not say that this node is ready, so that the volume waits for it, else 0."),
		m(volumeLabels, nameAtRiskBytes, "Of such a volume, what the node last reported as not flushed. Absent if it never did. More may have come after that."),
		m(volumeLabels, nameAtRiskAge, "Of such a volume, the time since it was last known to have nothing that was not flushed. Absent if that is not known."),
		m(nodeLabels, nameNodeRegistered, "For each node of the cluster with a CachePool, or with a pod of the node plugin: 1 if its kubelet knows the node plugin, else 0."),
		m(nodeLabels, nameNodePoolReady, "The same as nearflash_pool_ready, by the CachePool: it is there when the node is not. Absent for nodes without SSDs for a pool."),
		m(nil, nameClusterMoves, "CacheMigrations that there are, by their outcome: running, completed, ended, failed. They are deleted after a while.", "outcome"),
		m(server, nameStorageUp, "1 if the storage server answered when the controller last asked, every half minute, else 0."),
		m(server, nameStorageHealthy, "1 if it then had no problem of its own, else 0."),
		m(server, nameStorageCapacity, "Size of the server's thin pool, or of its volume group where volumes are thick by default."),
		m(server, nameStorageUsed, "Part of that which is in use. At 100 % the writes of every volume fail."),
		m(server, nameStorageMetadata, "Part of the thin pool's metadata that is in use. At 1 the writes of every volume fail. 0 without a thin pool."),
		m(server, nameStorageCertificate, "When a certificate ends: the server's, or the controller's (certificate=client), as the last connection had them.", "certificate"),
	}
}
