package pool

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/smart"
)

const (
	// healthEvery is how often a device is asked: its wear changes over days.
	healthEvery = 10 * time.Minute
	// healthTimeout bounds a device that does not answer.
	healthTimeout = 20 * time.Second
)

// health remembers what devices said of themselves.
type health struct {
	at   time.Time
	last map[string]smart.Health
}

// of returns the devices' health. It asks when that is due, or when a device has
// come; a device that cannot be asked has none.
func (h *health) of(ctx context.Context, ask func(context.Context, string) (smart.Health, error), devices []string) map[string]smart.Health {
	if ask == nil || len(devices) == 0 {
		return nil
	}
	known := true
	for _, d := range devices {
		_, seen := h.last[d]
		known = known && seen
	}
	if known && time.Since(h.at) < healthEvery {
		return h.last
	}
	now := map[string]smart.Health{}
	for _, d := range devices {
		now[d] = askOne(ctx, ask, d)
	}
	h.at, h.last = time.Now(), now
	return now
}

func askOne(ctx context.Context, ask func(context.Context, string) (smart.Health, error), device string) smart.Health {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	got, err := ask(ctx, device)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Device could not be asked for its health", "device", device)
	}
	return got
}

// DeviceHealth is a device's verdict in the words of the API; empty if it gave none.
func DeviceHealth(v smart.Verdict) v1alpha1.DeviceHealth {
	switch v {
	case smart.Passed:
		return v1alpha1.DevicePassed
	case smart.Failing:
		return v1alpha1.DeviceFailing
	}
	return ""
}
