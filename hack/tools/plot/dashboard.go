package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"image/color"
	"math"
	"os"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// dashboard is what Prometheus has answered to the queries of a dashboard's panels, as
// e2e/dashboard_test.go writes it.
type dashboard struct {
	// Seconds are shown, from 0 on.
	Seconds float64 `json:"seconds"`
	Panels  []panel `json:"panels"`
}

// panel is one of them, of Grafana's type row, table, stat or timeseries. X to H are in Grafana's
// grid of 24 columns.
type panel struct {
	Title string     `json:"title"`
	Type  string     `json:"type"`
	Unit  string     `json:"unit"`
	X     vg.Length  `json:"x"`
	Y     vg.Length  `json:"y"`
	W     vg.Length  `json:"w"`
	H     vg.Length  `json:"h"`
	Lines []line     `json:"lines"`
	Cells [][]string `json:"cells"`
}

// line is a curve: seconds and values. A value that there was not is missing.
type line struct {
	Name   string       `json:"name"`
	Unit   string       `json:"unit"`
	Points [][2]float64 `json:"points"`
}

const (
	column, gridRow = 42 * vg.Inch / 72, 25 * vg.Inch / 72
	columns         = 24
	gap, padding    = vg.Length(3), vg.Length(6)
	titleSize       = vg.Length(9)
	textSize        = vg.Length(7.5)
	lineHeight      = vg.Length(10)
	// legends are so many lines below a curve, at most.
	legends = 5
)

var (
	ground = color.Gray{0xf4}
	border = color.Gray{0xd8}
	ink    = color.Gray{0x22}
	faint  = color.Gray{0x77}
)

// drawDashboard draws panels as Grafana lays them out.
func drawDashboard(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	var d dashboard
	if err := json.Unmarshal(b, &d); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	var height vg.Length
	for _, p := range d.Panels {
		height = max(height, p.Y+p.H)
	}
	if height == 0 {
		return errors.New("no panel")
	}
	picture := vgsvg.New(columns*column, height*gridRow)
	all := draw.New(picture)
	fill(all, ground)
	for _, p := range d.Panels {
		left, top := p.X*column, p.Y*gridRow
		c := draw.Crop(all, left+gap, left+p.W*column-columns*column-gap, (height-p.Y-p.H)*gridRow+gap, -top-gap)
		if err := p.draw(c, d.Seconds); err != nil {
			return fmt.Errorf("panel %q: %w", p.Title, err)
		}
	}
	var out bytes.Buffer
	if _, err := picture.WriteTo(&out); err != nil {
		return err
	}
	// Who does not have that font is to see one that is like it.
	return os.WriteFile(to, bytes.ReplaceAll(out.Bytes(), []byte("Liberation Sans;"), []byte("Liberation Sans,Arial,sans-serif;")), 0o644)
}

func fill(c draw.Canvas, shade color.Color) {
	r := c.Rectangle
	c.FillPolygon(shade, []vg.Point{r.Min, {X: r.Max.X, Y: r.Min.Y}, r.Max, {X: r.Min.X, Y: r.Max.Y}})
}

func style(size vg.Length, shade color.Color) draw.TextStyle {
	return draw.TextStyle{
		Color: shade, Font: font.Font{Typeface: plot.DefaultFont.Typeface, Variant: "Sans", Size: size}, YAlign: draw.YTop, Handler: plot.DefaultTextHandler,
	}
}

// write writes one line, which is cut where its room ends.
func write(c draw.Canvas, s draw.TextStyle, x, y, room vg.Length, words string) {
	cut := words
	for len(cut) > 0 && s.Width(cut) > room {
		cut = strings.TrimRight(cut[:len(cut)-1], " ")
	}
	if cut != words {
		cut = strings.TrimRight(cut, ".") + "…"
	}
	c.FillText(s, vg.Point{X: x, Y: y}, cut)
}

func (p panel) draw(c draw.Canvas, seconds float64) error {
	if p.Type == "row" {
		write(c, style(11, ink), c.Min.X, c.Max.Y-2, c.Size().X, p.Title)
		return nil
	}
	fill(c, color.White)
	r := c.Rectangle
	c.StrokeLines(draw.LineStyle{Color: border, Width: 0.7}, []vg.Point{r.Min, {X: r.Max.X, Y: r.Min.Y}, r.Max, {X: r.Min.X, Y: r.Max.Y}, r.Min})
	in := draw.Crop(c, padding, -padding, padding, -padding)
	write(in, style(titleSize, ink), in.Min.X, in.Max.Y, in.Size().X, p.Title)
	in = draw.Crop(in, 0, 0, 0, -titleSize-padding)
	switch p.Type {
	case "stat":
		p.stat(in)
	case "table":
		p.table(in)
	case "timeseries":
		return p.curves(in, seconds)
	default:
		return fmt.Errorf("type %q is not known", p.Type)
	}
	return nil
}

// stat shows the newest value.
func (p panel) stat(c draw.Canvas) {
	value := "No data"
	if len(p.Lines) > 0 {
		value = quantity(p.Lines[0].last(), p.Lines[0].Unit)
	}
	s := style(22, color.RGBA{0x2c, 0x7a, 0x3f, 0xff})
	s.XAlign, s.YAlign = draw.XCenter, draw.YCenter
	c.FillText(s, vg.Point{X: (c.Min.X + c.Max.X) / 2, Y: (c.Min.Y + c.Max.Y) / 2}, value)
}

func (p panel) table(c draw.Canvas) {
	if len(p.Cells) == 0 {
		write(c, style(textSize, faint), c.Min.X, c.Max.Y, c.Size().X, "No data")
		return
	}
	widths := make([]vg.Length, len(p.Cells[0]))
	s := style(textSize, ink)
	var sum vg.Length
	for i := range widths {
		for _, row := range p.Cells {
			widths[i] = max(widths[i], s.Width(row[i])+padding)
		}
		sum += widths[i]
	}
	for i, row := range p.Cells {
		y := c.Max.Y - vg.Length(i)*lineHeight
		if y-lineHeight < c.Min.Y {
			return
		}
		if s.Color = ink; i == 0 {
			s.Color = faint
		}
		x := c.Min.X
		for j, cell := range row {
			room := widths[j] * min(1, c.Size().X/sum)
			write(c, s, x, y, room-2, cell)
			x += room
		}
	}
}

func (l line) last() float64 {
	if len(l.Points) == 0 {
		return math.NaN()
	}
	return l.Points[len(l.Points)-1][1]
}

// curves are drawn over the whole time, with the names of the first ones and their last values below.
func (p panel) curves(c draw.Canvas, seconds float64) error {
	below := vg.Length(min(max(len(p.Lines), 1), legends)) * lineHeight
	g := plot.New()
	g.X.Min, g.X.Max, g.Y.Min = 0, seconds, 0
	g.BackgroundColor = color.Transparent
	g.Add(plotter.NewGrid())
	g.X.Tick.Label, g.Y.Tick.Label = axis(g.X.Tick.Label), axis(g.Y.Tick.Label)
	g.X.Tick.Marker = ticks(clock)
	for i, l := range p.Lines {
		xys := make(plotter.XYs, len(l.Points))
		for j, at := range l.Points {
			xys[j] = plotter.XY{X: at[0], Y: at[1]}
		}
		curve, err := plotter.NewLine(xys)
		if err != nil {
			return err
		}
		curve.Color, curve.Width = plotutil.Color(i), 1
		g.Add(curve)
		if i < legends {
			y := c.Min.Y + below - vg.Length(i)*lineHeight
			c.StrokeLine2(draw.LineStyle{Color: plotutil.Color(i), Width: 2}, c.Min.X, y-4, c.Min.X+8, y-4)
			value := quantity(l.last(), l.Unit)
			s := style(textSize, ink)
			write(c, s, c.Min.X+12, y, c.Size().X-16-s.Width(value), l.Name)
			write(c, s, c.Max.X-s.Width(value), y, s.Width(value)+1, value)
		}
	}
	if len(p.Lines) == 0 {
		write(c, style(textSize, faint), c.Min.X, c.Min.Y+below, c.Size().X, "No data")
	}
	if p.Unit == "percentunit" {
		g.Y.Max = max(g.Y.Max, 0.01)
	}
	if g.Y.Max <= g.Y.Min || math.IsInf(g.Y.Max, 0) {
		g.Y.Max = g.Y.Min + 1
	}
	g.Y.Tick.Marker = ticks(func(v float64) string { return quantity(v, p.Unit) })
	g.Draw(draw.Crop(c, 0, 0, below+2, 0))
	return nil
}

func axis(s text.Style) text.Style {
	s.Font.Size, s.Font.Variant, s.Color = 6.5, "Sans", faint
	return s
}

// ticks labels those that gonum chooses.
func ticks(label func(float64) string) plot.Ticker {
	return plot.TickerFunc(func(low, high float64) []plot.Tick {
		all := plot.DefaultTicks{}.Ticks(low, high)
		for i := range all {
			if all[i].Label != "" {
				all[i].Label = label(all[i].Value)
			}
		}
		return all
	})
}

func clock(seconds float64) string {
	return fmt.Sprintf("%d:%02d", int(seconds)/60, int(seconds)%60)
}

// quantity writes a value as Grafana does with that unit.
func quantity(v float64, unit string) string {
	if math.IsNaN(v) {
		return "No data"
	}
	scaled := func(base float64, units ...string) string {
		i := 0
		for ; math.Abs(v) >= base && i < len(units)-1; i++ {
			v /= base
		}
		return strings.TrimSpace(fmt.Sprintf("%.3g %s", v, units[i]))
	}
	switch unit {
	case "percentunit":
		return fmt.Sprintf("%.3g %%", 100*v)
	case "bytes":
		return scaled(1024, "B", "KiB", "MiB", "GiB", "TiB")
	case "Bps":
		return scaled(1000, "B/s", "kB/s", "MB/s", "GB/s")
	case "iops":
		return scaled(1000, "io/s", "K io/s")
	case "cps":
		return fmt.Sprintf("%.3g c/s", v)
	case "s":
		return duration(v)
	}
	return scaled(1000, "", "K", "M")
}

func duration(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second)).Abs()
	switch {
	case d == 0:
		return "0 s"
	case d < time.Millisecond:
		return fmt.Sprintf("%.3g us", seconds*1e6)
	case d < time.Second:
		return fmt.Sprintf("%.3g ms", seconds*1e3)
	case d < 2*time.Minute:
		return fmt.Sprintf("%.3g s", seconds)
	case d < 2*time.Hour:
		return fmt.Sprintf("%.3g min", seconds/60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%.3g h", seconds/3600)
	}
	return fmt.Sprintf("%.3g d", seconds/86400)
}
