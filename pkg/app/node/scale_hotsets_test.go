package node

import (
	"crypto/rand"
	"fmt"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/hotset"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/testutil/apiserver"
	"github.com/nearflash/nearflash/pkg/volume"
)

// BenchmarkHotSets measures what hot sets cost: the processor time of the API server, which asks
// its policy of every CachedVolume, and room, in etcd and in the API server. Their blocks are made up.
func BenchmarkHotSets(b *testing.B) {
	b.Run("policy", func(b *testing.B) {
		for range b.N {
			measurePolicy(b)
		}
	})
	b.Run("room", func(b *testing.B) {
		for range b.N {
			measureRoom(b)
		}
	})
}

// measurePolicy has the plugin of one node store hot sets, while there are ever more volumes.
func measurePolicy(b *testing.B) {
	const volumes = 20
	admin, processes := apiserver.StartAsIs(b)
	f := newFleet(b, admin, volumes)
	f.grow(1)
	f.start(f.members...)
	f.settled()
	f.attach(0, 1)
	m, made := f.members[0], 0
	for _, others := range []int{0, 500, 1000, 2000, 5000} {
		f.parallel(made, others, func(i int) error {
			_, err := f.record(volume.ID(fmt.Sprintf("pvc-other-%05d", i)))
			return err
		})
		made = others
		time.Sleep(2 * time.Second) // the policy's parameters come by a watch
		before := processes.CPU(apiserver.Server)
		for i := range volumes {
			if err := f.change(hotSetChange, m, f.volume(0, i)); err != nil {
				b.Error(err)
			}
		}
		b.Logf("%d volumes: %v of the API server for each hot set", others+volumes, (processes.CPU(apiserver.Server)-before)/volumes)
	}
	f.end(m)
}

// measureRoom stores hot sets by the code of the plugin's store, where there are no policies.
func measureRoom(b *testing.B) {
	const volumes = 2000
	admin, processes := apiserver.StartAsIs(b)
	f := connect(b, admin)
	g := &gauge{fleet: f, processes: processes}
	uids := make([]string, volumes)
	f.parallel(0, volumes, func(i int) (err error) {
		uids[i], err = f.record(f.volume(i, 0))
		return err
	})
	store := records.NewHotSets(f.api)
	for _, bytes := range []int{hotset.MaxBytes / 8, hotset.MaxBytes, hotset.MaxBytes} {
		g.phase(fmt.Sprintf("%d hot sets of %d bytes", volumes, bytes), func() {
			f.parallel(0, volumes, func(i int) error {
				blocks := make([]byte, bytes)
				if _, err := rand.Read(blocks); err != nil {
					return err
				}
				return store.Store(f.ctx, f.volume(i, 0), uids[i], volume.HotSet{Blocks: blocks, Recorded: time.Now()})
			})
			time.Sleep(5 * time.Second) // the size is asked for now and then
		})
	}
}

// record makes a volume that nobody has, and returns its UID.
func (f *fleet) record(id volume.ID) (string, error) {
	obj := records.NewObject(id, volume.Spec{
		CapacityBytes: lunBytes, Mode: volume.ModeWritethrough, Cache: volume.Size{Bytes: cacheBytes}, Claim: &volume.Claim{Namespace: shop, Name: string(id)},
	})
	err := f.api.Create(f.ctx, obj)
	return string(obj.UID), err
}
