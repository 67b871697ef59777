package target_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/pkg/target"
	"github.com/nearflash/nearflash/pkg/target/lio"
)

func mustCreate(t *testing.T, svc *target.Service, name string, p target.Provisioning) target.Volume {
	t.Helper()
	v, err := svc.CreateVolume(t.Context(), name, 8*mib, p)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestCreateIsIdempotent(t *testing.T) {
	for _, p := range []target.Provisioning{target.Thin, target.Thick, ""} {
		t.Run("provisioning "+string(p), func(t *testing.T) {
			svc, m := started(t)
			first := mustCreate(t, svc, "v1", p)
			again := mustCreate(t, svc, "v1", p)
			if first.UUID != again.UUID || first.SizeBytes != 8*mib || first.WWID() != again.WWID() {
				t.Errorf("first %+v, then %+v", first, again)
			}
			if v, err := svc.CreateVolume(t.Context(), "v1", 8*mib-1, p); err != nil || v.UUID != first.UUID {
				t.Errorf("a size that rounds up to the same: %v", err)
			}
			if _, err := svc.CreateVolume(t.Context(), "v1", 16*mib, p); !errors.Is(err, target.ErrAlreadyExists) {
				t.Errorf("another size: %v", err)
			}
			other := target.Thin
			if first.Thin {
				other = target.Thick
			}
			if _, err := svc.CreateVolume(t.Context(), "v1", 8*mib, other); !errors.Is(err, target.ErrAlreadyExists) {
				t.Errorf("another provisioning: %v", err)
			}
			if diff := cmp.Diff([]string{"nf-v1"}, m.lvm.Names()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestInvalidRequests(t *testing.T) {
	svc, m := started(t)
	mustCreate(t, svc, "v1", target.Thin)
	good := account("a")
	export := func(name, initiator string, a target.Account, gen int64) error {
		_, err := svc.ExportVolume(t.Context(), name, initiator, a, gen)
		return err
	}
	create := func(name string, size int64, p target.Provisioning) error {
		_, err := svc.CreateVolume(t.Context(), name, size, p)
		return err
	}
	cases := map[string]struct {
		err       error
		wantField string
	}{
		"empty name":             {create("", mib, ""), "name"},
		"upper case name":        {create("V", mib, ""), "name"},
		"name with a slash":      {create("a/b", mib, ""), "name"},
		"name with trailing dot": {create("a.", mib, ""), "name"},
		"64 characters":          {create(strings.Repeat("a", 64), mib, ""), "name"},
		"too long for dm":        {create("a"+strings.Repeat("-", 61)+"a", mib, ""), "name"},
		"size 0":                 {create("a", 0, ""), "size_bytes"},
		"negative size":          {create("a", -1, ""), "size_bytes"},
		"size overflows":         {create("a", 1<<63-1, ""), "size_bytes"},
		"provisioning":           {create("a", mib, "fat"), "provisioning"},
		"initiator path":         {export("v1", "../../x", good, 1), "initiator_iqn"},
		"initiator blank":        {export("v1", "iqn.2026-11.x: y", good, 1), "initiator_iqn"},
		"initiator empty":        {export("v1", "", good, 1), "initiator_iqn"},
		"initiator long":         {export("v1", "iqn.2026-11.x:"+strings.Repeat("y", 220), good, 1), "initiator_iqn"},
		"no user":                {export("v1", nodeA, target.Account{Password: good.Password}, 1), "chap_username"},
		"short password":         {export("v1", nodeA, target.Account{Username: "u", Password: "short"}, 1), "chap_password"},
		"password NULL":          {export("v1", nodeA, target.Account{Username: "u", Password: "NULL-is-not-set"}, 1), "chap_password"},
		"password with newline":  {export("v1", nodeA, target.Account{Username: "u", Password: "abcdefghijkl\nm"}, 1), "chap_password"},
		"generation 0":           {export("v1", nodeA, good, 0), "generation"},
		"unexport initiator":     {svc.UnexportVolume(t.Context(), "v1", "a b", ""), "initiator_iqn"},
		"admission of nobody":    {svc.UnexportVolume(t.Context(), "v1", "", "ABC"), "admission"},
		"admission text":         {svc.UnexportVolume(t.Context(), "v1", nodeA, "a b"), "admission"},
		"admission long":         {svc.UnexportVolume(t.Context(), "v1", nodeA, strings.Repeat("A", 65)), "admission"},
		"unexport name":          {svc.UnexportVolume(t.Context(), "..", "", ""), "name"},
		"delete name":            {svc.DeleteVolume(t.Context(), "../x"), "name"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var invalid *target.InvalidError
			if !errors.As(tc.err, &invalid) || invalid.Field != tc.wantField || invalid.Accepted == "" {
				t.Fatalf("got %v, want field %s", tc.err, tc.wantField)
			}
			if tc.wantField == "chap_password" && (invalid.Value != "" || strings.Contains(tc.err.Error(), "NULL-is")) {
				t.Errorf("the password is in the error: %v", tc.err)
			}
		})
	}
	if diff := cmp.Diff([]string{"nf-v1"}, m.lvm.Names()); diff != "" {
		t.Errorf("something was created (-want +got):\n%s", diff)
	}
}

func TestExportLifecycle(t *testing.T) {
	svc, m := started(t)
	v := mustCreate(t, svc, "v1", target.Thin)
	conn, err := svc.ExportVolume(t.Context(), "v1", strings.ToUpper(nodeA), account("a"), 5)
	if err != nil {
		t.Fatal(err)
	}
	want := target.Connection{Portals: []string{portal}, IQN: iqnBase + "v1:g5", LUN: 0, WWID: v.WWID()}
	if diff := cmp.Diff(want, conn); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if again, err := svc.ExportVolume(t.Context(), "v1", nodeA, account("a"), 5); err != nil || !cmp.Equal(again, conn) {
		t.Errorf("second export: %+v, %v", again, err)
	}
	if err := m.login("v1", nodeA, "a"); err != nil {
		t.Errorf("login: %v", err)
	}
	if _, err := svc.ExportVolume(t.Context(), "v1", nodeA, account("new"), 6); err != nil {
		t.Fatal(err)
	}
	if err := m.login("v1", nodeA, "new"); err != nil {
		t.Errorf("login with the new account: %v", err)
	}
	if err := m.login("v1", nodeA, "a"); err == nil {
		t.Error("the former account still works")
	}

	var exported *target.ExportedError
	if _, err := svc.ExportVolume(t.Context(), "v1", nodeB, account("b"), 7); !errors.As(err, &exported) || !cmp.Equal(exported.Initiators, []string{nodeA}) {
		t.Errorf("export to a second initiator: %v", err)
	}
	if err := svc.DeleteVolume(t.Context(), "v1"); !errors.As(err, &exported) || !cmp.Equal(exported.Initiators, []string{nodeA}) {
		t.Errorf("delete while exported: %v", err)
	}
	// The refused call must not have moved the fence.
	if got, err := svc.GetVolume(t.Context(), "v1"); err != nil || got.Generation != 6 ||
		len(got.Exports) != 1 || got.Exports[0].Initiator != nodeA || got.Exports[0].Generation != 6 {
		t.Errorf("get: %+v, %v", got, err)
	}
	for range 2 {
		if err := svc.UnexportVolume(t.Context(), "v1", nodeA, ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.login("v1", nodeA, "new"); err == nil {
		t.Error("login after unexport")
	}
	for range 2 {
		if err := svc.DeleteVolume(t.Context(), "v1"); err != nil {
			t.Fatal(err)
		}
	}
	if err := svc.UnexportVolume(t.Context(), "v1", "", ""); err != nil {
		t.Errorf("unexport of nothing: %v", err)
	}
	if _, err := svc.ExportVolume(t.Context(), "v1", nodeA, account("a"), 9); !errors.Is(err, target.ErrNotFound) {
		t.Errorf("export of nothing: %v", err)
	}
}

func TestGenerationFence(t *testing.T) {
	m := newMachine(t)
	svc, stop := m.start(t)
	mustCreate(t, svc, "v1", target.Thin)
	if _, err := svc.ExportVolume(t.Context(), "v1", nodeA, account("a"), 5); err != nil {
		t.Fatal(err)
	}
	if err := svc.UnexportVolume(t.Context(), "v1", "", ""); err != nil {
		t.Fatal(err)
	}
	stop()
	// Everything the server itself has written is lost.
	if err := os.RemoveAll(m.dir); err != nil {
		t.Fatal(err)
	}
	svc, stop = m.start(t)
	defer stop()
	_, err := svc.ExportVolume(t.Context(), "v1", nodeB, account("b"), 4)
	var stale *target.StaleGenerationError
	if !errors.As(err, &stale) || stale.Stored != 5 || stale.Requested != 4 {
		t.Fatalf("got %v, want stale against 5", err)
	}
	if err := m.login("v1", nodeB, "b"); err == nil {
		t.Error("let in with an outdated generation")
	}
	if _, err := svc.ExportVolume(t.Context(), "v1", nodeB, account("b"), 5); err != nil {
		t.Errorf("the stored generation itself: %v", err)
	}
}

func TestRestoreAfterReboot(t *testing.T) {
	m := newMachine(t)
	svc, stop := m.start(t)
	for _, name := range []string{"v1", "v2", "v3"} {
		mustCreate(t, svc, name, target.Thick)
		if _, err := svc.ExportVolume(t.Context(), name, nodeA, account("a"), 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := svc.UnexportVolume(t.Context(), "v3", "", ""); err != nil {
		t.Fatal(err)
	}
	stop()
	m.kernel.Reboot()
	m.lvm.Reboot()
	_, stop = m.start(t)
	defer stop()
	for name, want := range map[string]bool{"v1": true, "v2": true, "v3": false} {
		if err := m.login(name, nodeA, "a"); (err == nil) != want {
			t.Errorf("%s after the reboot: %v, want login %v", name, err, want)
		}
	}
}

// The kernel's tree is made equal to the record, not the other way round, and what
// belongs to others stays.
func TestRestoreRemovesLeftovers(t *testing.T) {
	m := newMachine(t)
	svc, stop := m.start(t)
	mustCreate(t, svc, "v1", target.Thin)
	if _, err := svc.ExportVolume(t.Context(), "v1", nodeA, account("a"), 1); err != nil {
		t.Fatal(err)
	}
	stop()
	if err := os.Remove(filepath.Join(m.dir, "v1.json")); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"iscsi/iqn.2003-01.org.other:x", "iscsi/iqn.2026-11.io.nearflash:s2:v1", "core/iblock_0", "core/iblock_0/x", "core/iblock_26110/s2:v1"} {
		if err := m.kernel.Mkdir(dir); err != nil {
			t.Fatal(err)
		}
	}
	_, stop = m.start(t)
	defer stop()
	if err := m.login("v1", nodeA, "a"); err == nil {
		t.Error("an export without a record was kept")
	}
	tree := lio.NewTree(m.kernel)
	targets, err := tree.Targets("iqn.")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"iqn.2003-01.org.other:x", "iqn.2026-11.io.nearflash:s2:v1"}, targets); diff != "" {
		t.Errorf("targets (-want +got):\n%s", diff)
	}
	stores, err := tree.Backstores("")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"s2:v1"}, stores); diff != "" {
		t.Errorf("backstores (-want +got):\n%s", diff)
	}
}

func TestMissingVolumeDoesNotKeepOthers(t *testing.T) {
	m := newMachine(t)
	svc, stop := m.start(t)
	mustCreate(t, svc, "v2", target.Thin)
	if _, err := svc.ExportVolume(t.Context(), "v2", nodeA, account("a"), 1); err != nil {
		t.Fatal(err)
	}
	stop()
	m.kernel.Reboot()
	damaged := map[string]string{
		"v1.json": `{"version":1,"volume":"v1","volumeUUID":"gone","exports":[{"initiator":"iqn.2026-11.x:y","username":"u","password":"p"}]}`,
		"v0.json": `{"password":"p`,
	}
	for name, content := range damaged {
		if err := os.WriteFile(filepath.Join(m.dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	svc, stop = m.start(t)
	defer stop()
	if err := m.login("v2", nodeA, "a"); err != nil {
		t.Errorf("v2: %v", err)
	}
	if problems := svc.Problems(t.Context()); len(problems) != 2 {
		t.Errorf("problems %q, want two", problems)
	}
	// A new volume of the name does not inherit the exports.
	mustCreate(t, svc, "v1", target.Thin)
	if got, err := svc.GetVolume(t.Context(), "v1"); err != nil || len(got.Exports) > 0 {
		t.Errorf("new volume: %+v, %v", got, err)
	}
}

// TestRestoreOfTheDeleted: a volume that was deleted while it waited for its repair is no
// problem any more.
func TestRestoreOfTheDeleted(t *testing.T) {
	svc, _ := started(t)
	if err := target.RestoreVolume(t.Context(), svc, "gone"); err != nil {
		t.Errorf("a volume that nobody has recorded: %v", err)
	}
}

func TestRepairTriesAgain(t *testing.T) {
	m := newMachine(t)
	svc, stop := m.start(t)
	mustCreate(t, svc, "v1", target.Thin)
	if _, err := svc.ExportVolume(t.Context(), "v1", nodeA, account("a"), 1); err != nil {
		t.Fatal(err)
	}
	stop()
	m.kernel.Reboot()
	m.kernel.Step = func(change string) error {
		if strings.Contains(change, "/np/") {
			return errors.New("cannot assign requested address")
		}
		return nil
	}
	svc, stop = m.start(t)
	defer stop()
	if len(svc.Problems(t.Context())) != 1 {
		t.Errorf("problems %q, want one", svc.Problems(t.Context()))
	}
	m.kernel.Step = nil
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	go func() {
		for len(svc.Problems(ctx)) > 0 && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	svc.Repair(ctx, time.Millisecond)
	if err := m.login("v1", nodeA, "a"); err != nil {
		t.Errorf("not repaired: %v", err)
	}
}

func TestList(t *testing.T) {
	svc, m := started(t)
	m.lvm.AddForeign("root")
	for _, name := range []string{"c", "a", "d", "b"} {
		mustCreate(t, svc, name, target.Thin)
	}
	var names []string
	token := ""
	for range 2 {
		page, next, err := svc.ListVolumes(t.Context(), 3, token)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range page {
			names = append(names, v.Name)
		}
		token = next
	}
	if diff := cmp.Diff([]string{"a", "b", "c", "d"}, names); diff != "" || token != "" {
		t.Errorf("token %q (-want +got):\n%s", token, diff)
	}
	var invalid *target.InvalidError
	if _, _, err := svc.ListVolumes(t.Context(), 0, "../x"); !errors.As(err, &invalid) {
		t.Errorf("bad token: %v", err)
	}
	if _, _, err := svc.ListVolumes(t.Context(), -1, ""); !errors.As(err, &invalid) {
		t.Errorf("bad limit: %v", err)
	}
}

// A caller that gives up does not end the work, and the next call finds it done.
func TestWorkOutlivesItsCaller(t *testing.T) {
	svc, m := started(t)
	gate := make(chan struct{})
	m.lvm.Step = func(change string) error {
		if strings.HasPrefix(change, "zero ") {
			<-gate
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := svc.CreateVolume(ctx, "v1", 8*mib, target.Thick); !errors.Is(err, target.ErrInProgress) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v, want in progress", err)
	}
	short, cancelShort := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancelShort()
	if _, err := svc.CreateVolume(short, "v1", 8*mib, target.Thick); !errors.Is(err, target.ErrInProgress) {
		t.Fatalf("second call: got %v, want in progress", err)
	}
	if _, err := svc.ExportVolume(short, "v1", nodeA, account("a"), 1); err == nil {
		t.Error("exported before it was zeroed")
	}
	close(gate)
	mustCreate(t, svc, "v1", target.Thick)
	zeroings := 0
	for _, l := range m.lvm.Lines() {
		if strings.HasPrefix(l, "lvcreate") {
			zeroings++
		}
	}
	if zeroings != 1 {
		t.Errorf("created %d times", zeroings)
	}
}
