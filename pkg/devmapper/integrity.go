package devmapper

import (
	"context"
	"fmt"
	"strings"
)

// IntegrityTarget keeps a checksum of each sector of a device on that device, and fails reads of
// what does not match (dm-integrity.rst): crc32c, 4 bytes for each 512, written by way of a
// journal, so that data and checksum are never apart after a crash. Over a device that begins
// with 4 KiB of zeroes the kernel formats it. The checksums that there are not yet it makes in the
// background, and checks no sector before.
//
//	integrity <dev> 0 4 J <#args> recalculate journal_sectors:N ... internal_hash:crc32c
type IntegrityTarget struct {
	// Device is "major:minor".
	Device string
	// JournalSectors is the size of the journal, which the kernel also keeps in memory; it heeds
	// it when it formats the device.
	JournalSectors uint64
}

// Fixed by the kernel for sectors of 512 bytes and checksums of 4.
const (
	// IntegrityRunSectors is how many sectors of data have their checksums beside each other, and
	// IntegrityTagSectors how many those take.
	IntegrityRunSectors, IntegrityTagSectors = 32768, 256
	// IntegritySection is the unit of the journal in sectors (calculate_journal_section_size).
	IntegritySection = 176
	// IntegrityHeadSectors is the superblock.
	IntegrityHeadSectors = 8
)

const integrityArgs = " 0 4 J 7 recalculate journal_sectors:%d interleave_sectors:32768 buffer_sectors:128 journal_watermark:50 commit_time:10000 internal_hash:crc32c"

// Type implements Target.
func (IntegrityTarget) Type() string { return "integrity" }

// Params implements Target.
func (t IntegrityTarget) Params() string {
	return t.Device + fmt.Sprintf(integrityArgs, t.JournalSectors)
}

// parseIntegrity reads what Params has written; anything else is not ok.
func parseIntegrity(w []string) (Target, bool) {
	if len(w) != 12 {
		return nil, false
	}
	var t IntegrityTarget
	t.Device = w[0]
	_, err := fmt.Sscanf(w[6], "journal_sectors:%d", &t.JournalSectors)
	return t, err == nil
}

// IntegrityStatus is the status of a device with checksums.
//
//	<#mismatches> <#provided sectors> <recalculated up to, or ->
type IntegrityStatus struct {
	// Mismatches is how many reads have found something else than was written, since the device was
	// made, as the kernel counts them.
	Mismatches uint64
	// ProvidedSectors is how long the device could be.
	ProvidedSectors uint64
	// Recalculated is up to which sector reads are checked; all of them, of a device that is not
	// being recalculated.
	Recalculated uint64
}

// ParseIntegrityStatus reads the arguments of a status line. Errors wrap ErrParse.
func ParseIntegrityStatus(params string) (s IntegrityStatus, err error) {
	c := &cursor{words: strings.Fields(params)}
	s.Mismatches, s.ProvidedSectors = c.uint(), c.uint()
	s.Recalculated = s.ProvidedSectors
	if c.pos < len(c.words) && c.words[c.pos] == "-" {
		c.word()
	} else {
		s.Recalculated = c.uint()
	}
	if c.err != nil {
		return IntegrityStatus{}, fmt.Errorf("integrity status %q: %w", params, c.err)
	}
	return s, nil
}

// parseIntegrityStatusAll reads what `dmsetup status --target integrity` prints. A line that cannot be
// read says nothing, and hides no other.
func parseIntegrityStatusAll(text string) (map[string]IntegrityStatus, error) {
	all := map[string]IntegrityStatus{}
	err := eachStatus(text, "integrity", func(name string, l StatusLine) {
		if s, err := ParseIntegrityStatus(l.Params); err == nil {
			all[name] = s
		}
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// IntegrityStatusAll implements Client. The kernel's answer waits for no device (dm_integrity_status).
func (d *dmsetup) IntegrityStatusAll(ctx context.Context) (map[string]IntegrityStatus, error) {
	actx, cancel := context.WithTimeout(ctx, allPatience)
	defer cancel()
	out, err := d.exec(actx, nil, "status", "--noflush", "--target", "integrity", "--select", oneTarget)
	if err != nil {
		return nil, fmt.Errorf("status of all devices with checksums: %w", err)
	}
	return parseIntegrityStatusAll(string(out))
}
