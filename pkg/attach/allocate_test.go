package attach

import (
	"context"
	"fmt"
	"testing"

	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/volume"
)

func TestEarlyUse(t *testing.T) {
	want := shape{id: "v", fence: volume.Fence{UID: "u", Generation: 2, Node: "b"}, mode: volume.ModeWritethrough, metaBytes: 8 << 20, dataBytes: 1 << 30}
	hydrated := want
	hydrated.hydration = true
	other := want
	other.dataBytes *= 2
	kept := hydrated
	kept.keep = true
	cases := map[string]struct {
		got  *early
		want shape
		use  earlyUse
	}{
		"none":                  {nil, want, earlyNone},
		"fit":                   {&early{shape: want}, want, earlyAsIs},
		"fit with a hydration":  {&early{shape: hydrated}, hydrated, earlyAsIs},
		"the peer is gone":      {&early{shape: hydrated}, want, earlyDropHydration},
		"there is a hot set":    {&early{shape: want}, hydrated, earlyAddHydration},
		"another size":          {&early{shape: other}, want, earlyAnew},
		"data copied before":    {&early{shape: hydrated}, kept, earlyAnew},
		"no space":              {&early{shape: want, err: lvm.ErrNoSpace}, want, earlyAnew},
		"the SSD hangs":         {&early{shape: want, err: fmt.Errorf("lvcreate: %w", context.DeadlineExceeded)}, want, earlyFail},
		"hangs with a bad size": {&early{shape: other, err: context.DeadlineExceeded}, want, earlyFail},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := tc.got.use(tc.want); got != tc.use {
				t.Errorf("got %s, want %s", got, tc.use)
			}
		})
	}
}
