package cachemap_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
)

// dump was written by cache_dump of thin-provisioning-tools 1.1.0.
func dump(t testing.TB) string {
	t.Helper()
	b, err := os.ReadFile("../devmapper/testdata/cache_dump-clean.xml")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestReadGolden(t *testing.T) {
	text := dump(t)
	got, err := cachemap.Read(iotest.OneByteReader(strings.NewReader(text)))
	if err != nil {
		t.Fatal(err)
	}
	want, err := devmapper.ParseCacheDump(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	summary := devmapper.CacheDump{
		ChunkSectors: got.ChunkSectors, CacheBlocks: got.CacheBlocks, Policy: got.Policy, Mapped: uint64(len(got.Entries)), Dirty: got.Dirty,
	}
	if diff := cmp.Diff(want, summary); diff != "" {
		t.Errorf("the two parsers differ (-summary +map):\n%s", diff)
	}
	if got.HintWidth != 4 || got.Entries[0] != (cachemap.Entry{Cache: 0, Origin: 2045, Level: got.Entries[0].Level}) {
		t.Errorf("got %+v", got)
	}
	if last := got.Entries[69]; last.Cache != 69 || last.Level != 53 {
		t.Errorf("got %+v", last)
	}
}

// document is a small map with the given sections.
func document(mappings, hints string) string {
	return `<superblock uuid="" block_size="64" nr_cache_blocks="9" policy="smq" hint_width="4"><mappings>` + mappings + `</mappings><hints>` + hints + `</hints></superblock>`
}

func mapping(cache, origin int, dirty bool) string {
	return fmt.Sprintf(`<mapping cache_block="%d" origin_block="%d" dirty="%t"/>`, cache, origin, dirty)
}

func TestRead(t *testing.T) {
	const head = `<superblock uuid="" block_size="64" nr_cache_blocks="9" policy="" hint_width="0">`
	two := mapping(1, 7, false) + mapping(3, 2, true)
	sizes := cachemap.Map{ChunkSectors: 64, CacheBlocks: 9, Policy: "smq", HintWidth: 4}
	entries := func(e ...cachemap.Entry) cachemap.Map {
		m := sizes
		m.Entries = e
		return m
	}
	cases := map[string]struct {
		text string
		want cachemap.Map
	}{
		"no hints":      {head + "<mappings></mappings></superblock>\n", cachemap.Map{ChunkSectors: 64, CacheBlocks: 9}},
		"empty element": {head + "<mappings/><hints/></superblock>", cachemap.Map{ChunkSectors: 64, CacheBlocks: 9}},
		"dirty": {document(two, `<hint cache_block="3" data="AQIAAA=="/>`), cachemap.Map{
			ChunkSectors: 64, CacheBlocks: 9, Policy: "smq", HintWidth: 4, Dirty: 1, DirtyBlocks: []uint64{3},
			Entries: []cachemap.Entry{{Cache: 1, Origin: 7}, {Cache: 3, Origin: 2, Level: 0x201}}}},
		"another order": {document(mapping(3, 2, false)+mapping(1, 7, false), `<hint cache_block="3" data="AQAAAA=="/><hint cache_block="1" data="AgAAAA=="/>`),
			entries(cachemap.Entry{Cache: 1, Origin: 7, Level: 2}, cachemap.Entry{Cache: 3, Origin: 2, Level: 1})},
		"hint of an unmapped block": {document("", `<hint cache_block="3" data="AQAAAA=="/>`), sizes},
		"other quotes and blanks":   {document("<mapping \n dirty='false'\torigin_block='5' cache_block=\"0\" />", ""), entries(cachemap.Entry{Origin: 5})},
		"discards":                  {strings.Replace(document("", ""), "</superblock>", `<discards><discard dbegin="0" dend="4"/></discards></superblock>`, 1), sizes},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := cachemap.Read(strings.NewReader(tc.text))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("map differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReadRefuses(t *testing.T) {
	good := document(mapping(1, 7, false), `<hint cache_block="1" data="AQAAAA=="/>`)
	replace := func(old, by string) string { return strings.Replace(good, old, by, 1) }
	cases := map[string]string{
		"nothing":                 "",
		"foreign":                 "<a></a>",
		"cache block twice":       document(mapping(1, 7, false)+mapping(1, 8, false), ""),
		"cache block twice, far":  document(mapping(1, 7, false)+mapping(2, 6, false)+mapping(1, 8, false), ""),
		"origin block twice":      document(mapping(1, 7, false)+mapping(2, 7, false), ""),
		"cache block too high":    document(mapping(9, 7, false), ""),
		"origin block too high":   replace(`origin_block="7"`, `origin_block="281474976710656"`),
		"a number too long":       replace(`origin_block="7"`, `origin_block="18446744073709551617"`),
		"no number":               replace(`origin_block="7"`, `origin_block=""`),
		"negative":                replace(`origin_block="7"`, `origin_block="-7"`),
		"no dirty":                replace(` dirty="false"`, ""),
		"odd dirty":               replace(`dirty="false"`, `dirty="no"`),
		"attribute twice":         replace(`dirty="false"`, `dirty="false" dirty="false"`),
		"no quotes":               replace(`"7"`, `7`),
		"open quote":              replace(`"7"`, `"7`),
		"attributes run together": replace(`" origin`, `"origin`),
		"hint twice":              replace(`<hints>`, `<hints><hint cache_block="1" data="AQAAAA=="/>`),
		"hint too high":           replace(`hint cache_block="1"`, `hint cache_block="9"`),
		"short hint":              replace("AQAAAA==", "AQAA"),
		"long hint":               replace("AQAAAA==", "AQAAAAAA"),
		"no base64":               replace("AQAAAA==", "AQ*AAA=="),
		"hint without data":       replace(` data="AQAAAA=="`, ""),
		"hints first":             `<superblock uuid="" block_size="64" nr_cache_blocks="9" policy="" hint_width="0"><hints></hints><mappings></mappings></superblock>`,
		"mappings twice":          replace("<hints>", "<mappings></mappings><hints>"),
		"no mappings":             `<superblock uuid="" block_size="64" nr_cache_blocks="9" policy="" hint_width="0"></superblock>`,
		"odd block size":          replace(`block_size="64"`, `block_size="65"`),
		"no blocks":               replace(`nr_cache_blocks="9"`, `nr_cache_blocks="0"`),
		"too many blocks":         replace(`nr_cache_blocks="9"`, `nr_cache_blocks="4294967297"`),
		"no policy":               replace(` policy="smq"`, ""),
		"wide hints":              replace(`hint_width="4"`, `hint_width="4000000000"`),
		"unknown element":         replace("<mapping ", "<map "),
		"wrong end":               replace("</mappings>", "</hints>"),
		"element not closed":      replace(`dirty="false"/>`, `dirty="false">`),
		"text":                    replace("<hints>", "hello<hints>"),
		"something behind":        good + "<superblock/>",
		"text behind":             good + "hello",
		"a second one":            good + good,
		"a long element":          replace(`uuid=""`, `uuid="`+strings.Repeat("x", 1<<17)+`"`),
	}
	for name, text := range cases {
		t.Run(name, func(t *testing.T) {
			if text == good {
				t.Fatal("the case changes nothing")
			}
			if m, err := cachemap.Read(strings.NewReader(text)); !errors.Is(err, cachemap.ErrFormat) {
				t.Errorf("got %+v, %v, want ErrFormat", m, err)
			}
		})
	}
	// Wherever it is cut off.
	for n := range len(good) {
		if _, err := cachemap.Read(strings.NewReader(good[:n])); !errors.Is(err, cachemap.ErrFormat) {
			t.Errorf("%d of %d bytes: %v, want ErrFormat", n, len(good), err)
		}
	}
	broken := errors.New("broken")
	if _, err := cachemap.Read(iotest.ErrReader(broken)); !errors.Is(err, broken) || errors.Is(err, cachemap.ErrFormat) {
		t.Errorf("error of the reader: %v", err)
	}
}

// TestReadEndless: a map that somebody else has written needs no more memory than it has blocks.
func TestReadEndless(t *testing.T) {
	head := `<superblock uuid="" block_size="64" nr_cache_blocks="9" policy="" hint_width="4"><mappings>`
	if m, err := cachemap.Read(io.MultiReader(strings.NewReader(head), endless(mapping(1, 7, false)))); !errors.Is(err, cachemap.ErrFormat) {
		t.Errorf("got %+v, %v, want ErrFormat", m, err)
	}
}

// endless is a text without end.
type endless string

func (e endless) Read(p []byte) (int, error) {
	n := 0
	for n+len(e) <= len(p) {
		n += copy(p[n:], e)
	}
	return n, nil
}

func encode(t testing.TB, m cachemap.Map) string {
	t.Helper()
	var b bytes.Buffer
	if err := m.WriteXML(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestXMLRoundTrip(t *testing.T) {
	for seed := range uint64(200) {
		r := random(seed)
		m := anyMap(r, 64*(1+r.Uint64N(40)), 1+r.Uint64N(200), 1+r.Uint64N(1<<40))
		if seed%3 == 0 && len(m.Entries) > 0 {
			m.Entries[0].Level = r.Uint32()
		}
		text := encode(t, m)
		got, err := cachemap.Read(strings.NewReader(text))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if diff := cmp.Diff(m, got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("map differs (-want +got):\n%s", diff)
		}
		if _, err := devmapper.ParseCacheDump(strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
	}
}

// What cache_dump has written comes back byte by byte, but for the policy.
func TestWriteXMLGolden(t *testing.T) {
	text := dump(t)
	m, err := cachemap.Read(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Replace(text, `policy="cleaner"`, `policy="smq"`, 1) + "\n"
	if diff := cmp.Diff(want, encode(t, m)); diff != "" {
		t.Errorf("XML differs (-want +got):\n%s", diff)
	}
}

func TestWriteXMLRefuses(t *testing.T) {
	m := cachemap.Map{ChunkSectors: 64, CacheBlocks: 9, Entries: []cachemap.Entry{{Cache: 1}, {Cache: 2, Origin: 5}}}
	dirty, high, order := m, m, m
	dirty.Dirty = 1
	high.CacheBlocks = 2
	order.Entries = []cachemap.Entry{m.Entries[1], m.Entries[0]}
	for name, m := range map[string]cachemap.Map{"dirty": dirty, "out of range": high, "out of order": order} {
		if err := m.WriteXML(&bytes.Buffer{}); !errors.Is(err, cachemap.ErrFormat) {
			t.Errorf("%s: %v, want ErrFormat", name, err)
		}
	}
	if err := m.WriteXML(failing{}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("error of the writer: %v", err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, os.ErrClosed }

func FuzzRead(f *testing.F) {
	f.Add(dump(f)[:2000])
	f.Add(document(mapping(1, 7, false)+mapping(3, 2, true), `<hint cache_block="3" data="AQIAAA=="/>`))
	f.Fuzz(func(t *testing.T, text string) {
		m, err := cachemap.Read(strings.NewReader(text))
		if err != nil {
			if !errors.Is(err, cachemap.ErrFormat) {
				t.Errorf("error %v does not wrap ErrFormat", err)
			}
			return
		}
		if m.Dirty > uint64(len(m.Entries)) {
			t.Errorf("%d of %d entries are dirty", m.Dirty, len(m.Entries))
		}
		if n := len(m.Clean().Entries); m.Dirty != uint64(len(m.DirtyBlocks)) || n+len(m.DirtyBlocks) != len(m.Entries) {
			t.Errorf("%d entries, %d of them clean, %d dirty: %v", len(m.Entries), n, m.Dirty, m.DirtyBlocks)
		}
		m.Dirty, m.DirtyBlocks, m.Policy, m.HintWidth = 0, nil, "smq", 4
		again, err := cachemap.Read(strings.NewReader(encode(t, m)))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(m, again); diff != "" {
			t.Errorf("map differs (-want +got):\n%s", diff)
		}
	})
}

func BenchmarkRead(b *testing.B) {
	text := encode(b, anyMap(random(1), 256, 1_000_000, 8_000_000))
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, err := cachemap.Read(strings.NewReader(text)); err != nil {
			b.Fatal(err)
		}
	}
}
