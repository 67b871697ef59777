package integrity

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/lvm"
)

// Tags that this package alone sees (states.md, Checksums of what the SSD holds).
const (
	tagNew     = "nearflash.checked.new="
	tagChecked = "nearflash.checked="
	tagUID     = "nearflash.checked.uid="
	tagFlushes = "nearflash.flushes="
)

// SectorBytes is the largest logical block of an SSD that checksums are for.
const SectorBytes = devmapper.SectorSize

const (
	// The journal takes a part of the data, and so much at least and at most, in sectors.
	journalPart, journalLeast, journalMost = 128, 8 * devmapper.IntegritySection, 32 << 20 / devmapper.SectorSize
	// spareBytes are for whatever else the kernel rounds.
	spareBytes = 1 << 20
)

// journalSectors is the size of the journal for so many bytes.
func journalSectors(bytes int64) uint64 {
	n := uint64(bytes) / devmapper.SectorSize / journalPart
	return max(min(n, journalMost)/devmapper.IntegritySection*devmapper.IntegritySection, journalLeast)
}

// RawBytes is how large a logical volume has to be for so many bytes with checksums.
func RawBytes(bytes int64) int64 {
	sectors := (uint64(bytes) + devmapper.SectorSize - 1) / devmapper.SectorSize
	runs := sectors/devmapper.IntegrityRunSectors + 2
	return int64(devmapper.IntegrityHeadSectors+journalSectors(bytes)+runs*devmapper.IntegrityTagSectors+sectors)*devmapper.SectorSize + spareBytes
}

// Device is the name of the device of a logical volume. LVM's own names of a group have two dashes
// where its name has one.
func Device(vg, lv string) string { return prefix(vg) + lv }

func prefix(vg string) string { return vg + "." }

// uuid is that of the device of a logical volume, which may be in another machine by now.
func uuid(lv lvm.LV) string { return "NEARFLASH-LV-" + lv.UUID }

// volume is a logical volume as LVM has it, with what its tags say.
type volume struct {
	lvm.LV
	// bytes is the room with checksums, 0 of a volume without; fresh tells that it is not formatted.
	bytes int64
	fresh bool
	// flushes is the volume that a flush has to reach, "" if there is none.
	flushes string
}

// read separates what the tags say to this package from what they say to others.
func read(lv lvm.LV) (volume, error) {
	v := volume{LV: lv}
	var tags []string
	for _, t := range lv.Tags {
		var err error
		if n, ok := strings.CutPrefix(t, tagNew); ok {
			v.fresh = true
			v.bytes, err = positive(n)
		} else if n, ok := strings.CutPrefix(t, tagChecked); ok {
			var bytes int64
			bytes, err = positive(n)
			v.bytes = max(v.bytes, bytes) // of two, the older one could not be removed
		} else if name, ok := strings.CutPrefix(t, tagFlushes); ok {
			v.flushes = name
		} else if uid, ok := strings.CutPrefix(t, tagUID); ok {
			tags = append(tags, layout.TagUID+uid)
		} else {
			tags = append(tags, t)
		}
		if err != nil {
			return v, fmt.Errorf("tag %q of logical volume %s/%s: %w", t, lv.VG, lv.Name, err)
		}
	}
	v.Tags, v.Checked = tags, v.bytes > 0
	return v, nil
}

func positive(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err == nil && n <= 0 {
		err = errors.New("accepted are numbers of bytes")
	}
	return n, err
}

// hidden are tags as a volume with checksums has them.
func hidden(tags []string) []string {
	out := slices.Clone(tags)
	for i, t := range out {
		if uid, ok := strings.CutPrefix(t, layout.TagUID); ok {
			out[i] = tagUID + uid
		}
	}
	return out
}

func checkedTag(bytes int64) string { return tagChecked + strconv.FormatInt(bytes, 10) }
func newTag(bytes int64) string     { return tagNew + strconv.FormatInt(bytes, 10) }

// layer is the table of the device with checksums.
func (v volume) layer() devmapper.Table {
	t := devmapper.IntegrityTarget{Device: v.DevNo(), JournalSectors: journalSectors(v.bytes)}
	return devmapper.Table{{Length: uint64(v.bytes) / devmapper.SectorSize, Target: t}}
}

// join is the table of a map's device: a flush of it reaches a sector of the layer, which is no whole
// block of the map.
func (v volume) join(layer devmapper.Info, sectors uint64) devmapper.Table {
	own := uint64(v.SizeBytes) / devmapper.SectorSize
	return devmapper.Table{
		{Length: own, Target: devmapper.LinearTarget{Device: v.DevNo()}},
		{Start: own, Length: 1, Target: devmapper.LinearTarget{Device: layer.DevNo(), Offset: sectors - 1}},
	}
}
