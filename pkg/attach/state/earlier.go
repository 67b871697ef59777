package state

import (
	"cmp"
	"encoding/json"
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
}

// translate adds it to an entry. No program writes both keys.
func (was earlierEntry) translate(e *Entry) {
	e.WWID = cmp.Or(e.WWID, was.UnitID)
	e.Hydration = cmp.Or(e.Hydration, was.Fill)
	e.Exported = cmp.Or(e.Exported, was.Lent)
	e.FailoverCause = cmp.Or(e.FailoverCause, was.Bypass)
	if e.State == "Resident" {
		// No record lists a retained cache under that word any more.
		e.State, e.RetainedAt, e.RetainedCacheDue = Retained, was.ResidentAt, true
	}
}

// mayBeRecovered tells an entry of a version that did not say so: of a cache that may be live, also
// below a journal that denies it. A stream's maps are new.
func mayBeRecovered(e *Entry) bool {
	return (e.State == Staging || e.State == Staged || e.State == Flushing) && e.DataBytes > 0 && !e.Streams()
}

// UnmarshalJSON implements json.Unmarshaler, as that of an Entry.
func (p *Prewarm) UnmarshalJSON(b []byte) error {
	type plain Prewarm
	both := struct {
		*plain
		LentBytes int64 `json:"lentBytes"`
	}{plain: (*plain)(p)}
	if err := json.Unmarshal(b, &both); err != nil {
		return err
	}
	p.ExportedBytes = cmp.Or(p.ExportedBytes, both.LentBytes)
	return nil
}
