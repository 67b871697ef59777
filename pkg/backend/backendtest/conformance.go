package backendtest

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	mib        = 1 << 20
	initiatorA = "iqn.1993-08.org.debian:01:a"
	initiatorB = "iqn.1993-08.org.debian:01:b"
)

// Conformance is what every backend.Backend must do, the one of this package
// included. open returns an empty server with room for about 256 MiB. What a kind of server
// does not have is named in without: "account", "capacity", "epoch".
func Conformance(t *testing.T, open func(t *testing.T) backend.Backend, without ...string) {
	for name, test := range map[string]func(*testing.T, backend.Backend){
		"account":    conformAccount,
		"capacity":   conformCapacity,
		"create":     conformCreate,
		"export":     conformExport,
		"readers":    conformReaders,
		"admission":  conformAdmission,
		"admitted":   conformAdmitted,
		"generation": conformGeneration,
		"epoch":      conformEpoch,
		"delete":     conformDelete,
		"expand":     conformExpand,
		"missing":    conformMissing,
		"check":      conformCheck,
	} {
		if !slices.Contains(without, name) {
			t.Run(name, func(t *testing.T) { test(t, open(t)) })
		}
	}
}

// Grant returns a grant for an initiator.
func Grant(initiator string, generation int64) backend.Grant {
	return backend.Grant{
		Initiator: initiator, Generation: generation,
		Credentials: volume.Credentials{Username: "user", Password: "password-of-user"},
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func want(t *testing.T, what string, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("%s: got %v, want %v", what, err, kind)
	}
}

func conformCreate(t *testing.T, b backend.Backend) {
	for range 2 {
		must(t, b.Create(t.Context(), "v", backend.Request{SizeBytes: 8 * mib, Provisioning: "thick"}))
		must(t, b.Create(t.Context(), "default", backend.Request{SizeBytes: 8 * mib}))
	}
	want(t, "other size", b.Create(t.Context(), "v", backend.Request{SizeBytes: 64 * mib, Provisioning: "thick"}), volume.ErrExists)
	want(t, "other provisioning", b.Create(t.Context(), "v", backend.Request{SizeBytes: 8 * mib, Provisioning: "thin"}), volume.ErrExists)
	want(t, "too large", b.Create(t.Context(), "big", backend.Request{SizeBytes: 1 << 40, Provisioning: "thick"}), volume.ErrNoSpace)
	_, err := b.Access(t.Context(), "big")
	want(t, "volume that was refused", err, volume.ErrNotFound)
}

func conformCapacity(t *testing.T, b backend.Backend) {
	before, err := b.Capacity(t.Context())
	must(t, err)
	must(t, b.Create(t.Context(), "v", backend.Request{SizeBytes: 8 * mib, Provisioning: "thick"}))
	must(t, b.Create(t.Context(), "default", backend.Request{SizeBytes: 8 * mib}))
	after, err := b.Capacity(t.Context())
	must(t, err)
	if before <= after {
		t.Errorf("capacity was %d and is %d with two volumes more", before, after)
	}
}

func conformAccount(t *testing.T, b backend.Backend) {
	must(t, b.Create(t.Context(), "v", backend.Request{SizeBytes: 8 * mib}))
	_, err := b.Export(t.Context(), "v", backend.Grant{Initiator: initiatorB, Generation: 7})
	want(t, "no account", err, volume.ErrInvalid)
	if access, err := b.Access(t.Context(), "v"); err != nil || access.Generation != 0 || len(access.Exports) > 0 {
		t.Errorf("access after a refusal: %+v, %v", access, err)
	}
	for _, name := range []string{"one", "two"} {
		g := Grant(initiatorA, 8)
		g.Credentials.Username = name
		_, err := b.Export(t.Context(), "v", g)
		must(t, err)
		if access, err := b.Access(t.Context(), "v"); err != nil || len(access.Exports) != 1 || access.Exports[0].Username != name {
			t.Errorf("account %s is shown as %+v, %v", name, access.Exports, err)
		}
	}
}

func conformExport(t *testing.T, b backend.Backend) {
	must(t, b.Create(t.Context(), "v", backend.Request{SizeBytes: 8 * mib}))
	access, err := b.Access(t.Context(), "v")
	if err != nil || access.Generation != 0 || len(access.Exports) > 0 {
		t.Errorf("access to a new volume: %+v, %v", access, err)
	}
	first, err := b.Export(t.Context(), "v", Grant(initiatorA, 1))
	must(t, err)
	if first.CSI == nil && (len(first.Portals) == 0 || first.IQN == "") {
		t.Errorf("export without an address: %+v", first)
	}
	again, err := b.Export(t.Context(), "v", Grant(strings.ToUpper(initiatorA), 1))
	if err != nil || again.String() != first.String() {
		t.Errorf("the same again: %+v, %v; want %+v", again, err, first)
	}
	_, err = b.Export(t.Context(), "v", Grant(initiatorB, 2))
	want(t, "second initiator", err, volume.ErrInUse)
	access, err = b.Access(t.Context(), "v")
	if err != nil || access.Generation != 1 || len(access.Exports) != 1 || access.Exports[0].Initiator != initiatorA || access.Exports[0].Generation != 1 {
		t.Errorf("access: %+v, %v", access, err)
	}
	must(t, b.Unexport(t.Context(), "v", backend.Export{Initiator: initiatorB}))
	if access, err = b.Access(t.Context(), "v"); err != nil || len(access.Exports) != 1 {
		t.Errorf("ending B's access ended A's: %+v, %v", access, err)
	}
	for range 2 { // as of a server that does not name admissions
		must(t, b.Unexport(t.Context(), "v", backend.Export{Initiator: strings.ToUpper(initiatorA)}))
	}
	_, err = b.Export(t.Context(), "v", Grant(initiatorB, 2))
	must(t, err)
	shutOut(t, b)
	if access, err = b.Access(t.Context(), "v"); err != nil || access.Generation != 2 || len(access.Exports) > 0 {
		t.Errorf("access after all were shut out: %+v, %v", access, err)
	}
}

// conformReaders: several read the same content, and nobody writes meanwhile.
func conformReaders(t *testing.T, b backend.Backend) {
	reader := func(initiator string, generation int64) error {
		g := Grant(initiator, generation)
		g.ReadOnly = true
		_, err := b.Export(t.Context(), "v", g)
		return err
	}
	writer := func(initiator string, generation int64) error {
		_, err := b.Export(t.Context(), "v", Grant(initiator, generation))
		return err
	}
	must(t, b.Create(t.Context(), "v", backend.Request{SizeBytes: 8 * mib}))
	must(t, writer(initiatorA, 1))
	want(t, "reader beside a writer", reader(initiatorB, 2), volume.ErrInUse)
	want(t, "the writer's own node, as a reader of what it writes", reader(initiatorA, 1), volume.ErrInvalid)
	shutOut(t, b)
	for range 2 {
		must(t, reader(initiatorA, 2))
		must(t, reader(initiatorB, 2))
	}
	access, err := b.Access(t.Context(), "v")
	must(t, err)
	if len(access.Exports) != 2 || !access.Exports[0].ReadOnly || !access.Exports[1].ReadOnly || access.Exports[0].Admission == access.Exports[1].Admission || access.Generation != 2 {
		t.Errorf("two readers are shown as %+v", access)
	}
	want(t, "writer beside readers", writer(initiatorA, 3), volume.ErrInUse)
	want(t, "reader of another generation", reader(initiatorA, 3), volume.ErrInUse)
	for _, e := range access.Exports {
		if e.Initiator == initiatorA {
			must(t, b.Unexport(t.Context(), "v", e))
		}
	}
	if access, err = b.Access(t.Context(), "v"); err != nil || len(access.Exports) != 1 || access.Exports[0].Initiator != initiatorB {
		t.Errorf("after the end of A's access: %+v, %v", access, err)
	}
	want(t, "the last reader, as a writer under its generation", writer(initiatorB, 2), volume.ErrInvalid)
	want(t, "writer beside a reader", writer(initiatorA, 3), volume.ErrInUse)
	shutOut(t, b)
	must(t, writer(initiatorA, 3))
	var stale *backend.StaleGenerationError
	if err := reader(initiatorB, 2); !errors.As(err, &stale) {
		t.Errorf("a reader of what was there before the last writer: %v", err)
	}
}

// shutOut ends every admission to v, as a controller does.
func shutOut(t *testing.T, b backend.Backend) {
	t.Helper()
	access, err := b.Access(t.Context(), "v")
	must(t, err)
	for _, e := range access.Exports {
		must(t, b.Unexport(t.Context(), "v", e))
	}
}

// conformAdmission: an order to end an admission ends that one, and no later one of the
// same initiator under the same generation.
func conformAdmission(t *testing.T, b backend.Backend) {
	must(t, b.Create(t.Context(), "v", backend.Request{SizeBytes: 8 * mib}))
	var seen []backend.Export
	for range 3 {
		_, err := b.Export(t.Context(), "v", Grant(initiatorA, 1))
		must(t, err)
		access, err := b.Access(t.Context(), "v")
		must(t, err)
		if len(access.Exports) != 1 || access.Exports[0].Admission == "" || slices.Contains(seen, access.Exports[0]) {
			t.Fatalf("admissions %+v after %+v, want one of another name", access.Exports, seen)
		}
		seen = append(seen, access.Exports[0])
	}
	for _, former := range seen[:2] {
		must(t, b.Unexport(t.Context(), "v", former))
	}
	if access, err := b.Access(t.Context(), "v"); err != nil || !slices.Equal(access.Exports, seen[2:]) {
		t.Errorf("the end of former admissions ended this one: %+v, %v", access, err)
	}
	other := seen[2]
	other.Initiator = initiatorB
	must(t, b.Unexport(t.Context(), "v", other))
	want(t, "no initiator", b.Unexport(t.Context(), "v", backend.Export{Admission: other.Admission}), volume.ErrInvalid)
	if access, err := b.Access(t.Context(), "v"); err != nil || !slices.Equal(access.Exports, seen[2:]) {
		t.Errorf("the end of another initiator's ended this one: %+v, %v", access, err)
	}
	for range 2 {
		must(t, b.Unexport(t.Context(), "v", seen[2]))
	}
	if access, err := b.Access(t.Context(), "v"); err != nil || len(access.Exports) > 0 {
		t.Errorf("the admission did not end: %+v, %v", access, err)
	}
}

// conformAdmitted: who is admitted anywhere is found, whichever volume that is.
func conformAdmitted(t *testing.T, b backend.Backend) {
	admitted := func(initiator string, want volume.ID) {
		t.Helper()
		got, err := b.AdmittedHosts(t.Context())
		if err != nil || got[initiator] != want || want == "" && len(got) > 0 && initiator == initiatorA {
			t.Errorf("admitted are %v, %v; want %s to %q", got, err, initiator, want)
		}
	}
	admitted(initiatorA, "")
	for _, id := range []volume.ID{"u", "v", "w"} {
		must(t, b.Create(t.Context(), id, backend.Request{SizeBytes: 8 * mib}))
	}
	admitted(initiatorA, "")
	_, err := b.Export(t.Context(), "v", Grant(strings.ToUpper(initiatorA), 1))
	must(t, err)
	admitted(initiatorA, "v")
	admitted(initiatorB, "")
	shutOut(t, b)
	admitted(initiatorA, "")
}

func conformGeneration(t *testing.T, b backend.Backend) {
	must(t, b.Create(t.Context(), "v", backend.Request{SizeBytes: 8 * mib}))
	_, err := b.Export(t.Context(), "v", Grant(initiatorA, 5))
	must(t, err)
	_, err = b.Export(t.Context(), "v", Grant(initiatorA, 6))
	must(t, err)
	shutOut(t, b)
	_, err = b.Export(t.Context(), "v", Grant(initiatorB, 5))
	want(t, "outdated generation", err, volume.ErrFenced)
	var stale *backend.StaleGenerationError
	if !errors.As(err, &stale) || stale.Stored != 6 || stale.Requested != 5 {
		t.Errorf("outdated generation: %+v", err)
	}
	_, err = b.Export(t.Context(), "v", Grant(initiatorB, 0))
	want(t, "no generation", err, volume.ErrInvalid)
	if access, err := b.Access(t.Context(), "v"); err != nil || access.Generation != 6 || len(access.Exports) > 0 {
		t.Errorf("access after refusals: %+v, %v", access, err)
	}
}

// conformEpoch: an epoch is replaced by who knows it, and who does not have it changes
// nothing, but may look.
func conformEpoch(t *testing.T, b backend.Backend) {
	const one, two, three = "epoch1epoch1epoch1", "epoch2epoch2epoch2", "epoch3epoch3epoch3"
	value := func() string {
		t.Helper()
		e, err := b.Epoch(t.Context())
		if err != nil || e.Server == "" {
			t.Fatalf("epoch: %+v, %v", e, err)
		}
		return e.Value
	}
	must(t, b.Create(t.Context(), "v", backend.Request{SizeBytes: 8 * mib}))
	must(t, b.Create(backend.WithEpoch(t.Context(), one), "v", backend.Request{SizeBytes: 8 * mib}))
	if got := value(); got != "" {
		t.Fatalf("a new server has epoch %q", got)
	}
	want(t, "none replaced by none", b.SwapEpoch(t.Context(), "", ""), volume.ErrInvalid)
	for range 2 {
		must(t, b.SwapEpoch(t.Context(), "", one))
	}
	var other *backend.EpochError
	if err := b.SwapEpoch(t.Context(), "", two); !errors.As(err, &other) || other.Server != one || !errors.Is(err, volume.ErrFenced) {
		t.Errorf("swap by who knows of none: %v", err)
	}
	must(t, b.SwapEpoch(t.Context(), one, two))
	want(t, "swap of a former one", b.SwapEpoch(t.Context(), one, three), volume.ErrFenced)
	if got := value(); got != two {
		t.Errorf("epoch %q, want %q", got, two)
	}
	for _, epoch := range []string{"", one, three} {
		ctx := backend.WithEpoch(t.Context(), epoch)
		_, exportErr := b.Export(ctx, "v", Grant(initiatorA, 1))
		_, expandErr := b.Expand(ctx, "v", 16*mib)
		for what, err := range map[string]error{
			"create": b.Create(ctx, "w", backend.Request{SizeBytes: 8 * mib}), "export": exportErr, "expand": expandErr,
			"unexport": b.Unexport(ctx, "v", backend.Export{Initiator: initiatorA}), "delete": b.Delete(ctx, "v"),
		} {
			if !errors.As(err, &other) || other.Server != two || other.Given != epoch {
				t.Errorf("%s with epoch %q: %v", what, epoch, err)
			}
		}
		access, err := b.Access(ctx, "v")
		must(t, err)
		if len(access.Exports) > 0 || access.Generation > 0 {
			t.Errorf("refused calls have changed %+v", access)
		}
		_, err = b.Access(ctx, "w")
		want(t, "volume of a refused call", err, volume.ErrNotFound)
		_, err = b.Capacity(ctx)
		must(t, errors.Join(err, b.Check(ctx)))
	}
	ctx := backend.WithEpoch(t.Context(), two)
	_, err := b.Export(ctx, "v", Grant(initiatorA, 1))
	must(t, err)
	_, err = b.Expand(ctx, "v", 16*mib)
	must(t, errors.Join(err, b.Unexport(ctx, "v", backend.Export{Initiator: initiatorA}), b.Delete(ctx, "v")))
}

func conformDelete(t *testing.T, b backend.Backend) {
	must(t, b.Create(t.Context(), "v", backend.Request{SizeBytes: 8 * mib}))
	_, err := b.Export(t.Context(), "v", Grant(initiatorA, 3))
	must(t, err)
	want(t, "exported volume", b.Delete(t.Context(), "v"), volume.ErrInUse)
	shutOut(t, b)
	for range 2 {
		must(t, b.Delete(t.Context(), "v"))
	}
	// A volume of the name is another one: it begins at the first generation.
	must(t, b.Create(t.Context(), "v", backend.Request{SizeBytes: 16 * mib}))
	_, err = b.Export(t.Context(), "v", Grant(initiatorB, 1))
	must(t, err)
}

func conformExpand(t *testing.T, b backend.Backend) {
	must(t, b.Create(t.Context(), "v", backend.Request{SizeBytes: 8 * mib, Provisioning: "thick"}))
	_, err := b.Export(t.Context(), "v", Grant(initiatorA, 1))
	must(t, err)
	for _, size := range []int64{16 * mib, 16 * mib, 8 * mib} {
		got, err := b.Expand(t.Context(), "v", size)
		if err != nil || got != 16*mib {
			t.Errorf("expand to %d: %d, %v", size, got, err)
		}
	}
	_, err = b.Expand(t.Context(), "v", 1<<40)
	want(t, "too large", err, volume.ErrNoSpace)
}

func conformMissing(t *testing.T, b backend.Backend) {
	_, err := b.Access(t.Context(), "v")
	want(t, "access", err, volume.ErrNotFound)
	_, err = b.Export(t.Context(), "v", Grant(initiatorA, 1))
	want(t, "export", err, volume.ErrNotFound)
	_, err = b.Expand(t.Context(), "v", mib)
	want(t, "expand", err, volume.ErrNotFound)
	must(t, b.Unexport(t.Context(), "v", backend.Export{Initiator: initiatorA, Admission: "1"}))
	must(t, b.Delete(t.Context(), "v"))
}

func conformCheck(t *testing.T, b backend.Backend) {
	must(t, b.Check(t.Context()))
	if free, err := b.Capacity(t.Context()); err != nil || free < 64*mib {
		t.Errorf("capacity of an empty server: %d, %v", free, err)
	}
}
