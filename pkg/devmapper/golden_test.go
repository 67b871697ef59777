package devmapper

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The files in testdata were taken from kernel 7.2 with device mapper 4.50.0,
// libdevmapper 1.02.205 and thin-provisioning-tools 1.1.0.
func golden(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestCacheStatusGolden(t *testing.T) {
	writeback := CacheStatus{
		MetadataBlockSectors: 8, MetadataUsed: 13, MetadataTotal: 2048, ChunkSectors: 256, CacheUsed: 70, CacheTotal: 512,
		ReadHits: 640, ReadMisses: 100, WriteHits: 4604, WriteMisses: 516, Promotions: 70, Dirty: 64,
		Features: []string{"metadata2", "writeback", "no_discard_passdown"}, CoreArgs: map[string]string{"migration_threshold": "2048"},
		Policy: PolicySMQ, PolicyArgs: map[string]string{},
	}
	cleaner := writeback
	// Promotions are counted by the table, hits by the metadata.
	cleaner.ReadHits, cleaner.Promotions, cleaner.Dirty, cleaner.Policy = 688, 0, 0, PolicyCleaner
	cleaner.Features = []string{"metadata2", "writethrough", "no_discard_passdown"}
	cases := map[string]CacheStatus{
		"status-writeback.txt":    writeback,
		"status-cleaner.txt":      cleaner,
		"status-failed.txt":       {Fail: true},
		"status-failed-flush.txt": {Fail: true},
	}
	for name, want := range cases {
		t.Run(name, func(t *testing.T) {
			lines, err := parseLines(golden(t, name))
			if err != nil || len(lines) != 1 || lines[0].Type != "cache" || lines[0].Length != 524288 {
				t.Fatalf("lines = %+v, %v", lines, err)
			}
			got, err := ParseCacheStatus(lines[0].Params)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("status differs (-want +got):\n%s", diff)
			}
		})
	}
	if got := writeback.DirtyBytes(); got != 64*128<<10 {
		t.Errorf("DirtyBytes() = %d", got)
	}
	if writeback.Mode() != Writeback || cleaner.Mode() != Writethrough {
		t.Errorf("Mode() = %q, %q", writeback.Mode(), cleaner.Mode())
	}
}

// States that the kernel shows and that cannot be provoked at will, in the words
// of drivers/md/dm-cache-target.c.
func TestCacheStatusHealth(t *testing.T) {
	base := strings.TrimSuffix(strings.TrimSpace(golden(t, "status-writeback.txt")), "rw -")
	base = strings.TrimPrefix(base, "0 524288 cache ")
	cases := map[string]struct {
		params                     string
		wantFail, wantRO, wantNeed bool
		wantErr                    bool
	}{
		"read only":       {params: base + "ro -", wantRO: true},
		"needs check":     {params: base + "ro needs_check", wantRO: true, wantNeed: true},
		"check but rw":    {params: base + "rw needs_check", wantNeed: true},
		"old kernel":      {params: base + "rw"},
		"newer kernel":    {params: base + "rw - something new"},
		"Error":           {params: "Error", wantFail: true},
		"unknown mode":    {params: base + "xx -", wantErr: true},
		"cut off":         {params: base, wantErr: true},
		"nothing":         {params: "", wantErr: true},
		"word for number": {params: strings.Replace(base, "70/512", "70-512", 1) + "rw -", wantErr: true},
		"count too large": {params: strings.Replace(base, " 3 metadata2", " 9999999999 metadata2", 1) + "rw -", wantErr: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := ParseCacheStatus(tc.params)
			if (err != nil) != tc.wantErr || tc.wantErr && !errors.Is(err, ErrParse) {
				t.Fatalf("error = %v, want one: %t", err, tc.wantErr)
			}
			if got.Fail != tc.wantFail || got.ReadOnly != tc.wantRO || got.NeedsCheck != tc.wantNeed {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestStatusAllGolden(t *testing.T) {
	all, err := parseStatusAll(golden(t, "status-all.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 || all["nf-pvc-a"].ReadHits != 664 || all["nf-pvc-a"].OriginSectors != 524288 {
		t.Errorf("got %+v", all)
	}
	if all, err := parseStatusAll(golden(t, "status-none.txt")); err != nil || len(all) != 0 {
		t.Errorf("no devices: %v, %v", all, err)
	}
	// One that cannot be read must not hide the other.
	all, err = parseStatusAll("a: 0 8 cache what is this\n" + golden(t, "status-all.txt"))
	if err != nil || len(all) != 2 || !all["a"].Fail || all["a"].Unparsed == "" {
		t.Errorf("got %+v, %v", all, err)
	}
}

func TestTableGolden(t *testing.T) {
	cache := CacheTarget{Metadata: "254:0", Data: "254:1", Origin: "254:7", ChunkSectors: 256, Mode: Writeback, Policy: PolicySMQ, MigrationThreshold: 2048}
	cleaner := cache
	cleaner.Mode, cleaner.Policy, cleaner.MigrationThreshold = Writethrough, PolicyCleaner, 0
	cases := map[string]Table{
		"table-writeback.txt": {{Length: 524288, Target: cache}},
		"table-cleaner.txt":   {{Length: 524288, Target: cleaner}},
		"table-delay.txt":     {{Length: 2048, Target: DelayTarget{Device: "254:7", Milliseconds: 2}}},
		"table-multipath.txt": {{Length: 2048, Target: MultipathTarget{QueueIfNoPath: true, Bio: true, Paths: []string{"254:7"}}}},
		// What Debian's kernels print of the same words; the second with a handler on the paths.
		"table-multipath-handler.txt": {{Length: 131072, Target: MultipathTarget{QueueIfNoPath: true, Bio: true, Paths: []string{"8:0", "8:16"}}}},
		"table-multipath-alua.txt":    {{Length: 131072, Target: MultipathTarget{QueueIfNoPath: true, Bio: true, Paths: []string{"8:0", "8:16"}}}},
	}
	for name, want := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := ParseTable(golden(t, name))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("table differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTargetsGolden(t *testing.T) {
	all, err := parseTargets(golden(t, "targets.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if all["cache"] != (Version{2, 4, 0}) || !all["cache"].AtLeast(Version{2, 0, 0}) || all["cache"].AtLeast(Version{2, 4, 1}) {
		t.Errorf("got %v", all)
	}
}

func TestSuperblockGolden(t *testing.T) {
	clean, err := ReadCacheSuperblock(strings.NewReader(golden(t, "superblock-clean.bin")))
	if err != nil {
		t.Fatal(err)
	}
	if !clean.CleanShutdown || clean.NeedsCheck || clean.FormatVersion != 2 || clean.DataBlockSectors != 256 || clean.CacheBlocks != 512 || clean.PolicyName != "smq" {
		t.Errorf("got %+v", clean)
	}
	// The same block, damaged in one bit.
	b := []byte(golden(t, "superblock-clean.bin"))
	b[100] ^= 1
	if _, err := ReadCacheSuperblock(bytes.NewReader(b)); !errors.Is(err, ErrNoSuperblock) {
		t.Errorf("damaged superblock: %v, want ErrNoSuperblock", err)
	}
	blank, err := ReadCacheSuperblock(bytes.NewReader(make([]byte, superblockBytes)))
	if !errors.Is(err, ErrNoSuperblock) || !blank.Blank {
		t.Errorf("blank: %+v, %v", blank, err)
	}
	if _, err := ReadCacheSuperblock(bytes.NewReader(b[:512])); !errors.Is(err, ErrNoSuperblock) {
		t.Errorf("short: %v", err)
	}
}

func TestCacheDumpGolden(t *testing.T) {
	text := golden(t, "cache_dump-clean.xml")
	got, err := ParseCacheDump(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	want := CacheDump{ChunkSectors: 256, CacheBlocks: 512, Policy: "cleaner", Mapped: 70}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got, err := ParseCacheDump(strings.NewReader(strings.Replace(text, `dirty="false"`, `dirty="true"`, 3))); err != nil || got.Dirty != 3 {
		t.Errorf("three dirty blocks: %+v, %v", got, err)
	}
	for name, text := range map[string]string{
		"cut off": text[:len(text)/2], "empty": "", "foreign": "<a/>", "no dirty": strings.Replace(text, ` dirty="false"`, "", 1),
		"out of range": strings.Replace(text, `cache_block="3"`, `cache_block="512"`, 1),
	} {
		if _, err := ParseCacheDump(strings.NewReader(text)); !errors.Is(err, ErrParse) {
			t.Errorf("%s: %v, want ErrParse", name, err)
		}
	}
}

func FuzzParseCacheStatus(f *testing.F) {
	for _, name := range []string{"status-writeback.txt", "status-cleaner.txt", "status-failed.txt"} {
		f.Add(strings.TrimPrefix(golden(f, name), "0 524288 cache "))
	}
	f.Fuzz(func(t *testing.T, s string) {
		st, err := ParseCacheStatus(s)
		if err != nil && !errors.Is(err, ErrParse) {
			t.Errorf("error %v does not wrap ErrParse", err)
		}
		if err == nil && !st.Fail && st.Policy == "" {
			t.Errorf("%q was taken for a status", s)
		}
	})
}

// What is read and loaded again must be the same table.
func FuzzParseTable(f *testing.F) {
	for _, name := range []string{"table-writeback.txt", "table-cleaner.txt", "table-delay.txt"} {
		f.Add(golden(f, name))
	}
	f.Fuzz(func(t *testing.T, s string) {
		table, err := ParseTable(s)
		if err != nil {
			if !errors.Is(err, ErrParse) {
				t.Errorf("error %v does not wrap ErrParse", err)
			}
			return
		}
		again, err := ParseTable(table.String())
		if err != nil {
			t.Fatalf("%q: %v", table, err)
		}
		if diff := cmp.Diff(table, again); diff != "" {
			t.Errorf("%q is not stable:\n%s", s, diff)
		}
	})
}

// memory is a device.
type memory []byte

func (m memory) ReadAt(b []byte, off int64) (int, error)  { return bytes.NewReader(m).ReadAt(b, off) }
func (m memory) WriteAt(b []byte, off int64) (int, error) { return copy(m[off:], b), nil }

// TestMarkUnclean: nothing but the flag changes, and the checksum with it.
func TestMarkUnclean(t *testing.T) {
	m := memory(golden(t, "superblock-clean.bin"))
	before, err := ReadCacheSuperblock(m)
	if err != nil || !before.CleanShutdown {
		t.Fatalf("%+v, %v", before, err)
	}
	for range 2 {
		if err := MarkUnclean(m); err != nil {
			t.Fatal(err)
		}
		before.CleanShutdown = false
		after, err := ReadCacheSuperblock(m)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("superblock (-want +got):\n%s", diff)
		}
	}
	m[100] ^= 1
	if err := MarkUnclean(m); !errors.Is(err, ErrNoSuperblock) {
		t.Errorf("a damaged superblock: %v", err)
	}
}

func FuzzSuperblock(f *testing.F) {
	f.Add([]byte(golden(f, "superblock-clean.bin")))
	f.Add([]byte(golden(f, "superblock-running.bin")))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := ReadCacheSuperblock(bytes.NewReader(b)); err != nil && !errors.Is(err, ErrNoSuperblock) {
			t.Errorf("error %v does not wrap ErrNoSuperblock", err)
		}
	})
}

func FuzzCacheDump(f *testing.F) {
	f.Add(golden(f, "cache_dump-clean.xml")[:2000])
	f.Add(`<superblock block_size="64" nr_cache_blocks="2"><mappings><mapping cache_block="0" origin_block="1" dirty="true"/></mappings></superblock>`)
	f.Fuzz(func(t *testing.T, s string) {
		dump, err := ParseCacheDump(strings.NewReader(s))
		if err != nil && !errors.Is(err, ErrParse) {
			t.Errorf("error %v does not wrap ErrParse", err)
		}
		if dump.Dirty > dump.Mapped {
			t.Errorf("%+v", dump)
		}
	})
}
