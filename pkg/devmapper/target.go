package devmapper

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// SectorSize is the unit of the device mapper in bytes, on every device.
const SectorSize = 512

// ErrParse is wrapped by every error of a parser in this package.
var ErrParse = errors.New("unexpected device-mapper text")

// Target is one typed target. Values are comparable with cmp and immutable by
// convention; Params is the text the kernel expects behind the target's name.
type Target interface {
	// Type is the kernel's name of the target.
	Type() string
	// Params are the arguments, without the name.
	Params() string
}

// Line is one line of a table: a target over a range of sectors.
type Line struct {
	Start, Length uint64
	Target        Target
}

// String is the line as dmsetup takes and prints it.
func (l Line) String() string {
	s := fmt.Sprintf("%d %d %s", l.Start, l.Length, l.Target.Type())
	if p := l.Target.Params(); p != "" {
		s += " " + p
	}
	return s
}

// Table is a whole table.
type Table []Line

// String is the table as dmsetup takes it, one line per target.
func (t Table) String() string {
	var b strings.Builder
	for _, l := range t {
		b.WriteString(l.String())
		b.WriteByte('\n')
	}
	return b.String()
}

// Sectors is the length of the device that the table makes.
func (t Table) Sectors() uint64 {
	if len(t) == 0 {
		return 0
	}
	last := t[len(t)-1]
	return last.Start + last.Length
}

// Cache returns the target if the whole table is one cache.
func (t Table) Cache() (CacheTarget, bool) {
	if len(t) != 1 {
		return CacheTarget{}, false
	}
	c, ok := t[0].Target.(CacheTarget)
	return c, ok
}

// LinearTable maps a device of the given number of sectors onto another one.
func LinearTable(sectors uint64, devno string) Table {
	return Table{{Length: sectors, Target: LinearTarget{Device: devno}}}
}

// LinearTarget passes I/O through.
//
//	linear <dev> <offset>
type LinearTarget struct {
	// Device is "major:minor".
	Device string
	// Offset is in sectors.
	Offset uint64
}

// Type implements Target.
func (LinearTarget) Type() string { return "linear" }

// Params implements Target.
func (t LinearTarget) Params() string { return fmt.Sprintf("%s %d", t.Device, t.Offset) }

// ErrorTarget fails all I/O.
//
//	error
type ErrorTarget struct{}

// Type implements Target.
func (ErrorTarget) Type() string { return "error" }

// Params implements Target.
func (ErrorTarget) Params() string { return "" }

// ZeroTarget reads as zeroes and drops what is written. It fails read-ahead, which
// most readers do not notice; but no multipath device may be above it, because that
// would take the path for failed (drivers/md/dm-zero.c).
//
//	zero
type ZeroTarget struct{}

// Type implements Target.
func (ZeroTarget) Type() string { return "zero" }

// Params implements Target.
func (ZeroTarget) Params() string { return "" }

// DelayTarget delays I/O; tests build slow devices of it.
//
//	delay <dev> <offset> <delay ms> [<write dev> <offset> <delay ms>]
type DelayTarget struct {
	Device string
	Offset uint64
	// Milliseconds apply to reads and writes alike.
	Milliseconds uint64
}

// Type implements Target.
func (DelayTarget) Type() string { return "delay" }

// Params implements Target.
func (t DelayTarget) Params() string {
	return fmt.Sprintf("%s %d %d", t.Device, t.Offset, t.Milliseconds)
}

// RawTarget is a target that this package has no type for.
type RawTarget struct {
	Name, Args string
}

// Type implements Target.
func (t RawTarget) Type() string { return t.Name }

// Params implements Target.
func (t RawTarget) Params() string { return t.Args }

// ParseTable reads what `dmsetup table NAME` prints. Targets without a type of
// their own, or with arguments that the type cannot express, become RawTarget.
func ParseTable(text string) (Table, error) {
	lines, err := parseLines(text)
	if err != nil {
		return nil, err
	}
	t := make(Table, 0, len(lines))
	for _, l := range lines {
		t = append(t, Line{Start: l.Start, Length: l.Length, Target: parseTarget(l.Type, l.Params)})
	}
	return t, nil
}

// StatusLine is one line of a status or a table before its arguments are read.
type StatusLine struct {
	Start, Length uint64
	Type          string
	Params        string
}

func parseLines(text string) ([]StatusLine, error) {
	var out []StatusLine
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) == "" {
			continue
		}
		l, err := parseLine(line)
		if err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	return out, nil
}

func parseLine(line string) (StatusLine, error) {
	line = strings.TrimSpace(line)
	words := strings.Fields(line)
	if len(words) < 3 {
		return StatusLine{}, fmt.Errorf("%w: line %q has %d words, expected start, length and target", ErrParse, line, len(words))
	}
	start, err := parseUint(words[0])
	if err != nil {
		return StatusLine{}, fmt.Errorf("%w: start in line %q: %w", ErrParse, line, err)
	}
	length, err := parseUint(words[1])
	if err != nil {
		return StatusLine{}, fmt.Errorf("%w: length in line %q: %w", ErrParse, line, err)
	}
	return StatusLine{Start: start, Length: length, Type: words[2], Params: strings.Join(words[3:], " ")}, nil
}

// parseTarget never fails: what no type can express exactly stays raw, so that
// a table that is read and loaded again is the same table.
func parseTarget(kind, params string) Target {
	words := strings.Fields(params)
	var t Target
	ok := false
	switch kind {
	case "linear":
		t, ok = parseLinear(words)
	case "error":
		t, ok = ErrorTarget{}, true
	case "zero":
		t, ok = ZeroTarget{}, true
	case "delay":
		t, ok = parseDelay(words)
	case "cache":
		t, ok = parseCacheTarget(words)
	case "multipath":
		t, ok = parseMultipath(words)
	case "clone":
		t, ok = parseClone(words)
	case "integrity":
		t, ok = parseIntegrity(words)
	}
	if ok && sameTable(t, params) {
		return t
	}
	return RawTarget{Name: kind, Args: params}
}

// sameTable reports whether the typed form stands for the same words.
func sameTable(t Target, params string) bool {
	if m, ok := t.(MultipathTarget); ok {
		return m.sameAsPrinted(params)
	}
	return t.Params() == params
}

func parseLinear(w []string) (Target, bool) {
	if len(w) != 2 {
		return nil, false
	}
	off, err := parseUint(w[1])
	return LinearTarget{Device: w[0], Offset: off}, err == nil
}

func parseDelay(w []string) (Target, bool) {
	if len(w) != 3 {
		return nil, false
	}
	off, err1 := parseUint(w[1])
	ms, err2 := parseUint(w[2])
	return DelayTarget{Device: w[0], Offset: off, Milliseconds: ms}, err1 == nil && err2 == nil
}

func parseUint(s string) (uint64, error) { return strconv.ParseUint(s, 10, 64) }
