package preload

import (
	"fmt"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// facts are what decide rests on.
type facts struct {
	Record volume.Volume
	// Entry is nil if there is none, or somebody works on the volume.
	Entry *state.Entry
	// Running is the request that is read for, "" if nothing is.
	Running string
	// Live is the status of the top device's cache, Cached whether it is one.
	Live   devmapper.CacheStatus
	Cached bool
	// Broken says how the cache fails, or is empty.
	Broken string
	// Mounted is whether the filesystem is.
	Mounted bool
	// Other is the volume that is read already, "" if none is.
	Other volume.ID
}

// step is one step of the table "Preload on demand" in states.md.
type step string

const (
	stepNothing step = "Nothing"
	stepStop    step = "Stop"
	stepCancel  step = "Cancel"
	stepRunning step = "Running"
	stepFail    step = "Fail"
	stepWait    step = "Wait"
	stepBegin   step = "Begin"
)

// attached reports whether the entry is that of the record's ownership, and in use.
func (f facts) attached() bool {
	e := f.Entry
	return e != nil && e.State == state.Staged && e.Fence == f.Record.Fence && f.Record.Published && e.Lost == nil
}

// decide is that table, in its order, up to where the devices are asked.
func decide(f facts) (s step, why string) {
	asked, said := f.Record.Preload, f.Record.Preloaded
	switch {
	case f.Running != "" && (asked == nil || asked.Request != f.Running || !f.attached() || !f.Entry.Cached()):
		return stepStop, ""
	case asked == nil && said.State != "" && !said.Over():
		return stepCancel, "the request was taken back"
	case asked == nil, said.Request == asked.Request && said.Over(), !f.attached():
		return stepNothing, ""
	case f.Running != "":
		return stepRunning, ""
	case f.Entry.Raw && asked.Path != "":
		return stepFail, fmt.Sprintf("path %s: the volume is a raw block volume, which has no paths: leave it out, and everything is read", asked.Path)
	case f.Record.Spec.Mode == volume.ModeNone:
		return stepFail, "the volume has no cache: cacheMode is none"
	}
	return decideReady(f)
}

// decideReady decides about a volume whose request could be carried out.
func decideReady(f facts) (s step, why string) {
	switch e := f.Entry; {
	case !e.Cached() || !f.Cached:
		return stepWait, "the volume has no cache now"
	case f.Broken != "" || f.Live.Fail:
		return stepWait, "the cache fails"
	case e.Hydration != nil:
		return stepWait, "the cache is being filled already"
	case f.Live.Policy != devmapper.PolicySMQ:
		return stepWait, "the cache is being flushed"
	case !e.Raw && !f.Mounted:
		return stepWait, "the filesystem is not mounted yet"
	case f.Other != "":
		return stepWait, fmt.Sprintf("the node preloads volume %s first", f.Other)
	}
	return stepBegin, ""
}
