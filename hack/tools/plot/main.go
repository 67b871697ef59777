// Command plot draws the pictures of the documents.
//
//	plot CSV SVG
//	plot transactions CSV SVG
//	plot dashboard JSON SVG
//
// The last form draws a dashboard with what Prometheus has answered to its queries. In the others
// there are curves, drawn in the order in which they come. The CSV file has lines of "name,second,value":
// a curve, seconds since the pod's start, and a part of 1; or seconds since the old pod was to end, and
// transactions in that second, of which means of five seconds are drawn.
package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"os"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

func main() {
	var err error
	switch {
	case len(os.Args) == 3:
		err = drawCurves(os.Args[1], os.Args[2], hits)
	case len(os.Args) == 4 && os.Args[1] == "transactions":
		err = drawCurves(os.Args[2], os.Args[3], transactions)
	case len(os.Args) == 4 && os.Args[1] == "dashboard":
		err = drawDashboard(os.Args[2], os.Args[3])
	default:
		fmt.Fprintln(os.Stderr, "usage: plot CSV SVG, plot transactions CSV SVG, or plot dashboard JSON SVG")
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "plot:", err)
		os.Exit(1)
	}
}

// axes are what curves are drawn in. Without a top, and a beginning of 0, the values have them.
type axes struct {
	x, y string
	top  float64
	from *float64
	// mean is of how many values each point is the mean.
	mean int
}

var (
	zero         = 0.0
	hits         = axes{x: "seconds since the pod's start", y: "part of the reads served by the cache", top: 1.02, from: &zero}
	transactions = axes{x: "seconds since the old pod was to end", y: "transactions a second", mean: 5}
)

func drawCurves(from, to string, a axes) error {
	names, curves, err := read(from)
	if err != nil {
		return err
	}
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text, p.Y.Min = a.x, a.y, 0
	if a.top > 0 {
		p.Y.Max = a.top
	}
	if a.from != nil {
		p.X.Min = *a.from
	}
	p.Add(plotter.NewGrid())
	for i, name := range names {
		line, points, err := plotter.NewLinePoints(means(curves[name], a.mean))
		if err != nil {
			return err
		}
		line.Width, points.Radius = vg.Points(1.5), vg.Points(2)
		line.Color, points.Color, points.Shape = plotutil.Color(i), plotutil.Color(i), plotutil.Shape(i)
		p.Add(line, points)
		p.Legend.Add(name, line, points)
	}
	p.Legend.YOffs = vg.Points(20)
	if a.mean > 1 {
		p.Legend.Top, p.Legend.Left, p.Legend.YOffs = true, true, 0
	}
	return p.Save(18*vg.Centimeter, 9*vg.Centimeter, to)
}

// means are points of so many values each, at the middle of their seconds.
func means(values plotter.XYs, n int) plotter.XYs {
	if n <= 1 {
		return values
	}
	var out plotter.XYs
	for ; len(values) >= n; values = values[n:] {
		var p plotter.XY
		for _, v := range values[:n] {
			p.X, p.Y = p.X+v.X/float64(n), p.Y+v.Y/float64(n)
		}
		out = append(out, p)
	}
	return out
}

func read(name string) (names []string, curves map[string]plotter.XYs, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, nil, err
	}
	r := csv.NewReader(f)
	r.FieldsPerRecord = 3
	lines, err := r.ReadAll()
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, nil, err
	}
	curves = map[string]plotter.XYs{}
	for i, l := range lines {
		x, errX := strconv.ParseFloat(l[1], 64)
		y, errY := strconv.ParseFloat(l[2], 64)
		if err := errors.Join(errX, errY); err != nil {
			return nil, nil, fmt.Errorf("%s, line %d: %w", name, i+1, err)
		}
		if curves[l[0]] == nil {
			names = append(names, l[0])
		}
		curves[l[0]] = append(curves[l[0]], plotter.XY{X: x, Y: y})
	}
	return names, curves, nil
}
