//go:build kernel

package kernel

import (
	"time"

	"github.com/nearflash/nearflash/e2e/checker"
)

// The kinds of disaster of the campaign that come from the storage server and the network
// to it.

func (c *campaign) cutNetwork() {
	end := c.begin(c.load(c.r))
	time.Sleep(50 * time.Millisecond)
	c.m.must("ip", "link", "set", "lo", "down")
	time.Sleep([]time.Duration{time.Second, 8 * time.Second}[c.r.IntN(2)])
	c.m.must("ip", "link", "set", "lo", "up")
	time.Sleep(100 * time.Millisecond)
	end()
	c.must(checker.LossNothing)
}

// failServer: the storage server's disk of the volume fails. What of the writes that failed
// was seen before the volume is attached anew need not be there then.
func (c *campaign) failServer() {
	end := c.begin(c.load(c.r))
	restore := c.breakLUN()
	time.Sleep(200 * time.Millisecond)
	restore()
	end()
	c.must(checker.LossNothing)
	c.leave()
	c.again(checker.LossNothing)
	sameDevices(c.t, c.device(), c.originDevice())
}

func (c *campaign) restartStorage() {
	end := c.begin(c.load(c.r))
	c.m.stop()
	time.Sleep(100 * time.Millisecond)
	c.m.start(c.m.state)
	end()
	c.must(checker.LossNothing)
}
