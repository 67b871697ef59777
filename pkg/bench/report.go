package bench

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nearflash/nearflash/pkg/quantity"
)

// Report is what came of a run. Its JSON is what `-o json` prints.
type Report struct {
	// Version of the form: what is added does not change it.
	Version int       `json:"version"`
	Run     string    `json:"run"`
	Began   time.Time `json:"began"`
	Seconds float64   `json:"seconds"`
	Node    string    `json:"node"`
	Image   string    `json:"image"`
	// VolumeSize is that of each volume; empty for a claim that exists.
	VolumeSize string `json:"volumeSize,omitempty"`
	// Link is what the way to the origin carries, if it was measured.
	Link *Link `json:"link,omitempty"`
	Rows []Row `json:"rows"`
	// SSD is what the SSD does alone; absent if the run has no such row.
	SSD *SSD `json:"ssd,omitempty"`
	// Moves are moves in the middle.
	Moves []Move `json:"moves,omitempty"`
	// Databases are what was measured instead of Rows.
	Databases []DatabaseRow `json:"databases,omitempty"`
	// Notes say what is not known, and why.
	Notes []string `json:"notes,omitempty"`
}

// reportVersion is that of the form.
const reportVersion = 1

// Row is a profile on a volume.
type Row struct {
	Volume string `json:"volume"`
	// Mode is empty of the SSD alone.
	Mode    string `json:"mode,omitempty"`
	Profile string `json:"profile"`
	// Depth is how many requests were under way; 0 if a job file says it.
	Depth int `json:"depth,omitempty"`
	// WarmUp is how the cache became warm; absent without a cache.
	WarmUp *WarmUp `json:"warmUp,omitempty"`
	// Alone was measured with one request at a time, Load with Depth of them.
	Alone *Load `json:"alone,omitempty"`
	Load  Load  `json:"load"`
	// AloneCounted and Counted are what the node counted meanwhile; absent if it was not asked.
	AloneCounted *Counted `json:"aloneCounted,omitempty"`
	Counted      *Counted `json:"counted,omitempty"`
	Verdict      Verdict  `json:"verdict"`
	// Series is what was seen over time, warming included.
	Series []Point `json:"series,omitempty"`
}

// WarmUp is how a cache became warm.
type WarmUp struct {
	// Flat is false if the time ran out before.
	Flat bool `json:"flat"`
	// By is what said so.
	By      string   `json:"by"`
	Seconds float64  `json:"seconds"`
	Windows []Window `json:"windows"`
}

// Point is a moment of a row or of a move.
type Point struct {
	// Seconds are from the beginning.
	Seconds float64 `json:"seconds"`
	// HitPercent, IOPS and MeanMicros are of the time since the point before; absent if they are not
	// known.
	HitPercent *float64 `json:"hitPercent,omitempty"`
	IOPS       *float64 `json:"iops,omitempty"`
	MeanMicros *float64 `json:"meanMicros,omitempty"`
}

// Move is a volume that moved to another node while it was measured.
type Move struct {
	Volume  string `json:"volume"`
	Profile string `json:"profile"`
	// Warm tells that the cache came along, or was to.
	Warm bool   `json:"warm"`
	From string `json:"from"`
	To   string `json:"to"`
	// Method is how the old node's cache was read; empty if it was not.
	Method string `json:"method,omitempty"`
	// AwaySeconds is from the order to end the old pod to the new one that is ready.
	AwaySeconds float64 `json:"awaySeconds"`
	// BeforeHitPercent and FirstHitPercent are of the last seconds before the move, and of the first
	// after it.
	BeforeHitPercent *float64 `json:"beforeHitPercent,omitempty"`
	FirstHitPercent  *float64 `json:"firstHitPercent,omitempty"`
	// LevelSeconds is how long after the new pod was ready the hit rate was within five points of
	// that before; absent if it was not while that was watched.
	LevelSeconds *float64 `json:"levelSeconds,omitempty"`
	WatchSeconds float64  `json:"watchSeconds"`
	// Series has no points while the pod is away; AwayFrom and AwayTo are in its seconds.
	AwayFrom float64 `json:"awayFrom"`
	AwayTo   float64 `json:"awayTo"`
	Series   []Point `json:"series"`
}

var head = []string{"VOLUME", "PROFILE", "DEPTH", "IOPS", "MIB/S", "P50", "P99", "ALONE-P50", "HIT%", "WARM-UP", "SSD", "ORIGIN", "LIMIT"}

// cells are the texts of a row.
func (r Row) cells() []string {
	depth, alone, hits, warm, ssd, origin := none, none, none, none, none, none
	if r.Depth > 0 {
		depth = fmt.Sprint(r.Depth)
	}
	if r.Alone != nil {
		alone = Text(r.Alone.Latency.P50Micros)
	}
	if w := r.WarmUp; w != nil {
		warm = w.text()
	}
	if c := r.Counted; c != nil {
		if c.ReadHitPercent != nil && r.cached() {
			hits = fmt.Sprintf("%.1f", *c.ReadHitPercent)
		}
		ssd, origin = c.SSD.text(), c.Origin.text()
		if !r.cached() {
			origin = c.Volume.text()
		}
	}
	return []string{
		r.Volume, r.Profile, depth, fmt.Sprintf("%.0f", r.Load.IOPS), fmt.Sprintf("%.1f", r.Load.BytesPerSecond/(1<<20)),
		Text(r.Load.Latency.P50Micros), Text(r.Load.Latency.P99Micros), alone, hits, warm, ssd, origin, string(r.Verdict.Limit),
	}
}

func (r Row) cached() bool { return r.Mode != Modes()[0] }

// none stands for what is not known.
const none = "-"

// text is the mean, which is exact where percentiles are buckets.
func (d *Device) text() string {
	if d == nil {
		return none
	}
	return Text(d.MeanMicros)
}

func (w *WarmUp) text() string {
	text := seconds(w.Seconds)
	if !w.Flat {
		return ">" + text
	}
	return text
}

func seconds(s float64) string { return (time.Duration(s) * time.Second).String() }

// Table writes the report for people.
func (r *Report) Table(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	for _, cells := range r.cells() {
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, line := range r.lines() {
		if _, err := fmt.Fprintln(out, line); err != nil {
			return err
		}
	}
	return nil
}

// cells are the table, its head first.
func (r *Report) cells() [][]string {
	if len(r.Databases) > 0 {
		out := [][]string{databaseHead}
		for _, d := range r.Databases {
			out = append(out, d.cells()...)
		}
		return out
	}
	out := [][]string{head}
	for _, row := range r.Rows {
		out = append(out, row.cells())
	}
	return append(out, r.SSD.cells()...)
}

// Empty tells that nothing was measured.
func (r *Report) Empty() bool { return len(r.Rows)+len(r.Databases) == 0 }

// lines are what is said below the table.
func (r *Report) lines() []string {
	lines := []string{""}
	for _, row := range r.Rows {
		lines = append(lines, fmt.Sprintf("%s, %s: %s: %s", row.Volume, row.Profile, row.Verdict.Limit, row.Verdict.Why))
	}
	lines = append(lines, r.SSD.lines()...)
	for _, m := range r.Moves {
		lines = append(lines, m.text())
	}
	if l := r.Link; l != nil {
		lines = append(lines, fmt.Sprintf("the way to the origin: %s/s by sequential reads of 1 MiB, %s/s by random ones",
			quantity.Text(int64(l.SequentialBytesPerSecond)), quantity.Text(int64(l.RandomBytesPerSecond))))
	}
	for _, d := range r.Databases {
		lines = append(lines, d.databaseText())
		for _, m := range d.Moves {
			lines = append(lines, d.moveText(m))
		}
	}
	if len(r.Rows) > 0 {
		lines = append(lines, belowTable)
	}
	return append(lines, r.Notes...)
}

// belowTable is said below every table.
const belowTable = "SSD and ORIGIN are means of what the node counted below the cache, at the load of the row."

func (m Move) text() string {
	kind := "without its cache"
	if m.Warm {
		kind = "with its cache"
		if m.Method != "" {
			kind += " by " + strings.ToLower(m.Method)
		}
	}
	level := fmt.Sprintf("not at its level again within %s", seconds(m.WatchSeconds))
	if m.LevelSeconds != nil {
		level = fmt.Sprintf("at its level again after %s", seconds(*m.LevelSeconds))
	}
	return fmt.Sprintf("%s, %s: moved from %s to %s %s: away for %s; hit rate %s before, %s at first, %s",
		m.Volume, m.Profile, m.From, m.To, kind, seconds(m.AwaySeconds), percent(m.BeforeHitPercent), percent(m.FirstHitPercent), level)
}

func percent(p *float64) string {
	if p == nil {
		return "not known"
	}
	return fmt.Sprintf("%.1f%%", *p)
}
