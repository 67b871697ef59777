package bench

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"strings"
)

// chart is a picture of lines.
type chart struct {
	title, x, y string
	// log has decades along x, whose values are times in microseconds then.
	log bool
	// top is the end of y; 0 is that of the data.
	top   float64
	lines []curve
}

type curve struct {
	name   string
	points [][2]float64
}

// The size of a picture, and of what is left around the lines, in pixels.
const (
	width, height            = 760, 300
	left, right, above, foot = 64, 28, 12, 46
	legendLine               = 18
)

// colours can be told apart by those who see fewer (Okabe and Ito); strokes repeat with others.
var (
	colours = []string{"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"}
	strokes = []string{"", "6 3", "2 3"}
)

// scale turns values into pixels.
type scale struct {
	from, to, low, high float64
	log                 bool
}

func (s scale) at(v float64) float64 {
	if s.log {
		v = math.Log10(max(v, 1e-3))
	}
	if s.to <= s.from {
		return s.low
	}
	return s.low + (v-s.from)/(s.to-s.from)*(s.high-s.low)
}

// svg draws the picture.
func (c chart) svg() template.HTML {
	xs, ys := c.scales()
	tall := height + legendLine*len(c.lines)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %d %d" role="img" aria-label="%s">`, width, tall, html.EscapeString(c.title))
	c.axes(&b, xs, ys)
	for i, l := range c.lines {
		colour, stroke := colours[i%len(colours)], strokes[i/len(colours)%len(strokes)]
		var points []string
		for _, p := range l.points {
			points = append(points, fmt.Sprintf("%.1f,%.1f", xs.at(p[0]), ys.at(p[1])))
		}
		fmt.Fprintf(&b, `<polyline fill="none" stroke="%s" stroke-width="1.8" stroke-dasharray="%s" points="%s"/>`, colour, stroke, strings.Join(points, " "))
		y := height + legendLine*i + 4
		fmt.Fprintf(&b, `<line x1="%d" x2="%d" y1="%d" y2="%d" stroke="%s" stroke-width="3" stroke-dasharray="%s"/>`, left, left+24, y, y, colour, stroke)
		fmt.Fprintf(&b, `<text x="%d" y="%d">%s</text>`, left+32, y+4, html.EscapeString(l.name))
	}
	b.WriteString("</svg>")
	return template.HTML(b.String())
}

// scales fit the data.
func (c chart) scales() (xs, ys scale) {
	xs = scale{from: math.Inf(1), to: math.Inf(-1), low: left, high: width - right, log: c.log}
	ys = scale{to: c.top, low: height - foot, high: above}
	for _, l := range c.lines {
		for _, p := range l.points {
			x := p[0]
			if c.log {
				x = math.Log10(max(x, 1e-3))
			}
			xs.from, xs.to = min(xs.from, x), max(xs.to, x)
			if c.top == 0 {
				ys.to = max(ys.to, p[1])
			}
		}
	}
	switch {
	case math.IsInf(xs.from, 1):
		xs.from, xs.to = 0, 1
	case c.log:
		xs.from, xs.to = math.Floor(xs.from), math.Ceil(xs.to)
	default:
		xs.from = min(0, xs.from)
	}
	if ys.to == 0 {
		ys.to = 1
	}
	return xs, ys
}

// axes draws the frame, ticks and their texts.
func (c chart) axes(b *strings.Builder, xs, ys scale) {
	line := func(x1, y1, x2, y2 float64) {
		fmt.Fprintf(b, `<line class="grid" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`, x1, y1, x2, y2)
	}
	for _, v := range ticks(0, ys.to) {
		y := ys.at(v)
		line(left, y, width-right, y)
		fmt.Fprintf(b, `<text x="%d" y="%.1f" text-anchor="end">%s</text>`, left-6, y+4, number(v))
	}
	values, text := ticks(xs.from, xs.to), number
	if c.log {
		values, text = nil, Text
		for e := xs.from; e <= xs.to; e++ {
			values = append(values, math.Pow(10, e))
		}
	}
	for _, v := range values {
		x := xs.at(v)
		line(x, above, x, height-foot)
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`, x, height-foot+16, text(v))
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="middle">%s</text>`, (left+width-right)/2, height-foot+34, html.EscapeString(c.x))
	fmt.Fprintf(b, `<text x="14" y="%d" text-anchor="middle" transform="rotate(-90 14 %d)">%s</text>`, (above+height-foot)/2, (above+height-foot)/2, html.EscapeString(c.y))
}

// ticks are round values from one to another, some five of them.
func ticks(from, to float64) []float64 {
	raw := (to - from) / 5
	if raw <= 0 || math.IsInf(raw, 0) || math.IsNaN(raw) {
		return nil
	}
	step := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, m := range []float64{1, 2, 5, 10} {
		if m*step >= raw {
			step *= m
			break
		}
	}
	var out []float64
	for v := math.Ceil(from/step) * step; v <= to+step/1e6; v += step {
		out = append(out, v)
	}
	return out
}

// number writes a value of an axis.
func number(v float64) string {
	switch {
	case math.Abs(v) >= 1e6:
		return fmt.Sprintf("%gM", math.Round(v/1e4)/100)
	case math.Abs(v) >= 1e4:
		return fmt.Sprintf("%gk", math.Round(v/100)/10)
	}
	return fmt.Sprintf("%g", math.Round(v*100)/100)
}
