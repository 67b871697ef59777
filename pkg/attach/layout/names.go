package layout

import (
	"slices"
	"strings"

	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// separator joins a volume and a part of it.
const separator = "."

// DevicePrefix begins the name of every device-mapper device of a volume.
const DevicePrefix = "nf-"

// Part is what a device is to its volume.
type Part string

// The parts of a volume.
const (
	// Top is what the pod uses.
	Top Part = "top"
	// Data is the cache's data device, and Origin is over the paths to the storage.
	Data   Part = "data"
	Origin Part = "origin"
	// Source holds reads back while what Path reads from is lost (The warm move).
	Source Part = "source"
	Path   Part = "path"
	// Exported is what another node reads the cache's data through.
	Exported Part = "exported"
	// Hot is the first level of a stream: a cache below the top, over HotData and HotMeta.
	// RestMeta is the map of the level above it, which is the top (The stream).
	Hot      Part = "hot"
	HotData  Part = "hotdata"
	HotMeta  Part = "hotmeta"
	RestMeta Part = "restmeta"
)

var (
	// Levels are the parts that a stream has besides the others, from the top down.
	Levels = []Part{Hot, HotData, HotMeta, RestMeta}
	// renamed are those below a volume's own device that versions before called otherwise.
	renamed = []Part{Data, Origin, Source, Path, Exported}
	// lower are all of them.
	lower = slices.Concat(renamed, Levels)
)

// Device is the name of a part's device. No ID contains the separator.
func Device(id volume.ID, p Part) string {
	if p == Top {
		return DevicePrefix + string(id)
	}
	return DevicePrefix + string(id) + separator + string(p)
}

// IsData tells the name of a data device.
func IsData(name string) bool {
	return strings.HasPrefix(name, DevicePrefix) && strings.HasSuffix(name, separator+string(Data))
}

// Devices are the names of all devices that a volume may have, from the top down.
func Devices(id volume.ID) []string {
	names := []string{Device(id, Top)}
	for _, p := range lower {
		names = append(names, Device(id, p))
	}
	return names
}

// EarlierDevices are the names that versions before gave the same devices: joined by a
// dash, which IDs contain, or with another word. The top's has not changed.
func EarlierDevices(id volume.ID) []string {
	var names []string
	for _, p := range renamed {
		for _, suffix := range earlierSuffixes(p) {
			names = append(names, DevicePrefix+string(id)+suffix)
		}
	}
	return names
}

// earlierSuffixes are what versions before joined to the name of a top.
func earlierSuffixes(p Part) []string {
	out := []string{"-" + earlierWord(p)}
	if p == Exported {
		out = append(out, separator+earlierWord(p))
	}
	return out
}

// earlierWord is the first version's word for a part. It stays in UUIDs, which a device
// keeps for life (DM_DEV_RENAME sets one only where there is none).
func earlierWord(p Part) string {
	if p == Exported {
		return "lent"
	}
	return string(p)
}

const uuidPrefix = "NEARFLASH-"

// UUID is the device-mapper UUID of a part's device, under any generation of one record.
func UUID(f volume.Fence, p Part) string { return uuidPrefix + f.UID + "-" + earlierWord(p) }

// Parts are those of a volume among the devices, which are by name. A version before gave
// the name of a top to other parts of other volumes too, and one of which nothing is known
// may still have it.
func Parts(infos map[string]devmapper.Info, id volume.ID) map[Part]devmapper.Info {
	out := map[Part]devmapper.Info{}
	for _, p := range append([]Part{Top}, lower...) {
		if info, found := infos[Device(id, p)]; found && !otherPart(info, p) {
			out[p] = info
		}
	}
	return out
}

// otherPart tells a device that is another part of a volume than p.
func otherPart(info devmapper.Info, p Part) bool {
	return strings.HasPrefix(info.UUID, uuidPrefix) && !strings.HasSuffix(info.UUID, "-"+earlierWord(p))
}

// Rename is a device that has the name which a version before gave it.
type Rename struct {
	Part     Part
	From, To string
}

// Renames returns those among the devices, which are by name, by their volumes. The UUID
// alone tells the data device of the volume "db" from the top of a volume "db-data".
func Renames(infos map[string]devmapper.Info) map[volume.ID][]Rename {
	out := map[volume.ID][]Rename{}
	for name, info := range infos {
		for _, p := range renamed {
			if id, was := earlierOf(name, info, p); was {
				out[id] = append(out[id], Rename{Part: p, From: name, To: Device(id, p)})
			}
		}
	}
	return out
}

// earlierOf is the volume whose part p has a name of a version before.
func earlierOf(name string, info devmapper.Info, p Part) (volume.ID, bool) {
	if !strings.HasPrefix(info.UUID, uuidPrefix) || otherPart(info, p) {
		return "", false
	}
	for _, suffix := range earlierSuffixes(p) {
		if top, was := strings.CutSuffix(name, suffix); was {
			return volume.ID(strings.TrimPrefix(top, DevicePrefix)), true
		}
	}
	return "", false
}

// DataLV is the logical volume of a cache's data.
func DataLV(id volume.ID) string { return string(id) + ".data" }

// MetaLV is that of its map.
func MetaLV(id volume.ID) string { return string(id) + ".meta" }

// HydrationLV is that of the metadata of an unfinished warm start. It keeps the name that it
// has had since the first version: an older program, to which the journal says nothing, as a
// rescue, would take a cache beside another name for a whole one (I5).
func HydrationLV(id volume.ID) string { return string(id) + ".fill" }
