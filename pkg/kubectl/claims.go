package kubectl

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The annotations by which Kubernetes says who makes the volume of a claim.
var provisionerAnnotations = []string{"volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"}

// componentPrefix begins the name of whoever of nearflash reports an event.
const componentPrefix = "nearflash-"

// ownClaims lists what an account sees that has rights in its namespace alone: the claims, and
// what nearflash has told about each. refused is why CachedVolumes cannot be read.
func (o *listOptions) ownClaims(ctx context.Context, refused error) error {
	claims, err := o.claimsHere(ctx)
	if apierrors.IsForbidden(err) {
		return refused
	}
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(o.ErrOut, "You may not read CachedVolumes. This is what your claims and their last events say:"); err != nil {
		return err
	}
	if len(claims) == 0 {
		return o.nothing("claims of nearflash", false, o.namespace)
	}
	var rows [][]string
	for i := range claims {
		row, err := o.claimRow(ctx, &claims[i])
		if err != nil {
			return err
		}
		rows = append(rows, row)
	}
	return table(o.Out, []string{"CLAIM", "STATUS", "CAPACITY", "CLASS", "AGO", "EVENT", "MESSAGE"}, rows)
}

// claimsHere are the claims of nearflash in the namespace, or those that are named.
func (o *listOptions) claimsHere(ctx context.Context) ([]corev1.PersistentVolumeClaim, error) {
	var list corev1.PersistentVolumeClaimList
	if err := o.client.List(ctx, &list, client.InNamespace(o.namespace)); err != nil {
		return nil, fmt.Errorf("list claims of namespace %s: %w", o.namespace, err)
	}
	if len(o.args) == 0 {
		return slices.DeleteFunc(list.Items, func(c corev1.PersistentVolumeClaim) bool {
			return !slices.ContainsFunc(provisionerAnnotations, func(a string) bool { return c.Annotations[a] == driverName })
		}), nil
	}
	var out []corev1.PersistentVolumeClaim
	for _, arg := range o.args {
		kind, object, err := parseReference(arg)
		if err != nil {
			return nil, err
		}
		at := slices.IndexFunc(list.Items, func(c corev1.PersistentVolumeClaim) bool { return c.Name == object })
		if kind != claimWords[0] || at < 0 {
			return nil, fmt.Errorf("%s is no claim in namespace %s, and you may not read CachedVolumes: name a claim of yours", arg, o.namespace)
		}
		out = append(out, list.Items[at])
	}
	return out, nil
}

func (o *listOptions) claimRow(ctx context.Context, c *corev1.PersistentVolumeClaim) ([]string, error) {
	capacity, class := none, none
	if q, found := c.Status.Capacity[corev1.ResourceStorage]; found {
		capacity = q.String()
	}
	switch {
	case c.Status.CurrentVolumeAttributesClassName != nil && *c.Status.CurrentVolumeAttributesClassName != "":
		class = *c.Status.CurrentVolumeAttributesClassName
	case c.Spec.StorageClassName != nil && *c.Spec.StorageClassName != "":
		class = *c.Spec.StorageClassName
	}
	row := []string{c.Name, string(c.Status.Phase), capacity, class}
	e, err := o.lastEvent(ctx, c)
	if err != nil || e == nil {
		return append(row, none, none, none), err
	}
	return append(row, ago(o.Clock.Now(), lastSeen(e)), e.Reason, orNone(oneLine(e.Message))), nil
}

// lastEvent is the last that nearflash has told about a claim; nil if nothing is kept, or may be
// read.
func (s *session) lastEvent(ctx context.Context, c *corev1.PersistentVolumeClaim) (*corev1.Event, error) {
	var list corev1.EventList
	err := s.client.List(ctx, &list, client.InNamespace(c.Namespace), client.MatchingFields{eventName: c.Name})
	if apierrors.IsForbidden(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list events of %s: %w", c.Name, err)
	}
	var last *corev1.Event
	for i := range list.Items {
		e := &list.Items[i]
		ours := strings.HasPrefix(e.ReportingController, componentPrefix) || strings.HasPrefix(e.Source.Component, componentPrefix)
		if !ours || e.InvolvedObject.Kind != "PersistentVolumeClaim" || e.InvolvedObject.UID != "" && e.InvolvedObject.UID != c.UID {
			continue
		}
		if last == nil || lastSeen(e).After(lastSeen(last).Time) {
			last = e
		}
	}
	return last, nil
}
