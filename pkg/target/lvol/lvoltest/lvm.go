// Package lvoltest has a stand-in for LVM and the block devices it makes. It keeps
// state as LVM does, answers in its words, and knows of every extent whether it
// still holds the data of a former owner, so that a test can see a leak.
package lvoltest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/target/lvol"
)

// ExtentBytes is the extent size of the group.
const ExtentBytes = 4 << 20

// VG and Pool are the names of the group and its thin pool.
const (
	VG   = "vg0"
	Pool = "pool"
)

// LVM is a volume group with a thin pool; see New.
type LVM struct {
	// Step, if set, is called before each change; its error ends the command
	// instead. It may look at the LVM.
	Step func(change string) error
	// PoolZero is the report's value of the pool's zeroing, normally "zero".
	PoolZero string
	// PoolPercent is the pool's fill level.
	PoolPercent float64
	// Busy lists LVs that cannot be removed.
	Busy map[string]bool

	mu       sync.Mutex
	lvs      map[string]*lv
	old      []bool // per extent: holds a former owner's data
	taken    []bool
	poolSize int64
	nextUUID int
	lines    []string
}

type lv struct {
	name, uuid string
	thin       bool
	size       int64
	extents    []int
	tags       []string
	active     bool
	// content stands for what was written. origin is set of a snapshot of which the pool has
	// not heard yet.
	content string
	origin  *lv
}

var (
	_ hostexec.Runner  = (*LVM)(nil)
	_ lvol.BlockDevice = (*LVM)(nil)
)

// New returns a group with room for so many extents of thick volumes, all of which
// hold somebody's old data, besides a pool of 1 GiB.
func New(extents int) *LVM {
	l := &LVM{
		PoolZero: "zero", Busy: map[string]bool{}, lvs: map[string]*lv{},
		old: make([]bool, extents), taken: make([]bool, extents), poolSize: 1 << 30,
	}
	for i := range l.old {
		l.old[i] = true
	}
	return l
}

// Lines lists the commands so far.
func (l *LVM) Lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.lines)
}

// Leaks lists volumes that may be used (ours, complete) and show old data.
func (l *LVM) Leaks() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for _, v := range l.lvs {
		ours := slices.ContainsFunc(v.tags, func(t string) bool { return strings.HasPrefix(t, "nearflash.volume=") })
		if !ours || slices.Contains(v.tags, "nearflash.unzeroed") || slices.Contains(v.tags, "nearflash.deleting") {
			continue
		}
		if slices.ContainsFunc(v.extents, func(e int) bool { return l.old[e] }) {
			out = append(out, v.name)
		}
	}
	return out
}

// Names lists all LVs besides the pool.
func (l *LVM) Names() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for name := range l.lvs {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// Reboot deactivates everything.
func (l *LVM) Reboot() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tellPool()
	for _, v := range l.lvs {
		v.active = false
	}
}

// AddForeign adds an LV that is not ours.
func (l *LVM) AddForeign(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lvs[name] = &lv{name: name, uuid: "foreign", size: ExtentBytes}
}

// Tag adds a tag to an LV.
func (l *LVM) Tag(name, tag string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lvs[name].tags = append(l.lvs[name].tags, tag)
}

type args struct {
	opts  map[string][]string
	words []string
}

func (a args) opt(name string) string {
	if v := a.opts[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}

func parse(list []string) args {
	a := args{opts: map[string][]string{}}
	flags := []string{"--yes", "--nosuffix", "--segments", "--snapshot"}
	for i := 0; i < len(list); i++ {
		switch {
		case slices.Contains(flags, list[i]):
			a.opts[list[i]] = []string{""}
		case strings.HasPrefix(list[i], "--"):
			a.opts[list[i]] = append(a.opts[list[i]], list[i+1])
			i++
		default:
			a.words = append(a.words, list[i])
		}
	}
	return a
}

// Await implements hostexec.Runner: nothing goes on behind a call.
func (l *LVM) Await(context.Context, ...string) error { return nil }

// Run implements hostexec.Runner.
func (l *LVM) Run(ctx context.Context, cmd hostexec.Cmd) (hostexec.Result, error) {
	if err := ctx.Err(); err != nil {
		return hostexec.Result{}, err
	}
	l.mu.Lock()
	l.lines = append(l.lines, cmd.String())
	l.mu.Unlock()
	if cmd.Name != "lvs" && cmd.Name != "vgs" && l.Step != nil {
		if err := l.Step(cmd.String()); err != nil {
			return hostexec.Result{}, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	do, ok := map[string]func(args) (any, error){
		"vgs": l.vgs, "lvs": l.report, "lvcreate": l.create, "lvchange": l.change, "lvextend": l.extend, "lvremove": l.remove,
	}[cmd.Name]
	if !ok {
		return hostexec.Result{}, fmt.Errorf("%s: %w", cmd.Name, hostexec.ErrNotInstalled)
	}
	out, err := do(parse(cmd.Args))
	if killed := (stepError{}); errors.As(err, &killed) {
		return hostexec.Result{}, killed.error
	}
	if err != nil && cmd.Name != "lvs" && cmd.Name != "vgs" {
		return hostexec.Result{}, hostexec.NewExitError(cmd, 5, []byte("  WARNING: something unrelated.\n  "+err.Error()))
	}
	if err != nil {
		// A report carries its errors itself; nothing is written to stderr.
		text, jerr := json.Marshal(rows{"report": []rows{}, "log": []rows{{"log_type": "error", "log_message": err.Error()}}})
		return hostexec.Result{Stdout: text}, errors.Join(jerr, hostexec.NewExitError(cmd, 5, nil))
	}
	text, err := json.Marshal(out)
	return hostexec.Result{Stdout: text}, err
}

type rows = map[string]any

func section(kind string, list ...rows) any {
	return rows{"report": []rows{{kind: list}}, "log": []rows{}}
}

func (l *LVM) free() int {
	n := 0
	for _, t := range l.taken {
		if !t {
			n++
		}
	}
	return n
}

func num(n int64) string { return strconv.FormatInt(n, 10) }

func (l *LVM) vgs(a args) (any, error) {
	if a.words[0] != VG {
		//lint:ignore ST1005 LVM's words
		return nil, fmt.Errorf("Volume group %q not found", a.words[0])
	}
	return section("vg", rows{
		"vg_uuid": "vg-uuid", "vg_size": num(int64(len(l.taken))*ExtentBytes + l.poolSize),
		"vg_free": num(int64(l.free()) * ExtentBytes), "vg_extent_size": num(ExtentBytes),
	}), nil
}

func (l *LVM) find(full string) (*lv, error) {
	if v := l.lvs[strings.TrimPrefix(full, VG+"/")]; v != nil {
		return v, nil
	}
	//lint:ignore ST1005 LVM's words
	return nil, fmt.Errorf("Failed to find logical volume %q", full)
}

func (l *LVM) report(a args) (any, error) {
	pool := rows{
		"vg_uuid": "vg-uuid", "lv_name": Pool, "lv_uuid": "pool-uuid", "lv_size": num(l.poolSize), "segtype": "thin-pool", "lv_active": "active",
		"zero": l.PoolZero, "data_percent": fmt.Sprintf("%.2f", l.PoolPercent), "metadata_percent": "10.00", "lv_metadata_size": num(ExtentBytes),
	}
	switch what := a.words[0]; {
	case what == VG:
		list := []rows{pool}
		for _, v := range l.lvs {
			list = append(list, v.rows()...)
		}
		return section("lv", list...), nil
	case what == VG+"/"+Pool:
		return section("lv", pool), nil
	case a.opts["--segments"] != nil:
		v, err := l.find(what)
		if err != nil {
			return nil, err
		}
		var list []rows
		for _, e := range v.extents {
			list = append(list, rows{"seg_pe_ranges": fmt.Sprintf("/dev/sdx:%d-%d", e, e)})
		}
		return section("seg", list...), nil
	default:
		v, err := l.find(what)
		if err != nil {
			return nil, err
		}
		return section("lv", v.rows()...), nil
	}
}

// rows is a row of each segment: so does lvs with a column of segments.
func (v *lv) rows() []rows {
	list := []rows{v.row()}
	for i := 1; i < len(v.extents); i++ {
		if v.extents[i] != v.extents[i-1]+1 {
			list = append(list, v.row())
		}
	}
	return list
}

func (v *lv) row() rows {
	r := rows{
		"vg_uuid": "vg-uuid", "lv_name": v.name, "lv_uuid": v.uuid, "lv_size": num(v.size), "lv_tags": strings.Join(v.tags, ","),
		"lv_path": "/dev/" + VG + "/" + v.name, "segtype": "linear", "zero": "unknown",
	}
	if v.thin {
		r["segtype"], r["pool_lv"], r["data_percent"] = "thin", Pool, "50.00"
	}
	if v.active {
		r["lv_active"] = "active"
	}
	return r
}

func size(text string) int64 {
	n, err := strconv.ParseInt(strings.TrimSuffix(text, "b"), 10, 64)
	if err != nil {
		panic("size without unit b: " + text)
	}
	return n
}

func (l *LVM) create(a args) (any, error) {
	name := a.opt("--name")
	if l.lvs[name] != nil || name == Pool {
		//lint:ignore ST1005 LVM's words
		return nil, fmt.Errorf("Logical Volume %q already exists in volume group %q", name, VG)
	}
	l.nextUUID++
	v := &lv{name: name, uuid: fmt.Sprintf("uuid-%d", l.nextUUID), tags: a.opts["--addtag"], active: true}
	if a.opts["--snapshot"] != nil {
		return nil, l.snapshot(a, v)
	}
	if a.opt("--type") == "thin" {
		l.tellPool()
		v.thin, v.size = true, size(a.opt("--virtualsize"))
		l.lvs[name] = v
		return nil, nil
	}
	if err := l.allocate(v, size(a.opt("--size")), nil); err != nil {
		return nil, err
	}
	l.lvs[name] = v
	return nil, nil
}

// allocate grows v to size from the given extents, or from any.
func (l *LVM) allocate(v *lv, size int64, from []int) error {
	need := int(size/ExtentBytes) - len(v.extents)
	var got []int
	for e, taken := range l.taken {
		if len(got) < need && !taken && (from == nil || slices.Contains(from, e)) {
			got = append(got, e)
		}
	}
	if len(got) < need {
		//lint:ignore ST1005 LVM's words
		return fmt.Errorf("Insufficient free space: %d extents needed, but only %d available", need, l.free())
	}
	for _, e := range got {
		l.taken[e] = true
	}
	v.extents, v.size = append(v.extents, got...), size
	return nil
}

func (l *LVM) change(a args) (any, error) {
	v, err := l.find(a.words[0])
	if err != nil {
		return nil, err
	}
	for _, t := range a.opts["--addtag"] {
		if !slices.Contains(v.tags, t) {
			v.tags = append(v.tags, t)
		}
	}
	v.tags = slices.DeleteFunc(v.tags, func(t string) bool { return slices.Contains(a.opts["--deltag"], t) })
	if a.opt("--activate") == "y" {
		l.tellPool()
		v.active = true
	}
	return nil, nil
}

func (l *LVM) extend(a args) (any, error) {
	v, err := l.find(a.words[0])
	if err != nil {
		return nil, err
	}
	if v.thin {
		l.tellPool()
		v.size = size(a.opt("--size"))
		return nil, nil
	}
	var from []int
	for _, r := range a.words[1:] {
		_, span, _ := strings.Cut(r, ":")
		first, _, _ := strings.Cut(span, "-")
		e, err := strconv.Atoi(first)
		if err != nil {
			return nil, err
		}
		from = append(from, e)
	}
	return nil, l.allocate(v, size(a.opt("--size")), from)
}

func (l *LVM) remove(a args) (any, error) {
	v, err := l.find(a.words[0])
	if err != nil {
		return nil, err
	}
	if l.Busy[v.name] {
		//lint:ignore ST1005 LVM's words
		return nil, fmt.Errorf("Logical volume %s/%s in use.", VG, v.name)
	}
	room := strings.HasPrefix(v.name, "nfgrow-") && a.opt("--config") == "devices/issue_discards=0"
	for _, e := range v.extents {
		l.taken[e] = false
		// Whoever had it has written to it; room for growth was only zeroed.
		if !room {
			l.old[e] = true
		}
	}
	v.origin = nil
	if v.thin {
		l.tellPool()
	}
	delete(l.lvs, v.name)
	return nil, nil
}

// ErrNoDevice is what an open of an inactive volume's device meets.
var ErrNoDevice = errors.New("no such device")

// Zero implements lvol.BlockDevice.
func (l *LVM) Zero(ctx context.Context, path string, size int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if l.Step != nil {
		if err := l.Step("zero " + path); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	v := l.lvs[strings.TrimPrefix(path, "/dev/"+VG+"/")]
	if v == nil || !v.active {
		return fmt.Errorf("%s: %w", path, ErrNoDevice)
	}
	for i, e := range v.extents {
		if int64(i+1)*ExtentBytes <= size {
			l.old[e] = false
		}
	}
	return nil
}

// Discard implements lvol.BlockDevice: as with real disks, nothing is promised
// about what is read afterwards.
func (l *LVM) Discard(ctx context.Context, path string, _ int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if l.Step != nil {
		if err := l.Step("discard " + path); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	v := l.lvs[strings.TrimPrefix(path, "/dev/"+VG+"/")]
	if v == nil || !v.active {
		return fmt.Errorf("%s: %w", path, ErrNoDevice)
	}
	for _, e := range v.extents {
		l.old[e] = true
	}
	return nil
}
