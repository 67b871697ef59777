package v1alpha1_test

import (
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// over returns a volume over one of another driver.
func over(class, pv string) *v1alpha1.CachedVolume {
	obj := good()
	obj.Spec.Backend, obj.Spec.Origin = "csi", &v1alpha1.OriginSource{StorageClassName: class, PersistentVolumeName: pv}
	return obj
}

// testTarget: a volume lies on the server that it was made on, and nowhere else.
func testTarget(t *testing.T, c client.Client) {
	const (
		pattern          = " in body should match '^[a-z0-9]([a-z0-9-]*[a-z0-9])?$'"
		elsewhere, fixed = "spec: Invalid value: target goes with volumes of nearflash-target alone", "spec: Invalid value: target cannot be changed"
	)
	static := good()
	static.Spec.Static = &v1alpha1.ISCSISource{Portals: []string{"192.0.2.1:3260"}, IQN: "iqn.2026-11.com.example:a"}
	for name, tc := range map[string]struct {
		of           *v1alpha1.CachedVolume
		target, want string
	}{
		"named":         {good(), "second", ""},
		"longest":       {good(), strings.Repeat("a", 58), ""},
		"too long":      {good(), strings.Repeat("a", 59), `[spec.target: Too long: may not be more than 58 bytes` + unchecked},
		"no label":      {good(), "Second", `spec.target: Invalid value: "Second": spec.target` + pattern},
		"two labels":    {good(), "a.b", `spec.target: Invalid value: "a.b": spec.target` + pattern},
		"of a driver":   {over("a", ""), "second", elsewhere},
		"static volume": {static, "second", elsewhere},
	} {
		t.Run(name, func(t *testing.T) {
			obj := tc.of.DeepCopy()
			obj.Spec.Target = tc.target
			wantMessage(t, c.Create(t.Context(), obj, client.DryRunAll), tc.want)
		})
	}
	named, plain := good(), good()
	named.Spec.Target = "second"
	for _, obj := range []*v1alpha1.CachedVolume{named, plain} {
		if err := c.Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		of           *v1alpha1.CachedVolume
		target, want string
	}{
		"the same":       {named, "second", ""},
		"another":        {named, "third", fixed},
		"taken away":     {named, "", fixed},
		"given later on": {plain, "second", fixed},
	} {
		t.Run(name, func(t *testing.T) {
			obj := tc.of.DeepCopy()
			obj.Spec.Target = tc.target
			wantMessage(t, c.Update(t.Context(), obj, client.DryRunAll), tc.want)
		})
	}
}
