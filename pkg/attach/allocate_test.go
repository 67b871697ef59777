package attach

import (
	"context"
	"fmt"
	"testing"

	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/volume"
)

func TestPreallocUse(t *testing.T) {
	want := cacheSpec{id: "v", fence: volume.Fence{UID: "u", Generation: 2, Node: "b"}, mode: volume.ModeWritethrough, metaBytes: 8 << 20, dataBytes: 1 << 30}
	hydrated := want
	hydrated.hydrationBytes = 4 << 20
	other := want
	other.dataBytes *= 2
	kept := hydrated
	kept.keep = true
	cases := map[string]struct {
		got  *preallocated
		want cacheSpec
		use  preallocUse
	}{
		"none":                  {nil, want, preallocNone},
		"fit":                   {&preallocated{cacheSpec: want}, want, preallocAsIs},
		"fit with a hydration":  {&preallocated{cacheSpec: hydrated}, hydrated, preallocAsIs},
		"the peer is gone":      {&preallocated{cacheSpec: hydrated}, want, preallocDropHydration},
		"there is a hot set":    {&preallocated{cacheSpec: want}, hydrated, preallocAddHydration},
		"another size":          {&preallocated{cacheSpec: other}, want, preallocAnew},
		"data copied before":    {&preallocated{cacheSpec: hydrated}, kept, preallocAnew},
		"no space":              {&preallocated{cacheSpec: want, err: lvm.ErrNoSpace}, want, preallocAnew},
		"the SSD hangs":         {&preallocated{cacheSpec: want, err: fmt.Errorf("lvcreate: %w", context.DeadlineExceeded)}, want, preallocFail},
		"hangs with a bad size": {&preallocated{cacheSpec: other, err: context.DeadlineExceeded}, want, preallocFail},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := tc.got.use(tc.want); got != tc.use {
				t.Errorf("got %s, want %s", got, tc.use)
			}
		})
	}
}
