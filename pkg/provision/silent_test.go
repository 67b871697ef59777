package provision

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/backend/backendtest"
	"github.com/nearflash/nearflash/pkg/keyagreement"
	"github.com/nearflash/nearflash/pkg/kube"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// silent is a storage server that takes calls, and never answers.
type silent struct{ *backendtest.Server }

func (silent) Access(ctx context.Context, _ volume.ID) (backend.Access, error) {
	return backend.Access{}, never(ctx)
}

func (silent) AdmittedHosts(ctx context.Context) (map[string]volume.ID, error) {
	return nil, never(ctx)
}

func (silent) Find(ctx context.Context, _ volume.SnapshotID) (backend.Cut, error) {
	return backend.Cut{}, never(ctx)
}

func (silent) Cuts(ctx context.Context) ([]backend.Cut, error) { return nil, never(ctx) }

// never is what the client of a real one makes of a deadline: the server may go on with it.
func never(ctx context.Context) error {
	<-ctx.Done()
	return fmt.Errorf("%w: %w", volume.ErrBusy, ctx.Err())
}

// TestSilentServer: what nobody waits for, and others wait behind, does not wait for ever.
func TestSilentServer(t *testing.T) {
	scheme, err := kube.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		obj := records.NewObject("v", onSecond())
		obj.Status.OwnerNode, obj.Status.Publication = nodeA, v1alpha1.PublicationPublished
		released := obj.DeepCopy()
		released.Name, released.Status.Publication = "released", v1alpha1.PublicationReleased
		deleted := released.DeepCopy()
		deleted.Name, deleted.DeletionTimestamp = "deleted", new(metav1.Now())
		api := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(obj).WithObjects(obj, released, deleted).Build()
		key, err := keyagreement.New()
		if err != nil {
			t.Fatal(err)
		}
		for what, call := range map[string]func(context.Context, *Service) error{
			"settle": func(ctx context.Context, svc *Service) error { return svc.Settle(ctx, "released") },
			"retire": func(ctx context.Context, svc *Service) error { return svc.Retire(ctx, "deleted") },
			"renew": func(ctx context.Context, svc *Service) error {
				_, err := svc.RenewAccount(ctx, "v", obj.Status.OwnerNode)
				return err
			},
			"named": func(ctx context.Context, svc *Service) error {
				n, err := svc.NamedNodes(ctx, nil)
				if err == nil {
					_, err = n.Admitted(&v1alpha1.CachePool{})
				}
				return err
			},
			"sweep": func(ctx context.Context, svc *Service) error {
				return svc.SweepCuts(ctx, func(string) (func(), bool) { return func() {}, true })
			},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			began := time.Now()
			svc := New(Config{
				Client: api, Servers: map[string]Server{"": {Backend: backendtest.New(gib)}, "second": {Backend: silent{backendtest.New(gib)}}},
				LoginKey: func(context.Context) (*keyagreement.Key, error) { return key, nil },
			})
			// ErrBusy would be asked for again at once.
			if err := call(ctx, svc); !errors.Is(err, volume.ErrUnavailable) || errors.Is(err, volume.ErrBusy) || time.Since(began) != serverPatience {
				t.Errorf("%s: %v after %s", what, err, time.Since(began))
			}
			began = time.Now()
			if err := call(ctx, svc); !errors.Is(err, volume.ErrUnavailable) || !strings.Contains(err.Error(), "storage server second") || time.Since(began) > 0 {
				t.Errorf("%s again: %v after %s", what, err, time.Since(began))
			}
			cancel()
		}
	})
}

// TestSilentServerOthers: of many volumes of a server that takes calls and never answers, one in a
// while has the volumes of others wait.
func TestSilentServerOthers(t *testing.T) {
	scheme, err := kube.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		builder := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.CachedVolume{})
		well := backendtest.New(100 * gib)
		const many = 10
		id := func(server string, i int) volume.ID { return volume.ID(fmt.Sprintf("%s-%d", server, i)) }
		for i := range many {
			for server, spec := range map[string]volume.Spec{"second": onSecond(), "default": spec()} {
				obj := records.NewObject(id(server, i), spec)
				obj.Status.OwnerNode, obj.Status.Generation, obj.Status.Publication = nodeA, new(int64(1)), v1alpha1.PublicationReleased
				builder.WithObjects(obj)
			}
			if err := well.Create(t.Context(), id("default", i), backend.Request{SizeBytes: gib}); err != nil {
				t.Fatal(err)
			}
			if _, err := well.Export(t.Context(), id("default", i), backend.Grant{Initiator: iqnA, Generation: 1, Credentials: *chap}); err != nil {
				t.Fatal(err)
			}
		}
		svc := New(Config{Client: builder.Build(), Servers: map[string]Server{"": {Backend: well}, "second": {Backend: silent{backendtest.New(gib)}}}, Events: events.NewFakeRecorder(100)})
		round := func(want time.Duration) {
			t.Helper()
			began := time.Now()
			for i := range many {
				if err := svc.Settle(t.Context(), id("second", i)); !errors.Is(err, volume.ErrUnavailable) {
					t.Errorf("a volume of the silent one: %v", err)
				}
				if err := svc.Settle(t.Context(), id("default", i)); err != nil || len(well.Exported(id("default", i))) > 0 {
					t.Errorf("a volume of the other one: %v, admitted are %q", err, well.Exported(id("default", i)))
				}
			}
			if took := time.Since(began); took != want {
				t.Errorf("a round took %s, want %s", took, want)
			}
		}
		round(serverPatience)
		round(0)
		time.Sleep(silence)
		round(serverPatience)
	})
}

// TestSilentServerSweep: what is swept on one server never has a volume locked for another one that
// does not answer.
func TestSilentServerSweep(t *testing.T) {
	scheme, err := kube.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		cut volume.SnapshotID
		// hangs makes the default server one that lists and does not obey.
		hangs bool
		// locked is for how long the volume may be locked.
		locked time.Duration
		left   int
	}{
		"a group with a silent server": {cut: volume.GroupNamed("g").Member("v"), left: 1},
		"a single cut beside one":      {cut: "s"},
		"a server that does not obey":  {cut: "s", hangs: true, locked: serverPatience, left: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first := backendtest.New(100 * gib)
				if err := first.Create(t.Context(), "v", backend.Request{SizeBytes: gib}); err != nil {
					t.Fatal(err)
				}
				if _, err := first.Cut(t.Context(), tc.cut, "v", backend.CutRequest{Hold: "over"}); err != nil {
					t.Fatal(err)
				}
				var storage backend.Backend = first
				if tc.hangs {
					storage = disobedient{first}
				}
				api := fake.NewClientBuilder().WithScheme(scheme).Build()
				svc := New(Config{Client: api, Servers: map[string]Server{"": {Backend: storage}, "second": {Backend: silent{backendtest.New(gib)}}}})
				time.Sleep(holdExpiry)
				var since time.Time
				var locked time.Duration
				err := svc.SweepCuts(t.Context(), func(string) (func(), bool) {
					since = time.Now()
					return func() { locked += time.Since(since) }, true
				})
				if !errors.Is(err, volume.ErrUnavailable) {
					t.Errorf("sweep: %v", err)
				}
				cuts, err := first.Cuts(t.Context())
				if locked != tc.locked || len(cuts) != tc.left || err != nil {
					t.Errorf("locked for %s, want %s; left %+v, %v, want %d", locked, tc.locked, cuts, err, tc.left)
				}
			})
		})
	}
}

// TestSilentServerGroup: a call for a group of another server has the volumes locked for seconds.
func TestSilentServerGroup(t *testing.T) {
	scheme, err := kube.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(records.NewObject("v", spec())).Build()
		svc := New(Config{Client: api, Servers: map[string]Server{"": {Backend: backendtest.New(gib)}, "second": {Backend: silent{backendtest.New(gib)}}}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		for of, want := range map[volume.ID]time.Duration{"v": listPatience, "without-a-record": listPatience} {
			svc.silences = silences{}
			for _, want := range []time.Duration{want, 0} { // then it is known
				began := time.Now()
				_, err := svc.CreateGroup(ctx, "g", []volume.ID{of}, volume.SnapshotClass{})
				if took := time.Since(began); !errors.Is(err, volume.ErrUnavailable) || took != want {
					t.Errorf("group of %s: %v after %s, want it after %s", of, err, took, want)
				}
			}
		}
	})
}

// disobedient lists, and takes orders that it never answers.
type disobedient struct{ *backendtest.Server }

func (disobedient) DropCut(ctx context.Context, _ volume.SnapshotID, _ string) error {
	return never(ctx)
}
