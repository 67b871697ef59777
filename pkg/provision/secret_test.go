package provision

import (
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/volume"
)

// testNoSecretStored: the CHAP password goes to the storage server and nowhere else,
// whether a call succeeds or fails.
func testNoSecretStored(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	p := f.publish(t, nodeA, 1)
	_, refused := f.svc.Publish(t.Context(), f.id, nodeB, nil, chap)
	if refused == nil {
		t.Fatal("a second node was admitted")
	}
	f.failOnce("export", false)
	_, failed := f.svc.Publish(t.Context(), f.id, nodeA, nil, chap)
	static := staticSpec()
	if _, err := f.svc.Publish(t.Context(), f.id+"-static", nodeA, static, chap); err != nil {
		t.Fatal(err)
	}
	var volumes v1alpha1.CachedVolumeList
	if err := f.client.List(t.Context(), &volumes); err != nil {
		t.Fatal(err)
	}
	found := map[volume.ID]bool{}
	shown := map[string]any{"publication": p, "refusal": refused.Error()}
	if failed != nil {
		shown["failure"] = failed.Error()
	}
	for i := range volumes.Items {
		v := &volumes.Items[i]
		found[volume.ID(v.Name)] = true
		shown["CachedVolume "+v.Name] = v
	}
	if !found[f.id] || !found[f.id+"-static"] {
		t.Fatalf("the volumes are not among %v", found)
	}
	for len(f.events.Events) > 0 {
		event := <-f.events.Events
		shown["event "+event] = event
	}
	for what, v := range shown {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), chap.Password) {
			t.Errorf("%s shows the password: %s", what, text)
		}
	}
}
