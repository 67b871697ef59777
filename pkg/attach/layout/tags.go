package layout

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nearflash/nearflash/pkg/volume"
)

// Tags on a cache's logical volumes: with them the SSD alone tells what it holds, also
// when the journal is gone.
const (
	TagUID        = "nearflash.uid="
	tagGeneration = "nearflash.gen="
	tagNode       = "nearflash.node="
	tagMode       = "nearflash.mode="
	tagOrigin     = "nearflash.origin="
	tagActivation = "nearflash.activation="
	tagCount      = "nearflash.count="
	tagRescued    = "nearflash.rescued="

	// StopTag is there from the final removal of the cache's devices until they are made
	// again: the third witness of I4.
	StopTag = "nearflash.stop=clean"
)

// Tags are those of a cache that is made.
func Tags(f volume.Fence, mode volume.CacheMode) []string {
	return []string{
		TagUID + f.UID,
		tagGeneration + strconv.FormatInt(f.Generation, 10),
		tagNode + f.Node,
		tagMode + string(mode),
	}
}

// ParseTags is the inverse of Tags; foreign tags are ignored.
func ParseTags(tags []string) (f volume.Fence, mode volume.CacheMode) {
	for _, t := range tags {
		if v, ok := strings.CutPrefix(t, TagUID); ok {
			f.UID = v
		}
		if v, ok := strings.CutPrefix(t, tagNode); ok {
			f.Node = v
		}
		if v, ok := strings.CutPrefix(t, tagMode); ok {
			mode = volume.CacheMode(v)
		}
		if n, ok := number(t, tagGeneration); ok {
			f.Generation = n
		}
	}
	return f, mode
}

// number is what follows a prefix in a tag.
func number(tag, prefix string) (n int64, ok bool) {
	v, ok := strings.CutPrefix(tag, prefix)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(v, 10, 64)
	return n, err == nil
}

// OriginTag is the size of the origin in bytes when the cache was made, or when the
// volume was last expanded under it.
func OriginTag(bytes int64) string { return tagOrigin + strconv.FormatInt(bytes, 10) }

// ModeTags are what is to be added to the tags, and taken from them, for a mode.
func ModeTags(mode volume.CacheMode) (add, remove []string) {
	for _, m := range []volume.CacheMode{volume.ModeWritethrough, volume.ModeWriteback} {
		if m != mode {
			remove = append(remove, tagMode+string(m))
		}
	}
	return []string{tagMode + string(mode)}, remove
}

// RescuedTags are what is to be added to and taken from the tags of a cache that was
// flushed without its node (states.md, Rescue): it never is taken for dirty again.
func RescuedTags(at time.Time) (add, remove []string) {
	return []string{tagRescued + at.UTC().Format(time.RFC3339), tagMode + string(volume.ModeWritethrough)},
		[]string{tagMode + string(volume.ModeWriteback)}
}

// ActivationTags name the volume's last stage here (states.md, Whose disks these are);
// none for an activation that an earlier version knew nothing of.
func ActivationTags(a volume.Activation) []string {
	if a.ID == "" {
		return nil
	}
	return []string{tagActivation + a.ID, CountTag(a.Count)}
}

// CountTag is the activation's count alone.
func CountTag(n int64) string { return tagCount + strconv.FormatInt(n, 10) }

// parseActivation is the inverse of ActivationTags. Of several counts the highest holds:
// the others could not be removed.
func parseActivation(tags []string) (a volume.Activation) {
	for _, t := range tags {
		if v, ok := strings.CutPrefix(t, tagActivation); ok {
			a.ID = v
		}
		if n, ok := number(t, tagCount); ok {
			a.Count = max(a.Count, n)
		}
	}
	return a
}

// OtherActivations are the tags of activations on a cache that are not those of a.
func (c Cache) OtherActivations(a volume.Activation) []string {
	var out []string
	for _, t := range slices.Concat(c.Data.Tags, c.Meta.Tags) {
		if strings.HasPrefix(t, tagActivation) || strings.HasPrefix(t, tagCount) {
			out = append(out, t)
		}
	}
	slices.Sort(out)
	return slices.DeleteFunc(slices.Compact(out), func(t string) bool { return slices.Contains(ActivationTags(a), t) })
}
