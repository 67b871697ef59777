package moves

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/kube"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestStreamSource: a node is reached at its own addresses in the cluster's network alone, and
// only with a key.
func TestStreamSource(t *testing.T) {
	key := strings.Repeat("A", 43) + "="
	addresses := []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "node-a"}, {Type: corev1.NodeInternalIP, Address: "192.0.2.1"},
		{Type: corev1.NodeExternalIP, Address: "198.51.100.1"}, {Type: corev1.NodeInternalIP, Address: "2001:db8::1"},
	}
	for name, tc := range map[string]struct {
		addresses []corev1.NodeAddress
		key       string
		want      *volume.StreamSource
		wantErr   string
	}{
		"as it should be": {addresses, key, &volume.StreamSource{Addresses: []string{"192.0.2.1:3263", "[2001:db8::1]:3263"}, PublicKey: key}, ""},
		"no address":      {nil, key, nil, "node node-a has no internal address"},
		"others alone":    {addresses[2:3], key, nil, "node node-a has no internal address"},
		"no key":          {addresses, "", nil, "CachePool node-a has no streamPublicKey"},
		"too short":       {addresses, key[4:], nil, "is no key"},
		"no base64":       {addresses, strings.Repeat("-", 43) + "=", nil, "is no key"},
	} {
		t.Run(name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}, Status: corev1.NodeStatus{Addresses: tc.addresses}}
			pool := &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}, Status: v1alpha1.CachePoolStatus{StreamPublicKey: tc.key}}
			got, err := streamSource(node, pool, 3263)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			wantCause(t, err, volume.ErrUnavailable, tc.wantErr)
		})
	}
}

// noLessor exports nothing: whoever asks it has not looked at the request.
type noLessor struct{ volume.Lessor }

// TestUnknownMethod: the new owner's plugin is of a later version than this node's, and waits
// for an answer.
func TestUnknownMethod(t *testing.T) {
	for _, method := range []v1alpha1.MigrationMethod{"Teleport", v1alpha1.MigrationHotSet} {
		obj := &v1alpha1.CacheMigration{
			ObjectMeta: metav1.ObjectMeta{Name: "v-2", UID: "u"},
			Spec: v1alpha1.CacheMigrationSpec{
				VolumeName: "v", Generation: 2, SourceNode: "a", SourceGeneration: 1, DestinationNode: "b", Method: method,
			},
		}
		scheme, err := kube.NewScheme()
		if err != nil {
			t.Fatal(err)
		}
		api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(obj).WithStatusSubresource(obj).Build()
		s := &Source{SourceConfig: SourceConfig{Node: "a", Lessor: noLessor{}, Client: api, Now: time.Now}, keys: map[string]leaseKey{}}
		if err := s.exportCache(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
		got, err := load(t.Context(), api, idOf(obj))
		if err != nil {
			t.Fatal(err)
		}
		if a := got.Status.Source; a.State != v1alpha1.ExportStateRefused || !strings.Contains(a.Message, string(method)) || !strings.Contains(a.Message, "Clone and Stream") {
			t.Errorf("answer %+v", a)
		}
	}
}

// TestStreamWithoutAgreement: a source of a version before there were streams takes an object
// without a key for a clone, cannot agree on a secret with it, and says so.
func TestStreamWithoutAgreement(t *testing.T) {
	own, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	obj := newObject(volume.MoveRequest{Volume: "v", Source: &volume.WarmSource{Node: "a", Generation: 1}, Method: volume.MethodStream}, nil)
	_, err = agree(own, obj.Spec.DestinationPublicKey, idOf(obj), obj.Spec.DestinationPublicKey, own.Public())
	wantCause(t, err, volume.ErrInvalid, "public key")
}

// TestEventMessage: the event at the end of a move says by which method it was.
func TestEventMessage(t *testing.T) {
	for want, spec := range map[string]v1alpha1.CacheMigrationSpec{
		"Warm start on node b from node a is completed, 1 of 2 copied: done":                {SourceNode: "a"},
		"Warm start on node b from node a by clone is completed, 1 of 2 copied: done":       {SourceNode: "a", Method: v1alpha1.MigrationClone},
		"Warm start on node b from node a by stream is completed, 1 of 2 copied: done":      {SourceNode: "a", Method: v1alpha1.MigrationStream},
		"Warm start on node b from the origin by hot set is completed, 1 of 2 copied: done": {Method: v1alpha1.MigrationHotSet},
		"Warm start on node b from the origin by preload is completed, 1 of 2 copied: done": {Method: v1alpha1.MigrationPreload},
		"Prewarming of node b from node a by stream is completed, 1 of 2 copied: done":      {SourceNode: "a", Method: v1alpha1.MigrationStream, Purpose: v1alpha1.MigrationPrewarm},
	} {
		spec.DestinationNode = "b"
		got := eventMessage(&v1alpha1.CacheMigration{Spec: spec, Status: v1alpha1.CacheMigrationStatus{
			Outcome: v1alpha1.MigrationCompleted, OutcomeMessage: "done",
			Progress: v1alpha1.MigrationProgress{TotalBytes: new(int64(2)), HydratedBytes: new(int64(1))},
		}})
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// wantCause wants an error of that kind that says something; of "" there is to be none.
func wantCause(t *testing.T, err, kind error, text string) {
	t.Helper()
	if text == "" {
		if err != nil {
			t.Errorf("got %v", err)
		}
		return
	}
	if !errors.Is(err, kind) || !strings.Contains(err.Error(), text) {
		t.Errorf("got %v, want a %v that says %q", err, kind, text)
	}
}
