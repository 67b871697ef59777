// Package hoststate reads what a volume leaves on a machine: device-mapper
// devices, logical volumes, mounts, iSCSI sessions, exports and the journal. It
// reads with the system's own tools and shares no code with the driver, whose
// word it is there to check.
package hoststate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// Runner runs a shell script on a machine as root.
type Runner interface {
	Run(ctx context.Context, machine, script string) (string, error)
}

// poolVG is the volume group of a node's pool. Where nodes share a kernel, each
// sees the groups of all of them.
func poolVG(node string) string {
	sum := sha256.Sum256([]byte(node))
	return "nearflash-" + hex.EncodeToString(sum[:5])
}

// nodeScript prints one "kind name" per line. Of the groups of pools it shows the
// one in $pool alone. A node's note of an attachment outlives the volume, for as long as a
// retained cache may be kept (docs/design/states.md, The warm move).
const nodeScript = `
dmsetup info -c --noheadings -o name 2>/dev/null | grep -v '^No devices' | sed 's/^/dm /'
lvs --noheadings -o vg_name,lv_name --separator / -S "vg_name=$pool || vg_name!~\"^nearflash-[0-9a-f]+\$\"" 2>/dev/null | tr -d ' ' | sed 's/^/lv /'
awk '$5 ~ "^/var/lib/kubelet/" && $0 ~ /csi/ {print "mount " $5 " of " $10}' /proc/self/mountinfo
cat /sys/class/iscsi_session/session*/targetname 2>/dev/null | sed 's/^/session /'
for d in /etc/iscsi/nodes /var/lib/iscsi/nodes; do ls $d 2>/dev/null | sed 's/^/record /'; done
ls -d /sys/kernel/config/target/iscsi/iqn.* 2>/dev/null | sed 's/^/target /'
ls -d /sys/kernel/config/target/core/*_*/*/ 2>/dev/null | sed 's/^/backstore /'
find /var/lib/nearflash -type f ! -name '*.stay' 2>/dev/null | sed 's/^/file /'
find /var/lib/kubelet/plugins/kubernetes.io/csi /var/lib/kubelet/pods -maxdepth 4 -path '*csi*' 2>/dev/null | sed 's/^/path /'
true`

const storageScript = `
lvs --noheadings -o vg_name,lv_name --separator / 2>/dev/null | tr -d ' ' | sed 's/^/lv /'
ls -d /sys/kernel/config/target/iscsi/iqn.* 2>/dev/null | sed 's/^/target /'
ls -d /sys/kernel/config/target/core/*_*/*/ 2>/dev/null | sed 's/^/backstore /'
true`

// Item is one thing found on a machine.
type Item struct {
	Machine string
	// Kind is dm, lv, mount, session, record, file, path, target or backstore.
	Kind string
	Name string
}

// String implements fmt.Stringer.
func (i Item) String() string { return i.Machine + ": " + i.Kind + " " + i.Name }

// Node lists what is on a worker.
func Node(ctx context.Context, r Runner, machine string) ([]Item, error) {
	return read(ctx, r, machine, "pool="+poolVG(machine)+nodeScript)
}

// Storage lists what is on a storage server.
func Storage(ctx context.Context, r Runner, machine string) ([]Item, error) {
	return read(ctx, r, machine, storageScript)
}

func read(ctx context.Context, r Runner, machine, script string) ([]Item, error) {
	out, err := r.Run(ctx, machine, script)
	if err != nil {
		return nil, fmt.Errorf("state of %s: %w", machine, err)
	}
	return parse(machine, out), nil
}

func parse(machine, out string) []Item {
	var items []Item
	for line := range strings.Lines(out) {
		kind, name, ok := strings.Cut(strings.TrimSpace(line), " ")
		if ok {
			items = append(items, Item{Machine: machine, Kind: kind, Name: name})
		}
	}
	return items
}

// All lists what is on several workers, and on storage servers.
func All(ctx context.Context, r Runner, workers, servers []string) ([]Item, error) {
	var items []Item
	for _, s := range servers {
		more, err := Storage(ctx, r, s)
		if err != nil {
			return nil, err
		}
		items = append(items, more...)
	}
	for _, w := range workers {
		more, err := Node(ctx, r, w)
		if err != nil {
			return nil, err
		}
		items = append(items, more...)
	}
	return items, nil
}

// Words returns the names under which a machine may know a volume: its handle,
// its PersistentVolume, and what the kubelet calls its staging folder.
func Words(handle, pv string) []string {
	sum := sha256.Sum256([]byte(handle))
	words := []string{handle, hex.EncodeToString(sum[:])}
	if pv != handle {
		words = append(words, pv)
	}
	return words
}

// Mentioning returns the items whose name contains one of the words.
func Mentioning(items []Item, words ...string) []Item {
	var out []Item
	for _, i := range items {
		// LVM doubles the hyphens of a name in its device's name.
		name := strings.ReplaceAll(i.Name, "--", "-")
		if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(name, w) }) {
			out = append(out, i)
		}
	}
	return out
}

// OfVolumes returns everything that belongs to any volume of the driver, which
// must be nothing once all volumes are deleted.
func OfVolumes(items []Item) []Item {
	var out []Item
	for _, i := range items {
		switch i.Kind {
		case "dm":
			// nearflash-VG.LV has checksums; LVM's own names double the hyphen.
			layer := strings.HasPrefix(i.Name, "nearflash-") && !strings.HasPrefix(i.Name, "nearflash--")
			if !strings.HasPrefix(i.Name, "nf-") && !layer {
				continue
			}
		case "lv":
			if !strings.HasSuffix(i.Name, ".data") && !strings.HasSuffix(i.Name, ".meta") && !strings.HasSuffix(i.Name, ".fill") && !strings.Contains(i.Name, "/pvc-") {
				continue
			}
		case "mount":
			if !strings.Contains(i.Name, "/csi.nearflash.io/") && !strings.Contains(i.Name, " of /dev/mapper/nf-") {
				continue
			}
		case "session", "record", "target":
			if !strings.Contains(i.Name, "nearflash") {
				continue
			}
		case "backstore":
			if !strings.Contains(i.Name, "pvc-") {
				continue
			}
		default:
			continue
		}
		out = append(out, i)
	}
	return out
}
