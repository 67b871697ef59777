package kubectl

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/backend/epoch"
	"github.com/nearflash/nearflash/pkg/backend/reported"
)

const (
	// fullRatio is from where on a storage server counts as nearly full, as for the chart's alert.
	fullRatio = 0.85
	// soon is before which end of a certificate doctor warns, and verySoon from where on it is an
	// error, as for the chart's alerts.
	soon, verySoon = 30 * 24 * time.Hour, 7 * 24 * time.Hour
	// silentFor is from where on nobody asks the storage server any more.
	silentFor = 3 * reported.Interval
)

// useNewer is the remedy where an object has a later format.
const useNewer = "use " + name + " of the version that the controller has, or had"

// checkStorage looks whether a storage server refuses this cluster, and what each last told the
// controller, which tells what servers there are.
func (o *doctorOptions) checkStorage(ctx context.Context, d *diagnosis, f *clusterFacts) {
	objects, err := o.controllerMaps(ctx)
	if err == nil {
		// What is elsewhere anybody may have made.
		answers := slices.DeleteFunc(slices.Clone(objects), func(obj corev1.ConfigMap) bool {
			_, ok := reported.Target(obj.Name)
			return !ok || !slices.ContainsFunc(f.controllers, func(p corev1.Pod) bool { return p.Namespace == obj.Namespace })
		})
		if len(f.controllers) > 0 {
			f.servers = reportedServers(answers, o.Clock.Now())
		}
		checkAnswers(d, answers, o.Clock.Now())
		err = o.checkRefusals(d, objects)
	}
	switch {
	case errors.Is(err, epoch.ErrNewer):
		d.add(sevWarning, "storage server", useNewer, "whether it accepts this cluster is not known: %v", err)
	case err != nil:
		d.add(sevWarning, "storage server", "run doctor with an account that may list ConfigMaps", "whether it is well and accepts this cluster cannot be read: %v", err)
	}
}

// reportedServers are those that a controller still asks: nothing deletes the answer of one that was
// taken out of the configuration. Without a controller that asks anything they are not known, nil.
func reportedServers(answers []corev1.ConfigMap, now time.Time) map[string]bool {
	out := map[string]bool{}
	for i := range answers {
		target, _ := reported.Target(answers[i].Name)
		// What cannot be read may be of now.
		if a, err := reported.Decode(&answers[i]); err != nil || now.Sub(a.Asked.Time) < silentFor {
			out[target] = true
		}
	}
	if len(out) == 0 && len(answers) > 0 {
		return nil
	}
	return out
}

func (o *doctorOptions) checkRefusals(d *diagnosis, objects []corev1.ConfigMap) error {
	refused, err := refusalsIn(objects)
	if err != nil {
		return err
	}
	for _, r := range refused {
		d.add(sevError, "storage server "+r.server,
			"find out which cluster it belongs to; if to this one, and no other is to use it: "+name+" takeover "+r.server,
			"has refused this cluster for %s: another cluster uses it, or the records of this one come from a backup; nothing is attached, detached, made or deleted on it",
			ago(o.Clock.Now(), r.record.Refused.Since))
	}
	return nil
}

func checkAnswers(d *diagnosis, objects []corev1.ConfigMap, now time.Time) {
	for i := range objects {
		answer, err := reported.Decode(&objects[i])
		if errors.Is(err, reported.ErrNewer) {
			d.add(sevWarning, "configmap/"+objects[i].Name, useNewer, "nothing is known of that storage server: %v", err)
			continue
		}
		if err != nil {
			d.add(sevWarning, "configmap/"+objects[i].Name, "delete it: the controller writes it anew", "in namespace %s: %v", objects[i].Namespace, err)
			continue
		}
		target, _ := reported.Target(objects[i].Name)
		checkAnswer(d, target, answer, now)
	}
}

// checkAnswer says what is wrong with a storage server, "" being the default one, by what the
// controller last heard.
func checkAnswer(d *diagnosis, target string, a reported.Answer, now time.Time) {
	object, value, since := "storage server "+a.Address, "target.address", len(d.Findings)
	if target != "" {
		object, value = fmt.Sprintf("storage server %s (%s)", target, a.Address), "entry "+target+" in targets"
	}
	if silent := now.Sub(a.Asked.Time); silent >= silentFor {
		d.add(sevWarning, object, "look at the controller, and at the lease nearflash-controller in its namespace",
			"no controller has asked it for %s: what follows is what it said then; if the chart has no %s any more, delete ConfigMap %s", ago(now, a.Asked), value, reported.Name(target))
	}
	if a.Error != "" {
		d.add(sevError, object, "look at the network between the controller and the server, and at the service nearflash-target there: docs/troubleshooting.md, NearflashStorageServerDown",
			"does not answer the controller: %s; volumes that are attached go on as long as the server serves them", a.Error)
	}
	for _, p := range a.Problems {
		d.add(sevError, object, "docs/troubleshooting.md, NearflashStorageServerUnhealthy", "says: %s", p)
	}
	const grow = "give the volume group more space, or delete volumes: docs/troubleshooting.md, NearflashStorageServerNearlyFull"
	if used := a.UsedRatio(); used >= fullRatio {
		d.add(sevError, object, grow, "%.0f %% of its space is used: when it is full, writes of all its volumes fail", 100*used)
	}
	if a.MetadataRatio >= fullRatio {
		d.add(sevError, object, grow, "%.0f %% of its thin pool's metadata is used: when it is full, writes of all its volumes fail", 100*a.MetadataRatio)
	}
	checkEnd(d, object, "its certificate", a.ServerNotAfter, now)
	checkEnd(d, object, "the controller's certificate for it", a.ClientNotAfter, now)
	if !d.bad(since) {
		d.ok(object, "answers the controller; %.0f %% of its space is used", 100*a.UsedRatio())
	}
}

// reportsNo reports whether no controller asks a storage server, "" being the default one. What is
// not known says nothing.
func (f *clusterFacts) reportsNo(target string) bool {
	return f.servers != nil && !f.servers[target] && (target != "" || len(f.servers) > 0)
}

// reportedTargets are the storage servers that classes can name, in words.
func (f *clusterFacts) reportedTargets() string {
	names := slices.Sorted(maps.Keys(f.servers))
	if f.servers[""] {
		names[0] = "no target (the default server)"
	}
	return orNone(strings.Join(names, ", "))
}

// checkEnd says if a certificate ends soon; end is nil if that is not known.
func checkEnd(d *diagnosis, object, what string, end *metav1.Time, now time.Time) {
	const remedy = "renew it: docs/how-to/storage-server.md"
	if end == nil {
		return
	}
	switch left := end.Sub(now); {
	case left <= 0:
		d.add(sevError, object, remedy, "%s has ended", what)
	case left < verySoon:
		d.add(sevError, object, remedy, "%s ends in %s", what, duration.HumanDuration(left))
	case left < soon:
		d.add(sevWarning, object, remedy, "%s ends in %s", what, duration.HumanDuration(left))
	}
}

// controllerMaps are the ConfigMaps of nearflash's controllers.
func (s *session) controllerMaps(ctx context.Context) ([]corev1.ConfigMap, error) {
	var list corev1.ConfigMapList
	if err := s.client.List(ctx, &list, client.MatchingLabels{epoch.RecordLabel: epoch.RecordLabelValue}); err != nil {
		return nil, fmt.Errorf("list ConfigMaps: %w", err)
	}
	return list.Items, nil
}
