package lvoltest

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/target/lvol"
)

const mib = 1 << 20

// Rig is a volume group with a thin pool, empty, and room in both for more than 64 MiB.
type Rig struct {
	// Runner runs LVM's commands.
	Runner  hostexec.Runner
	Manager *lvol.Manager
	VG      string
	// Write puts a text at the beginning of a volume's device, and Read reads it.
	Write func(lv, text string) error
	Read  func(lv string) (string, error)
}

type suite struct {
	*testing.T
	Rig
}

func (s suite) must(what string, err error) {
	s.Helper()
	if err != nil {
		s.Fatalf("%s: %v", what, err)
	}
}

// SnapshotConformance is what a group has to do for snapshots, the one of this package
// included.
func SnapshotConformance(t *testing.T, r Rig) {
	s := suite{T: t, Rig: r}
	for name, test := range map[string]func(suite){
		"content": suite.content, "gone": suite.gone, "errors": suite.errors, "grown": suite.grown, "interrupted": suite.interrupted, "status": suite.status,
	} {
		if !t.Run(name, func(t *testing.T) { test(suite{T: t, Rig: s.Rig}) }) {
			return
		}
		s.clear()
	}
}

// clear removes everything of ours.
func (s suite) clear() {
	s.Helper()
	ctx := s.Context()
	vols, err := s.Manager.List(ctx)
	s.must("list", err)
	snaps, err := s.Manager.Snapshots(ctx)
	s.must("list", err)
	for _, v := range vols {
		s.must("delete", s.Manager.Delete(ctx, v))
	}
	for _, c := range snaps {
		s.must("delete", s.Manager.DeleteSnapshot(ctx, c))
	}
}

func (s suite) volume(name string, thin bool) lvol.Volume {
	s.Helper()
	v, err := s.Manager.Create(s.Context(), name, 8*mib, thin)
	s.must("create", err)
	return v
}

func (s suite) cut(name string, v lvol.Volume) lvol.Snapshot {
	s.Helper()
	c, err := s.Manager.Cut(s.Context(), v, lvol.SnapshotSpec{Name: name, Hold: "by=x/2026-01-02T03:04:05Z", Filesystem: "Formatting", Created: time.Unix(1, 5)})
	s.must("cut", err)
	return c
}

func (s suite) write(v lvol.Volume, text string) {
	s.Helper()
	s.must("write", s.Write(v.LV, text))
}

func (s suite) wantContent(v lvol.Volume, want string) {
	s.Helper()
	if got, err := s.Read(v.LV); err != nil || got != want {
		s.Errorf("%s holds %q, %v; want %q", v.Name, got, err, want)
	}
}

// restored is a volume of a snapshot.
func (s suite) restored(name string, size int64, from lvol.Snapshot) lvol.Volume {
	s.Helper()
	v, err := s.Manager.CreateFrom(s.Context(), name, size, from)
	s.must("create", err)
	if v.From != from.Name || !v.Thin || !v.Active || v.State != lvol.Ready || v.Generation != 0 || v.SizeBytes != size {
		s.Errorf("volume of a snapshot: %+v", v)
	}
	return v
}

// status: one look shows all volumes and snapshots, and the room of group and pool.
func (s suite) status() {
	v := s.volume("v", true)
	s.volume("thick", false)
	s.cut("s", v)
	st, err := s.Manager.Status(s.Context())
	s.must("status", err)
	if !st.Listed || len(st.Volumes) != 2 || len(st.Snapshots) != 1 || len(st.Problems) != 0 {
		s.Errorf("status %+v, want two volumes, a snapshot and no problem", st)
	}
	thick, err := s.Manager.Capacity(s.Context(), false)
	s.must("capacity", err)
	if st.GroupBytes != thick.TotalBytes || st.FreeBytes != thick.AvailableBytes || st.GroupBytes <= st.FreeBytes {
		s.Errorf("group of %d bytes, %d free; capacity %+v", st.GroupBytes, st.FreeBytes, thick)
	}
	thin, err := s.Manager.Capacity(s.Context(), true)
	s.must("capacity", err)
	p := st.Pool
	if p == nil || p.SizeBytes != thin.TotalBytes || p.MetadataBytes <= 0 || p.PromisedBytes != 16*mib ||
		p.MetadataPercent <= 0 || p.DataPercent < 0 || p.DataPercent > 100 {
		s.Errorf("pool %+v, want one of %d bytes with metadata, and 16 MiB promised", p, thin.TotalBytes)
	}
}

// content: a snapshot has what was written before it, whatever is written after; so has each
// volume that is made of it.
func (s suite) content() {
	v := s.volume("v", true)
	v, err := s.Manager.SetGeneration(s.Context(), v, 7)
	s.must("generation", err)
	s.write(v, "one")
	c := s.cut("s", v)
	if want := (lvol.Snapshot{
		Name: "s", LV: "nfsnap-s", Volume: "v", Hold: "by=x/2026-01-02T03:04:05Z", Filesystem: "Formatting",
		SizeBytes: 8 * mib, Created: time.Unix(1, 5).UTC(), Done: true, UsedBytes: c.UsedBytes,
	}); c != want {
		s.Errorf("cut %+v, want %+v", c, want)
	}
	s.write(v, "two")
	s.cut("t", v)
	s.write(v, "three")
	for range 2 {
		s.must("accept", s.Manager.Accept(s.Context(), c))
	}
	if c, err = s.Manager.GetSnapshot(s.Context(), "s"); err != nil || !c.Accepted {
		s.Errorf("accepted: %+v, %v", c, err)
	}
	w := s.restored("w", 8*mib, c)
	s.wantContent(w, "one")
	s.write(w, "four")
	x := s.restored("x", 8*mib, c)
	s.wantContent(x, "one")
	s.wantContent(v, "three")
	all, err := s.Manager.Snapshots(s.Context())
	if err != nil || len(all) != 2 || all[0] != c || all[1].Name != "t" {
		s.Errorf("snapshots %+v, %v", all, err)
	}
	vols, err := s.Manager.List(s.Context())
	names := []string{}
	for _, v := range vols {
		names = append(names, v.Name)
	}
	slices.Sort(names)
	if err != nil || !slices.Equal(names, []string{"v", "w", "x"}) {
		s.Errorf("volumes %q, %v", names, err)
	}
	if got, err := s.Manager.Get(s.Context(), "v"); err != nil || got.Generation != 7 {
		s.Errorf("the volume: %+v, %v", got, err)
	}
}

// gone: what was made stays when its parent goes.
func (s suite) gone() {
	v := s.volume("v", true)
	s.write(v, "one")
	c := s.cut("s", v)
	s.must("delete", s.Manager.Delete(s.Context(), v))
	w := s.restored("w", 8*mib, c)
	for range 2 {
		s.must("delete", s.Manager.DeleteSnapshot(s.Context(), c))
	}
	s.wantContent(w, "one")
	if _, err := s.Manager.GetSnapshot(s.Context(), "s"); !errors.Is(err, lvol.ErrNotFound) {
		s.Errorf("what was deleted: %v", err)
	}
	s.cut("t", w)
}

func (s suite) errors() {
	ctx := s.Context()
	thick, thin := s.volume("thick", false), s.volume("thin", true)
	c := s.cut("s", thin)
	for what, tc := range map[string]struct {
		do   func() error
		want error
	}{
		"thick": {func() error {
			_, err := s.Manager.Cut(ctx, thick, lvol.SnapshotSpec{Name: "t", Created: time.Unix(1, 0)})
			return err
		}, lvol.ErrThick},
		"taken": {func() error {
			_, err := s.Manager.Cut(ctx, thin, lvol.SnapshotSpec{Name: "s", Created: time.Unix(1, 0)})
			return err
		}, lvol.ErrExists},
		"volume taken": {func() error { _, err := s.Manager.CreateFrom(ctx, "thick", 8*mib, c); return err }, lvol.ErrExists},
		"too large":    {func() error { _, err := s.Manager.CreateFrom(ctx, "w", 1<<50, c); return err }, lvol.ErrNoSpace},
		"parent gone": {func() error {
			_, err := s.Manager.Cut(ctx, lvol.Volume{Name: "none", LV: "nf-none", Thin: true, SizeBytes: 8 * mib}, lvol.SnapshotSpec{Name: "t", Created: time.Unix(1, 0)})
			return err
		}, lvol.ErrNotFound},
		"snapshot gone": {func() error {
			_, err := s.Manager.CreateFrom(ctx, "w", 8*mib, lvol.Snapshot{Name: "none", LV: "nfsnap-none", SizeBytes: 8 * mib})
			return err
		}, lvol.ErrNotFound},
		"find": {func() error { _, err := s.Manager.GetSnapshot(ctx, "none"); return err }, lvol.ErrNotFound},
	} {
		if err := tc.do(); !errors.Is(err, tc.want) {
			s.Errorf("%s: got %v, want %v", what, err, tc.want)
		}
	}
	if all, err := s.Manager.Snapshots(ctx); err != nil || len(all) != 1 {
		s.Errorf("snapshots after refusals: %+v, %v", all, err)
	}
}

// grown: a volume that is made of a snapshot may be larger, and so may the snapshot's own
// volume be by then.
func (s suite) grown() {
	v := s.volume("v", true)
	s.write(v, "one")
	c := s.cut("s", v)
	v, err := s.Manager.Expand(s.Context(), v, 16*mib)
	s.must("expand", err)
	if c, err = s.Manager.GetSnapshot(s.Context(), "s"); err != nil || c.SizeBytes != 8*mib {
		s.Errorf("snapshot of a volume that has grown: %+v, %v", c, err)
	}
	w := s.restored("w", 32*mib, c)
	s.wantContent(w, "one")
	before, err := s.Manager.Capacity(s.Context(), true)
	s.must("capacity", err)
	s.cut("t", v)
	if after, err := s.Manager.Capacity(s.Context(), true); err != nil || before.AvailableBytes-after.AvailableBytes != v.SizeBytes {
		s.Errorf("capacity was %+v, and is %+v with a snapshot more, %v", before, after, err)
	}
}

// interrupted: what is not done is no snapshot and no volume, and goes.
func (s suite) interrupted() {
	ctx := s.Context()
	v := s.volume("v", true)
	c := s.cut("s", v)
	w := s.restored("w", 8*mib, c)
	for lv, tag := range map[string]string{"nfsnap-s": "nearflash.cutting", w.LV: "nearflash.unzeroed"} {
		_, err := s.Runner.Run(ctx, hostexec.Change(s.VG, "lvchange", "--addtag", tag, fmt.Sprintf("%s/%s", s.VG, lv)))
		s.must("tag", err)
	}
	snaps, err := s.Manager.UnfinishedSnapshots(ctx)
	vols, volErr := s.Manager.Unfinished(ctx)
	if s.must("unfinished", errors.Join(err, volErr)); !slices.Equal(snaps, []string{"s"}) || !slices.Equal(vols, []string{"w"}) {
		s.Errorf("unfinished %q and %q", snaps, vols)
	}
	s.must("clean up", errors.Join(s.Manager.CleanUpSnapshot(ctx, "s"), s.Manager.CleanUpSnapshot(ctx, "none"), s.Manager.CleanUp(ctx, "w"), s.Manager.CleanUp(ctx, "v")))
	snapsLeft, err := s.Manager.Snapshots(ctx)
	left, volErr := s.Manager.List(ctx)
	if s.must("list", errors.Join(err, volErr)); len(snapsLeft) != 0 || len(left) != 1 || left[0].Name != "v" {
		s.Errorf("left: %+v and %+v", snapsLeft, left)
	}
}
