package state

import (
	"cmp"
	"time"

	"github.com/nearflash/nearflash/pkg/volume"
)

// earlierEntry is what of an entry versions before had other keys for. A key is never
// used again for something else.
type earlierEntry struct {
	UnitID     string         `json:"unitID"`
	Fill       *Hydration     `json:"fill"`
	Lent       *volume.MoveID `json:"lent"`
	Bypass     string         `json:"bypass"`
	ResidentAt time.Time      `json:"residentAt"`
	Prewarm    *struct {
		LentBytes int64 `json:"lentBytes"`
	} `json:"prewarm"`
}

// translate adds it to an entry. No program writes both keys.
func (was earlierEntry) translate(e *Entry) {
	e.WWID = cmp.Or(e.WWID, was.UnitID)
	e.Hydration = cmp.Or(e.Hydration, was.Fill)
	e.Exported = cmp.Or(e.Exported, was.Lent)
	e.FailoverCause = cmp.Or(e.FailoverCause, was.Bypass)
	if was.Prewarm != nil {
		e.Prewarm.ExportedBytes = cmp.Or(e.Prewarm.ExportedBytes, was.Prewarm.LentBytes)
	}
	if e.State == "Resident" {
		// No record lists a retained cache under that word any more.
		e.State, e.RetainedAt, e.RetainedCacheDue = Retained, was.ResidentAt, true
	}
}
