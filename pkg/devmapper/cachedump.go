package devmapper

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
)

// CacheDump is a summary of what cache_dump(8) of thin-provisioning-tools prints
// of a cache's metadata while no table uses them.
type CacheDump struct {
	// ChunkSectors is the cache block size.
	ChunkSectors uint64
	// CacheBlocks is the length of the cache device in blocks.
	CacheBlocks uint64
	Policy      string
	// Mapped and Dirty count blocks. After an unclean stop the kernel counts
	// every block as dirty, whatever stands here.
	Mapped, Dirty uint64
}

// ParseCacheDump reads the XML of cache_dump. Errors wrap ErrParse.
func ParseCacheDump(r io.Reader) (CacheDump, error) {
	var dump CacheDump
	d := xml.NewDecoder(r)
	seen, ended := false, false
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return CacheDump{}, fmt.Errorf("%w: cache_dump: %w", ErrParse, err)
		}
		switch e := token.(type) {
		case xml.StartElement:
			if err := dump.element(d, e, seen); err != nil {
				return CacheDump{}, fmt.Errorf("%w: cache_dump: %w", ErrParse, err)
			}
			seen = seen || e.Name.Local == "superblock"
		case xml.EndElement:
			ended = ended || e.Name.Local == "superblock"
		}
	}
	if !seen || !ended {
		// What was cut off must not look like few mappings.
		return CacheDump{}, fmt.Errorf("%w: cache_dump: no whole superblock element", ErrParse)
	}
	return dump, nil
}

// element reads one element. One map's entry is a struct on the stack, so that a
// million of them need no memory.
func (c *CacheDump) element(d *xml.Decoder, e xml.StartElement, inside bool) error {
	switch e.Name.Local {
	case "superblock":
		if inside {
			return errors.New("a second superblock element")
		}
		return c.superblock(e)
	case "mapping":
		var m struct {
			CacheBlock  *uint64 `xml:"cache_block,attr"`
			OriginBlock *uint64 `xml:"origin_block,attr"`
			Dirty       *bool   `xml:"dirty,attr"`
		}
		if err := d.DecodeElement(&m, &e); err != nil {
			return err
		}
		if m.CacheBlock == nil || m.OriginBlock == nil || m.Dirty == nil || *m.CacheBlock >= c.CacheBlocks {
			return fmt.Errorf("mapping %d is incomplete or out of range", c.Mapped)
		}
		c.Mapped++
		if *m.Dirty {
			c.Dirty++
		}
	}
	return nil
}

func (c *CacheDump) superblock(e xml.StartElement) error {
	for _, a := range e.Attr {
		var err error
		switch a.Name.Local {
		case "block_size":
			c.ChunkSectors, err = parseUint(a.Value)
		case "nr_cache_blocks":
			c.CacheBlocks, err = parseUint(a.Value)
		case "policy":
			c.Policy = a.Value
		}
		if err != nil {
			return fmt.Errorf("attribute %s: %w", a.Name.Local, err)
		}
	}
	if c.ChunkSectors == 0 || c.CacheBlocks == 0 {
		return errors.New("the superblock names no block size or no blocks")
	}
	return nil
}
