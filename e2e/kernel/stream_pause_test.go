//go:build kernel

package kernel

import (
	"fmt"
	"testing"

	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/devmapper"
)

// streamBlank is how much of a large device is written to and verified.
const streamBlank = 64 * mib

// TestKernelStreamLevelsPause measures for how long I/O stands still when a level begins to
// serve, and when the levels become one cache, by the number of chunks.
func TestKernelStreamLevelsPause(t *testing.T) {
	if testing.Short() {
		t.Skip("needs large disks: VERBOSE=true SHORT=false DISK=49152 MEMORY=4096 RUN='^TestKernelStreamLevelsPause$' hack/kernel-ring.sh")
	}
	for _, n := range []uint64{fewChunks, 250_000, devmapper.MaxCacheBlocks} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			s := newLevels(t, n, n/16, n/4*5*streamChunk)
			s.blankDevices()
			s.stack()
			s.load = startStream(t, s.tgt[1].DevPath(), streamBlank/loadBlock, true)
			s.load.await(1500)
			for i := range s.maps {
				s.goLive(i, false)
			}
			s.merge([]int{0, 1})
			s.load.end()
			mustPass(t, "whole device", s.load.verifyAll(s.origin.DevPath()))
		})
	}
}

// blankDevices makes the part that is written to zero, and the chunks that are cached of it. What
// the old node had cached is zero too, so that nothing is left to copy.
func (s *levels) blankDevices() {
	s.t.Helper()
	mustPass(s.t, "zero", blockdev.ZeroHead(s.t.Context(), s.origin.DevPath(), streamBlank))
	f, zero := openDirect(s.t, s.data.DevPath()), aligned(streamChunk)
	defer func() { _ = f.Close() }()
	for _, e := range s.whole.Entries {
		if int64(e.Origin)*streamChunk >= streamBlank {
			continue
		}
		_, err := f.WriteAt(zero, int64(e.Cache)*streamChunk)
		mustPass(s.t, "write", err)
	}
	mustPass(s.t, "fsync", f.Sync())
}
