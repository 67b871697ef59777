package moves_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/volume"
)

// streamKey is of the form of the key that a node proves itself by.
var streamKey = strings.Repeat("k", 42) + "g="

// streaming lets node A have a key and a second address, and makes requests for a stream.
func (f *fixture) streaming() volume.MoveRequest {
	f.t.Helper()
	pool := &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: f.nodeA}}
	must(f.t, f.api.Create(f.t.Context(), pool))
	pool.Status.StreamPublicKey = streamKey
	must(f.t, f.api.Status().Update(f.t.Context(), pool))
	node := &corev1.Node{}
	must(f.t, f.api.Get(f.t.Context(), types.NamespacedName{Name: f.nodeA}, node))
	node.Status.Addresses = append(node.Status.Addresses,
		corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "198.51.100.1"}, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "2001:db8::1"})
	must(f.t, f.api.Status().Update(f.t.Context(), node))
	r := f.request()
	r.Method, r.Reason = volume.MethodStream, "the kernel of node b has no dm-clone"
	return r
}

// testStream: nothing of an export is in the object, and the lease leads to the node as the API
// server knows it. The new owner needs no initiator name.
func testStream(t *testing.T, f *fixture) {
	r := f.streaming()
	f.lessor.wwid, f.lessor.through = "naa.600", true
	must(t, f.api.Delete(t.Context(), &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: f.nodeB}}))
	f.source()
	m, lease, err := f.b.Begin(t.Context(), r)
	must(t, err)
	want := &volume.Lease{
		Move: m, Stream: &volume.StreamSource{Addresses: []string{"192.0.2.1:3263", "[2001:db8::1]:3263"}, PublicKey: streamKey},
		ChunkSectors: 512, DataBytes: 1 << 30, WWID: "naa.600", WrittenThrough: true,
	}
	if diff := cmp.Diff(want, lease); diff != "" {
		t.Errorf("lease (-want +got):\n%s", diff)
	}
	asked, _ := f.lessor.lease(f.id)
	if diff := cmp.Diff(volume.LeaseRequest{
		Move: m, Volume: f.id, UID: f.fence.UID, Generation: 1, Purpose: volume.PurposeMove, Method: volume.MethodStream, To: f.nodeB,
	}, asked); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	obj := f.load(m)
	if obj.Spec.Method != v1alpha1.MigrationStream || obj.Spec.MethodReason != r.Reason || obj.Spec.DestinationPublicKey != "" {
		t.Errorf("spec %+v", obj.Spec)
	}
	if diff := cmp.Diff(v1alpha1.MigrationSource{
		State: v1alpha1.ExportStateExported, ChunkSizeBytes: 256 << 10, DataBytes: 1 << 30, UnitID: "naa.600", Modes: v1alpha1.ExportedWritethroughOnly,
	}, obj.Status.Source); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
	f.wantState(m, v1alpha1.ExportStateExported)
	must(t, f.b.Finish(t.Context(), m, volume.MoveCompleted, ""))
	f.wantState(m, v1alpha1.ExportStateReleased)
	if e := <-f.events.Events; !strings.Contains(e, "Warm start on node "+f.nodeB+" from node "+f.nodeA+" by stream is completed") {
		t.Errorf("event %q", e)
	}
}

func testStreamRefused(t *testing.T, f *fixture) {
	r := f.streaming()
	f.lessor.retainedCaches[f.id] = 7
	f.source()
	m, lease, err := f.b.Begin(t.Context(), r)
	if !errors.Is(err, volume.ErrUnavailable) || lease != nil || !strings.Contains(err.Error(), "no retained cache of generation 1") {
		t.Errorf("got %+v, %v", lease, err)
	}
	f.wantState(m, v1alpha1.ExportStateRefused)
}

// testStreamWithoutKey: a node of an earlier version has no key, and one that has none cannot be told from
// another.
func testStreamWithoutKey(t *testing.T, f *fixture) {
	r := f.streaming()
	f.source()
	pool := &v1alpha1.CachePool{}
	must(t, f.api.Get(t.Context(), types.NamespacedName{Name: f.nodeA}, pool))
	pool.Status.StreamPublicKey = ""
	must(t, f.api.Status().Update(t.Context(), pool))
	m, lease, err := f.b.Begin(t.Context(), r)
	if !errors.Is(err, volume.ErrUnavailable) || lease != nil || !strings.Contains(err.Error(), "CachePool "+f.nodeA+" has no streamPublicKey") {
		t.Errorf("got %+v, %v", lease, err)
	}
	if o := f.load(m).Status.Outcome; o != v1alpha1.MigrationFailed {
		t.Errorf("the move has the outcome %q", o)
	}
}

func testStreamWithoutPool(t *testing.T, f *fixture) {
	r := f.streaming()
	f.source()
	must(t, f.api.Delete(t.Context(), &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: f.nodeA}}))
	if _, lease, err := f.b.Begin(t.Context(), r); !errors.Is(err, volume.ErrUnavailable) || lease != nil || !strings.Contains(err.Error(), "CachePool "+f.nodeA) {
		t.Errorf("got %+v, %v", lease, err)
	}
}

func testStreamWithoutNode(t *testing.T, f *fixture) {
	r := f.streaming()
	f.source()
	must(t, f.api.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: f.nodeA}}))
	if _, lease, err := f.b.Begin(t.Context(), r); !errors.Is(err, volume.ErrUnavailable) || lease != nil || !strings.Contains(err.Error(), "Node "+f.nodeA) {
		t.Errorf("got %+v, %v", lease, err)
	}
}

// testStreamLeadsElsewhere: a node that names addresses and a key of another one, in the hope to
// have the new owner connect there.
func testStreamLeadsElsewhere(t *testing.T, f *fixture) {
	r := f.streaming()
	f.answer(v1alpha1.MigrationSource{
		State: v1alpha1.ExportStateExported, Portals: []string{"203.0.113.1:3263"}, IQN: "iqn.2026-11.io.nearflash:s1:other:g4",
		PublicKey: strings.Repeat("A", 43) + "=", ChunkSizeBytes: 256 << 10, MetaBytes: 8 << 20, DataBytes: 1 << 30,
	})
	m, lease, err := f.b.Begin(t.Context(), r)
	must(t, err)
	want := &volume.Lease{
		Move: m, Stream: &volume.StreamSource{Addresses: []string{"192.0.2.1:3263", "[2001:db8::1]:3263"}, PublicKey: streamKey},
		ChunkSectors: 512, DataBytes: 1 << 30,
	}
	if diff := cmp.Diff(want, lease); diff != "" {
		t.Errorf("lease (-want +got):\n%s", diff)
	}
}

// testNoMethod: an object of an earlier version is a clone.
func testNoMethod(t *testing.T, f *fixture) {
	f.source()
	m, lease := f.mustBegin()
	if asked, _ := f.lessor.lease(f.id); asked.Method != volume.MethodClone || lease.Stream != nil || lease.WrittenThrough || f.load(m).Spec.Method != "" {
		t.Errorf("request %+v, lease %+v", asked, lease)
	}
	r := f.request()
	r.Method, r.Reason = volume.MethodClone, "dm-clone is there"
	m, lease, err := f.b.Begin(t.Context(), r)
	must(t, err)
	if asked, _ := f.lessor.lease(f.id); asked.Method != volume.MethodClone || !asked.Credentials.Equal(lease.Credentials) || lease.Stream != nil {
		t.Errorf("request %+v, lease %+v", asked, lease)
	}
	if s := f.load(m).Spec; s.Method != v1alpha1.MigrationClone || s.MethodReason != r.Reason {
		t.Errorf("spec %+v", s)
	}
}
