package target_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/nearflash/nearflash/pkg/target"
	"github.com/nearflash/nearflash/pkg/target/lvol"
	"github.com/nearflash/nearflash/pkg/target/targetclient"
	"github.com/nearflash/nearflash/pkg/target/targetpb"
)

func cutRequest(name, of string) target.SnapshotRequest {
	return target.SnapshotRequest{Name: name, Volume: of, Hold: "h", Filesystem: "Formatting"}
}

func mustCut(t *testing.T, svc *target.Service, name, of string) lvol.Snapshot {
	t.Helper()
	c, err := svc.CreateSnapshot(t.Context(), cutRequest(name, of))
	if err == nil {
		err = svc.AcceptSnapshot(t.Context(), name, "h")
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// snapshotScenario makes a snapshot of v1, a larger volume of it, and deletes the snapshot.
func snapshotScenario(t *testing.T, svc *target.Service) []func() error {
	t.Helper()
	ctx := t.Context()
	return []func() error{
		func() error { _, err := svc.CreateSnapshot(ctx, cutRequest("s", "v1")); return err },
		func() error { return svc.AcceptSnapshot(ctx, "s", "h") },
		func() error { _, err := svc.CreateVolumeFromSnapshot(ctx, "w", 16*mib, "", "s"); return err },
		func() error { _, err := svc.ExportVolume(ctx, "w", nodeB, account("b"), 1); return err },
		func() error { return svc.DeleteSnapshot(ctx, "s", "") },
	}
}

// TestKillSnapshotAnywhere ends the process before every single change in turn, once with the
// kernel going on and once with a reboot. A snapshot that the next start shows as done has the
// content of before the kill, whatever is written after it; one that is not done is made anew.
// No volume is ever offered that has not its whole size.
func TestKillSnapshotAnywhere(t *testing.T) {
	kill := errors.New("killed")
	for _, reboot := range []bool{false, true} {
		for stop := 0; ; stop++ {
			m := newMachine(t)
			svc, end := m.start(t)
			mustCreate(t, svc, "v1", target.Thin)
			mustExport(t, svc, "v1", nodeA, "a", 1)
			must(t, m.lvm.Write("nf-v1", "before"))
			left := stop
			step := func(string) error {
				if left <= 0 {
					return kill
				}
				left--
				return nil
			}
			m.lvm.Step, m.kernel.Step, m.storeStep = step, step, step
			calls := snapshotScenario(t, svc)
			at, err := 0, error(nil)
			for ; at < len(calls) && err == nil; at++ {
				err = calls[at]()
			}
			end()
			m.lvm.Step, m.kernel.Step, m.storeStep = nil, nil, nil
			if err == nil {
				if stop < 20 {
					t.Errorf("only %d changes: the test did not see them", stop)
				}
				break
			}
			if !errors.Is(err, kill) {
				t.Fatalf("stopped at %d: call %d: %v", stop, at-1, err)
			}
			if reboot {
				m.kernel.Reboot()
				m.lvm.Reboot()
			}
			t.Run(fmt.Sprintf("reboot %v, stopped at %d", reboot, stop), func(t *testing.T) { checkSnapshotRestart(t, m, at-1) })
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func checkSnapshotRestart(t *testing.T, m *machine, at int) {
	t.Helper()
	svc, end := m.start(t)
	defer end()
	want := "before"
	c, err := svc.GetSnapshot(t.Context(), "s")
	switch {
	case err == nil && !c.Done:
		t.Errorf("after a clean up there is %+v", c)
	case errors.Is(err, target.ErrNotFound) && at == 0:
		want = "after"
	case err != nil && !errors.Is(err, target.ErrNotFound):
		t.Fatal(err)
	}
	if v, err := svc.GetVolume(t.Context(), "w"); err == nil && (v.State != lvol.Ready || v.SizeBytes != 16*mib) {
		t.Errorf("after a clean up there is %+v", v)
	}
	must(t, m.lvm.Write("nf-v1", "after"))
	mustCreate(t, svc, "other", target.Thin) // LVM talks to the pool
	for i, call := range snapshotScenario(t, svc)[at:] {
		if err := call(); err != nil {
			t.Fatalf("retry of call %d: %v", at+i, err)
		}
	}
	if got, err := m.lvm.Read("nf-w"); err != nil || got != want {
		t.Errorf("the volume of the snapshot holds %q, %v; want %q", got, err, want)
	}
	for _, name := range []string{"v1", "w", "other"} {
		must(t, errors.Join(svc.UnexportVolume(t.Context(), name, "", ""), svc.DeleteVolume(t.Context(), name)))
	}
	if names := m.lvm.Names(); len(names) > 0 {
		t.Errorf("left over: %q", names)
	}
}

// TestUnfinishedSnapshot: what a killed call has left is shown as not done, is not taken for a
// snapshot, and is made anew.
func TestUnfinishedSnapshot(t *testing.T) {
	svc, m := started(t)
	mustCreate(t, svc, "v1", target.Thin)
	must(t, m.lvm.Write("nf-v1", "one"))
	mustCut(t, svc, "s", "v1")
	m.lvm.Tag("nfsnap-s", "nearflash.cutting")
	must(t, m.lvm.Write("nf-v1", "two"))
	if c, err := svc.GetSnapshot(t.Context(), "s"); err != nil || c.Done {
		t.Errorf("got %+v, %v", c, err)
	}
	if err := svc.AcceptSnapshot(t.Context(), "s", "h"); !errors.Is(err, target.ErrNotFound) {
		t.Errorf("accepted: %v", err)
	}
	if _, err := svc.CreateVolumeFromSnapshot(t.Context(), "w", 8*mib, "", "s"); !errors.Is(err, target.ErrNotFound) {
		t.Errorf("a volume of it: %v", err)
	}
	if c := mustCut(t, svc, "s", "v1"); !c.Done || c.Accepted {
		t.Errorf("made anew: %+v", c)
	}
	_, err := svc.CreateVolumeFromSnapshot(t.Context(), "w", 8*mib, "", "s")
	must(t, err)
	if got, err := m.lvm.Read("nf-w"); err != nil || got != "two" {
		t.Errorf("the volume holds %q, %v", got, err)
	}
}

func TestInvalidSnapshots(t *testing.T) {
	svc, m := started(t)
	mustCreate(t, svc, "v1", target.Thin)
	mustCreate(t, svc, "thick", target.Thick)
	mustCut(t, svc, "s", "v1")
	cut := func(change func(*target.SnapshotRequest)) error {
		req := cutRequest("x", "v1")
		change(&req)
		_, err := svc.CreateSnapshot(t.Context(), req)
		return err
	}
	from := func(size int64, p target.Provisioning, snapshot string) error {
		_, err := svc.CreateVolumeFromSnapshot(t.Context(), "w", size, p, snapshot)
		return err
	}
	list := func(limit int32, token string) error {
		_, _, err := svc.ListSnapshots(t.Context(), limit, token)
		return err
	}
	long := "a" + strings.Repeat("-", 61) + "a"
	_, getErr := svc.GetSnapshot(t.Context(), "A")
	for name, tc := range map[string]struct {
		err       error
		wantField string
	}{
		"name":              {cut(func(r *target.SnapshotRequest) { r.Name = "a/b" }), "name"},
		"no name":           {cut(func(r *target.SnapshotRequest) { r.Name = "" }), "name"},
		"too long for dm":   {cut(func(r *target.SnapshotRequest) { r.Name = long }), "name"},
		"volume":            {cut(func(r *target.SnapshotRequest) { r.Volume = "../v1" }), "volume"},
		"thick":             {cut(func(r *target.SnapshotRequest) { r.Volume = "thick" }), "volume"},
		"hold with a comma": {cut(func(r *target.SnapshotRequest) { r.Hold = "a,nearflash.accepted" }), "hold"},
		"long hold":         {cut(func(r *target.SnapshotRequest) { r.Hold = strings.Repeat("a", 256) }), "hold"},
		"no hold":           {cut(func(r *target.SnapshotRequest) { r.Hold = "" }), "hold"},
		"accept hold":       {svc.AcceptSnapshot(t.Context(), "s", ""), "hold"},
		"delete hold":       {svc.DeleteSnapshot(t.Context(), "s", "a b"), "unaccepted_hold"},
		"filesystem":        {cut(func(r *target.SnapshotRequest) { r.Filesystem = "a b" }), "filesystem"},
		"get":               {getErr, "name"},
		"accept":            {svc.AcceptSnapshot(t.Context(), "..", "h"), "name"},
		"delete":            {svc.DeleteSnapshot(t.Context(), "", ""), "name"},
		"snapshot":          {from(8*mib, "", "a b"), "snapshot"},
		"thick volume":      {from(8*mib, target.Thick, "s"), "provisioning"},
		"size 0":            {from(0, "", "s"), "size_bytes"},
		"smaller":           {from(8*mib-1, "", "s"), "size_bytes"},
		"limit":             {list(-1, ""), "max_entries"},
		"token":             {list(0, "a/b"), "starting_token"},
	} {
		var invalid *target.InvalidError
		if !errors.As(tc.err, &invalid) || invalid.Field != tc.wantField || invalid.Accepted == "" {
			t.Errorf("%s: got %v, want field %s", name, tc.err, tc.wantField)
		}
	}
	if diff := cmp.Diff([]string{"nf-thick", "nf-v1", "nfsnap-s"}, m.lvm.Names()); diff != "" {
		t.Errorf("something was created (-want +got):\n%s", diff)
	}
}

func TestSnapshotPages(t *testing.T) {
	svc, _ := started(t)
	mustCreate(t, svc, "v1", target.Thin)
	for _, name := range []string{"b", "d", "a", "c", "e"} {
		mustCut(t, svc, name, "v1")
	}
	var got []string
	for token, pages := "", 0; ; pages++ {
		list, next, err := svc.ListSnapshots(t.Context(), 2, token)
		must(t, err)
		for _, c := range list {
			got = append(got, c.Name)
		}
		if token = next; token == "" {
			if pages != 2 {
				t.Errorf("%d pages more than the first, want 2", pages)
			}
			break
		}
	}
	if !slices.Equal(got, []string{"a", "b", "c", "d", "e"}) {
		t.Errorf("listed %q", got)
	}
	if vols, _, err := svc.ListVolumes(t.Context(), 0, ""); err != nil || len(vols) != 1 {
		t.Errorf("volumes %+v, %v", vols, err)
	}
}

// TestForeignSnapshot: a logical volume that only has the name of a snapshot is nobody's to
// touch; and of a volume that is being deleted, or of which something is left, none is made.
func TestForeignSnapshot(t *testing.T) {
	svc, m := started(t)
	m.lvm.AddForeign("nfsnap-s")
	mustCreate(t, svc, "v1", target.Thin)
	if _, err := svc.CreateSnapshot(t.Context(), cutRequest("s", "v1")); !errors.Is(err, target.ErrAlreadyExists) {
		t.Errorf("create: %v", err)
	}
	if _, err := svc.GetSnapshot(t.Context(), "s"); !errors.Is(err, target.ErrNotFound) {
		t.Errorf("get: %v", err)
	}
	must(t, svc.DeleteSnapshot(t.Context(), "s", ""))
	m.lvm.Tag("nf-v1", "nearflash.deleting")
	if _, err := svc.CreateSnapshot(t.Context(), cutRequest("x", "v1")); !errors.Is(err, target.ErrNotFound) {
		t.Errorf("of a volume that is being deleted: %v", err)
	}
	if diff := cmp.Diff([]string{"nf-v1", "nfsnap-s"}, m.lvm.Names()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestSnapshotRace: calls for the same names at once end, and no snapshot is of a volume whose
// deletion has begun.
func TestSnapshotRace(t *testing.T) {
	svc, m := started(t)
	must(t, func() error { _, err := svc.CreateVolume(t.Context(), "a", 8*mib, target.Thin); return err }())
	mustCut(t, svc, "s", "a")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 20 {
				switch i % 4 {
				case 0:
					_, _ = svc.CreateSnapshot(t.Context(), cutRequest("s", "a"))
				case 1:
					_, _ = svc.CreateVolumeFromSnapshot(t.Context(), "a", 8*mib, "", "s")
				case 2:
					_ = svc.AcceptSnapshot(t.Context(), "s", "h")
				case 3:
					_ = svc.DeleteVolume(t.Context(), "a")
				}
			}
		})
	}
	wg.Wait()
	must(t, errors.Join(svc.DeleteVolume(t.Context(), "a"), svc.DeleteSnapshot(t.Context(), "s", "")))
	if names := m.lvm.Names(); len(names) > 0 {
		t.Errorf("left over: %q", names)
	}
}

// earlier is a service as a server of before snapshots had it.
func earlier() *grpc.ServiceDesc {
	d := targetpb.Target_ServiceDesc
	d.Methods = slices.DeleteFunc(slices.Clone(d.Methods), func(m grpc.MethodDesc) bool { return strings.Contains(m.MethodName, "Snapshot") })
	return &d
}

// TestEarlierServer: to a server of an earlier version each call is unknown, and none of them
// makes something else than what was asked for.
func TestEarlierServer(t *testing.T) {
	svc, m := started(t)
	ca := newAuthority(t, "ca")
	ca.issue("server")
	ca.issue("controller")
	conf, err := target.ServerTLS(target.TLSConfig{CertFile: ca.file("server.pem"), KeyFile: ca.file("server-key.pem"), ClientCAFile: ca.file("ca.pem")})
	must(t, err)
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(conf)))
	g.RegisterService(earlier(), target.NewServer(svc, "v0"))
	go func() { _ = g.Serve(lis) }()
	t.Cleanup(g.Stop)
	c, err := targetclient.New(ca.client(lis.Addr().String(), "controller"))
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	for name, call := range map[string]func(context.Context) error{
		"create": func(ctx context.Context) error {
			_, err := c.CreateSnapshot(ctx, targetclient.SnapshotRequest{Name: "s", Volume: "v"})
			return err
		},
		"get":    func(ctx context.Context) error { _, err := c.GetSnapshot(ctx, "s"); return err },
		"accept": func(ctx context.Context) error { return c.AcceptSnapshot(ctx, "s", "h") },
		"delete": func(ctx context.Context) error { return c.DeleteSnapshot(ctx, "s", "") },
		"list":   func(ctx context.Context) error { _, _, err := c.ListSnapshots(ctx, 0, ""); return err },
		"restore": func(ctx context.Context) error {
			_, err := c.CreateVolumeFromSnapshot(ctx, "w", 8*mib, targetclient.ServerDefault, "s")
			return err
		},
	} {
		if err := call(t.Context()); !errors.Is(err, targetclient.ErrUnknownCall) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if names := m.lvm.Names(); len(names) > 0 {
		t.Errorf("made: %q", names)
	}
}
