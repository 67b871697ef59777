package observe

import (
	"math"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Status is a sample in the words of the API.
func Status(s Sample, at time.Time) v1alpha1.CacheStatus {
	out := v1alpha1.CacheStatus{Mode: v1alpha1.CacheMode(volume.ModeNone), ObservedTime: metav1.NewTime(at)}
	if s.Cached {
		out.Mode = v1alpha1.CacheMode(s.Mode)
		out.HitRate = v1alpha1.HitRate{
			ReadPercent: percent(s.Hits.Read), WritePercent: percent(s.Hits.Write),
			ReadTotalPercent: percent(s.Hits.ReadTotal), WriteTotalPercent: percent(s.Hits.WriteTotal),
		}
	}
	if c := s.Cache; c != nil {
		out.Health = v1alpha1.CacheHealth(c.Health)
		if c.Health != Failed {
			out.Mode = v1alpha1.CacheMode(c.Mode)
			out.SizeBytes, out.UsedBytes, out.DirtyBytes = bytes(c.SizeBytes), bytes(c.UsedBytes), bytes(c.DirtyBytes)
		}
		if !c.DirtySince.IsZero() {
			out.DirtySinceTime = metav1.NewTime(c.DirtySince)
		}
	}
	if s.RatesKnown {
		out.Performance.ReadIOPS, out.Performance.WriteIOPS = rounded(s.ReadIOPS), rounded(s.WriteIOPS)
	}
	out.Performance.Volume = micros(s.Latency[DeviceVolume])
	out.Performance.Hit = micros(s.Latency[DeviceSSD])
	out.Performance.Miss = micros(s.Latency[DeviceOrigin])
	return out
}

func percent(r Ratio) *int32 {
	if !r.Known {
		return nil
	}
	return ptr.To(int32(math.Round(100 * r.Value)))
}

func bytes(n uint64) *int64 { return ptr.To(int64(min(n, math.MaxInt64))) }

func rounded(f float64) *int64 { return ptr.To(int64(math.Round(f))) }

func micros(l Latency) v1alpha1.Latency {
	if !l.Known {
		return v1alpha1.Latency{}
	}
	return v1alpha1.Latency{P50Micros: ptr.To(l.P50.Microseconds()), P99Micros: ptr.To(l.P99.Microseconds())}
}
