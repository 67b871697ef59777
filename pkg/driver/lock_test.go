package driver

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearflash/nearflash/pkg/keylock"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestLockWaitsForBackground: kubelet would come again half a second later, and a pod is
// waiting.
func TestLockWaitsForBackground(t *testing.T) {
	for name, tc := range map[string]struct {
		busy time.Duration
		want error
	}{
		"short": {busy: lockPatience / 2},
		"long":  {busy: 2 * lockPatience, want: volume.ErrBusy},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				locks := &keylock.Set{}
				release, _ := locks.TryLock("v")
				time.AfterFunc(tc.busy, release)
				began := time.Now()
				unlock, err := lock(t.Context(), locks, "v")
				if !errors.Is(err, tc.want) {
					t.Fatalf("error %v, want %v", err, tc.want)
				}
				if took := time.Since(began); took != min(tc.busy, lockPatience) {
					t.Errorf("waited %s", took)
				}
				if err == nil {
					unlock()
				}
				time.Sleep(tc.busy)
			})
		})
	}
}
