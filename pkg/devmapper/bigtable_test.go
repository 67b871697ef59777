package devmapper

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/hostexec/hostexectest"
)

// readRequest walks a request as the kernel does (next_target, drivers/md/dm-ioctl.c).
func readRequest(t *testing.T, buf []byte) Table {
	t.Helper()
	ne := binary.NativeEndian
	if size := ne.Uint32(buf[dmDataSize:]); int(size) != len(buf) {
		t.Fatalf("the header says %d bytes, there are %d", size, len(buf))
	}
	at := uint64(ne.Uint32(buf[dmDataStart:]))
	var out Table
	for range ne.Uint32(buf[dmTargets:]) {
		spec := buf[at:]
		kind, _, _ := strings.Cut(string(spec[specType:specBytes]), "\x00")
		params, _, ended := strings.Cut(string(spec[specBytes:]), "\x00")
		if !ended || at%specAlign != 0 {
			t.Fatalf("target at byte %d", at)
		}
		parsed, err := ParseTable(fmt.Sprintf("%d %d %s %s\n", ne.Uint64(spec), ne.Uint64(spec[specLength:]), kind, params))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, parsed...)
		at += uint64(ne.Uint32(spec[specNext:]))
	}
	if at != uint64(len(buf)) {
		t.Errorf("the targets end at byte %d of %d", at, len(buf))
	}
	return out
}

func TestTableRequest(t *testing.T) {
	want := Table{
		{Length: 8, Target: LinearTarget{Device: "8:16", Offset: 1 << 40}},
		{Start: 8, Length: 1, Target: ZeroTarget{}},
		{Start: 9, Length: 7, Target: LinearTarget{Device: "253:12345", Offset: 7}},
	}
	buf, err := tableRequest("nf-a", want, flagReadOnly)
	if err != nil {
		t.Fatal(err)
	}
	if got := readRequest(t, buf); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if binary.NativeEndian.Uint32(buf[dmFlags:]) != flagReadOnly {
		t.Error("the request is not read-only")
	}
	if _, err := tableRequest(strings.Repeat("n", dmNameLen), want, 0); !errors.Is(err, ErrInvalid) {
		t.Errorf("a name that is too long: %v", err)
	}
}

// TestBigTables go to the kernel without dmsetup, and a device that cannot have its table
// is not left.
func TestBigTables(t *testing.T) {
	big := make(Table, bigTable)
	for i := range big {
		big[i] = Line{Start: uint64(i), Length: 1, Target: LinearTarget{Device: "8:0", Offset: uint64(bigTable - i)}}
	}
	run := hostexectest.New(t)
	k := &kernel{order: []string{"nf-a"}, fail: map[string]error{}}
	d := &dmsetup{run: run, control: func() (kernelControl, error) { return k, nil }}
	if err := d.LoadReadOnly(t.Context(), "nf-a", big); err != nil {
		t.Error(err)
	}
	run.On("dmsetup create nf-a --uuid u --notable").Once()
	run.On("dmsetup resume nf-a").Once()
	if _, err := d.Create(t.Context(), "nf-a", "u", big); err != nil {
		t.Error(err)
	}
	if want := []string{"load nf-a 100000 true", "load nf-a 100000 false"}; !slices.Equal(k.asked, want) {
		t.Errorf("asked %q, want %q", k.asked, want)
	}
	k.fail["load nf-a"] = errors.New("out of memory")
	run.On("dmsetup create nf-a --uuid u --notable").Once()
	run.On("dmsetup remove nf-a").Once()
	if _, err := d.Create(t.Context(), "nf-a", "u", big); !errors.Is(err, k.fail["load nf-a"]) {
		t.Errorf("got %v", err)
	}
}

func TestParseDeps(t *testing.T) {
	buf := make([]byte, 4096)
	header(buf, "")
	ne := binary.NativeEndian
	put := func(devs ...uint64) {
		ne.PutUint32(buf[dmHeader:], uint32(len(devs)))
		for i, d := range devs {
			ne.PutUint64(buf[dmHeader+8+8*i:], d)
		}
	}
	put(unix.Mkdev(8, 16), unix.Mkdev(253, 300))
	if got, err := parseDeps(buf); err != nil || !slices.Equal(got, []string{"8:16", "253:300"}) {
		t.Errorf("got %q, %v", got, err)
	}
	put()
	if got, err := parseDeps(buf); err != nil || len(got) != 0 {
		t.Errorf("got %q, %v", got, err)
	}
	ne.PutUint32(buf[dmHeader:], 1<<31)
	if _, err := parseDeps(buf); !errors.Is(err, ErrParse) {
		t.Errorf("more than there is: %v", err)
	}
	ne.PutUint32(buf[dmFlags:], flagBufferFull)
	if _, err := parseDeps(buf); !errors.Is(err, ErrParse) {
		t.Errorf("cut off: %v", err)
	}
}

func FuzzParseDeps(f *testing.F) {
	f.Add(make([]byte, dmHeader+16))
	f.Fuzz(func(_ *testing.T, b []byte) { _, _ = parseDeps(b) })
}
