package devmapper

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/hostexec/hostexectest"
)

// goldenRegion is that of the files in testdata.
const goldenRegion = 2533274790396161

func TestStatsGolden(t *testing.T) {
	got, err := parseStats(golden(t, "stats-print.txt"))
	if err != nil {
		t.Fatal(err)
	}
	want := Stats{
		Region:    goldenRegion,
		Read:      IOStats{Operations: 210, Sectors: 2464, Nanoseconds: 4157696},
		Write:     IOStats{Operations: 100, Sectors: 800, Nanoseconds: 2981376},
		Histogram: Histogram{188, 105, 11, 5, 1},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("statistics differ (-want +got):\n%s", diff)
	}
	if n := got.Histogram.Operations(); n != 310 {
		t.Errorf("the histogram has %d operations, reads and writes are 310", n)
	}
	id, found, err := parseStatsList(golden(t, "stats-list.txt"))
	if err != nil || !found || id != "0" {
		t.Errorf("region %q, %t, %v", id, found, err)
	}
	both := golden(t, "stats-list-foreign.txt") + strings.Replace(golden(t, "stats-list.txt"), "0:", "1:", 1)
	if id, found, err := parseStatsList(both); err != nil || !found || id != "1" {
		t.Errorf("behind another program's region: %q, %t, %v", id, found, err)
	}
	for name, text := range map[string]string{"none": "", "another program's": golden(t, "stats-list-foreign.txt")} {
		if id, found, err := parseStatsList(text); err != nil || found {
			t.Errorf("%s: %q, %t, %v", name, id, found, err)
		}
	}
}

func TestStatsRefused(t *testing.T) {
	text := golden(t, "stats-print.txt")
	cases := map[string]struct {
		text string
		want error
	}{
		"nothing":          {"", ErrParse},
		"cut off":          {text[:60], ErrParse},
		"no range":         {strings.Replace(text, "+", "-", 1), ErrParse},
		"another region":   {strings.Replace(text, "0+2533274790396161", "0+204800", 1), errForeign},
		"a second area":    {strings.Replace(text, "0+", "8+", 1), errForeign},
		"one bucket less":  {strings.Replace(text, "188:", "", 1), ErrParse},
		"a word":           {strings.Replace(text, " 210 ", " many ", 1), ErrParse},
		"negative":         {strings.Replace(text, " 2464 ", " -2464 ", 1), ErrParse},
		"a word in bucket": {strings.Replace(text, ":105:", ":x:", 1), ErrParse},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if _, err := parseStats(tc.text); !errors.Is(err, tc.want) {
				t.Errorf("error %v, want %v", err, tc.want)
			}
		})
	}
}

func TestRegions(t *testing.T) {
	a, err := newRegion()
	if err != nil {
		t.Fatal(err)
	}
	b, err := newRegion()
	if err != nil {
		t.Fatal(err)
	}
	if a == b || !isRegion(a) || !isRegion(b) {
		t.Errorf("regions %#x and %#x", a, b)
	}
	for _, length := range []uint64{0, 8, 204800, a + 1, a ^ 1<<regionMarkShift, 1<<64 - 1} {
		if isRegion(length) {
			t.Errorf("%#x was taken for a region of ours", length)
		}
	}
	got := strings.Join(createWords(goldenRegion), " ")
	list := golden(t, "stats-list.txt")
	_, histogram, _ := strings.Cut(strings.TrimSpace(list), "histogram:")
	want := "@stats_create 0+2533274790396161 2533274790396161 2 precise_timestamps histogram:" + histogram + " nearflash"
	if got != want {
		t.Errorf("message\n%s\nwant\n%s", got, want)
	}
}

// kernel answers messages as the golden files do.
type kernel struct {
	order   []string
	answers map[string]string
	fail    map[string]error
	asked   []string
	// statuses are by device.
	statuses map[string]string
}

// status implements messenger.
func (k *kernel) status(name string) (string, error) {
	text, found := k.statuses[name]
	if !found {
		return "", fmt.Errorf("%w: %s", ErrNotExist, name)
	}
	return text, nil
}

func (k *kernel) names() ([]string, error) { return k.order, nil }
func (k *kernel) close()                   {}

// load implements kernelControl.
func (k *kernel) load(name string, t Table, readOnly bool) error {
	k.asked = append(k.asked, fmt.Sprintf("load %s %d %t", name, len(t), readOnly))
	return k.fail["load "+name]
}

// deps implements kernelControl.
func (k *kernel) deps(name string) ([]string, error) { return []string{"254:7"}, k.fail[name] }

// info implements messenger for devices that nobody has open.
func (k *kernel) info(name string) (Info, error) {
	if err := k.fail[name]; err != nil {
		return Info{}, err
	}
	return Info{Name: name, UUID: "u", Major: 254, Minor: 1, HasLive: true}, nil
}

func (k *kernel) message(name, text string) (string, error) {
	key := name + " " + text
	k.asked = append(k.asked, key)
	if err := k.fail[key]; err != nil {
		return "", err
	}
	if answer, ok := k.answers[key]; ok {
		return answer, nil
	}
	if strings.HasPrefix(text, "@stats_print") {
		return "", fmt.Errorf("%w: no such region", ErrInvalid)
	}
	return "", nil
}

// withDevices returns a Client of a kernel that has these devices.
func withDevices(run hostexec.Runner, names ...string) *dmsetup {
	return &dmsetup{run: run, control: func() (kernelControl, error) { return &kernel{order: names}, nil }}
}

func TestInfo(t *testing.T) {
	k := &kernel{order: []string{"nf-a", "other", "nf-b"}, fail: map[string]error{"nf-b": fmt.Errorf("%w: gone", ErrNotExist)}}
	d := &dmsetup{control: func() (kernelControl, error) { return k, nil }}
	all, err := d.Info(t.Context(), "nf-")
	if want := (Info{Name: "nf-a", UUID: "u", Major: 254, Minor: 1, HasLive: true}); err != nil || len(all) != 1 || all["nf-a"] != want {
		t.Errorf("got %+v, %v", all, err)
	}
	k.fail["nf-a"] = errors.New("i/o error")
	if _, err := d.Info(t.Context(), "nf-a"); err == nil {
		t.Error("a device that cannot be read is no error")
	}
}

func TestStatsAll(t *testing.T) {
	print, list := golden(t, "stats-print.txt"), golden(t, "stats-list.txt")
	disk := errors.New("i/o error")
	k := &kernel{
		order: []string{"nf-a", "other", "nf-b", "nf-c", "nf-d", "nf-e", "nf-f"},
		answers: map[string]string{
			"nf-a @stats_print 0":        print,
			"nf-c @stats_print 0":        strings.Replace(print, "0+2533274790396161", "0+204800", 1),
			"nf-c @stats_list nearflash": strings.Replace(list, "0:", "1:", 1),
			"nf-c @stats_print 1":        strings.Replace(print, " 210 ", " 7 ", 1),
			"nf-e @stats_print 0":        "0+" + fmt.Sprint(uint64(goldenRegion)) + " what is this",
		},
		fail: map[string]error{
			"nf-d @stats_print 0": fmt.Errorf("%w: gone", ErrNotExist),
			"nf-f @stats_print 0": disk,
		},
	}
	all, err := statsAll(t.Context(), k, "nf-")
	if !errors.Is(err, disk) || !errors.Is(err, ErrParse) || !strings.Contains(err.Error(), "nf-e") || !strings.Contains(err.Error(), "nf-f") {
		t.Errorf("error %v, want it to name nf-e and nf-f", err)
	}
	if errors.Is(err, ErrNotExist) {
		t.Errorf("a device that vanished is an error: %v", err)
	}
	if len(all) != 2 || all["nf-a"].Read.Operations != 210 || all["nf-c"].Read.Operations != 7 {
		t.Errorf("got %+v", all)
	}
	if asked := strings.Join(k.asked, ","); strings.Count(asked, "nf-a") != 1 || strings.Contains(asked, "other") {
		t.Errorf("questions: %s", asked)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := statsAll(ctx, k, "nf-"); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of the context: %v", err)
	}
}

func TestStatsCreate(t *testing.T) {
	run := hostexectest.New(t)
	k := &kernel{answers: map[string]string{}}
	d := &dmsetup{run: run, control: func() (kernelControl, error) { return k, nil }}
	made := ""
	run.On("dmsetup message nf-a 0 @stats_create").Do(func(_ context.Context, c hostexectest.Call) (string, error) {
		made = c.Args[4]
		return "0\n", nil
	}).Once()
	if err := d.StatsCreate(t.Context(), "nf-a"); err != nil {
		t.Fatal(err)
	}
	length, whole, err := parseRange(made)
	if err != nil || !whole || !isRegion(length) {
		t.Fatalf("the region is %q", made)
	}
	// Again: it is there already.
	k.answers["nf-a @stats_print 0"] = strings.Replace(golden(t, "stats-print.txt"), "0+2533274790396161", made, 1)
	if err := d.StatsCreate(t.Context(), "nf-a"); err != nil {
		t.Error(err)
	}
	run.On("dmsetup message nf-b 0 @stats_create").Fail(1, "device-mapper: message ioctl on nf-b  failed: Invalid argument").Once()
	k.order = []string{"nf-b"}
	if err := d.StatsCreate(t.Context(), "nf-b"); !errors.Is(err, ErrUnsupported) {
		t.Errorf("a kernel without histograms: %v", err)
	}
	k.fail = map[string]error{"nf-x @stats_print 0": fmt.Errorf("%w: no such device", ErrNotExist)}
	if err := d.StatsCreate(t.Context(), "nf-x"); !errors.Is(err, ErrNotExist) {
		t.Errorf("without a device: %v", err)
	}
}

// answer is what the kernel returns for a list or a message.
func answer(flags uint32, body []byte) []byte {
	buf := make([]byte, dmHeader+len(body))
	header(buf, "")
	binary.NativeEndian.PutUint32(buf[dmFlags:], flags)
	copy(buf[dmHeader:], body)
	return buf
}

func TestParseDevice(t *testing.T) {
	buf := answer(flagLive|flagSuspended, nil)
	copy(buf[dmName:], "nf-a")
	copy(buf[dmUUID:], strings.Repeat("u", dmUUIDLen-1))
	binary.NativeEndian.PutUint32(buf[dmOpenCount:], 3)
	want := Info{Name: "nf-a", UUID: strings.Repeat("u", dmUUIDLen-1), Major: 254, Minor: 263, OpenCount: 3, HasLive: true, Suspended: true}
	// new_encode_dev, include/linux/kdev_t.h
	binary.NativeEndian.PutUint64(buf[dmDev:], 263&0xff|254<<8|(263&^0xff)<<12)
	if got, err := parseDevice(buf); err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	binary.NativeEndian.PutUint32(buf[dmFlags:], flagReadOnly|flagInactive)
	if got, err := parseDevice(buf); err != nil || !got.ReadOnly || !got.HasInactive || got.HasLive || got.Suspended {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := parseDevice(buf[:20]); !errors.Is(err, ErrParse) {
		t.Errorf("no header: %v", err)
	}
}

func listOf(names ...string) []byte {
	var out []byte
	for i, name := range names {
		entry := make([]byte, 12+(len(name)+1+7)/8*8)
		binary.NativeEndian.PutUint64(entry, uint64(i)+1)
		if i < len(names)-1 {
			binary.NativeEndian.PutUint32(entry[8:], uint32(len(entry)))
		}
		copy(entry[12:], name)
		out = append(out, entry...)
	}
	return out
}

// statusOf is the answer about a table of two targets.
func statusOf(targets uint32) []byte {
	var body []byte
	for i, params := range []string{"", "2 0 0 0 1 1 A 0 1 0 8:0 A 0 "} {
		spec := make([]byte, 40+(len(params)+1+7)/8*8)
		binary.NativeEndian.PutUint64(spec, uint64(i)*8)
		binary.NativeEndian.PutUint64(spec[8:], 8)
		binary.NativeEndian.PutUint32(spec[20:], uint32(len(body)+len(spec)))
		copy(spec[24:], []string{"linear", "multipath"}[i])
		copy(spec[40:], params)
		body = append(body, spec...)
	}
	buf := answer(0, body)
	binary.NativeEndian.PutUint32(buf[dmTargets:], targets)
	return buf
}

func TestParseStatus(t *testing.T) {
	text, err := parseStatus(statusOf(2))
	if want := "0 8 linear \n8 8 multipath 2 0 0 0 1 1 A 0 1 0 8:0 A 0 \n"; err != nil || text != want {
		t.Errorf("got %q, %v, want %q", text, err, want)
	}
	if lines, err := parseLines(text); err != nil || len(lines) != 2 || lines[1].Type != "multipath" {
		t.Errorf("lines %+v, %v", lines, err)
	}
	bare := answer(0, nil)
	binary.NativeEndian.PutUint32(bare[dmDataSize:], 305)
	if text, err := parseStatus(bare); err != nil || text != "" {
		t.Errorf("no live table: %q, %v", text, err)
	}
	back := statusOf(2)
	binary.NativeEndian.PutUint32(back[dmHeader+20:], 0)
	full := statusOf(2)
	binary.NativeEndian.PutUint32(full[dmFlags:], flagBufferFull)
	for name, buf := range map[string][]byte{
		"more targets than there are": statusOf(3), "points back": back, "too long": full, "no header": make([]byte, 20),
	} {
		if text, err := parseStatus(buf); !errors.Is(err, ErrParse) {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
}

func TestControlAnswers(t *testing.T) {
	names, err := parseNames(answer(0, listOf("nf-a", "nf-a-data", "vg-lv")))
	if err != nil || cmp.Diff([]string{"nf-a", "nf-a-data", "vg-lv"}, names) != "" {
		t.Errorf("names %q, %v", names, err)
	}
	if names, err := parseNames(answer(0, make([]byte, 16))); err != nil || len(names) != 0 {
		t.Errorf("no devices: %q, %v", names, err)
	}
	if names, err := parseNames(answer(0, nil)); err != nil || len(names) != 0 {
		t.Errorf("no devices: %q, %v", names, err)
	}
	for name, buf := range map[string][]byte{
		"no header": make([]byte, 20), "cut off": answer(0, listOf("nf-a", "nf-b")[:20]), "no end": answer(0, listOf("nf-a")[:16]),
	} {
		if names, err := parseNames(buf); !errors.Is(err, ErrParse) {
			t.Errorf("%s: %q, %v", name, names, err)
		}
	}
	if text, err := parseAnswer(answer(flagDataOut, []byte("0+8 1\n\x00rest"))); err != nil || text != "0+8 1\n" {
		t.Errorf("answer %q, %v", text, err)
	}
	if text, err := parseAnswer(answer(0, []byte("@stats_clear\x00"))); err != nil || text != "" {
		t.Errorf("no answer: %q, %v", text, err)
	}
	silent := answer(0, make([]byte, 64))
	binary.NativeEndian.PutUint32(silent[dmDataSize:], 305) // as the kernel says it
	if text, err := parseAnswer(silent); err != nil || text != "" {
		t.Errorf("no answer: %q, %v", text, err)
	}
	if _, err := parseAnswer(answer(flagBufferFull|flagDataOut, []byte("x\x00"))); !errors.Is(err, ErrParse) {
		t.Errorf("too long an answer: %v", err)
	}
	if _, err := parseAnswer(answer(flagDataOut, []byte("x"))); !errors.Is(err, ErrParse) {
		t.Errorf("an answer without an end: %v", err)
	}
	buf := make([]byte, messageBytes)
	if err := putMessage(buf, strings.Repeat("n", dmNameLen), "x"); !errors.Is(err, ErrInvalid) {
		t.Errorf("a name that is too long: %v", err)
	}
	if err := putMessage(buf, "n", strings.Repeat("x", messageBytes)); !errors.Is(err, ErrInvalid) {
		t.Errorf("a message that is too long: %v", err)
	}
}

func FuzzParseStats(f *testing.F) {
	f.Add(golden(f, "stats-print.txt"))
	f.Add(golden(f, "stats-list.txt"))
	f.Fuzz(func(t *testing.T, s string) {
		st, err := parseStats(s)
		if err != nil && !errors.Is(err, ErrParse) && !errors.Is(err, errForeign) {
			t.Errorf("error %v is of no kind", err)
		}
		if err == nil && !isRegion(st.Region) {
			t.Errorf("%q was taken for ours", s)
		}
		if _, _, err := parseStatsList(s); err != nil && !errors.Is(err, ErrParse) {
			t.Errorf("error %v does not wrap ErrParse", err)
		}
	})
}

func FuzzControlAnswers(f *testing.F) {
	f.Add(statusOf(2))
	f.Add(answer(0, listOf("nf-a", "nf-b")))
	f.Add(answer(flagDataOut, []byte("text\x00")))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= dmHeader {
			if _, err := parseStatus(b); err != nil && !errors.Is(err, ErrParse) {
				t.Errorf("error %v does not wrap ErrParse", err)
			}
		}
		if _, err := parseNames(b); err != nil && !errors.Is(err, ErrParse) {
			t.Errorf("error %v does not wrap ErrParse", err)
		}
		if _, err := parseAnswer(b); err != nil && !errors.Is(err, ErrParse) {
			t.Errorf("error %v does not wrap ErrParse", err)
		}
	})
}
