package controller

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/passes"
)

const (
	// sightInterval is the pause between two looks, and sightTimeout bounds one request of them.
	sightInterval = time.Minute
	sightTimeout  = 10 * time.Second
)

// sight looks now and then whether the records can still be read. Informers do not tell: one whose
// role was taken away, or whose definition, goes on showing what it had, and asks again and again.
type sight struct {
	api  client.Reader
	last atomic.Pointer[error]
}

// Start implements manager.Runnable; it is called while this process leads.
func (s *sight) Start(ctx context.Context) error {
	passes.Repeat(ctx, sightInterval, s.look, func(err error) {
		klog.FromContext(ctx).Error(err, "The records of volumes and nodes cannot be read")
	})
	return nil
}

// look asks for one object of each kind.
func (s *sight) look(ctx context.Context) error {
	var errs []error
	for _, list := range new(recordLists).all() {
		asking, cancel := context.WithTimeout(ctx, sightTimeout)
		if err := s.api.List(asking, list, client.Limit(1)); err != nil {
			errs = append(errs, fmt.Errorf("list %T: %w", list, err))
		}
		cancel()
	}
	err := errors.Join(errs...)
	if ctx.Err() == nil {
		s.last.Store(&err)
	}
	return err
}

// problem is what the last look found.
func (s *sight) problem() error {
	if err := s.last.Load(); err != nil {
		return *err
	}
	return nil
}
