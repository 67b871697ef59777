package devmappertest

import (
	"bytes"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/devmapper"
)

const integrityJournal = 8 * devmapper.IntegritySection

// integrity is the table of a device with checksums on the origin.
func (c *suite) integrity() devmapper.Table {
	t := devmapper.IntegrityTarget{Device: c.Origin, JournalSectors: integrityJournal}
	return devmapper.Table{{Length: dataSize, Target: t}}
}

// mismatches are those that the device has counted.
func (c *suite) mismatches() uint64 {
	c.Helper()
	all, err := c.Client.IntegrityStatusAll(c.Context())
	c.Must("status of checksums", err)
	s, found := all[top]
	if !found || s.ProvidedSectors < dataSize {
		c.Fatalf("%s among %+v: want a device with checksums and %d sectors", top, all, dataSize)
	}
	return s.Mismatches
}

// lastOf is where the SSD has a sector of a page last, -1 without one: the journal lies before the
// data. A sector in the journal has other bytes at its end.
func (c *suite) lastOf(b byte) int64 {
	c.Helper()
	other := c.create("nf-conform-other", c.linear())
	defer func() { c.Must("remove", c.Client.Remove(c.Context(), other.Name)) }()
	all := blockdev.AlignedBuffer(originSize * sector)
	c.with(other.DevPath(), func(f blockdev.File) {
		_, err := f.ReadAt(all, 0)
		c.Must("read the SSD", err)
	})
	return int64(bytes.LastIndex(all, bytes.Repeat([]byte{b}, sector-8)))
}

// flip changes a byte of the SSD.
func (c *suite) flip(at int64) {
	c.Helper()
	other := c.create("nf-conform-other", c.linear())
	defer func() { c.Must("remove", c.Client.Remove(c.Context(), other.Name)) }()
	c.with(other.DevPath(), func(f blockdev.File) {
		buf := blockdev.AlignedBuffer(bufBytes)
		_, err := f.ReadAt(buf, at/bufBytes*bufBytes)
		c.Must("read", err)
		buf[at%bufBytes] ^= 4
		_, err = f.WriteAt(buf, at/bufBytes*bufBytes)
		c.Must("write", err)
		c.Must("sync", f.Sync())
	})
}

// checked: what was written is read, also after a stop; a byte that the SSD has changed is an error and
// counted, until it is written again; and a flush of a device that rests on this one among others
// brings to the SSD what was written before.
func (c *suite) checked() {
	ctx := c.Context()
	info := c.create(top, c.integrity())
	c.wantReads(info, dataSize/8-1, nil) // never written
	c.write(info, 91)
	c.wantByte(info, 91)
	c.Must("remove", c.Client.Remove(ctx, top))
	at := c.lastOf(91)
	if at < 0 {
		c.Fatal("after a stop the SSD does not have what was written")
	}
	info = c.create(top, c.integrity())
	c.wantByte(info, 91)
	if n := c.mismatches(); n != 0 {
		c.Errorf("%d mismatches before any", n)
	}
	c.Must("remove", c.Client.Remove(ctx, top))
	c.flip(at)
	info = c.create(top, c.integrity())
	c.wantReads(info, 0, unix.EILSEQ)
	if n := c.mismatches(); n == 0 {
		c.Error("no mismatch was counted")
	}
	c.write(info, 92)
	c.wantByte(info, 92)
	c.joined(info)
	c.Must("remove", c.Client.Remove(ctx, top))
}

// wantReads reads a page of the device.
func (c *suite) wantReads(info devmapper.Info, page int64, want error) {
	c.Helper()
	c.with(info.DevPath(), func(f blockdev.File) {
		if _, err := f.ReadAt(blockdev.AlignedBuffer(bufBytes), page*bufBytes); !errors.Is(err, want) {
			c.Errorf("read of page %d: %v, want %v", page, err, want)
		}
	})
}

// joined: see checked.
func (c *suite) joined(info devmapper.Info) {
	const metaSize = 4 << 20 / sector
	join := c.create("nf-conform-upper", devmapper.Table{
		{Length: metaSize, Target: devmapper.LinearTarget{Device: c.Metadata}},
		{Start: metaSize, Length: 1, Target: devmapper.LinearTarget{Device: info.DevNo(), Offset: dataSize - 1}},
	})
	for b := byte(100); b < 110; b++ {
		c.with(info.DevPath(), func(f blockdev.File) {
			_, err := f.WriteAt(page(b), 8*bufBytes)
			c.Must("write", err)
		})
		if c.lastOf(b) >= 0 {
			continue // a journal that commits by itself just now
		}
		c.with(join.DevPath(), func(f blockdev.File) { c.Must("sync", f.Sync()) })
		if c.lastOf(b) < 0 {
			c.Error("a flush has not brought to the SSD what was written")
		}
		c.Must("remove", c.Client.Remove(c.Context(), join.Name))
		return
	}
	c.Error("what is written is on the SSD at once: a flush proves nothing")
}
