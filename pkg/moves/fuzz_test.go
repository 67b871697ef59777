package moves

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/volume"
)

// FuzzAnswer: whatever a node that was taken over answers, reading it does not panic,
// and what is accepted can be divided by and added up.
func FuzzAnswer(f *testing.F) {
	own, err := newKey()
	if err != nil {
		f.Fatal(err)
	}
	peer, err := newKey()
	if err != nil {
		f.Fatal(err)
	}
	good := v1alpha1.MigrationSource{
		State: v1alpha1.ExportStateExported, PublicKey: peer.Public(), Portals: []string{"192.0.2.1:3262"}, IQN: "iqn.2026-11.io.nearflash:a:v",
		ChunkSizeBytes: 128 << 10, MetaBytes: 8 << 20, DataBytes: 64 << 20, Tracking: "t", TrackedAreaBytes: 1 << 20, ChangedAreas: "AAAA",
	}
	for _, change := range []func(*v1alpha1.MigrationSource){
		func(*v1alpha1.MigrationSource) {},
		func(a *v1alpha1.MigrationSource) { a.ChunkSizeBytes = 1 },
		func(a *v1alpha1.MigrationSource) { a.ChunkSizeBytes = 513 },
		func(a *v1alpha1.MigrationSource) { a.ChunkSizeBytes = 1 << 40 },
		func(a *v1alpha1.MigrationSource) { a.DataBytes = 100 },
		func(a *v1alpha1.MigrationSource) { a.DataBytes, a.MetaBytes = 1<<63-512, 1<<63-512 },
		func(a *v1alpha1.MigrationSource) { a.MetaBytes = -512 },
		func(a *v1alpha1.MigrationSource) { a.ChunkSizeBytes, a.DataBytes = 32<<10, 1<<40 },
		func(a *v1alpha1.MigrationSource) { a.MetaBytes = 1 << 40 },
		func(a *v1alpha1.MigrationSource) { a.Portals = nil },
		func(a *v1alpha1.MigrationSource) { a.PublicKey = strings.Repeat("A", 43) + "=" },
		func(a *v1alpha1.MigrationSource) { a.PublicKey = "AAAA" },
		func(a *v1alpha1.MigrationSource) { a.TrackedAreaBytes = -1 },
		func(a *v1alpha1.MigrationSource) { a.ChangedAreas = "=" },
	} {
		a := good
		change(&a)
		text, err := json.Marshal(a)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	accepted, err := leaseOf(newObject(volume.MoveRequest{Volume: "v"}, own), &good, own)
	if err != nil || accepted.ChunkSectors != 256 {
		f.Fatalf("a right answer is read as %+v, %v", accepted, err)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var a v1alpha1.MigrationSource
		if json.Unmarshal(text, &a) != nil {
			return
		}
		l, err := leaseOf(newObject(volume.MoveRequest{Volume: "v"}, own), &a, own)
		if err != nil {
			if l != nil {
				t.Errorf("a lease with the error %v", err)
			}
			return
		}
		if l.ChunkSectors == 0 || l.MetaBytes <= 0 || l.DataBytes < int64(l.ChunkSectors)*sectorSize || l.MetaBytes+l.DataBytes <= 0 ||
			(l.MetaBytes|l.DataBytes)%sectorSize != 0 || len(l.Source.Portals) == 0 {
			t.Errorf("accepted: %+v", *l)
		}
		if l.DataBytes/(int64(l.ChunkSectors)*sectorSize) > volume.MaxExportedChunks || l.MetaBytes > volume.MaxExportedMetaBytes {
			t.Errorf("accepted a map of %+v", *l)
		}
		if l.Tracked != nil && (l.Tracked.ID == "" || l.Tracked.AreaBytes <= 0) {
			t.Errorf("accepted record of writes: %+v", *l.Tracked)
		}
	})
}

// FuzzStreamAnswer is FuzzAnswer for a stream, whose answer is less.
func FuzzStreamAnswer(f *testing.F) {
	for _, a := range []v1alpha1.MigrationSource{
		{ChunkSizeBytes: 128 << 10, DataBytes: 64 << 20, Tracking: "t", TrackedAreaBytes: 1 << 20},
		{}, {ChunkSizeBytes: 128 << 10}, {DataBytes: 64 << 20}, {ChunkSizeBytes: 513, DataBytes: 1 << 20}, {ChunkSizeBytes: 512, DataBytes: 513},
		{ChunkSizeBytes: 1 << 30, DataBytes: 1 << 20}, {ChunkSizeBytes: -512, DataBytes: -512}, {ChunkSizeBytes: 32 << 10, DataBytes: 1 << 40},
		{ChunkSizeBytes: 1 << 62, DataBytes: 1<<63 - 512},
	} {
		text, err := json.Marshal(a)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	good := v1alpha1.MigrationSource{ChunkSizeBytes: 128 << 10, DataBytes: 64 << 20}
	if l, err := streamLease(volume.MoveID{}, &good); err != nil || l.ChunkSectors != 256 {
		f.Fatalf("a right answer is read as %+v, %v", l, err)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var a v1alpha1.MigrationSource
		if json.Unmarshal(text, &a) != nil {
			return
		}
		l, err := streamLease(volume.MoveID{}, &a)
		if err != nil {
			if l != nil {
				t.Errorf("a lease with the error %v", err)
			}
			return
		}
		if l.ChunkSectors == 0 || l.DataBytes < int64(l.ChunkSectors)*sectorSize || l.DataBytes%sectorSize != 0 || l.MetaBytes != 0 ||
			len(l.Source.Portals) > 0 || l.DataBytes/(int64(l.ChunkSectors)*sectorSize) > volume.MaxExportedChunks {
			t.Errorf("accepted: %+v", *l)
		}
	})
}

// FuzzKey: a public half that is none is refused, and not with a panic.
func FuzzKey(f *testing.F) {
	own, err := newKey()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(own.Public())
	f.Add("")
	f.Add(strings.Repeat("A", 43) + "=")
	f.Fuzz(func(t *testing.T, peer string) {
		cred, err := agree(own, peer, volume.MoveID{Name: "v-2", UID: "u"}, "d", peer)
		switch {
		case err != nil && !errors.Is(err, volume.ErrInvalid):
			t.Errorf("error %v is not ErrInvalid", err)
		case err == nil && len(cred.Password) < 12:
			t.Errorf("password of %d characters", len(cred.Password))
		}
	})
}
