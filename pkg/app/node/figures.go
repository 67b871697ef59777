package node

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/figures"
	"github.com/nearflash/nearflash/pkg/observe"
	"github.com/nearflash/nearflash/pkg/rpc"
	"github.com/nearflash/nearflash/pkg/scratch"
)

const (
	// figuresDirMode and figuresMode let root alone ask for figures.
	figuresDirMode, figuresMode = 0o700, 0o600
	// figuresTimeout is what "nearflash-node figures" waits. A pass takes less than a second, and
	// five if an SSD does not answer.
	figuresTimeout = 5 * time.Second

	// sector is the kernel's, in bytes.
	sector = 512
)

// Figures is the command "nearflash-node figures": it prints what the plugin in the same container
// measures now.
type Figures struct {
	// Out is where the answer goes.
	Out io.Writer

	socket  string
	timeout time.Duration
}

// AddFlags defines the flags of nearflash-node figures.
func (c *Figures) AddFlags(fs *flag.FlagSet) {
	fs.StringVar(&c.socket, "figures-socket", figures.DefaultSocket, "`path` of the plugin's socket")
	fs.DurationVar(&c.timeout, "timeout", figuresTimeout, "how long to wait for the plugin")
}

// Run asks the plugin and prints its answer.
func (c *Figures) Run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	text, err := figures.Ask(ctx, c.socket)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the plugin has not answered within %s: %w", c.timeout, err)
	}
	if err != nil {
		return err
	}
	_, err = c.Out.Write(text)
	return err
}

// serveFigures serves what the volumes do now. A plugin without that socket goes on: what nodes
// report is there all the same.
func (p *plugin) serveFigures(ctx context.Context) error {
	if p.cfg.FiguresSocket == "" {
		return nil
	}
	listener, err := listenForFigures(ctx, p.cfg.FiguresSocket)
	if err == nil {
		err = figures.Serve(ctx, listener, func(ctx context.Context) (figures.Answer, error) { return currentFigures(ctx, p.sampler) },
			map[string]http.Handler{"POST " + scratch.Path: scratch.Handler(p.attacher)})
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Figures are not served", "socket", p.cfg.FiguresSocket)
	}
	return nil
}

// listenForFigures makes the socket, in the place of one that a killed plugin left.
func listenForFigures(ctx context.Context, path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), figuresDirMode); err != nil {
		return nil, err
	}
	l, err := rpc.Listen(ctx, path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, figuresMode); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// meter measures now; observe.Sampler is one.
type meter interface {
	Current(ctx context.Context) observe.Snapshot
}

// currentFigures are those of the volumes that are attached.
func currentFigures(ctx context.Context, m meter) (figures.Answer, error) {
	snap := m.Current(ctx)
	if snap.Time.IsZero() {
		return figures.Answer{}, errors.Join(errors.New("nothing was measured"), snap.Err)
	}
	a := figures.Answer{Time: snap.Time, Volumes: []figures.Volume{}}
	for _, b := range devmapper.StatsBounds() {
		a.BoundsMicros = append(a.BoundsMicros, b.Microseconds())
	}
	if snap.Err != nil {
		a.Problem = snap.Err.Error()
	}
	for _, s := range snap.Volumes {
		if s.Attached {
			a.Volumes = append(a.Volumes, figures.Volume{ID: s.ID, Cache: observe.Status(s, snap.Time), Totals: totals(s)})
		}
	}
	return a, nil
}

// totals are what was counted of a volume since the node knows it.
func totals(s observe.Sample) *figures.Totals {
	t := &figures.Totals{
		ReadHits: s.Counts.ReadHits, ReadMisses: s.Counts.ReadMisses, WriteHits: s.Counts.WriteHits, WriteMisses: s.Counts.WriteMisses,
		Promotions: s.Counts.Promotions, Demotions: s.Counts.Demotions,
	}
	for name, io := range s.IO {
		if t.Devices == nil {
			t.Devices = map[string]figures.Device{}
		}
		t.Devices[string(name)] = figures.Device{
			Reads: io.Read.Operations, ReadBytes: io.Read.Sectors * sector, Writes: io.Write.Operations, WriteBytes: io.Write.Sectors * sector,
			Nanos: io.Read.Nanoseconds + io.Write.Nanoseconds, Histogram: io.Histogram[:],
		}
	}
	return t
}
