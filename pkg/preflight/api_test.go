package preflight_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/nearflash/nearflash/pkg/preflight"
	"github.com/nearflash/nearflash/pkg/testutil/apiserver"
)

const apiPath = "/openapi/v3/apis/nearflash.io/v1alpha1"

// TestAPI judges a real API server, and then documents that differ from its own
// in one thing each.
func TestAPI(t *testing.T) {
	cfg := apiserver.Start(t)
	waitForAPI(t, cfg)
	d, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	text, err := d.RESTClient().Get().AbsPath(apiPath).SetHeader("Accept", "application/json").Do(t.Context()).Raw()
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		change  func(schemas map[string]any)
		wantErr []string
	}{
		"same": {change: func(map[string]any) {}},
		"newer": {change: func(s map[string]any) {
			properties(s, "CachedVolume", "status")["later"] = map[string]any{"type": "string"}
		}},
		"no pools": {
			change:  func(s map[string]any) { delete(s, schemaName("CachePool")) },
			wantErr: []string{"has no CachePool of nearflash.io/v1alpha1", "remedy: kubectl apply"},
		},
		"older": {
			change: func(s map[string]any) {
				delete(properties(s, "CachedVolume", "status"), "dirtyState")
				delete(properties(s, "CachedVolume", "spec", "static"), "lun")
				delete(properties(s, "CachePool", "status"), "initiatorIQN")
			},
			wantErr: []string{"CachedVolume of the API server lacks spec.static.lun, status.dirtyState;", "CachePool of the API server lacks status.initiatorIQN;", "remedy: kubectl apply"},
		},
		"older list entry": {
			change: func(s map[string]any) {
				delete(items(properties(s, "CachedVolume", "status"), "retainedCaches"), "generation")
			},
			wantErr: []string{"lacks status.retainedCaches[].generation;"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var doc map[string]any
			if err := json.Unmarshal(text, &doc); err != nil {
				t.Fatal(err)
			}
			tc.change(doc["components"].(map[string]any)["schemas"].(map[string]any))
			checkError(t, preflight.API(t.Context(), serve(t, doc)), tc.wantErr)
		})
	}
}

// TestAPIWithoutDefinitions asks a real API server that has none of them, and one
// that is not there.
func TestAPIWithoutDefinitions(t *testing.T) {
	checkError(t, preflight.API(t.Context(), apiserver.StartBare(t)), []string{"does not know nearflash.io/v1alpha1", "remedy: kubectl apply"})

	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	err := preflight.API(t.Context(), &rest.Config{Host: gone.URL})
	if err == nil || errors.Is(err, preflight.ErrCRD) || !strings.Contains(err.Error(), "remedy: check the network") {
		t.Errorf("API server that is not there: %v", err)
	}
}

func checkError(t *testing.T, err error, want []string) {
	t.Helper()
	if len(want) == 0 {
		if err != nil {
			t.Errorf("got %v, want no error", err)
		}
		return
	}
	if !errors.Is(err, preflight.ErrCRD) {
		t.Fatalf("got %v, want ErrCRD", err)
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error lacks %q: %v", w, err)
		}
	}
}

// waitForAPI gives the API server the moment that it takes to publish new
// definitions.
func waitForAPI(t *testing.T, cfg *rest.Config) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		err := preflight.API(ctx, cfg)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// serve answers as an API server with the document.
func serve(t *testing.T, doc map[string]any) *rest.Config {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != apiPath {
			t.Errorf("asked for %s", r.URL.Path)
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(doc); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(s.Close)
	return &rest.Config{Host: s.URL}
}

func schemaName(kind string) string { return "io.nearflash.v1alpha1." + kind }

func properties(schemas map[string]any, kind string, path ...string) map[string]any {
	at := schemas[schemaName(kind)].(map[string]any)["properties"].(map[string]any)
	for _, p := range path {
		at = at[p].(map[string]any)["properties"].(map[string]any)
	}
	return at
}

func items(in map[string]any, name string) map[string]any {
	return in[name].(map[string]any)["items"].(map[string]any)["properties"].(map[string]any)
}
