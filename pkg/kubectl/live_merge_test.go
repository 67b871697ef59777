package kubectl

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/figures"
	nearflash "github.com/nearflash/nearflash/pkg/volume"
)

// told is a volume whose record says that reads reads a second were seen.
func told(id, node string, publication v1alpha1.PublicationState, reads int64) *volume {
	return &volume{Claim: "claim-" + id, CachedVolume: &v1alpha1.CachedVolume{
		ObjectMeta: metav1.ObjectMeta{Name: id},
		Status:     v1alpha1.CachedVolumeStatus{OwnerNode: node, Publication: publication, Cache: cacheOf(reads)},
	}}
}

func cacheOf(reads int64) v1alpha1.CacheStatus {
	return v1alpha1.CacheStatus{Mode: v1alpha1.CacheModeWritethrough, Performance: v1alpha1.Performance{ReadIOPS: &reads}}
}

// says is the answer of a node, with the reads a second of each volume.
func says(node string, reads map[string]int64) nodeAnswer {
	a := nodeAnswer{node: node}
	for id, n := range reads {
		a.answer.Volumes = append(a.answer.Volumes, figures.Volume{ID: nearflash.ID(id), Cache: cacheOf(n)})
	}
	return a
}

func TestMerged(t *testing.T) {
	const on, off = v1alpha1.PublicationPublished, v1alpha1.PublicationReleased
	for name, c := range map[string]struct {
		volumes []*volume
		answers []nodeAnswer
		want    []int64
	}{
		"nobody was asked": {volumes: []*volume{told("a", "n1", on, 1)}, want: []int64{1}},
		"each of its own node": {
			volumes: []*volume{told("a", "n1", on, 1), told("b", "n2", on, 2), told("c", "n1", on, 3)},
			answers: []nodeAnswer{says("n1", map[string]int64{"a": 10, "c": 30}), says("n2", map[string]int64{"b": 20})}, want: []int64{10, 20, 30},
		},
		"one node is silent": {
			volumes: []*volume{told("a", "n1", on, 1), told("b", "n2", on, 2)},
			answers: []nodeAnswer{{node: "n1", err: errors.New("gone"), answer: says("", map[string]int64{"a": 10}).answer}, says("n2", map[string]int64{"b": 20})}, want: []int64{1, 20},
		},
		"a node speaks of another's volume": {
			volumes: []*volume{told("a", "n1", on, 1), told("b", "n2", on, 2)},
			answers: []nodeAnswer{says("n1", nil), says("n2", map[string]int64{"a": 10, "b": 20})}, want: []int64{1, 20},
		},
		"not attached": {
			volumes: []*volume{told("a", "n1", off, 1)}, answers: []nodeAnswer{says("n1", map[string]int64{"a": 10}), says("", map[string]int64{"a": 11})}, want: []int64{1},
		},
		"the node does not have it yet": {volumes: []*volume{told("a", "n1", on, 1)}, answers: []nodeAnswer{says("n1", nil)}, want: []int64{1}},
	} {
		t.Run(name, func(t *testing.T) {
			var before []*v1alpha1.CachedVolume
			for _, v := range c.volumes {
				before = append(before, v.DeepCopy())
			}
			var got []int64
			for i, v := range merged(c.volumes, c.answers) {
				got = append(got, *v.Status.Cache.Performance.ReadIOPS)
				if v.Claim != c.volumes[i].Claim {
					t.Errorf("claim %s became %s", c.volumes[i].Claim, v.Claim)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("reads (-want +got):\n%s", diff)
			}
			for i, v := range c.volumes {
				if diff := cmp.Diff(before[i], v.CachedVolume); diff != "" {
					t.Errorf("the record was changed (-before +after):\n%s", diff)
				}
			}
		})
	}
}

func TestComplaint(t *testing.T) {
	silent := func(node, why string) nodeAnswer { return nodeAnswer{node: node, err: errors.New(why)} }
	part := func(node, problem string) nodeAnswer {
		return nodeAnswer{node: node, answer: figures.Answer{Problem: problem}}
	}
	for name, c := range map[string]struct {
		answers []nodeAnswer
		want    string
	}{
		"all answer": {[]nodeAnswer{says("a", nil), says("b", nil)}, ""},
		"one":        {[]nodeAnswer{says("a", nil), silent("b", "gone")}, "1 of 2 nodes did not answer; its figures are as last reported: b: gone"},
		"five": {
			[]nodeAnswer{silent("a", "w"), silent("b", "x"), silent("c", "y"), silent("d", "z"), silent("e", "z"), says("f", nil)},
			"5 of 6 nodes did not answer; their figures are as last reported: a: w; b: x; c: y; and 2 more",
		},
		"the only one": {[]nodeAnswer{silent("a", "gone")}, "1 of 1 node did not answer; its figures are as last reported: a: gone"},
		"not all measured": {
			[]nodeAnswer{part("a", "an SSD hangs"), says("b", nil), silent("c", "gone")},
			"1 of 3 nodes did not answer; its figures are as last reported: c: gone; 1 of 3 nodes could not measure everything: a: an SSD hangs",
		},
		"what moves the cursor, in several lines": {[]nodeAnswer{silent("a", "one\n\x1b[2Jtwo")}, "1 of 1 node did not answer; its figures are as last reported: a: one [2Jtwo"},
		"long":        {[]nodeAnswer{silent("a", strings.Repeat("ä", 200))}, "1 of 1 node did not answer; its figures are as last reported: a: " + strings.Repeat("ä", 100) + "..."},
		"without why": {[]nodeAnswer{silent("a", "\n")}, "1 of 1 node did not answer; its figures are as last reported: a: it does not say why"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := complaint(c.answers); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}
