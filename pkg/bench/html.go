package bench

import (
	"bytes"
	_ "embed" // the template of the page
	"fmt"
	"html/template"
	"slices"
	"time"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// view is what the page shows.
type view struct {
	*Report
	When  string
	Took  string
	Head  []string
	Cells [][]string
	Lines []string
	Plots []plotView
}

type plotView struct {
	Title string
	Text  string
	SVG   template.HTML
}

// HTML returns the report as one page, which needs nothing from elsewhere.
func (r *Report) HTML() ([]byte, error) {
	v := view{Report: r, When: r.Began.Format(time.DateTime + " UTC"), Took: seconds(r.Seconds), Lines: r.lines()[1:]}
	cells := r.cells()
	v.Head, v.Cells = cells[0], cells[1:]
	for _, profile := range r.profiles() {
		v.Plots = append(v.Plots, r.latencyPlot(profile))
		if p, any := r.hitPlot(profile); any {
			v.Plots = append(v.Plots, p)
		}
	}
	for _, volume := range r.movedVolumes() {
		v.Plots = append(v.Plots, r.movePlots(volume)...)
	}
	for _, d := range r.Databases {
		v.Plots = append(v.Plots, d.plots()...)
	}
	var b bytes.Buffer
	if err := page.Execute(&b, v); err != nil {
		return nil, fmt.Errorf("page of the report: %w", err)
	}
	return b.Bytes(), nil
}

// profiles are those measured, in their order.
func (r *Report) profiles() []string {
	var out []string
	for _, row := range r.Rows {
		if !slices.Contains(out, row.Profile) {
			out = append(out, row.Profile)
		}
	}
	return out
}

func (r *Report) latencyPlot(profile string) plotView {
	c := chart{title: "latency, " + profile, x: "latency of a request", y: "% that took no longer", log: true, top: 100}
	rows := r.Rows
	if r.SSD != nil {
		rows = slices.Concat(rows, r.SSD.Rows)
	}
	for _, row := range rows {
		if row.Profile != profile {
			continue
		}
		l := curve{name: fmt.Sprintf("%s: p50 %s, p99 %s", row.Volume, Text(row.Load.Latency.P50Micros), Text(row.Load.Latency.P99Micros))}
		for _, s := range row.Load.Distribution {
			l.points = append(l.points, [2]float64{s.Micros, 100 * s.Share})
		}
		c.lines = append(c.lines, l)
	}
	return plotView{Title: profile + ": latency", Text: "Of the requests, how many took no longer. Further left is faster.", SVG: c.svg()}
}

func (r *Report) hitPlot(profile string) (plotView, bool) {
	c := chart{title: "hit rate, " + profile, x: "seconds", y: "hit rate, %", top: 100}
	for _, row := range r.Rows {
		if row.Profile != profile {
			continue
		}
		l := curve{name: row.Volume}
		if row.WarmUp != nil {
			l.name += ": warm after " + row.WarmUp.text()
		}
		for _, p := range row.Series {
			if p.HitPercent != nil {
				l.points = append(l.points, [2]float64{p.Seconds, *p.HitPercent})
			}
		}
		if row.cached() && len(l.points) > 0 {
			c.lines = append(c.lines, l)
		}
	}
	return plotView{Title: profile + ": hit rate over time", Text: "From the beginning of warming to the end of the measurement.", SVG: c.svg()}, len(c.lines) > 0
}

func (r *Report) movedVolumes() []string {
	var out []string
	for _, m := range r.Moves {
		if !slices.Contains(out, m.Volume) {
			out = append(out, m.Volume)
		}
	}
	return out
}

// movePlots are the dips of a volume's moves, beside each other: time zero is when the old pod was told to end.
func (r *Report) movePlots(volume string) []plotView {
	hits := chart{title: "hit rate beside a move, " + volume, x: "seconds since the old pod was to end", y: "hit rate, %", top: 100}
	rates := chart{title: "requests beside a move, " + volume, x: "seconds since the old pod was to end", y: "requests/s"}
	for _, m := range r.Moves {
		if m.Volume != volume {
			continue
		}
		kind := "without its cache"
		if m.Warm {
			kind = "with its cache"
		}
		h, q := curve{name: kind}, curve{name: kind}
		gone := false
		for _, p := range m.Series {
			x := p.Seconds - m.AwayFrom
			if !gone && x > 0 {
				gone = true
				q.points = append(q.points, [2]float64{0, 0}, [2]float64{m.AwaySeconds, 0})
			}
			if p.HitPercent != nil {
				h.points = append(h.points, [2]float64{x, *p.HitPercent})
			}
			if p.IOPS != nil {
				q.points = append(q.points, [2]float64{x, *p.IOPS})
			}
		}
		hits.lines, rates.lines = append(hits.lines, h), append(rates.lines, q)
	}
	return []plotView{
		{Title: volume + ": hit rate beside a move", Text: "While the pod is away there is none; the line goes on where it is back.", SVG: hits.svg()},
		{Title: volume + ": requests per second beside a move", Text: "Zero while the pod is away.", SVG: rates.svg()},
	}
}
