package kubectl_test

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
