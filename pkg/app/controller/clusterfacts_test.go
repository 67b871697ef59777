package controller

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/backend/reported"
	"github.com/nearflash/nearflash/pkg/volume"
)

// reporter counts the questions, and answers none.
type reporter struct{ asked atomic.Int32 }

func (r *reporter) Report(context.Context) (backend.Report, error) {
	r.asked.Add(1)
	return backend.Report{}, fmt.Errorf("%w: no route", volume.ErrUnavailable)
}

// TestStorageWatch wants one question in each interval, however often its answer is read, and
// a log that says what helps.
func TestStorageWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log)))
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
		server := &reporter{}
		kept := make(chan reported.Answer, 10)
		w := &storageWatch{storage: server, address: "s:1", keep: func(_ context.Context, a reported.Answer) error {
			kept <- a
			return errors.New("no API server")
		}}
		if said := w.last(); said != nil {
			t.Errorf("before the first answer: %v", said)
		}
		go func() { _ = w.Start(ctx) }() // always nil
		for want := int32(1); want <= 3; want++ {
			synctest.Wait()
			for range 10 {
				if said := w.last(); len(said) != 1 || said[0].Up || said[0].Address != "s:1" {
					t.Errorf("served: %+v", said)
				}
			}
			synctest.Wait()
			if asked := server.asked.Load(); asked != want {
				t.Errorf("asked %d times, want %d", asked, want)
			}
			time.Sleep(storageInterval)
		}
		cancel()
		synctest.Wait()
		if a := <-kept; a.Address != "s:1" || !strings.Contains(a.Error, "no route") || a.Asked.IsZero() {
			t.Errorf("kept for people: %+v", a)
		}
		if !strings.Contains(log.String(), "remedy: check the address (--target-address") {
			t.Errorf("log lacks the remedy: %s", log.String())
		}
	})
}
