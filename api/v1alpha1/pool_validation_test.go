package v1alpha1_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

func testPools(t *testing.T, c client.Client) {
	tests := map[string]struct {
		spec v1alpha1.CachePoolSpec
		want string
	}{
		"empty":          {},
		"device":         {spec: v1alpha1.CachePoolSpec{Devices: []string{"/dev/disk/by-id/nvme-*"}, Redundancy: v1alpha1.RedundancyMirror}},
		"file":           {spec: v1alpha1.CachePoolSpec{Devices: []string{"/tmp/disk"}}, want: "spec.devices[0]: Invalid value: \"/tmp/disk\": spec.devices[0] in body should match '^/dev/.+'"},
		"redundancy":     {spec: v1alpha1.CachePoolSpec{Redundancy: "raid5"}, want: `[spec.redundancy: Unsupported value: "raid5": supported values: "none", "mirror"` + unchecked},
		"checked mirror": {spec: v1alpha1.CachePoolSpec{Integrity: true, Redundancy: v1alpha1.RedundancyMirror}, want: "spec: Invalid value: integrity does not go with redundancy mirror"},
		"share":          {spec: v1alpha1.CachePoolSpec{NamespaceSharePercent: 100}},
		"more shared":    {spec: v1alpha1.CachePoolSpec{NamespaceSharePercent: 101}, want: "spec.namespaceSharePercent: Invalid value: 101: spec.namespaceSharePercent in body should be less than or equal to 100"},
		"evacuate":       {spec: v1alpha1.CachePoolSpec{Evacuate: []string{"/dev/disk/by-id/nvme-*"}}},
		"evacuate file":  {spec: v1alpha1.CachePoolSpec{Evacuate: []string{"sda"}}, want: "spec.evacuate[0]: Invalid value: \"sda\": spec.evacuate[0] in body should match '^/dev/.+'"},
		"same device":    {spec: v1alpha1.CachePoolSpec{Devices: []string{"/dev/a", "/dev/a"}}, want: `spec.devices[1]: Duplicate value: "/dev/a"`},
		"integrity":      {spec: v1alpha1.CachePoolSpec{Integrity: true}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pool := &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{GenerateName: "p-"}, Spec: tc.spec}
			wantMessage(t, c.Create(t.Context(), pool, client.DryRunAll), tc.want)
		})
	}
	stored := &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: "stream"}}
	if err := c.Create(t.Context(), stored); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		strings.Repeat("A", 43) + "=": "",
		strings.Repeat("A", 44):       "in body should match '^[A-Za-z0-9+/]{43}=$'",
		"A=":                          "in body should be at least 44 chars long",
	} {
		for field, set := range map[string]func(*v1alpha1.CachePoolStatus){
			"streamPublicKey": func(st *v1alpha1.CachePoolStatus) { st.StreamPublicKey = key },
			"loginPublicKey":  func(st *v1alpha1.CachePoolStatus) { st.LoginPublicKey = key },
		} {
			changed := stored.DeepCopy()
			set(&changed.Status)
			err := c.Status().Update(t.Context(), changed, client.DryRunAll)
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), field+" "+want) {
				t.Errorf("%s %q: got %v, want %q", field, key, err, want)
			}
		}
	}
	if err := c.Delete(t.Context(), stored); err != nil {
		t.Fatal(err)
	}
}

func testPoolStatus(t *testing.T, c client.Client) {
	pool := &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: "status"}}
	if err := c.Create(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	key := publicKey()
	for name, tc := range map[string]struct{ key, want string }{
		"no key":    {},
		"key":       {key: key},
		"short key": {key: key[4:], want: `status.streamPublicKey: Invalid value: "` + key[4:] + `": streamPublicKey in body should be at least 44 chars long`},
		"no base64": {key: "-" + key[1:], want: `status.streamPublicKey: Invalid value: "-` + key[1:] + `": streamPublicKey in body should match '^[A-Za-z0-9+/]{43}=$'`},
	} {
		t.Run(name, func(t *testing.T) {
			changed := pool.DeepCopy()
			changed.Status.StreamPublicKey = tc.key
			wantMessage(t, c.Status().Update(t.Context(), changed, client.DryRunAll), tc.want)
		})
	}
	if err := c.Delete(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
}
