package layout

import (
	"slices"
	"strings"

	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Cache is what the SSD alone tells of a volume's cache.
type Cache struct {
	ID volume.ID
	// Data, Meta and Hydration are the logical volumes; the name of one that does not exist is
	// empty. Hydration is that of an unfinished warm start (I5): not all that the map names is on
	// the SSD.
	Data, Meta, Hydration lvm.LV
	// Fence, Mode and Activation are empty unless data and map are there and agree. The
	// activation is that of the volume's last stage with this cache.
	Fence      volume.Fence
	Mode       volume.CacheMode
	Activation volume.Activation
	// Stopped is true if the SSD proves a clean stop (I4).
	Stopped bool
	// OriginBytes is the size of the origin; 0 if that is not known.
	OriginBytes int64
	// Rescued is when the cache was flushed without its node; "" if it was not.
	Rescued string
}

// Paired is true when data and map both exist.
func (c Cache) Paired() bool { return c.Data.Name != "" && c.Meta.Name != "" }

// Partial is true of a cache of which something is missing.
func (c Cache) Partial() bool { return !c.Paired() && len(c.LVs()) > 0 }

// Whole is true when data and map both exist and are of one cache.
func (c Cache) Whole() bool { return c.Paired() && c.Fence != volume.Fence{} }

// Hydrating is true of an unfinished warm start.
func (c Cache) Hydrating() bool { return c.Hydration.Name != "" }

// LVs are the logical volumes that exist.
func (c Cache) LVs() []lvm.LV {
	return slices.DeleteFunc([]lvm.LV{c.Data, c.Meta, c.Hydration}, func(lv lvm.LV) bool { return lv.Name == "" })
}

// Names are theirs.
func (c Cache) Names() []string {
	var out []string
	for _, lv := range c.LVs() {
		out = append(out, lv.Name)
	}
	return out
}

// Active reports whether the kernel has all of them.
func (c Cache) Active() bool {
	return c.Data.Active && c.Meta.Active && (c.Hydration.Name == "" || c.Hydration.Active)
}

// Find returns the cache of a volume among the logical volumes of a pool.
func Find(lvs []lvm.LV, id volume.ID) Cache {
	c := Cache{ID: id}
	for _, lv := range lvs {
		switch lv.Name {
		case DataLV(id):
			c.Data = lv
		case MetaLV(id):
			c.Meta = lv
		case HydrationLV(id):
			c.Hydration = lv
		}
	}
	c.Stopped = slices.Contains(c.Data.Tags, StopTag) && slices.Contains(c.Meta.Tags, StopTag)
	fence, mode := ParseTags(c.Data.Tags)
	other, _ := ParseTags(c.Meta.Tags)
	activation, otherActivation := parseActivation(c.Data.Tags), parseActivation(c.Meta.Tags)
	if c.Paired() && fence == other && activation.ID == otherActivation.ID {
		c.Fence, c.Mode, c.Activation = fence, mode, activation
		c.Activation.Generation = fence.Generation
	}
	for _, tag := range slices.Concat(c.Data.Tags, c.Meta.Tags) {
		if v, ok := strings.CutPrefix(tag, tagRescued); ok {
			c.Rescued = v
		}
		if n, ok := number(tag, tagOrigin); ok {
			c.OriginBytes = max(c.OriginBytes, n)
		}
	}
	return c
}

// IDs are the volumes of which something is among the logical volumes of a pool, sorted.
func IDs(lvs []lvm.LV) []volume.ID {
	var ids []volume.ID
	for _, lv := range lvs {
		if id, ok := volumeOf(lv.Name); ok {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// volumeOf is the volume that a logical volume of that name is part of the cache of.
func volumeOf(name string) (volume.ID, bool) {
	dot := strings.LastIndexByte(name, '.')
	if dot < 0 {
		return "", false
	}
	id, err := volume.ParseID(name[:dot])
	return id, err == nil && slices.Contains([]string{DataLV(id), MetaLV(id), HydrationLV(id)}, name)
}

// Scan returns the caches among the logical volumes of a pool, in the order of their
// volumes.
func Scan(lvs []lvm.LV) []Cache {
	var out []Cache
	for _, id := range IDs(lvs) {
		out = append(out, Find(lvs, id))
	}
	return out
}
