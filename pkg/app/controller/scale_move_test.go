package controller

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/moves"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/scheduling"
	"github.com/nearflash/nearflash/pkg/volume"
)

// attacherThreads is how many volumes external-attacher attaches or detaches at the
// same time (--worker-threads).
const attacherThreads = 10

// drain is a drain of some nodes: their pods go elsewhere, and what Kubernetes, its
// sidecars and the nodes do of that is done here. What nearflash-controller does is
// its own.
type drain struct {
	*fleet
	csi     csi.ControllerClient
	webhook string
	http    *http.Client
	moves   *moves.Destination
	// drained tells which nodes may have no pod.
	drained map[int]bool

	tookMu sync.Mutex
	// admissions and attaches are what the webhook, and both CSI calls of a move, took.
	admissions, attaches []time.Duration
}

func (f *fleet) drain(a *app, nodes int) *drain {
	d := &drain{
		fleet: f, csi: csi.NewControllerClient(a.conn), webhook: "https://" + a.webhook + scheduling.Path,
		// As the API server does; that it trusts the certificate is tested elsewhere.
		http:    &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, MaxIdleConnsPerHost: attacherThreads}},
		moves:   moves.NewDestination(f.api, nobody{}, time.Now, 0, 0),
		drained: map[int]bool{},
	}
	for i := range nodes {
		d.drained[i] = true
	}
	return d
}

// nobody is an event recorder that nobody reads.
type nobody struct{}

func (nobody) Eventf(runtime.Object, runtime.Object, string, string, string, string, ...any) {}

// run moves up to limit volumes of the drained nodes and returns how many.
func (d *drain) run(limit int) int {
	var volumes []int
	for i, node := range d.owner {
		if d.drained[node] && len(volumes) < limit {
			volumes = append(volumes, i)
		}
	}
	d.parallel(attacherThreads, 0, len(volumes), func(ctx context.Context, n int) error {
		if err := d.move(ctx, volumes[n]); err != nil {
			return fmt.Errorf("%s: %w", volumeName(volumes[n]), err)
		}
		return nil
	})
	return len(volumes)
}

// move is what happens to one volume.
func (d *drain) move(ctx context.Context, i int) error {
	id, from := volume.ID(volumeName(i)), d.owner[i]
	record, err := records.Load(ctx, d.api, id)
	if err != nil {
		return err
	}
	generation := ptr.Deref(record.Status.Generation, 0)
	if err := d.leaves(ctx, id, from, generation); err != nil {
		return err
	}
	old := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: attachment(string(id), from, int(generation)).Name}}
	if err := d.api.Delete(ctx, old); err != nil {
		return err
	}
	began := time.Now()
	err = again(ctx, func() error {
		_, err := d.csi.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: string(id), NodeId: nodeName(from)})
		return err
	})
	if err != nil {
		return err
	}
	took := time.Since(began)
	to, err := d.schedule(ctx, i)
	if err != nil {
		return err
	}
	if err := d.api.Create(ctx, attachment(string(id), to, int(generation)+1)); err != nil {
		return err
	}
	began = time.Now()
	err = again(ctx, func() error {
		_, err := d.csi.ControllerPublishVolume(ctx, publishRequest(string(id), nodeName(to)))
		return err
	})
	if err != nil {
		return err
	}
	d.owner[i] = to // nobody else has this volume
	d.tookMu.Lock()
	d.attaches = append(d.attaches, took+time.Since(began))
	d.tookMu.Unlock()
	return d.arrives(ctx, id, from)
}

func publishRequest(id, node string) *csi.ControllerPublishVolumeRequest {
	return &csi.ControllerPublishVolumeRequest{
		VolumeId: id, NodeId: node,
		VolumeCapability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "ext4"}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		},
		Secrets: map[string]string{"chap.username": chap.Username, "chap.password": chap.Password},
	}
}

// again repeats a CSI call while it is answered that another one is at it, as the
// sidecars do.
func again(ctx context.Context, call func() error) error {
	for {
		err := call()
		if status.Code(err) != codes.Aborted {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// leaves is what the node that is drained reports when it has unstaged the volume.
func (d *drain) leaves(ctx context.Context, id volume.ID, node int, generation int64) error {
	return records.UpdateStatus(ctx, d.api, id, func(obj *v1alpha1.CachedVolume) error {
		s := &obj.Status
		s.Cache = v1alpha1.CacheStatus{}
		for i := range s.Conditions {
			s.Conditions[i].Status, s.Conditions[i].Reason = metav1.ConditionFalse, v1alpha1.ReasonDetached
			if s.Conditions[i].Type == v1alpha1.ConditionApplied {
				s.Conditions[i].Status, s.Conditions[i].Reason = metav1.ConditionUnknown, v1alpha1.ReasonNotAttached
			}
		}
		s.RetainedCaches = append(slices.DeleteFunc(s.RetainedCaches, func(r v1alpha1.RetainedCache) bool { return r.NodeName == nodeName(node) }),
			v1alpha1.RetainedCache{NodeName: nodeName(node), Generation: generation, SizeBytes: ptr.To[int64](gib), LastUsedTime: metav1.Now()})
		return nil
	})
}

// arrives is what the new node reports: the move, its end, and that the volume is
// attached; and the old node, that its retained cache is given up.
func (d *drain) arrives(ctx context.Context, id volume.ID, from int) error {
	record, err := records.Load(ctx, d.api, id)
	if err != nil {
		return err
	}
	m, _, err := d.moves.Begin(ctx, volume.MoveRequest{Volume: id, Fence: records.Fence(record)})
	if err != nil {
		return err
	}
	if record.Status.WarmSource.NodeName != nodeName(from) {
		return fmt.Errorf("the new owner may start from %q, not from node %s that the volume has left", record.Status.WarmSource.NodeName, nodeName(from))
	}
	err = records.UpdateStatus(ctx, d.api, id, func(obj *v1alpha1.CachedVolume) error {
		obj.Status.WarmSource = v1alpha1.WarmSource{}
		attached(&obj.Status, gib)
		return nil
	})
	if err != nil {
		return err
	}
	if err := d.moves.Finish(ctx, m, volume.MoveCompleted, ""); err != nil {
		return err
	}
	return records.UpdateStatus(ctx, d.api, id, func(obj *v1alpha1.CachedVolume) error {
		obj.Status.RetainedCaches = slices.DeleteFunc(obj.Status.RetainedCaches, func(r v1alpha1.RetainedCache) bool { return r.NodeName == nodeName(from) })
		return nil
	})
}

// schedule asks the webhook for the pod's preferences and follows the one for room,
// since the node that is warm is being drained.
func (d *drain) schedule(ctx context.Context, i int) (int, error) {
	began := time.Now()
	terms, err := d.admit(ctx, volumeName(i))
	if err != nil {
		return 0, err
	}
	d.tookMu.Lock()
	d.admissions = append(d.admissions, time.Since(began))
	d.tookMu.Unlock()
	warm, candidates := false, []int{}
	for _, term := range terms {
		for _, host := range term.Preference.MatchExpressions[0].Values {
			var node int
			if _, err := fmt.Sscanf(host, "scale-node-%d", &node); err != nil {
				return 0, fmt.Errorf("preferred node %q: %w", host, err)
			}
			warm = warm || node == d.owner[i]
			if !d.drained[node] {
				candidates = append(candidates, node)
			}
		}
	}
	if !warm || len(candidates) == 0 {
		return 0, fmt.Errorf("the pod prefers %v: want the node with its cache, and nodes with room", terms)
	}
	return candidates[i%len(candidates)], nil
}

func (d *drain) admit(ctx context.Context, claim string) ([]corev1.PreferredSchedulingTerm, error) {
	pod := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}}}},
	}
	raw, err := json.Marshal(pod)
	if err != nil {
		return nil, err
	}
	review := admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: types.UID(claim), Operation: admissionv1.Create, Namespace: shop, Object: runtime.RawExtension{Raw: raw},
		},
	}
	body, err := json.Marshal(review)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.webhook, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := d.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	review.Request = nil
	if err := json.NewDecoder(resp.Body).Decode(&review); err != nil {
		return nil, err
	}
	if review.Response == nil {
		return nil, fmt.Errorf("status %d without a review", resp.StatusCode)
	}
	var patch []struct{ Value corev1.Affinity }
	if err := json.Unmarshal(review.Response.Patch, &patch); err != nil {
		return nil, fmt.Errorf("patch %q: %w", review.Response.Patch, err)
	}
	if len(patch) != 1 || patch[0].Value.NodeAffinity == nil {
		return nil, fmt.Errorf("patch %q is no node affinity", review.Response.Patch)
	}
	return patch[0].Value.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution, nil
}
