//go:build kernel

package kernel

import (
	"bufio"
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/binary"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// postgresTrace is what PostgreSQL 15 asked of its files, in order: four clients of pgbench with 10,000
// transactions each on 20 times 100,000 accounts. A third of them update accounts by Zipf's law (1.05)
// in no order, two thirds look up one by Zipf's law (1.2) and 31 beside each other by chance.
// shared_buffers were 8 MiB and the kernel's cache is left out, so that it has what a volume sees whose
// data are far larger than memory. It was recorded by strace -f -e pread64,pwrite64 of the clients'
// processes: what the checkpointer wrote is not in it, nor is the write-ahead log. Files lie one after
// the other, the largest first, from borders of 128 KiB: 314 MiB.
//
// The form is gzip of one unsigned varint for each operation on a block of 8 KiB: twice the
// difference to the block before, in zigzag, and one more for a write.
//
//go:embed testdata/postgres.trace.gz
var postgresTrace []byte

const (
	traceBlock = 8 << 10
	// tracers replay the trace side by side, as the clients of a database do.
	tracers = 4
)

// traced is an operation of the trace.
type traced struct {
	offset int64
	write  bool
}

func readTrace(t *testing.T) []traced {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(postgresTrace))
	mustPass(t, "trace", err)
	r := bufio.NewReader(z)
	var out []traced
	block := int64(0)
	for {
		n, err := binary.ReadUvarint(r)
		if errors.Is(err, io.EOF) {
			return out
		}
		mustPass(t, "trace", err)
		delta := n >> 1
		block += int64(delta>>1) ^ -int64(delta&1)
		if block < 0 || (block+1)*traceBlock > advisedMiB*mib {
			t.Fatalf("the trace has block %d", block)
		}
		out = append(out, traced{block * traceBlock, n&1 > 0})
	}
}

// replay is the load of the trace, again and again.
func replay(operations []traced) readLoad {
	return func(t *testing.T, seconds int) <-chan error {
		f := openDirect(t, "/dev/mapper/nf-adv")
		end := time.Now().Add(time.Duration(seconds) * time.Second)
		var next atomic.Int64
		var group sync.WaitGroup
		failed := make(chan error, tracers)
		for range tracers {
			group.Go(func() {
				buf := aligned(traceBlock)
				for time.Now().Before(end) {
					var err error
					if o := operations[int(next.Add(1)-1)%len(operations)]; o.write {
						_, err = f.WriteAt(buf, o.offset)
					} else {
						_, err = f.ReadAt(buf, o.offset)
					}
					if err != nil {
						failed <- err
						return
					}
				}
			})
		}
		ended := make(chan error, 1)
		go func() {
			group.Wait()
			close(failed)
			ended <- errors.Join(<-failed, f.Close())
		}()
		return ended
	}
}

// TestKernelAdvisePostgreSQL: the same of a database.
func TestKernelAdvisePostgreSQL(t *testing.T) {
	operations := readTrace(t)
	writes := 0
	for _, o := range operations {
		if o.write {
			writes++
		}
	}
	t.Logf("%d operations, %d of them writes", len(operations), writes)
	a := newAdviser(t)
	read := replay(operations)
	a.compare("PostgreSQL", a.predict(read, 50), read, 60, 30, 5, 25)
}
