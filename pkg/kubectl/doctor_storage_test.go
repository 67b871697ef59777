package kubectl_test

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend/epoch"
	"github.com/nearflash/nearflash/pkg/backend/reported"
)

func TestDoctorStorage(t *testing.T) {
	in := func(d time.Duration) *metav1.Time { return new(metav1.NewTime(start.Add(d))) }
	const day = 24 * time.Hour
	well := reported.Answer{
		Address: "s:1", Asked: before(time.Minute), CapacityBytes: 1000, UsedBytes: 420, MetadataRatio: 0.1, ServerNotAfter: in(90 * day), ClientNotAfter: in(90 * day),
	}
	for name, tc := range map[string]struct {
		change func(*reported.Answer)
		want   string
	}{
		"well":              {func(*reported.Answer) {}, "ok       storage server s:1: answers the controller; 42 % of its space is used\n"},
		"ends are unknown":  {func(a *reported.Answer) { a.ServerNotAfter, a.ClientNotAfter = nil, nil }, "ok       storage server s:1: answers the controller; 42 % of its space is used\n"},
		"does not answer":   {func(a *reported.Answer) { a.Error = "no route" }, "error    storage server s:1: does not answer the controller: no route; volumes that are attached go on as long as the server serves them\n"},
		"has problems":      {func(a *reported.Answer) { a.Problems = []string{"thin pool is read-only"} }, "error    storage server s:1: says: thin pool is read-only\n"},
		"nearly full":       {func(a *reported.Answer) { a.UsedBytes = 850 }, "error    storage server s:1: 85 % of its space is used: when it is full, writes of all its volumes fail\n"},
		"metadata":          {func(a *reported.Answer) { a.MetadataRatio = 0.9 }, "error    storage server s:1: 90 % of its thin pool's metadata is used: when it is full, writes of all its volumes fail\n"},
		"ends this month":   {func(a *reported.Answer) { a.ServerNotAfter = in(20 * day) }, "warning  storage server s:1: its certificate ends in 20d\n"},
		"ends this week":    {func(a *reported.Answer) { a.ClientNotAfter = in(2*day + time.Hour) }, "error    storage server s:1: the controller's certificate for it ends in 2d1h\n"},
		"has ended":         {func(a *reported.Answer) { a.ServerNotAfter = in(-time.Hour) }, "error    storage server s:1: its certificate has ended\n"},
		"nobody asks":       {func(a *reported.Answer) { a.Asked = before(15 * time.Minute) }, "warning  storage server s:1: no controller has asked it for 15m: what follows is what it said then; if the chart has no target.address any more, delete ConfigMap nearflash-storage\n"},
		"asked a bit later": {func(a *reported.Answer) { a.Asked = before(14 * time.Minute) }, "ok       storage server s:1: answers the controller; 42 % of its space is used\n"},
	} {
		t.Run(name, func(t *testing.T) {
			r, a := newRig(t, healthy(t)...), well
			tc.change(&a)
			k := &reported.Keeper{Client: r.client, Namespace: "nearflash", Labels: map[string]string{epoch.RecordLabel: epoch.RecordLabelValue}}
			if err := k.Keep(t.Context(), a); err != nil {
				t.Fatal(err)
			}
			_, out, _ := r.run("doctor")
			var got string
			for line := range strings.Lines(out) {
				if strings.Contains(line, " storage server s:1: ") {
					got += line
				}
			}
			expect(t, "storage server", got, tc.want)
		})
	}
}

// TestDoctorServers: each server's answer is looked at, and who names a server that nobody has
// reported is told.
func TestDoctorServers(t *testing.T) {
	at := before(time.Minute)
	on := func(target string) func(*v1alpha1.CachedVolume) {
		return func(v *v1alpha1.CachedVolume) { v.Spec.Target = target }
	}
	objs := append(healthy(t),
		class("named", map[string]string{"target": "second"}), class("gone", map[string]string{"target": "third"}), class("driver", map[string]string{"backend": "csi", "originStorageClass": "fast", "target": "second"}),
		class("bad", map[string]string{"target": "a.b"}))
	objs = append(objs, pvAndRecord("default", "there", "pvc-8", on("second"))...)
	objs = append(objs, pvAndRecord("default", "lost", "pvc-9", on("third"))...)
	for name, tc := range map[string]struct {
		reported map[string]reported.Answer
		want     string
		// without is what is not there.
		without string
	}{
		"both": {reported: map[string]reported.Answer{"": {Address: "s:1", Asked: at}, "second": {Address: "s:2", Asked: at, Error: "no route"}}, want: `
error    storage server second (s:2): does not answer the controller: no route; volumes that are attached go on as long as the server serves them
error    storageclass/bad: claims of it will fail: target "a.b" is not accepted (accepted: 1 to 58 lower-case letters, digits and inner hyphens)
error    storageclass/driver: claims of it will fail: target is for backend iscsi only; originStorageClass fast is of this driver, accepted is one of another CSI driver
error    storageclass/gone: claims of it will fail: target "third" is no storage server that a controller reports (accepted: no target (the default server), second)
error    pvc/lost (namespace default): lies on storage server third, which no controller reports: it is not attached, detached, expanded or deleted
ok       storage server s:1: answers the controller; 0 % of its space is used
ok       storageclass/fast: valid
ok       storageclass/named: valid
`},
		"no default": {reported: map[string]reported.Answer{"second": {Address: "s:2", Asked: at}}, want: `
error    storageclass/bad: claims of it will fail: target "a.b" is not accepted (accepted: 1 to 58 lower-case letters, digits and inner hyphens)
error    storageclass/driver: claims of it will fail: target is for backend iscsi only; originStorageClass fast is of this driver, accepted is one of another CSI driver
error    storageclass/fast: claims of it will fail: target "" is no storage server that a controller reports (accepted: second)
error    storageclass/gone: claims of it will fail: target "third" is no storage server that a controller reports (accepted: second)
error    pvc/lost (namespace default): lies on storage server third, which no controller reports: it is not attached, detached, expanded or deleted
ok       storage server second (s:2): answers the controller; 0 % of its space is used
ok       storageclass/named: valid
`},
		"taken out": {reported: map[string]reported.Answer{"": {Address: "s:1", Asked: at}, "second": {Address: "s:2", Asked: before(time.Hour)}, "third": {Address: "s:3", Asked: before(14 * time.Minute)}}, want: `
error    storageclass/bad: claims of it will fail: target "a.b" is not accepted (accepted: 1 to 58 lower-case letters, digits and inner hyphens)
error    storageclass/driver: claims of it will fail: target is for backend iscsi only; originStorageClass fast is of this driver, accepted is one of another CSI driver
error    storageclass/named: claims of it will fail: target "second" is no storage server that a controller reports (accepted: no target (the default server), third)
error    pvc/there (namespace default): lies on storage server second, which no controller reports: it is not attached, detached, expanded or deleted
warning  storage server second (s:2): no controller has asked it for 60m: what follows is what it said then; if the chart has no entry second in targets any more, delete ConfigMap nearflash-storage.second
ok       storage server s:1: answers the controller; 0 % of its space is used
ok       storageclass/fast: valid
ok       storageclass/gone: valid
`},
		"nobody asks": {reported: map[string]reported.Answer{"": {Address: "s:1", Asked: before(time.Hour)}, "second": {Address: "s:2", Asked: before(time.Hour)}}, want: `
error    storageclass/bad: claims of it will fail: target "a.b" is not accepted (accepted: 1 to 58 lower-case letters, digits and inner hyphens)
error    storageclass/driver: claims of it will fail: target is for backend iscsi only; originStorageClass fast is of this driver, accepted is one of another CSI driver
warning  storage server s:1: no controller has asked it for 60m: what follows is what it said then; if the chart has no target.address any more, delete ConfigMap nearflash-storage
warning  storage server second (s:2): no controller has asked it for 60m: what follows is what it said then; if the chart has no entry second in targets any more, delete ConfigMap nearflash-storage.second
ok       storageclass/fast: valid
ok       storageclass/gone: valid
ok       storageclass/named: valid
`},
		"no controller": {reported: map[string]reported.Answer{"": {Address: "s:1", Asked: at}, "second": {Address: "s:2", Asked: at}}, want: `
error    storageclass/bad: claims of it will fail: target "a.b" is not accepted (accepted: 1 to 58 lower-case letters, digits and inner hyphens)
error    storageclass/driver: claims of it will fail: target is for backend iscsi only; originStorageClass fast is of this driver, accepted is one of another CSI driver
ok       storageclass/fast: valid
ok       storageclass/gone: valid
ok       storageclass/named: valid
`, without: "nearflash-controller-1"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, without(objs, tc.without)...)
			for target, a := range tc.reported {
				k := &reported.Keeper{Client: r.client, Namespace: "nearflash", Target: target, Labels: map[string]string{epoch.RecordLabel: epoch.RecordLabelValue}}
				if err := k.Keep(t.Context(), a); err != nil {
					t.Fatal(err)
				}
			}
			_, out, _ := r.run("doctor")
			var got string
			for line := range strings.Lines(out) {
				if strings.Contains(line, " storage server s") || strings.Contains(line, " storageclass/") || strings.Contains(line, "pvc/lost") || strings.Contains(line, "pvc/there") {
					got += line
				}
			}
			expect(t, "findings", got, tc.want)
		})
	}
}

// TestDoctorNewer: what a newer version has written is not taken for damaged, and doctor does not say
// to delete it.
func TestDoctorNewer(t *testing.T) {
	obj := epochs(t, nil)
	obj.Data = map[string]string{"s1": `{"format":2}`}
	answer := obj.DeepCopy()
	answer.Name, answer.Data = reported.Name(""), map[string]string{"answer": `{"format":2}`}
	r := newRig(t, append(healthy(t), obj, answer)...)
	_, out, _ := r.run("doctor")
	for _, want := range []string{
		"warning  configmap/nearflash-storage: nothing is known of that storage server: ConfigMap nearflash/nearflash-storage, key answer: it was written by a newer version of nearflash: format 2, known is 1\n" +
			"         remedy: use kubectl nearflash of the version that the controller has, or had\n",
		"warning  storage server: whether it accepts this cluster is not known: ConfigMap nearflash/nearflash-epochs, key s1: it was written by a newer version of nearflash: format 2, known is 1: install that version again\n" +
			"         remedy: use kubectl nearflash of the version that the controller has, or had\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("output lacks %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "delete it") {
		t.Errorf("output %s", out)
	}
}
