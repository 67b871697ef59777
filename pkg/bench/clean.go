package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// cleanEvery is the time between two looks at what is left.
const cleanEvery = time.Second

// Cleaner deletes what runs have made.
type Cleaner struct {
	Client client.Client
	// Namespace is where claims and pods are.
	Namespace string
	// Run is the run whose objects are deleted; "" is all.
	Run   string
	After func(time.Duration) <-chan time.Time
}

func (c Cleaner) selector() client.ListOption {
	if c.Run == "" {
		return client.HasLabels{Label}
	}
	return client.MatchingLabels{Label: c.Run}
}

// classes are those of the same runs: of all, what has the namespace. A class of a version before has none, and is
// deleted by its run alone.
func (c Cleaner) classes() []client.ListOption {
	if c.Run == "" {
		return []client.ListOption{client.MatchingLabels{NamespaceLabel: c.Namespace}}
	}
	return []client.ListOption{c.selector()}
}

// found is what is left of runs.
type found struct {
	pods    corev1.PodList
	claims  corev1.PersistentVolumeClaimList
	classes storagev1.StorageClassList
}

// Clean deletes pods, claims with their volumes, and classes, and waits until all are gone. It looks
// twice: a request of a run that was just interrupted may still be under way. It returns how many
// objects it deleted.
func (c Cleaner) Clean(ctx context.Context) (int, error) {
	deleted, quiet := map[string]bool{}, 0
	claims := map[types.NamespacedName]bool{}
	for {
		left, err := c.round(ctx, deleted, claims)
		if err != nil {
			return len(deleted), err
		}
		if left == "" {
			quiet++
		} else {
			quiet = 0
		}
		if quiet == 2 {
			return len(deleted), nil
		}
		select {
		case <-ctx.Done():
			if left == "" {
				left = "nothing is seen any more"
			}
			return len(deleted), fmt.Errorf("%w: %s", ctx.Err(), left)
		case <-c.After(cleanEvery):
		}
	}
}

// round deletes what may go now, and says what is left; "" if nothing is. Claims go after their pods,
// and classes after the volumes: a driver may need the class of a volume to delete it.
func (c Cleaner) round(ctx context.Context, deleted map[string]bool, gone map[types.NamespacedName]bool) (string, error) {
	var f found
	for _, list := range []client.ObjectList{&f.pods, &f.claims} {
		if err := c.Client.List(ctx, list, client.InNamespace(c.Namespace), c.selector()); err != nil {
			return "", fmt.Errorf("look for what is left: %w", err)
		}
	}
	// Who may not list classes has made none.
	if err := c.Client.List(ctx, &f.classes, c.classes()...); err != nil && !apierrors.IsForbidden(err) {
		return "", fmt.Errorf("look for what is left: %w", err)
	}
	var pods, claims, classes []client.Object
	for i := range f.pods.Items {
		pods = append(pods, &f.pods.Items[i])
	}
	for i := range f.claims.Items {
		claims = append(claims, &f.claims.Items[i])
		gone[client.ObjectKeyFromObject(&f.claims.Items[i])] = true
	}
	for i := range f.classes.Items {
		classes = append(classes, &f.classes.Items[i])
	}
	if len(pods) > 0 {
		return c.deleteAll(ctx, pods, deleted, "pods")
	}
	if len(claims) > 0 {
		return c.deleteAll(ctx, claims, deleted, "claims")
	}
	if left, err := c.volumesLeft(ctx, gone); left != "" || err != nil {
		return left, err
	}
	if len(classes) > 0 {
		return c.deleteAll(ctx, classes, deleted, "StorageClasses")
	}
	return "", nil
}

// deleteAll deletes objects of a kind and names them.
func (c Cleaner) deleteAll(ctx context.Context, objects []client.Object, deleted map[string]bool, kind string) (string, error) {
	var names []string
	var errs []error
	for _, o := range objects {
		names = append(names, o.GetName())
		deleted[kind+"/"+o.GetName()] = true
		if o.GetDeletionTimestamp() != nil {
			continue
		}
		if err := client.IgnoreNotFound(c.Client.Delete(ctx, o)); err != nil {
			errs = append(errs, fmt.Errorf("delete %s: %w", o.GetName(), err))
		}
	}
	return kind + " " + strings.Join(names, ", "), errors.Join(errs...)
}

// volumesLeft names the PersistentVolumes of deleted claims that still exist. An account that may not
// list them does not wait for them.
func (c Cleaner) volumesLeft(ctx context.Context, gone map[types.NamespacedName]bool) (string, error) {
	if len(gone) == 0 {
		return "", nil
	}
	var pvs corev1.PersistentVolumeList
	if err := c.Client.List(ctx, &pvs); err != nil {
		if apierrors.IsForbidden(err) {
			return "", nil
		}
		return "", fmt.Errorf("look for volumes that are left: %w", err)
	}
	var left []string
	for i := range pvs.Items {
		if ref := pvs.Items[i].Spec.ClaimRef; ref != nil && gone[types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}] {
			left = append(left, pvs.Items[i].Name)
		}
	}
	if len(left) == 0 {
		return "", nil
	}
	return "PersistentVolumes " + strings.Join(left, ", "), nil
}
