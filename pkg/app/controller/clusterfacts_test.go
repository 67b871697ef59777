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

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/backend/reported"
	"github.com/nearflash/nearflash/pkg/kube"
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

// TestSight: what cannot be read any more is noticed, and that it can be again.
func TestSight(t *testing.T) {
	scheme, err := kube.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	var forbidden atomic.Bool
	var asked atomic.Int32
	api := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			asked.Add(1)
			if _, moves := list.(*v1alpha1.CacheMigrationList); moves && forbidden.Load() {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "cachemigrations"}, "", errors.New("no role"))
			}
			if o := (&client.ListOptions{}).ApplyOptions(opts); o.Limit != 1 {
				return fmt.Errorf("a look at %T has the limit %d", list, o.Limit)
			}
			return c.List(ctx, list, opts...)
		},
	}).Build()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := &sight{api: api}
		if err := s.problem(); err != nil {
			t.Errorf("before the first look: %v", err)
		}
		go func() { _ = s.Start(ctx) }() // always nil
		for _, away := range []bool{false, true, false} {
			forbidden.Store(away)
			time.Sleep(sightInterval + time.Second)
			synctest.Wait()
			if err := s.problem(); (err != nil) != away || away && !strings.Contains(err.Error(), "CacheMigrationList") {
				t.Errorf("forbidden %t: %v", away, err)
			}
		}
		cancel()
		synctest.Wait()
	})
	if n := asked.Load(); n != 4*5 {
		t.Errorf("%d requests for 4 looks at 5 kinds", n)
	}
}
