package bench

import (
	"fmt"
	"strings"
)

// DatabaseRow is a database on a volume.
type DatabaseRow struct {
	Volume string `json:"volume"`
	Mode   string `json:"mode"`
	// Clients are connections of pgbench, Scale is its: so many times 100,000 accounts.
	Clients int `json:"clients"`
	Scale   int `json:"scale"`
	// MemoryBytes is the limit of the pod.
	MemoryBytes int64 `json:"memoryBytes"`
	// WarmUp is how the cache became warm; absent without a cache. Series is what was seen then.
	WarmUp *WarmUp `json:"warmUp,omitempty"`
	Series []Point `json:"series,omitempty"`
	// Measured was measured on the first node.
	Measured Phase          `json:"measured"`
	Moves    []DatabaseMove `json:"moves,omitempty"`
}

// DatabaseMove is a database that moved to another node while it was used.
type DatabaseMove struct {
	// Warm tells that the cache came along, or was to.
	Warm bool   `json:"warm"`
	From string `json:"from"`
	To   string `json:"to"`
	// Method is how the old node's cache was read; empty if it was not.
	Method string `json:"method,omitempty"`
	// AwaySeconds is from the order to end the old pod to the new one that is ready, GapSeconds the
	// longest time in which nothing was committed.
	AwaySeconds float64 `json:"awaySeconds"`
	GapSeconds  float64 `json:"gapSeconds"`
	// Phases are before, during (until the database has worked for 20 seconds again), and after.
	Phases []Phase `json:"phases"`
	// AwayFrom and AwayTo are in the seconds of Series.
	AwayFrom float64  `json:"awayFrom"`
	AwayTo   float64  `json:"awayTo"`
	Series   []Second `json:"series"`
}

var databaseHead = []string{"VOLUME", "CLIENTS", "WARM-UP", "MOVE", "PHASE", "SECONDS", "TPS", "P50", "P99", "HIT%"}

// cells are the texts of a database's lines.
func (d DatabaseRow) cells() [][]string {
	warm := none
	if d.WarmUp != nil {
		warm = d.WarmUp.text()
	}
	line := func(move string, p Phase) []string {
		return append([]string{d.Volume, fmt.Sprint(d.Clients), warm, move, p.Name}, p.cells()...)
	}
	out := [][]string{line(none, d.Measured)}
	for _, m := range d.Moves {
		for _, p := range m.Phases {
			out = append(out, line(m.kind(), p))
		}
	}
	return out
}

// kind is a word for a move.
func (m DatabaseMove) kind() string {
	if m.Warm {
		return "warm"
	}
	return "cold"
}

func (p Phase) cells() []string {
	p50, p99, hits := none, none, none
	if p.Latency != nil {
		p50, p99 = Text(p.Latency.P50Micros), Text(p.Latency.P99Micros)
	}
	if p.HitPercent != nil {
		hits = fmt.Sprintf("%.1f", *p.HitPercent)
	}
	return []string{fmt.Sprintf("%.0f", p.To-p.From), fmt.Sprintf("%.0f", p.TPS), p50, p99, hits}
}

func (p Phase) text() string {
	c := p.cells()
	return fmt.Sprintf("%s transactions/s, p50 %s, p99 %s", c[1], c[2], c[3])
}

// moveText says what came of a move.
func (d DatabaseRow) moveText(m DatabaseMove) string {
	kind := "without its cache"
	if m.Warm {
		kind = "with its cache"
		if m.Method != "" {
			kind += " by " + strings.ToLower(m.Method)
		}
	}
	return fmt.Sprintf("%s: moved from %s to %s %s: away for %.1fs, without a transaction for %.1fs", d.Volume, m.From, m.To, kind, m.AwaySeconds, m.GapSeconds)
}

// databaseText says what the databases were.
func (d DatabaseRow) databaseText() string {
	return fmt.Sprintf("%s: pgbench's own transactions (TPC-B like) on %d accounts, %.0f MiB with their index, by %d clients; %d MiB of memory",
		d.Volume, 100_000*d.Scale, float64(d.Scale*scaleBytes)/(1<<20), d.Clients, d.MemoryBytes>>20)
}

// plots are what a database did around its moves: time zero is when the old pod was told to end.
func (d DatabaseRow) plots() []plotView {
	if len(d.Moves) == 0 {
		return nil
	}
	rates := chart{title: "transactions beside a move, " + d.Volume, x: "seconds since the old pod was to end", y: "transactions/s"}
	waits := chart{title: "latency beside a move, " + d.Volume, x: "seconds since the old pod was to end", y: "p99 of a second, ms"}
	for _, m := range d.Moves {
		name := "without its cache"
		if m.Warm {
			name = "with its cache"
		}
		rate, wait := curve{name: name}, curve{name: name}
		for _, s := range m.Series {
			x := s.Seconds - m.AwayFrom
			rate.points = append(rate.points, [2]float64{x, s.TPS})
			if s.P99Micros != nil {
				wait.points = append(wait.points, [2]float64{x, *s.P99Micros / 1000})
			}
		}
		rates.lines, waits.lines = append(rates.lines, rate), append(waits.lines, wait)
	}
	return []plotView{
		{Title: d.Volume + ": transactions per second beside a move", Text: "Zero while the database is away.", SVG: rates.svg()},
		{Title: d.Volume + ": latency beside a move", Text: "The 99th percentile of each second's transactions. While the database is away there is none; the line goes on where it is back.", SVG: waits.svg()},
	}
}
