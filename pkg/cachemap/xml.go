package cachemap

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/nearflash/nearflash/pkg/devmapper"
)

const (
	// xmlBuffer bounds one element of the input.
	xmlBuffer = 64 << 10
	xmlBlanks = " \t\r\n"
	// maxHintWidth is DM_CACHE_POLICY_MAX_HINT_SIZE of the kernel.
	maxHintWidth = 128
)

// Read reads the XML that cache_dump(8) of thin-provisioning-tools prints:
//
//	<superblock uuid="" block_size="" nr_cache_blocks="" policy="" hint_width="">
//	  <mappings>
//	    <mapping cache_block="" origin_block="" dirty="true|false"/> ...
//	  </mappings>
//	  <hints>
//	    <hint cache_block="" data="4 bytes, little endian, in base64"/> ...
//	  </hints>
//	</superblock>
//
// It reads a million mappings in about a second and needs a small multiple of their
// memory. Blocks without a hint have level 0.
//
// Errors wrap ErrFormat for input that ends early, blocks that are out of range or
// there twice, and anything else that the program does not write; else they are
// those of r.
func Read(r io.Reader) (Map, error) {
	p := &parser{r: bufio.NewReaderSize(r, xmlBuffer)}
	for {
		text, err := p.r.ReadSlice('>')
		p.offset += int64(len(text))
		if errors.Is(err, io.EOF) && p.in == afterAll && len(bytes.TrimLeft(text, xmlBlanks)) == 0 {
			return p.m, nil
		}
		switch {
		case errors.Is(err, io.EOF):
			return Map{}, fmt.Errorf("%w: it ends early, at byte %d", ErrFormat, p.offset)
		case errors.Is(err, bufio.ErrBufferFull):
			return Map{}, fmt.Errorf("%w: an element before byte %d is too long", ErrFormat, p.offset)
		case err != nil:
			return Map{}, fmt.Errorf("read cache map: %w", err)
		}
		if err := p.element(text); err != nil {
			return Map{}, fmt.Errorf("%w: before byte %d: %w", ErrFormat, p.offset, err)
		}
	}
}

// place is where in the document the parser is.
type place int

const (
	beforeAll place = iota
	inSuperblock
	inMappings
	inHints
	inDiscards
	afterAll
)

// sections are the elements inside the superblock, each of which is there once.
var sections = [...]string{inMappings: "mappings", inHints: "hints", inDiscards: "discards"}

type parser struct {
	r      *bufio.Reader
	offset int64
	in     place
	seen   [afterAll]bool
	m      Map
	// hinted has the entries that a hint was found for, next the one that the next
	// hint is for if they come in order.
	hinted []bool
	next   int
}

// form is how an element is written.
type form int

const (
	opening form = iota
	closing
	empty
)

// element takes the text up to the end of an element.
func (p *parser) element(text []byte) error {
	text = bytes.TrimLeft(text[:len(text)-1], xmlBlanks)
	if len(text) < 2 || text[0] != '<' {
		return errors.New("text between the elements")
	}
	text = text[1:]
	f := opening
	switch {
	case text[0] == '/':
		f, text = closing, text[1:]
	case text[len(text)-1] == '/':
		f, text = empty, text[:len(text)-1]
	}
	name, rest := text, attributes(nil)
	if i := bytes.IndexAny(text, xmlBlanks); i >= 0 {
		name, rest = text[:i], attributes(text[i:])
	}
	switch p.in {
	case inMappings, inHints, inDiscards:
		return p.item(name, f, rest)
	case inSuperblock:
		return p.section(name, f)
	case beforeAll:
		if string(name) == "superblock" && f == opening {
			p.in = inSuperblock
			return p.superblock(rest)
		}
	}
	return fmt.Errorf("unexpected element %.32q", name)
}

// section takes the begin of a section, or the end of everything.
func (p *parser) section(name []byte, f form) error {
	if string(name) == "superblock" && f == closing {
		if !p.seen[inMappings] {
			return errors.New("there are no mappings")
		}
		p.in = afterAll
		return nil
	}
	i := place(slices.Index(sections[:], string(name)))
	switch {
	case i < inMappings || f == closing:
		return fmt.Errorf("unexpected element %.32q", name)
	case p.seen[i] || i != inMappings && !p.seen[inMappings]:
		return fmt.Errorf("element %s is out of place", name)
	}
	p.seen[i], p.in = true, i
	if f == empty {
		return p.end()
	}
	return nil
}

// item takes one element of a section, or its end.
func (p *parser) item(name []byte, f form, a attributes) error {
	switch {
	case f == closing && string(name) == sections[p.in]:
		return p.end()
	case f != empty:
	case p.in == inMappings && string(name) == "mapping":
		return p.mapping(a)
	case p.in == inHints && string(name) == "hint":
		return p.hint(a)
	case p.in == inDiscards && string(name) == "discard":
		return nil // the kernel does not need them, and version 1.x does not write them
	}
	return fmt.Errorf("unexpected element %.32q", name)
}

func byCache(a, b Entry) int { return cmp.Compare(a.Cache, b.Cache) }

// end is called at the end of a section.
func (p *parser) end() error {
	was := p.in
	p.in = inSuperblock
	if was != inMappings {
		return nil
	}
	e := p.m.Entries
	// The program writes them in this order; others may not.
	if !slices.IsSortedFunc(e, byCache) {
		slices.SortFunc(e, byCache)
		slices.Sort(p.m.DirtyBlocks)
	}
	origins := make([]uint64, len(e))
	for i := range e {
		origins[i] = e[i].Origin
		if i > 0 && e[i].Cache == e[i-1].Cache {
			return fmt.Errorf("cache block %d is mapped twice", e[i].Cache)
		}
	}
	slices.Sort(origins)
	for i := 1; i < len(origins); i++ {
		if origins[i] == origins[i-1] {
			return fmt.Errorf("origin block %d is mapped twice", origins[i])
		}
	}
	p.hinted = make([]bool, len(e))
	return nil
}

func (p *parser) superblock(a attributes) error {
	var got fields
	var width uint64
	err := a.each(func(key, value []byte) error {
		switch string(key) {
		case "block_size":
			return got.number(0, value, &p.m.ChunkSectors)
		case "nr_cache_blocks":
			return got.number(1, value, &p.m.CacheBlocks)
		case "policy":
			p.m.Policy = string(value)
			return got.once(2)
		case "hint_width":
			return got.number(3, value, &width)
		}
		return nil
	})
	p.m.HintWidth = int(min(width, maxHintWidth+1))
	switch {
	case err != nil:
		return err
	case got != 1<<4-1:
		return errors.New("the superblock lacks an attribute")
	case !validChunk(p.m.ChunkSectors):
		return fmt.Errorf("block size of %d sectors", p.m.ChunkSectors)
	case p.m.CacheBlocks == 0 || p.m.CacheBlocks > maxCacheBlocks:
		return fmt.Errorf("%d cache blocks", p.m.CacheBlocks)
	case p.m.HintWidth > maxHintWidth:
		return fmt.Errorf("hints of %d bytes", width)
	}
	return nil
}

func (p *parser) mapping(a attributes) error {
	var got fields
	var e Entry
	dirty := false
	err := a.each(func(key, value []byte) error {
		switch string(key) {
		case "cache_block":
			return got.number(0, value, &e.Cache)
		case "origin_block":
			return got.number(1, value, &e.Origin)
		case "dirty":
			if dirty = string(value) == "true"; !dirty && string(value) != "false" {
				return errors.New("neither true nor false")
			}
			return got.once(2)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case got != 1<<3-1:
		return errors.New("the mapping lacks an attribute")
	case e.Cache >= p.m.CacheBlocks:
		return fmt.Errorf("cache block %d of %d", e.Cache, p.m.CacheBlocks)
	case e.Origin >= maxSectors/p.m.ChunkSectors:
		return fmt.Errorf("origin block %d is beyond any device", e.Origin)
	}
	if uint64(len(p.m.Entries)) >= min(p.m.CacheBlocks, MaxBlocks) {
		return fmt.Errorf("more than %d mappings of %d cache blocks", len(p.m.Entries), p.m.CacheBlocks)
	}
	if dirty {
		p.m.Dirty++
		p.m.DirtyBlocks = append(p.m.DirtyBlocks, e.Cache)
	}
	p.m.Entries = append(p.m.Entries, e)
	return nil
}

func (p *parser) hint(a attributes) error {
	var got fields
	var cache uint64
	var data [hintWidth]byte
	err := a.each(func(key, value []byte) error {
		switch string(key) {
		case "cache_block":
			return got.number(0, value, &cache)
		case "data":
			if !decodeHint(&data, value) {
				return fmt.Errorf("%.32q is not %d bytes in base64", value, hintWidth)
			}
			return got.once(1)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case got != 1<<2-1:
		return errors.New("the hint lacks an attribute")
	}
	return p.setLevel(cache, binary.LittleEndian.Uint32(data[:]))
}

// decodeHint reads base64. The decoder may write more than it returns, as much as a
// text of this length could stand for.
func decodeHint(out *[hintWidth]byte, text []byte) bool {
	var buf [2 * hintWidth]byte
	if len(text) != base64.StdEncoding.EncodedLen(hintWidth) {
		return false
	}
	n, err := base64.StdEncoding.Decode(buf[:], text)
	copy(out[:], buf[:])
	return err == nil && n == hintWidth
}

// setLevel finds the entry of a hint. A hint of an unmapped block means nothing.
func (p *parser) setLevel(cache uint64, level uint32) error {
	if cache >= p.m.CacheBlocks {
		return fmt.Errorf("hint for cache block %d of %d", cache, p.m.CacheBlocks)
	}
	i := p.next
	if i >= len(p.m.Entries) || p.m.Entries[i].Cache != cache {
		found := false
		i, found = slices.BinarySearchFunc(p.m.Entries, cache, func(e Entry, c uint64) int { return cmp.Compare(e.Cache, c) })
		if !found {
			return nil
		}
	}
	if p.hinted[i] {
		return fmt.Errorf("cache block %d has two hints", cache)
	}
	p.hinted[i], p.m.Entries[i].Level, p.next = true, level, i+1
	return nil
}

// fields are the attributes that an element was found to have.
type fields uint

func (f *fields) once(i uint) error {
	if *f&(1<<i) != 0 {
		return errors.New("it is there twice")
	}
	*f |= 1 << i
	return nil
}

func (f *fields) number(i uint, text []byte, out *uint64) error {
	if len(text) == 0 || len(text) > 19 { // 19 digits always fit
		return fmt.Errorf("%.32q is not a number", text)
	}
	n := uint64(0)
	for _, c := range text {
		if c < '0' || c > '9' {
			return fmt.Errorf("%.32q is not a number", text)
		}
		n = 10*n + uint64(c-'0')
	}
	*out = n
	return f.once(i)
}

// attributes is the text of an element behind its name.
type attributes []byte

// each calls f with names and values. Values are taken as they are: none that
// matters here has an entity in it.
func (a attributes) each(f func(key, value []byte) error) error {
	for {
		rest := bytes.TrimLeft(a, xmlBlanks)
		if len(rest) == 0 {
			return nil
		}
		i := bytes.IndexByte(rest, '=')
		if i <= 0 || len(rest) == len(a) || len(rest) < i+2 || rest[i+1] != '"' && rest[i+1] != '\'' {
			return fmt.Errorf("malformed attribute %.32q", rest)
		}
		key, value := rest[:i], rest[i+2:]
		n := bytes.IndexByte(value, rest[i+1])
		if n < 0 {
			return fmt.Errorf("malformed attribute %.32q", rest)
		}
		if err := f(key, value[:n]); err != nil {
			return fmt.Errorf("attribute %.32q: %w", key, err)
		}
		a = attributes(value[n+1:])
	}
}

// WriteXML writes what cache_restore(8) reads. Policy and width of the hints are
// always those of smq, also for a map that was left by the cleaner policy: the
// kernel ignores the hints of a policy of another name.
//
// Errors: ErrFormat for a map with dirty blocks, which would be lost as clean ones,
// or with blocks out of order or range; those of w.
func (m Map) WriteXML(w io.Writer) error {
	if m.Dirty > 0 {
		return fmt.Errorf("%w: %d blocks are dirty", ErrFormat, m.Dirty)
	}
	out := bufio.NewWriterSize(w, xmlBuffer)
	_, _ = fmt.Fprintf(out, "<superblock uuid=\"\" block_size=\"%d\" nr_cache_blocks=\"%d\" policy=%q hint_width=\"%d\">\n  <mappings>\n",
		m.ChunkSectors, m.CacheBlocks, devmapper.PolicySMQ, hintWidth)
	line := make([]byte, 0, 128)
	for i, e := range m.Entries {
		if e.Cache >= m.CacheBlocks || i > 0 && e.Cache <= m.Entries[i-1].Cache {
			return fmt.Errorf("%w: cache block %d of %d is out of order or range", ErrFormat, e.Cache, m.CacheBlocks)
		}
		line = append(line[:0], `    <mapping cache_block="`...)
		line = strconv.AppendUint(line, e.Cache, 10)
		line = append(line, `" origin_block="`...)
		line = strconv.AppendUint(line, e.Origin, 10)
		line = append(line, "\" dirty=\"false\"/>\n"...)
		_, _ = out.Write(line)
	}
	_, _ = out.WriteString("  </mappings>\n  <hints>\n")
	for _, e := range m.Entries {
		line = append(line[:0], `    <hint cache_block="`...)
		line = strconv.AppendUint(line, e.Cache, 10)
		line = append(line, `" data="`...)
		line = base64.StdEncoding.AppendEncode(line, binary.LittleEndian.AppendUint32(nil, e.Level))
		line = append(line, "\"/>\n"...)
		_, _ = out.Write(line)
	}
	_, _ = out.WriteString("  </hints>\n</superblock>\n")
	// A writer that has failed once fails for good, so that one look is enough.
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write cache map: %w", err)
	}
	return nil
}
