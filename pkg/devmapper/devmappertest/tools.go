package devmappertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/nearflash/nearflash/pkg/blockdev/blockdevtest"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
)

// Tools are cache_dump(8) and cache_restore(8) for the metadata that caches of this package
// leave.
type Tools struct {
	Machine *blockdevtest.Machine
	Step    blockdevtest.Step
	// InUse has Dump read metadata that a device has open, which cache_dump itself refuses.
	InUse bool
}

// errTool is a tool that makes no sense of what it reads.
var errTool = errors.New("cache metadata refused")

// Dump writes the XML of a map to a file.
func (t Tools) Dump(ctx context.Context, device, file string) error {
	if err := t.Step.Query(ctx, "the map in "+device); err != nil {
		return err
	}
	if n := t.Machine.Openers(device); n > 0 && !t.InUse {
		return fmt.Errorf("%w: %s is open", errTool, device)
	}
	d, err := t.Machine.Device(device)
	if err != nil {
		return err
	}
	m := &metadata{dev: lower{d}, at: map[uint64]uint64{}, dirty: map[uint64]bool{}}
	sb, err := devmapper.ReadCacheSuperblock(d)
	if err != nil {
		return fmt.Errorf("%w: %w", errTool, err)
	}
	m.chunk = uint64(sb.DataBlockSectors)
	if err := m.read(); err != nil {
		return err
	}
	out := cachemap.Map{ChunkSectors: m.chunk, CacheBlocks: m.blocks, Policy: sb.PolicyName, HintWidth: 4}
	for _, block := range slices.Sorted(maps.Keys(m.at)) {
		out.Entries = append(out.Entries, cachemap.Entry{Cache: block, Origin: m.at[block]})
	}
	var text strings.Builder
	if err := out.WriteXML(&text); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(m.markDirty(text.String())), 0o600)
}

// markDirty changes the lines of mappings whose block is dirty.
func (m *metadata) markDirty(text string) string {
	for block := range m.dirty {
		mapping := fmt.Sprintf(`cache_block="%d" origin_block="%d" dirty=`, block, m.at[block])
		text = strings.Replace(text, mapping+`"false"`, mapping+`"true"`, 1)
	}
	return text
}

// Restore writes metadata as after a clean stop.
func (t Tools) Restore(ctx context.Context, file, device string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	in, err := cachemap.Read(f)
	if err != nil {
		return fmt.Errorf("%w: %w", errTool, err)
	}
	d, err := t.Machine.Device(device)
	if err != nil {
		return err
	}
	m := &metadata{dev: lower{d}, chunk: in.ChunkSectors, blocks: in.CacheBlocks, at: map[uint64]uint64{}, dirty: map[uint64]bool{}}
	for _, e := range in.Entries {
		m.at[e.Cache] = e.Origin
	}
	return t.Step.Change(ctx, "restore of a map to "+device, func() error { return m.commit(true) })
}
