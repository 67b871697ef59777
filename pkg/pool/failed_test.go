package pool

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/nearflash/nearflash/pkg/hostexec"
)

// TestFailed: SSDs that do not answer are not gone, and nobody may take their caches for
// gone; of a pool that fails nothing is known.
func TestFailed(t *testing.T) {
	for err, kept := range map[error]bool{
		context.DeadlineExceeded: true, hostexec.ErrStuck: true, hostexec.ErrRuns: true, errors.New("no such device"): false,
	} {
		m := NewManager(Config{}, nil, nil, nil)
		m.view.Store(&View{Ready: true, VG: "vg", FreeBytes: 5})
		v := m.failed(fmt.Errorf("vgs: %w", err)).view
		if v.Ready || v.Problem == "" {
			t.Errorf("%v: %+v is ready", err, v)
		}
		if (v.VG == "vg" && v.FreeBytes == 5) != kept {
			t.Errorf("%v: known of the pool is %+v", err, v)
		}
	}
}
