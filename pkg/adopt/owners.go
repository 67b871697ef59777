package adopt

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// owner is something that makes pods with the claim.
type owner struct {
	// what names it; remedy is the command that stops it.
	what, remedy string
}

// ownersOf lists what would make pods with a claim now: workloads of Kubernetes that are not
// scaled to 0. What an operator does nobody can see.
func (a *Adopter) ownersOf(ctx context.Context, key types.NamespacedName) ([]owner, error) {
	lists := []client.ObjectList{
		&appsv1.StatefulSetList{}, &appsv1.DeploymentList{}, &appsv1.ReplicaSetList{}, &appsv1.DaemonSetList{},
		&batchv1.CronJobList{}, &batchv1.JobList{}, &corev1.ReplicationControllerList{},
	}
	var out []owner
	for _, list := range lists {
		if err := a.api.List(ctx, list, client.InNamespace(key.Namespace)); err != nil {
			return nil, fmt.Errorf("list what makes pods in namespace %s: %w", key.Namespace, err)
		}
		out = append(out, runningOf(list, key)...)
	}
	return out, nil
}

// runningOf returns those of a list that would make pods with the claim.
func runningOf(list client.ObjectList, key types.NamespacedName) []owner {
	var out []owner
	add := func(kind, name, how string) {
		out = append(out, owner{what: kind + " " + name, remedy: "kubectl " + fmt.Sprintf(how, "-n "+key.Namespace, strings.ToLower(kind)+"/"+name)})
	}
	const scale = "scale %s %s --replicas=0"
	switch l := list.(type) {
	case *appsv1.StatefulSetList:
		for i := range l.Items {
			if p := l.Items[i].Spec.PersistentVolumeClaimRetentionPolicy; p != nil && p.WhenScaled == appsv1.DeletePersistentVolumeClaimRetentionPolicyType && templated(&l.Items[i], key.Name) {
				// Scaled to 0, it has its claims deleted, and with them what is on Delete.
				add("StatefulSet", l.Items[i].Name, `patch %s %s -p '{"spec":{"persistentVolumeClaimRetentionPolicy":{"whenScaled":"Retain"}}}'`)
				continue
			}
			if s := &l.Items[i]; ptr.Deref(s.Spec.Replicas, 1) > 0 && (uses(&s.Spec.Template.Spec, "", key.Name) || templated(s, key.Name)) {
				add("StatefulSet", s.Name, scale)
			}
		}
	case *appsv1.DeploymentList:
		for i := range l.Items {
			if d := &l.Items[i]; ptr.Deref(d.Spec.Replicas, 1) > 0 && uses(&d.Spec.Template.Spec, "", key.Name) {
				add("Deployment", d.Name, scale)
			}
		}
	case *appsv1.ReplicaSetList:
		for i := range l.Items {
			r := &l.Items[i]
			// That of a Deployment follows it, and is none of the user's.
			if metav1.GetControllerOf(r) == nil && ptr.Deref(r.Spec.Replicas, 1) > 0 && uses(&r.Spec.Template.Spec, "", key.Name) {
				add("ReplicaSet", r.Name, scale)
			}
		}
	case *corev1.ReplicationControllerList:
		for i := range l.Items {
			r := &l.Items[i]
			if r.Spec.Template != nil && ptr.Deref(r.Spec.Replicas, 1) > 0 && uses(&r.Spec.Template.Spec, "", key.Name) {
				add("ReplicationController", r.Name, scale)
			}
		}
	case *appsv1.DaemonSetList:
		for i := range l.Items {
			if d := &l.Items[i]; uses(&d.Spec.Template.Spec, "", key.Name) {
				add("DaemonSet", d.Name, "delete %s %s")
			}
		}
	case *batchv1.CronJobList:
		for i := range l.Items {
			if c := &l.Items[i]; !ptr.Deref(c.Spec.Suspend, false) && uses(&c.Spec.JobTemplate.Spec.Template.Spec, "", key.Name) {
				add("CronJob", c.Name, `patch %s %s -p '{"spec":{"suspend":true}}'`)
			}
		}
	case *batchv1.JobList:
		for i := range l.Items {
			if j := &l.Items[i]; !ended(j) && !ptr.Deref(j.Spec.Suspend, false) && uses(&j.Spec.Template.Spec, "", key.Name) {
				add("Job", j.Name, `patch %s %s -p '{"spec":{"suspend":true}}'`)
			}
		}
	}
	return out
}

// templated reports whether a claim is one that a StatefulSet makes: TEMPLATE-SET-ORDINAL.
func templated(s *appsv1.StatefulSet, claim string) bool {
	for _, t := range s.Spec.VolumeClaimTemplates {
		if ordinal, ok := strings.CutPrefix(claim, t.Name+"-"+s.Name+"-"); ok {
			if _, err := strconv.ParseUint(ordinal, 10, 31); err == nil {
				return true
			}
		}
	}
	return false
}

// ended reports whether a Job makes no pods any more.
func ended(j *batchv1.Job) bool {
	for _, c := range j.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return true
		}
	}
	return false
}
