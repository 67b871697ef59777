package kubectl_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/nearflash/nearflash/pkg/backend/epoch"
)

// epochs returns the object in which the controller keeps the epochs of storage servers.
func epochs(t *testing.T, of map[string]epoch.Record) *corev1.ConfigMap {
	t.Helper()
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: "nearflash", Name: epoch.RecordName, Labels: map[string]string{epoch.RecordLabel: epoch.RecordLabelValue},
	}}
	for server, r := range of {
		if err := epoch.Encode(obj, server, r); err != nil {
			t.Fatal(err)
		}
	}
	return obj
}

func refusedFor(d time.Duration) epoch.Record {
	return epoch.Record{Current: "of-the-backup", Refused: &epoch.Refusal{Epoch: "of-another", Since: before(d)}}
}

func epochOf(t *testing.T, c client.Client, server string) (*corev1.ConfigMap, epoch.Record) {
	t.Helper()
	obj := &corev1.ConfigMap{}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: "nearflash", Name: epoch.RecordName}, obj); err != nil {
		t.Fatal(err)
	}
	r, err := epoch.Decode(obj, server)
	if err != nil {
		t.Fatal(err)
	}
	return obj, r
}

func TestTakeover(t *testing.T) {
	const met = "storage server s1 has refused this cluster for 5m: another cluster uses it, or the records of this one come from a backup\n"
	one := map[string]epoch.Record{"s1": refusedFor(5 * time.Minute), "s2": {Current: "ours"}}
	two := map[string]epoch.Record{"s1": refusedFor(5 * time.Minute), "s2": refusedFor(time.Hour)}
	// The controller's answers to the word.
	swapped := epoch.Record{Current: "drawn-anew"}
	raced := epoch.Record{Current: "of-the-backup", Refused: &epoch.Refusal{Epoch: "a-third", Since: before(0)}}
	for name, tc := range map[string]struct {
		args             string
		of               map[string]epoch.Record
		answer           *epoch.Record
		wantOut, wantErr string
		wantWord         bool
	}{
		"with consent": {
			args: "takeover --accept-cutoff", of: one, answer: &swapped, wantWord: true,
			wantOut: met + "storage server s1 takes the orders of this cluster, and of no other\n",
		},
		"by name": {
			args: "takeover s1 --accept-cutoff", of: two, answer: &swapped, wantWord: true,
			wantOut: met + "storage server s1 takes the orders of this cluster, and of no other\n",
		},
		"without consent": {
			args: "takeover", of: one, wantOut: met,
			wantErr: "error: the storage server would refuse every other cluster: make sure that none is to use it, then add --accept-cutoff\n",
		},
		"nothing refuses": {
			args: "takeover --accept-cutoff", of: map[string]epoch.Record{"s1": {Current: "ours"}},
			wantOut: "no storage server is known to refuse this cluster: there is nothing to take over\n",
		},
		"another": {
			args: "takeover s9 --accept-cutoff", of: one,
			wantErr: "error: storage server s9 does not refuse this cluster: accepted is s1\n",
		},
		"which": {
			args: "takeover --accept-cutoff", of: two,
			wantErr: "error: 2 storage servers refuse this cluster: name one of s1, s2\n",
		},
		"two words": {
			args: "takeover s1 s2", of: one,
			wantErr: "error: takeover takes one storage server, got 2: write `kubectl nearflash takeover [SERVER]`\n",
		},
		"the other cluster goes on": {
			args: "takeover --accept-cutoff", of: one, answer: &raced, wantWord: true, wantOut: met,
			wantErr: "error: another cluster has used storage server s1 in this moment: stop its controller, then say it again\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, epochs(t, tc.of))
			said := false
			if tc.answer != nil {
				r.clock.ticks = append(r.clock.ticks, func() {
					obj, rec := epochOf(t, r.client, "s1")
					said = rec.Takeover != nil && rec.Takeover.Epoch == "of-another" && rec.Takeover.Time.Time.Equal(start)
					if err := errors.Join(epoch.Encode(obj, "s1", *tc.answer), r.client.Update(t.Context(), obj)); err != nil {
						t.Fatal(err)
					}
				})
			}
			code, out, errOut := r.run(strings.Fields(tc.args)...)
			if (code != 0) != (tc.wantErr != "") {
				t.Errorf("exit status %d", code)
			}
			expect(t, "output", out, tc.wantOut)
			expect(t, "errors", errOut, tc.wantErr)
			if said != tc.wantWord {
				t.Errorf("the word was written down: %v, want %v", said, tc.wantWord)
			}
		})
	}
}

// TestTakeoverWithoutAController: the word stays, and the command says that nobody has
// acted on it.
func TestTakeoverWithoutAController(t *testing.T) {
	r := newRig(t, epochs(t, map[string]epoch.Record{"s1": refusedFor(time.Minute)}))
	for range 100 {
		r.clock.ticks = append(r.clock.ticks, func() {})
	}
	code, _, errOut := r.run("takeover", "--accept-cutoff")
	expect(t, "errors", errOut, "error: the controller has not acted on it for 1m0s: see `kubectl nearflash doctor`; it does so when it runs\n")
	if _, rec := epochOf(t, r.client, "s1"); code != 1 || rec.Takeover == nil {
		t.Errorf("exit status %d, record %+v", code, rec)
	}
}

// TestDoctorRefused: a refused cluster is an error with its remedy, and an account that
// may not look is told so.
func TestDoctorRefused(t *testing.T) {
	objs := append(definitions(t), epochs(t, map[string]epoch.Record{"s1": refusedFor(time.Hour), "s2": {Current: "ours"}}))
	r := newRig(t, objs...)
	code, out, _ := r.run("doctor")
	for _, want := range []string{
		"error    storage server s1: has refused this cluster for 60m: another cluster uses it, or the records of this one come from a backup",
		"kubectl nearflash takeover s1",
	} {
		if code != 1 || !strings.Contains(out, want) {
			t.Errorf("exit status %d, no %q in\n%s", code, want, out)
		}
	}
	if strings.Contains(out, "storage server s2") {
		t.Errorf("a server that takes orders is reported:\n%s", out)
	}
	r.client = interceptor.NewClient(r.client.(client.WithWatch), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if _, ok := list.(*corev1.ConfigMapList); ok {
				return errors.New("forbidden")
			}
			return c.List(ctx, list, opts...)
		},
	})
	if _, out, _ = r.run("doctor"); !strings.Contains(out, "warning  storage server: whether it is well and accepts this cluster cannot be read: list ConfigMaps: forbidden") {
		t.Errorf("what could not be read is not said:\n%s", out)
	}
}
