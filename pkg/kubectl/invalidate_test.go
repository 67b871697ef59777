package kubectl_test

import (
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

func TestInvalidate(t *testing.T) {
	warm := func(v *v1alpha1.CachedVolume) {
		v.Status.RetainedCaches = []v1alpha1.RetainedCache{{NodeName: "node-a", Generation: 3}}
		v.Status.WarmSource = v1alpha1.WarmSource{NodeName: "node-a", Generation: 2}
	}
	for tc, c := range map[string]struct {
		objs    []client.Object
		args    string
		wantErr string
		// want is the owner that the record shows afterwards.
		want string
	}{
		"at rest":             {objs: bound("default", "data", "pvc-1", released("node-a"), warm), args: "invalidate data --yes"},
		"attached":            {objs: bound("default", "data", "pvc-1", on("node-a"), warm), args: "invalidate data --yes", want: "node-a", wantErr: "stop its pods"},
		"unflushed":           {objs: bound("default", "data", "pvc-1", writeback, released("node-a"), warm), args: "invalidate data --yes", want: "node-a", wantErr: "may hold unflushed writes"},
		"never attached":      {objs: bound("default", "data", "pvc-1"), args: "invalidate data --yes"},
		"nobody to ask":       {objs: bound("default", "data", "pvc-1", released("node-a"), warm), args: "invalidate data", want: "node-a", wantErr: "add --yes"},
		"no name of a volume": {objs: bound("default", "data", "pvc-1", released("node-a")), args: "invalidate pod/x --yes", want: "node-a", wantErr: "\"pod/x\" does not name a volume"},
	} {
		t.Run(tc, func(t *testing.T) {
			r := newRig(t, c.objs...)
			code, _, errOut := r.run(strings.Fields(c.args)...)
			if (code != 0) != (c.wantErr != "") || !strings.Contains(errOut, c.wantErr) {
				t.Errorf("code %d, %q, want %q", code, errOut, c.wantErr)
			}
			s := r.record("pvc-1").Status
			if s.OwnerNode != c.want || c.want == "" && (len(s.RetainedCaches) > 0 || s.WarmSource != v1alpha1.WarmSource{}) {
				t.Errorf("the record shows owner %q, retained caches %v, warm source %v", s.OwnerNode, s.RetainedCaches, s.WarmSource)
			}
			if s.Generation != nil && *s.Generation != 3 {
				t.Errorf("generation %d: only a publication changes it", *s.Generation)
			}
		})
	}
}
