package attach

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/volume"
)

// FoundCache is what the SSD alone tells of a cache.
type FoundCache struct {
	ID    volume.ID
	Fence volume.Fence
	// Mode is empty, as is Fence, unless the cache is whole and its volumes agree.
	Mode       volume.CacheMode
	Data, Meta lvm.LV
	// Whole is false if data or map is missing, or they are not of one cache.
	Whole bool
	// Filling is true of an unfinished warm move (I5): not all that the map names is
	// on the SSD.
	Filling bool
	// Activation is the volume's last stage with this cache.
	Activation volume.Activation
	// Stopped is true if the SSD proves a clean stop (I4).
	Stopped bool
	// OriginBytes is the size of the origin; 0 if that is not known.
	OriginBytes int64
	// Rescued is when the cache was flushed without its node; "" if it was not.
	Rescued string
}

// FindCaches returns the caches among the logical volumes of a pool, in the order of
// their volumes.
func FindCaches(lvs []lvm.LV) []FoundCache {
	var ids []volume.ID
	for _, lv := range lvs {
		for _, suffix := range []string{".data", ".meta", ".fill"} {
			name, ok := strings.CutSuffix(lv.Name, suffix)
			id, err := volume.ParseID(name)
			if ok && err == nil && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	slices.Sort(ids)
	var out []FoundCache
	for _, id := range ids {
		c := pickCache(lvs, id)
		f := FoundCache{ID: id, Data: c.data, Meta: c.meta, Filling: c.facts.Fill, Stopped: c.facts.Stopped, Activation: c.facts.activation(), Fence: c.facts.Fence, Mode: c.facts.Mode}
		f.Whole = c.facts.Whole && f.Fence != volume.Fence{}
		for _, tag := range slices.Concat(c.data.Tags, c.meta.Tags) {
			if v, ok := strings.CutPrefix(tag, tagRescued); ok {
				f.Rescued = v
			}
			if v, ok := strings.CutPrefix(tag, tagOrigin); ok {
				n, err := strconv.ParseInt(v, 10, 64)
				if err == nil {
					f.OriginBytes = max(f.OriginBytes, n)
				}
			}
		}
		out = append(out, f)
	}
	return out
}

// RescuedTags returns what is to be added to and removed from the tags of a cache
// that was flushed without its node: it never is taken for dirty again.
func RescuedTags(at time.Time) (add, remove []string) {
	return []string{tagRescued + at.UTC().Format(time.RFC3339), tagMode + string(volume.ModeWritethrough)},
		[]string{tagMode + string(volume.ModeWriteback)}
}

// DeviceNames are the devices whose existence means that a volume's cache is in use.
func DeviceNames(id volume.ID) []string { return []string{topName(id), dataName(id)} }
