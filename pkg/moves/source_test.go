package moves_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/nearflash/nearflash/pkg/kube"
	"github.com/nearflash/nearflash/pkg/moves"
	"github.com/nearflash/nearflash/pkg/volume"
)

// The tests of this file are about when a source looks at a volume. Their time is their
// own, so that minutes cost nothing.

const never = 1000 * time.Hour

// emptyAPI is an API server without a CacheMigration. It says what it has, namely
// nothing, when known is closed.
type emptyAPI struct{ known chan struct{} }

func (a emptyAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	const group = `"groupVersion":"nearflash.io/v1alpha1"`
	switch r.URL.Path {
	case "/api":
		return answer(strings.NewReader(`{"kind":"APIVersions","versions":[]}`)), nil
	case "/apis":
		return answer(strings.NewReader(`{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"nearflash.io","versions":[{` + group + `,"version":"v1alpha1"}]}]}`)), nil
	case "/apis/nearflash.io/v1alpha1":
		return answer(strings.NewReader(`{"kind":"APIResourceList","apiVersion":"v1",` + group + `,"resources":[{"name":"cachemigrations","kind":"CacheMigration"}]}`)), nil
	}
	body, events := io.Pipe()
	go func() {
		select {
		case <-a.known:
			if r.URL.Query().Get("watch") == "" {
				_, _ = io.WriteString(events, `{"kind":"CacheMigrationList","apiVersion":"nearflash.io/v1alpha1","metadata":{"resourceVersion":"1"},"items":[]}`)
				_ = events.Close()
				return
			}
			_, _ = io.WriteString(events, `{"type":"BOOKMARK","object":{"kind":"CacheMigration","apiVersion":"nearflash.io/v1alpha1",`+
				`"metadata":{"resourceVersion":"1","annotations":{"k8s.io/initial-events-end":"true"}}}}`)
			<-r.Context().Done()
		case <-r.Context().Done():
		}
		_ = events.CloseWithError(r.Context().Err())
	}()
	return answer(body), nil
}

func answer(body io.Reader) *http.Response {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(body)}
}

// looker is a lessor of which a test sees, and says, what a look at a lease does.
type looker struct {
	*lessor
	look func(context.Context, volume.ID) error
}

func (l looker) Lease(ctx context.Context, id volume.ID) (volume.MoveID, bool, error) {
	if err := l.look(ctx, id); err != nil {
		return volume.MoveID{}, false, err
	}
	return l.lessor.Lease(ctx, id)
}

// runLooker runs the source of a node with a lease of each of the volumes, and no
// object, until stop.
func runLooker(t *testing.T, api emptyAPI, cfg moves.SourceConfig, look func(context.Context, volume.ID) error, ids ...volume.ID) (l *lessor, stop func()) {
	t.Helper()
	l = newLessor(map[volume.ID]int64{})
	for _, id := range ids {
		l.leases[id] = volume.LeaseRequest{Volume: id, Move: volume.MoveID{Name: string(id) + "-1", UID: string(id)}}
	}
	scheme, err := kube.NewScheme()
	must(t, err)
	cfg.Node, cfg.Lessor, cfg.Now = "a", looker{l, look}, time.Now
	cfg.Client = fake.NewClientBuilder().WithScheme(scheme).Build()
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logr.Discard()))
	s, err := moves.NewSource(ctx, &rest.Config{Host: "http://a.test", Transport: api}, scheme, cfg)
	must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Run(ctx); err != nil {
			t.Errorf("source: %v", err)
		}
	}()
	return l, func() { cancel(); <-done }
}

// knowing is an API server that answers.
func knowing() emptyAPI {
	a := emptyAPI{known: make(chan struct{})}
	close(a.known)
	return a
}

// TestSourceBegins: before all objects are known, every lease looks forgotten. An API
// server that is away for long ends nothing.
func TestSourceBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := emptyAPI{known: make(chan struct{})}
		looks := 0
		l, stop := runLooker(t, api, moves.SourceConfig{Workers: 1}, func(context.Context, volume.ID) error { looks++; return nil }, "v")
		time.Sleep(time.Hour)
		synctest.Wait()
		if looks > 0 || len(l.released) > 0 {
			t.Errorf("%d looks, released %v, before the objects were known", looks, l.released)
		}
		close(api.known)
		time.Sleep(time.Minute)
		stop()
		if looks == 0 || len(l.released) != 1 {
			t.Errorf("%d looks, released %v, when the objects were known", looks, l.released)
		}
	})
}

// TestSourceStopsEarly: a source that is ended before it has begun touches nothing, and
// that is no error.
func TestSourceStopsEarly(t *testing.T) {
	for _, after := range []time.Duration{0, time.Millisecond, 100 * time.Millisecond, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			_, stop := runLooker(t, emptyAPI{known: make(chan struct{})}, moves.SourceConfig{}, func(context.Context, volume.ID) error {
				t.Error("looked at a lease")
				return nil
			}, "v")
			time.Sleep(after)
			stop()
		})
	}
}

// TestSourceBackoff: what fails is tried again after 100 ms, twice as long each time,
// and 30 s at most.
func TestSourceBackoff(t *testing.T) {
	want := []time.Duration{}
	for d := 100 * time.Millisecond; d < 30*time.Second; d *= 2 {
		want = append(want, d)
	}
	want = append(want, 30*time.Second, 30*time.Second)
	for name, problem := range map[string]error{"error": errors.New("broken"), "busy": fmt.Errorf("lease: %w", volume.ErrBusy)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var pauses []time.Duration
				last := time.Time{}
				// One success after all failures, and the first failure after it: what it waited for begins anew.
				_, stop := runLooker(t, knowing(), moves.SourceConfig{Workers: 1, Resync: never, Grace: time.Hour}, func(context.Context, volume.ID) error {
					if !last.IsZero() {
						pauses = append(pauses, time.Since(last))
					}
					last = time.Now()
					if len(pauses) == len(want) {
						return nil
					}
					return problem
				}, "v")
				time.Sleep(time.Hour + 2*time.Minute)
				stop()
				if n := len(want); len(pauses) < n+2 || !slices.Equal(pauses[:n], want) || pauses[n] != time.Hour || pauses[n+1] != 100*time.Millisecond {
					t.Errorf("pauses %v, want %v, 1h0m0s, 100ms", pauses, want)
				}
			})
		})
	}
}

// TestSourceResync: every lease is looked at again and again, by one worker at a time,
// and as many volumes at once as there are workers.
func TestSourceResync(t *testing.T) {
	for name, c := range map[string]struct {
		workers, most int
		ids           []volume.ID
	}{
		"more volumes than workers": {2, 2, []volume.ID{"v1", "v2", "v3"}},
		"more workers than volumes": {4, 2, []volume.ID{"v1", "v2"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var looks counter
				_, stop := runLooker(t, knowing(), moves.SourceConfig{Workers: c.workers, Resync: time.Minute, Grace: never}, func(_ context.Context, id volume.ID) error {
					looks.begin(id)
					time.Sleep(150 * time.Second) // longer than the pause between looks
					looks.end(id)
					return nil
				}, c.ids...)
				time.Sleep(time.Hour)
				stop()
				if looks.most != c.most || looks.twice {
					t.Errorf("%d at once, want %d; one volume twice: %t", looks.most, c.most, looks.twice)
				}
				for _, id := range c.ids {
					if looks.of[id] < 10 {
						t.Errorf("%s was looked at %d times in an hour", id, looks.of[id])
					}
				}
			})
		})
	}
}

// counter counts looks at volumes.
type counter struct {
	mu sync.Mutex
	of map[volume.ID]int
	// now are those under way, and most is how many there were at once.
	now  map[volume.ID]bool
	most int
	// twice: one volume was looked at twice at the same moment.
	twice bool
}

func (c *counter) begin(id volume.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of, c.now = map[volume.ID]int{}, map[volume.ID]bool{}
	}
	c.twice = c.twice || c.now[id]
	c.of[id]++
	c.now[id] = true
	c.most = max(c.most, len(c.now))
}

func (c *counter) end(id volume.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.now, id)
}

// TestSourceShutdown: the end waits for what is under way, and begins nothing.
func TestSourceShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks counter
		_, stop := runLooker(t, knowing(), moves.SourceConfig{Workers: 2}, func(_ context.Context, id volume.ID) error {
			looks.begin(id)
			time.Sleep(10 * time.Minute) // whatever becomes of the context
			looks.end(id)
			return nil
		}, "v1", "v2", "v3", "v4", "v5", "v6", "v7")
		time.Sleep(time.Minute)
		stop()
		if len(looks.of) != 2 || len(looks.now) > 0 {
			t.Errorf("looks began at %v, and go on at %v; want two that have ended", looks.of, looks.now)
		}
	})
}
