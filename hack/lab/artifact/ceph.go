package artifact

// cephTree is a Ceph of one machine: a monitor, a manager and an OSD, with the programs
// that ask them. What recommends bring (device classes, dashboards, systemd's units for
// disks) has no use for daemons that are started by hand.
func cephTree() tree {
	return tree{
		variant: "essential", packages: []string{"ceph-common", "ceph-mgr", "ceph-mon", "ceph-osd", "kmod", "mount"},
		drop: []string{
			"usr/share/zoneinfo/", "usr/share/lintian/", "usr/share/terminfo/", "usr/lib/x86_64-linux-gnu/gconv/", "var/lib/dpkg/",
		},
	}
}

// planCeph plans the root that Ceph runs in, and the sidecars of the driver over it. The
// driver is a program of this checkout, which the lab builds when it comes up, or ceph-csi,
// which runs in the same root.
func (b *builder) planCeph(p *plan) error {
	if err := b.planSidecars(p); err != nil {
		return err
	}
	p.ceph = newTask(b.layerRecipe("ceph", cephTree()))
	p.addTask(&p.debianLane, p.ceph, b.store)
	return b.planCephCSI(p)
}
