package observe

import (
	"math"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/reuse"
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
	out.Reuse = reuseOf(s.Reuse)
	out.Performance.Volume = micros(s.Latency[DeviceVolume])
	out.Performance.Hit = micros(s.Latency[DeviceSSD])
	out.Performance.Miss = micros(s.Latency[DeviceOrigin])
	return out
}

// reuseOf is what is known of the volume's reuse.
func reuseOf(s *reuse.Summary) v1alpha1.Reuse {
	if s == nil {
		return v1alpha1.Reuse{}
	}
	part := func(f float64) *int32 { return ptr.To(int32(math.Round(100 * f))) }
	out := v1alpha1.Reuse{
		SinceTime: metav1.NewTime(s.Since), ObservedTime: metav1.NewTime(s.At), ChunkBytes: ptr.To(s.ChunkBytes), AreaBytes: ptr.To(s.AreaBytes),
	}
	for _, w := range s.Windows {
		one := v1alpha1.ReuseWindow{
			Window: v1alpha1.ReuseWindowName(w.Window.String()), Operations: rounded(w.Reads + w.Writes), WritePercent: part(w.WritePart()),
		}
		if w.Writes > 0 {
			one.WriteBytes = rounded(w.WriteBytes)
		}
		if w.FlushesKnown {
			one.FlushesPerHour = rounded(w.FlushesPerHour)
		}
		if w.AtMostKnown {
			for _, at := range w.AtMost {
				one.ReadSizePercents = append(one.ReadSizePercents, *part(at))
			}
		}
		if w.Reads > 0 {
			one.ReadBytes, one.AgainPercent = rounded(w.ReadBytes), part(w.Again)
			for _, h := range w.Hits {
				one.HitPercents = append(one.HitPercents, *part(h))
			}
		}
		if w.KneeBytes > 0 {
			one.KneeBytes, one.KneeHitPercent = ptr.To(w.KneeBytes), part(w.KneeHits)
		}
		out.Windows = append(out.Windows, one)
	}
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
