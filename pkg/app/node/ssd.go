package node

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nearflash/nearflash/pkg/figures"
	"github.com/nearflash/nearflash/pkg/scratch"
)

// SSD is the command "nearflash-node ssd": it measures the node's SSDs alone, on a logical volume that the
// plugin in the same container lends.
type SSD struct {
	// Out is where the answer goes.
	Out io.Writer

	socket, depths string
	bytes          int64
	task           scratch.Task
}

// AddFlags defines the flags of nearflash-node ssd.
func (c *SSD) AddFlags(fs *flag.FlagSet) {
	fs.StringVar(&c.socket, "figures-socket", figures.DefaultSocket, "`path` of the plugin's socket")
	fs.Int64Var(&c.bytes, "bytes", scratch.MaxBytes, "the most that is written and measured on, in `bytes`")
	fs.IntVar(&c.task.BlockBytes, "block-bytes", 4096, "size of a request, in `bytes`")
	fs.IntVar(&c.task.ReadPercent, "read-percent", 100, "how many of a hundred requests are reads")
	fs.BoolVar(&c.task.Random, "random", true, "requests go anywhere; false: one after the other")
	fs.IntVar(&c.task.SyncEvery, "sync-every", 0, "a flush after so many writes; 0 for none")
	fs.StringVar(&c.depths, "depths", "1", "how many requests are under way at once; `numbers` with commas between them, each a run")
	fs.DurationVar(&c.task.Time, "time", 5*time.Second, "how long each run takes")
}

// Run borrows a logical volume, measures and prints the answer.
func (c *SSD) Run(ctx context.Context) error {
	for _, text := range strings.Split(c.depths, ",") {
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("--depths %q: accepted are numbers with commas between them", c.depths)
		}
		c.task.Depths = append(c.task.Depths, n)
	}
	if err := c.task.Check(); err != nil {
		return err
	}
	d, back, err := scratch.Borrow(ctx, c.socket, c.bytes)
	if err != nil {
		return err
	}
	defer back()
	f, err := scratch.Open(d, os.DirFS("/sys"))
	if err != nil {
		return err
	}
	runs, err := scratch.Measure(ctx, f, d.Bytes, c.task, processorLine)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	text, err := scratch.Encode(scratch.Answer{Bytes: d.Bytes, Place: d.Place, Runs: runs})
	if err != nil {
		return err
	}
	_, err = c.Out.Write(text)
	return err
}

// processorLine is the first line of /proc/stat, "" if it cannot be read: how busy the node was is not known then.
func processorLine() string {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return line
}
