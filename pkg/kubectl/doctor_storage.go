package kubectl

import "context"

// checkStorage looks whether a storage server refuses this cluster.
func (o *doctorOptions) checkStorage(ctx context.Context, d *diagnosis) {
	refused, err := o.refusals(ctx)
	if err != nil {
		d.add(sevWarning, "storage server", "run doctor with an account that may list ConfigMaps", "whether it refuses this cluster cannot be read: %v", err)
		return
	}
	for _, r := range refused {
		d.add(sevError, "storage server "+r.server,
			"find out which cluster it belongs to; if to this one, and no other is to use it: "+name+" takeover "+r.server,
			"has refused this cluster for %s: another cluster uses it, or the records of this one come from a backup; nothing is attached, detached, made or deleted on it",
			ago(o.Clock.Now(), r.record.Refused.Since))
	}
}
