//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// plotVariable names the program of hack/tools/plot, and pictureVariable the file that gets the
// picture. hack/cluster-ring.sh sets both.
const plotVariable, pictureVariable = "NEARFLASH_PLOT", "NEARFLASH_DASHBOARD"

// mostlyReads is what the volume that moves has to do, at the same rate before and after.
const mostlyReads = "--rw=randrw --rwmixread=90 --rate_iops=400"

// pictureRows are the rows of the dashboard's grid that are drawn: what is at risk, whether caches
// help, and how long I/O takes.
const pictureRows = 57

// The picture of docs/how-to/monitoring.md: two volumes at work, one of which moves.
var _ = Describe("The dashboard", Label("dashboard", "lab"), func() {
	It("shows what volumes do", Label("slow"), func(ctx SpecContext) {
		plot, picture := os.Getenv(plotVariable), os.Getenv(pictureVariable)
		Expect([]string{plot, picture}).NotTo(ContainElement(""), "%s or %s is not set: see hack/cluster-ring.sh", plotVariable, pictureVariable)
		s := newSpace(ctx)
		p := startPrometheus(ctx, s)
		began := time.Now()

		By("starting two volumes")
		read, err := s.volume(ctx, volumeSpec{name: "orders", mode: v1alpha1.CacheModeWritethrough, kind: block, size: "128Mi", cacheSize: "100%"})
		Expect(err).NotTo(HaveOccurred())
		written, err := s.volume(ctx, volumeSpec{name: "events", mode: v1alpha1.CacheModeWriteback, kind: block, size: "64Mi", cacheSize: "100%"})
		Expect(err).NotTo(HaveOccurred())
		for _, v := range []*vol{read, written} {
			Expect(v.start(ctx, nodeA)).To(Succeed())
			Expect(v.fillWhole(ctx)).To(Succeed())
		}

		By("having one read and the other written")
		working, stop := context.WithCancel(ctx)
		defer stop()
		var work sync.WaitGroup
		work.Go(func() { _ = written.work4k(working, "--rw=randwrite --rate_iops=40", 3600) }) // until its node is lost
		Expect(read.work4k(ctx, mostlyReads, 120)).To(Succeed())

		By("moving the one that is read")
		Expect(read.restart(ctx, nodeB)).To(Succeed())
		Expect(read.work4k(ctx, mostlyReads, 60)).To(Succeed())
		_, err = read.awaitMoved(ctx, 2)
		Expect(err).NotTo(HaveOccurred())

		By("losing the node of the one that is written")
		work.Go(func() { _ = read.work4k(working, mostlyReads, 3600) })
		loseNode(ctx)
		written.takeFromLostNode(ctx)
		Expect(p.await(ctx, fmt.Sprintf(`nearflash_unflushed_volume_node_lost{pvc="events",namespace=%q} == 1`, s.name), one)).To(Succeed())
		Expect(p.awaitAlert(ctx, "NearflashVolumeWaitsForNode", nil)).To(Succeed())

		By("asking what the dashboard asks")
		shown, err := p.shown(ctx, began, time.Now())
		Expect(err).NotTo(HaveOccurred())
		stop()
		work.Wait()
		for _, panel := range shown.Panels {
			// The others have something only if something is wrong.
			if panel.Type != "row" && panel.Type != "table" && panel.Title != "Nodes without the plugin, or without their pool" {
				Expect(panel.Lines).NotTo(BeEmpty(), "panel %q shows nothing", panel.Title)
			}
		}

		By("drawing the answers")
		text, err := json.Marshal(shown)
		Expect(err).NotTo(HaveOccurred())
		answers := filepath.Join(GinkgoT().TempDir(), "dashboard.json")
		Expect(os.WriteFile(answers, text, 0o600)).To(Succeed())
		out, err := exec.CommandContext(ctx, plot, "dashboard", answers, picture).CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), "%s", out)

		By("bringing the node back")
		Expect(outOfService(ctx, nodeA, false)).To(Succeed())
		Expect(k.Lab.Start(ctx, nodeA)).To(Succeed())
		Expect(k.AwaitDriver(ctx, late)).To(Succeed())
	}, NodeTimeout(specLimit))
})

// work4k reads or writes 4 KiB at a time for some seconds, some places more often than others.
func (v *vol) work4k(ctx context.Context, how string, seconds int) error {
	_, err := v.run(ctx, fmt.Sprintf("fio --name=work --filename=%s %s --random_distribution=zipf:1.1 --bs=4k --direct=1 --ioengine=libaio --iodepth=4"+
		" --time_based --runtime=%d --minimal >/dev/null", v.path(), how, seconds))
	return err
}

// dashboard is what is read of the chart's dashboard.
type dashboard struct {
	Panels []dashboardPanel `json:"panels"`
}

type dashboardPanel struct {
	Title   string `json:"title"`
	Type    string `json:"type"`
	GridPos struct {
		X int `json:"x"`
		Y int `json:"y"`
		W int `json:"w"`
		H int `json:"h"`
	} `json:"gridPos"`
	FieldConfig struct {
		Defaults struct {
			Unit string `json:"unit"`
		} `json:"defaults"`
		Overrides []struct {
			Matcher struct {
				ID      string `json:"id"`
				Options string `json:"options"`
			} `json:"matcher"`
			Properties []struct {
				ID    string `json:"id"`
				Value any    `json:"value"`
			} `json:"properties"`
		} `json:"overrides"`
	} `json:"fieldConfig"`
	Targets []struct {
		Expr   string `json:"expr"`
		Legend string `json:"legendFormat"`
	} `json:"targets"`
	Transformations []struct {
		Options struct {
			Exclude map[string]bool   `json:"excludeByName"`
			Rename  map[string]string `json:"renameByName"`
		} `json:"options"`
	} `json:"transformations"`
}

func readDashboard() (dashboard, error) {
	var d dashboard
	text, err := os.ReadFile(filepath.Join(chart(), "files", "dashboard.json"))
	if err != nil {
		return d, err
	}
	return d, json.Unmarshal(text, &d)
}

// dashboardQuery has no variable of the dashboard left: everything is selected.
func dashboardQuery(expr string, interval, over time.Duration) string {
	return strings.NewReplacer(
		"$__rate_interval", fmt.Sprintf("%ds", int(interval.Seconds())), "$__range", fmt.Sprintf("%ds", int(over.Seconds())),
		"$namespace", ".*", "$pvc", ".*", "$node", ".*", "$top", "10").Replace(expr)
}

// answers are what hack/tools/plot draws.
type answers struct {
	Seconds float64  `json:"seconds"`
	Panels  []answer `json:"panels"`
}

type answer struct {
	Title string     `json:"title"`
	Type  string     `json:"type"`
	Unit  string     `json:"unit"`
	X     int        `json:"x"`
	Y     int        `json:"y"`
	W     int        `json:"w"`
	H     int        `json:"h"`
	Lines []curve    `json:"lines"`
	Cells [][]string `json:"cells"`
}

type curve struct {
	Name   string       `json:"name"`
	Unit   string       `json:"unit"`
	Points [][2]float64 `json:"points"`
}

// shown asks everything that the first rows of the dashboard ask.
func (p *prometheus) shown(ctx context.Context, from, to time.Time) (answers, error) {
	out := answers{Seconds: to.Sub(from).Seconds()}
	d, err := readDashboard()
	if err != nil {
		return out, err
	}
	for _, panel := range d.Panels {
		g := panel.GridPos
		if g.Y >= pictureRows {
			continue
		}
		a := answer{Title: panel.Title, Type: panel.Type, Unit: panel.FieldConfig.Defaults.Unit, X: g.X, Y: g.Y, W: g.W, H: g.H}
		for _, t := range panel.Targets {
			expr := dashboardQuery(t.Expr, 15*time.Second, to.Sub(from))
			if panel.Type == "table" {
				found, err := p.query(ctx, expr)
				if err != nil {
					return out, err
				}
				a.Cells = panel.cells(found)
				continue
			}
			lines, err := p.curves(ctx, expr, t.Legend, from, to)
			if err != nil {
				return out, err
			}
			for i := range lines {
				lines[i].Unit = panel.unit(lines[i].Name)
			}
			a.Lines = append(a.Lines, lines...)
		}
		out.Panels = append(out.Panels, a)
	}
	return out, nil
}

// unit is that of a curve of some name.
func (p dashboardPanel) unit(name string) string {
	unit := p.FieldConfig.Defaults.Unit
	for _, o := range p.FieldConfig.Overrides {
		if o.Matcher.ID != "byRegexp" || !regexp.MustCompile(strings.Trim(o.Matcher.Options, "/")).MatchString(name) {
			continue
		}
		for _, property := range o.Properties {
			if property.ID == "unit" {
				unit, _ = property.Value.(string)
			}
		}
	}
	return unit
}

// cells are a table's, its header first; nil of nothing.
func (p dashboardPanel) cells(found []series) [][]string {
	excluded, renamed := map[string]bool{}, map[string]string{}
	for _, t := range p.Transformations {
		maps.Copy(excluded, t.Options.Exclude)
		maps.Copy(renamed, t.Options.Rename)
	}
	names := map[string]bool{}
	for i := range found {
		found[i].labels["Value"] = strconv.FormatFloat(found[i].value, 'g', -1, 64)
		for name := range found[i].labels {
			names[name] = !excluded[name]
		}
	}
	maps.DeleteFunc(names, func(_ string, shown bool) bool { return !shown })
	columns := slices.Sorted(maps.Keys(names))
	if len(found) == 0 {
		return nil
	}
	cells := make([][]string, 1+len(found))
	for _, name := range columns {
		cells[0] = append(cells[0], cmp.Or(renamed[name], name))
		for i, f := range found {
			cells[1+i] = append(cells[1+i], f.labels[name])
		}
	}
	return cells
}

var legendLabel = regexp.MustCompile(`{{(\w+)}}`)

// curves are the answers to a query over a time.
func (p *prometheus) curves(ctx context.Context, expr, legend string, from, to time.Time) ([]curve, error) {
	var data struct {
		Result []struct {
			Metric map[string]string `json:"metric"`
			Values [][2]any          `json:"values"`
		} `json:"result"`
	}
	query := url.Values{"query": {expr}, "step": {"3"}, "start": {strconv.FormatInt(from.Unix(), 10)}, "end": {strconv.FormatInt(to.Unix(), 10)}}
	if err := p.get(ctx, "/api/v1/query_range?"+query.Encode(), &data); err != nil {
		return nil, err
	}
	var out []curve
	for _, r := range data.Result {
		c := curve{Name: legendLabel.ReplaceAllStringFunc(legend, func(l string) string { return r.Metric[strings.Trim(l, "{}")] })}
		for _, v := range r.Values {
			at, value, err := sample(v)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", expr, err)
			}
			if !math.IsNaN(value) && !math.IsInf(value, 0) { // JSON has no such, and Grafana draws none
				c.Points = append(c.Points, [2]float64{at - float64(from.Unix()), value})
			}
		}
		if len(c.Points) > 0 {
			out = append(out, c)
		}
	}
	return out, nil
}
