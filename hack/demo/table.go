package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// row is one measured case.
type row struct {
	name string
	// deep was measured with many I/Os under way, single with one.
	deep, single result
	// hits is the hit rate, a fraction of 1; NaN where there is no cache.
	hits float64
}

// cells are the texts of a row.
func (r row) cells() []string {
	hits := "-"
	if !math.IsNaN(r.hits) {
		hits = fmt.Sprintf("%.1f %%", 100*r.hits)
	}
	return []string{r.name, strconv.FormatFloat(r.deep.IOPS, 'f', 0, 64), micros(r.single.P50), micros(r.single.P99), hits}
}

func micros(d time.Duration) string { return fmt.Sprintf("%d us", d.Microseconds()) }

// table is what the demo shows.
type table struct {
	// title says what was run where.
	title string
	rows  []row
	// raw is the SSD without a cache on it, warm the cache's hit path, remote
	// the origin alone: 4 KiB random reads.
	raw, warm, remote row
	moved             moved
	// advice is what kubectl nearflash advises for the volumes, with the command.
	advice string
}

// moved are the hit rates of the first second after a move to another node.
type moved struct {
	by []arrival
	// cold is that without the old node's cache.
	cold float64
}

// arrival is a move with the old node's cache: what that serves in the first second, and in one
// when all of it has come.
type arrival struct {
	// method is "" if the old node's cache was not read.
	method      v1alpha1.MigrationMethod
	first, then float64
}

// text is a line for people.
func (m moved) text() string {
	var with []string
	for _, a := range m.by {
		switch a.method {
		case "":
			with = append(with, fmt.Sprintf("%.1f %% with the old node's cache (which was not read: kubectl nearflash doctor says why)", 100*a.first))
		case v1alpha1.MigrationStream:
			with = append(with, fmt.Sprintf("%.1f %% with it by stream, and %.1f %% when all has come", 100*a.first, 100*a.then))
		default:
			with = append(with, fmt.Sprintf("%.1f %% with the old node's cache by %s", 100*a.first, strings.ToLower(string(a.method))))
		}
	}
	return fmt.Sprintf("first second after a move: hit rate %s; %.1f %% without it", strings.Join(with, ", "), 100*m.cold)
}

var header = [...]string{"case", "IOPS", "p50", "p99", "hit rate"}

// text returns the table with aligned columns.
func (t table) text() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, strings.Join(header[:], "\t")+"\t")
	for _, r := range t.rows {
		fmt.Fprintln(w, strings.Join(r.cells(), "\t")+"\t")
	}
	_ = w.Flush() // a strings.Builder takes everything
	return t.title + "\n\n" + b.String()
}

// markdown returns the table and the verdict for the documentation.
func (t table) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n| %s |\n|---|---:|---:|---:|---:|\n", t.title, strings.Join(header[:], " | "))
	for _, r := range t.rows {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(r.cells(), " | "))
	}
	fmt.Fprintf(&b, "\n%s\n\n%s\n\n```console\n%s```\n", t.verdict(), t.moved.text(), t.advice)
	return b.String()
}

// ending is what the demo prints last, when all is deleted.
func (t table) ending() string {
	return fmt.Sprintf("%s\n%s\n\n%s", t.verdict(), t.moved.text(), t.advice)
}

// closeEnough is the share of the SSD's IOPS from which nothing is to be said.
const closeEnough = 0.9

// verdict compares the hit path with the SSD, and says what makes the difference
// if there is one.
func (t table) verdict() string {
	share := t.warm.deep.IOPS / t.raw.deep.IOPS
	line := fmt.Sprintf("a read at depth 1: %s from the cache, %s from the raw SSD, %s from the storage server; hit path at depth %d: %.1f %% of the raw SSD",
		micros(t.warm.single.P50), micros(t.raw.single.P50), micros(t.remote.single.P50), deep, 100*share)
	if share >= closeEnough {
		return line
	}
	return line + ", because " + t.reason()
}

// reason divides the extra time of a warm read into what misses cost and what
// every read costs. A miss takes about as long as a read of the remote volume.
func (t table) reason() string {
	extra := t.warm.deep.Mean - t.raw.deep.Mean
	misses := time.Duration((1 - t.warm.hits) * float64(t.remote.deep.Mean))
	hits := extra - misses
	if extra <= 0 {
		return fmt.Sprintf("fewer reads were in flight: latency itself is no worse (mean %s, SSD %s)", micros(t.warm.deep.Mean), micros(t.raw.deep.Mean))
	}
	if misses > hits {
		return fmt.Sprintf("%.1f %% of the reads were misses, which cost %s of the %s that a read takes longer on average",
			100*(1-t.warm.hits), micros(misses), micros(extra))
	}
	return fmt.Sprintf("each read at this queue depth takes %s longer on average in the kernel's cache and device-mapper layers (the misses, %.1f %%, explain %s of it)",
		micros(extra), 100*(1-t.warm.hits), micros(max(misses, 0)))
}
