package bench

import (
	"strings"
	"testing"
)

// load is one with a mean latency in microseconds.
func load(mean, bytesPerSecond float64) Load {
	return Load{Latency: Latency{MeanMicros: mean}, BytesPerSecond: bytesPerSecond, Seconds: 10, JobCPUPercent: 20}
}

// took is a device that did n requests of a mean latency in microseconds.
func took(n uint64, mean float64, bytes uint64) *Device {
	return &Device{Operations: n, MeanMicros: mean, Bytes: bytes, nanos: uint64(float64(n) * mean * 1000)}
}

const mib = 1 << 20

func TestJudge(t *testing.T) {
	flat, uneven := &Link{SequentialBytesPerSecond: 110 * mib, RandomBytesPerSecond: 108 * mib}, &Link{SequentialBytesPerSecond: 500 * mib, RandomBytesPerSecond: 200 * mib}
	busy := func(l Load, percent float64) Load { l.NodeCPUPercent = &percent; return l }
	hits := func(mean float64) *Counted { return &Counted{SSD: took(10000, mean, 0), Origin: took(10, 2000, 40960)} }
	misses := func(mean float64, bytes uint64) *Counted {
		return &Counted{SSD: took(1000, 100, 0), Origin: took(9000, mean, bytes)}
	}
	for name, c := range map[string]struct {
		evidence Evidence
		want     Limit
		why      string
	}{
		"the node's processors": {
			evidence: Evidence{Depth: 16, Deep: busy(load(500, 0), 97), Cached: true, DeepCounted: hits(500), AloneCounted: hits(100)},
			want:     LimitCPU, why: "the node's processors were 97% busy",
		},
		"a job's processor": {
			evidence: Evidence{Depth: 16, Deep: Load{JobCPUPercent: 99}, Cached: true}, want: LimitCPU, why: "a job of fio took 99% of a processor",
		},
		"SSD": {
			evidence: Evidence{Depth: 16, Deep: busy(load(500, 0), 50), Cached: true, AloneCounted: hits(100), DeepCounted: hits(400), Link: flat},
			want:     LimitSSD, why: "a request to the SSD takes 400us with 16 under way and 100us alone: they wait for each other",
		},
		"queue depth, on the SSD": {
			evidence: Evidence{Depth: 4, Deep: load(110, 0), Cached: true, AloneCounted: hits(100), DeepCounted: hits(110)},
			want:     LimitDepth, why: "more at once would do more",
		},
		"between the two": {
			evidence: Evidence{Depth: 4, Deep: load(140, 0), Cached: true, AloneCounted: hits(100), DeepCounted: hits(140)},
			want:     LimitUnknown, why: "neither as long nor clearly longer",
		},
		"link, of misses": {
			evidence: Evidence{Depth: 16, Deep: load(5000, 0), Cached: true, AloneCounted: misses(2000, 1), DeepCounted: misses(9000, 1050*mib), Link: flat},
			want:     LimitLink, why: "105Mi/s went to and from the origin; sequential and random reads of 1 MiB reach 110Mi/s and 108Mi/s",
		},
		"storage server, as the link has room": {
			evidence: Evidence{Depth: 16, Deep: load(5000, 0), Cached: true, AloneCounted: misses(2000, 1), DeepCounted: misses(9000, 300*mib), Link: flat},
			want:     LimitServer, why: "a request to the origin takes 9.0ms with 16 under way and 2.0ms alone",
		},
		"storage server, of which patterns differ": {
			evidence: Evidence{Depth: 16, Deep: load(5000, 0), Cached: true, AloneCounted: misses(2000, 1), DeepCounted: misses(9000, 4900*mib), Link: uneven},
			want:     LimitServer, why: "they wait for each other",
		},
		"link or server": {
			evidence: Evidence{Depth: 16, Deep: load(5000, 0), Cached: true, AloneCounted: misses(2000, 1), DeepCounted: misses(9000, 1)},
			want:     LimitUnknown, why: "whether the link or the storage server makes them wait was not measured",
		},
		"queue depth, on the origin": {
			evidence: Evidence{Depth: 4, Deep: load(2100, 0), Cached: true, AloneCounted: misses(2000, 1), DeepCounted: misses(2100, 1)},
			want:     LimitDepth, why: "a request to the origin takes 2.1ms",
		},
		"neither part": {
			evidence: Evidence{Depth: 4, Deep: load(2100, 0), Cached: true, DeepCounted: &Counted{SSD: took(100, 100, 0), Origin: took(10, 1000, 0)}},
			want:     LimitUnknown, why: "the SSD took 50% of the time of all requests",
		},
		"no cache, link": {
			evidence: Evidence{Depth: 8, Alone: load(9000, 0), Deep: load(70000, 109*mib), DeepCounted: &Counted{Volume: took(1090, 70000, 1090*mib)}, Link: flat},
			want:     LimitLink, why: "109Mi/s",
		},
		"no cache, link, and the node does not say": {
			evidence: Evidence{Depth: 8, Alone: load(9000, 0), Deep: load(70000, 109*mib), Link: flat}, want: LimitLink, why: "109Mi/s",
		},
		"no cache, storage server": {
			evidence: Evidence{Depth: 16, Alone: load(2000, 0), Deep: load(6000, 10*mib), Link: flat}, want: LimitServer, why: "6.0ms with 16 under way and 2.0ms alone",
		},
		"no cache, queue depth": {
			evidence: Evidence{Depth: 16, Alone: load(2000, 0), Deep: load(2100, 10*mib), Link: flat}, want: LimitDepth, why: "more at once would do more",
		},
		"the node does not say": {
			evidence: Evidence{Depth: 16, Alone: load(100, 0), Deep: load(900, 0), Cached: true}, want: LimitUnknown, why: "the node did not say",
		},
		"a job file has no one at a time": {
			evidence: Evidence{Cached: true, Deep: load(900, 0), DeepCounted: hits(800)}, want: LimitUnknown, why: "not known how long it takes for one request alone",
		},
		"no cache and a job file": {
			evidence: Evidence{Deep: load(900, 0), Link: flat}, want: LimitUnknown, why: "no measurement of the origin with one request at a time",
		},
		"one at a time": {
			evidence: Evidence{Depth: 1, Cached: true, Deep: load(120, 0), DeepCounted: hits(100)}, want: LimitDepth, why: "requests come one at a time, each after the one before; the SSD takes 100us",
		},
		"one at a time, no cache": {
			evidence: Evidence{Depth: 1, Deep: load(2000, 0)}, want: LimitDepth, why: "the origin takes 2.0ms",
		},
		"nothing at all": {evidence: Evidence{}, want: LimitUnknown, why: "no measurement"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Judge(c.evidence); got.Limit != c.want || !strings.Contains(got.Why, c.why) {
				t.Errorf("got %+v, want %s: %s", got, c.want, c.why)
			}
		})
	}
}
