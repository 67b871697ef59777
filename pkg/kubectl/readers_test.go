package kubectl_test

import (
	"testing"

	"github.com/nearflash/nearflash/api/v1alpha1"
	domain "github.com/nearflash/nearflash/pkg/volume"
)

// readBy attaches the volume to nodes that read it.
func readBy(nodes ...string) func(*v1alpha1.CachedVolume) {
	return func(v *v1alpha1.CachedVolume) {
		v.Status.OwnerNode, v.Status.Generation, v.Status.Publication, v.Status.Readers = domain.Readers, ptr(int64(3)), v1alpha1.PublicationPublished, nodes
	}
}

// TestReaders: what asks one node is refused where many read; a change is written, and nobody waits
// for a word that no reader gives.
func TestReaders(t *testing.T) {
	objs := bound("default", "data", "pvc-1", readBy("node-a", "node-b"))
	const refused = "it is read by many nodes (node-a, node-b), each with a cache of its own, and only the cache of a volume that one node has can be "
	for name, c := range map[string]changeCase{
		"scrub":   {args: []string{"scrub", "data"}, wantErr: "error: data: " + refused + "compared\n", wantSpec: spec(wt, "10%")},
		"preload": {args: []string{"preload", "data"}, wantErr: "error: data: " + refused + "preloaded\n", wantSpec: spec(wt, "10%")},
		"migrate": {args: []string{"migrate", "data", "--to", "node-b"}, wantErr: "error: data: " + refused + "copied\n", wantSpec: spec(wt, "10%")},
		"flush":   {args: []string{"flush", "data"}, wantOut: "data: nothing is dirty: the storage server has every write\n", wantSpec: spec(wt, "10%")},
		"resize": {
			args:     []string{"resize", "data", "20Gi"},
			wantOut:  "data: cacheSize 10% -> 20Gi (it grows and stays warm)\ndata: requested: each of its readers (node-a, node-b) takes the change when the volume is attached there anew\n",
			wantSpec: spec(wt, "20Gi"),
		},
	} {
		c.objs = objs
		t.Run(name, c.check)
	}
}
