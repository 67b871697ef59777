package driver

import (
	"cmp"
	"time"

	"github.com/nearflash/nearflash/pkg/quantity"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Bounds of the warm start.
const (
	// minBandwidth and maxBandwidth are in bytes per second. Below the least one a
	// cache of some size would take days.
	minBandwidth = 1 << 20
	maxBandwidth = 1 << 40
	minDeadline  = time.Minute
	maxDeadline  = 24 * time.Hour
)

// warmText is the warm start as its author wrote it.
type warmText struct{ from, method, bandwidth, deadline, preload string }

func warmTextOf(params map[string]string) warmText {
	return warmText{params[keyWarmStart], params[keyWarmStartMethod], params[keyWarmStartBandwidth], params[keyWarmStartDeadline], params[keyPreload]}
}

// parse reads the parameters one by one. What is not given is the zero value.
func (t warmText) parse(p *problems) volume.WarmStart {
	method, _ := volume.MethodOf(p.oneOf(keyWarmStartMethod, t.method, "", volume.WordAuto, volume.WordClone, volume.WordStream))
	return volume.WarmStart{
		From: volume.WarmFrom(p.oneOf(keyWarmStart, t.from, "",
			string(volume.WarmPeer), string(volume.WarmOrigin), string(volume.WarmOff))),
		Method:    method,
		Bandwidth: parseBandwidth(p, t.bandwidth),
		Deadline:  parseDeadline(p, t.deadline),
		Preload:   p.oneOf(keyPreload, t.preload, preloadNone, preloadNone, preloadAll) == preloadAll,
	}
}

// over returns what a volume has when what was given has replaced what it had. Auto is given, and is
// no method; so is none, and is no preload.
func (t warmText) over(had, given volume.WarmStart) volume.WarmStart {
	if t.method == "" {
		given.Method = had.Method
	}
	if t.preload == "" {
		given.Preload = had.Preload
	}
	return volume.WarmStart{
		From:      cmp.Or(given.From, had.From),
		Method:    given.Method,
		Bandwidth: cmp.Or(given.Bandwidth, had.Bandwidth),
		Deadline:  cmp.Or(given.Deadline, had.Deadline),
		Preload:   given.Preload,
	}
}

// check refuses what is given and has no use in this mode, or with the warm start that
// the volume has then.
func (t warmText) check(p *problems, mode volume.CacheMode, w volume.WarmStart) {
	from := w.From
	if mode == volume.ModeNone {
		for _, given := range [][2]string{
			{keyWarmStart, t.from}, {keyWarmStartMethod, t.method}, {keyWarmStartBandwidth, t.bandwidth}, {keyWarmStartDeadline, t.deadline}, {keyPreload, t.preload},
		} {
			if key, value := given[0], given[1]; value != "" {
				p.add(key, "%q contradicts cacheMode none, which has no cache; leave %s out", value, key)
			}
		}
		return
	}
	switch off := w.Preload && from == volume.WarmOff; {
	case off && t.preload != "":
		p.add(keyPreload, "%q contradicts warmStart off, which fills no cache; accepted with it is %s; or give a warmStart of %s or %s",
			t.preload, preloadNone, volume.WarmPeer, volume.WarmOrigin)
	case off && t.from != "":
		p.add(keyWarmStart, "%q contradicts preload %s, which the volume has; give preload %s too", t.from, preloadAll, preloadNone)
	}
	asksNobody := from == volume.WarmOff || from == volume.WarmOrigin
	if t.method != "" && asksNobody {
		p.add(keyWarmStartMethod, "%q contradicts warmStart %s, which reads no other node's cache; leave warmStartMethod out, or give a warmStart of %s",
			t.method, from, volume.WarmPeer)
	}
	if t.bandwidth != "" && from == volume.WarmOff {
		p.add(keyWarmStartBandwidth, "%q contradicts warmStart off, which copies nothing; leave warmStartBandwidth out, or give a warmStart of %s or %s",
			t.bandwidth, volume.WarmPeer, volume.WarmOrigin)
	}
	if t.deadline != "" && asksNobody {
		p.add(keyWarmStartDeadline, "%q contradicts warmStart %s, which asks no other node; leave warmStartDeadline out, or give a warmStart of %s",
			t.deadline, from, volume.WarmPeer)
	}
}

// parseWarmStart reads the warm start of a new volume of this mode.
func parseWarmStart(p *problems, mode volume.CacheMode, params map[string]string) volume.WarmStart {
	t := warmTextOf(params)
	w := t.parse(p)
	if w.From == "" {
		w.From = volume.WarmPeer
	}
	t.check(p, mode, w)
	return w
}

func parseBandwidth(p *problems, value string) int64 {
	if value == "" {
		return 0
	}
	n, err := quantity.Bytes(value)
	if err != nil || n < minBandwidth || n > maxBandwidth {
		p.add(keyWarmStartBandwidth, "%q is not accepted; accepted are bytes per second from 1Mi to 1Ti, such as 100Mi", value)
		return 0
	}
	return n
}

func parseDeadline(p *problems, value string) time.Duration {
	if value == "" {
		return 0
	}
	d, err := time.ParseDuration(value)
	if err != nil || d < minDeadline || d > maxDeadline || d%time.Second != 0 {
		p.add(keyWarmStartDeadline, "%q is not accepted; accepted are 1m to 24h in whole seconds, such as 30m or 1h30m", value)
		return 0
	}
	return d
}
