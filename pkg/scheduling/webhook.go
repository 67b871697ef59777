package scheduling

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

const (
	// Path is where the webhook is served.
	Path = "/pods"
	// Annotation of a pod that wants to be left alone has the value Off.
	Annotation = "nearflash.io/scheduling"
	// Off is the value of Annotation.
	Off = "off"
)

// errPanic is what a panic in an admission becomes.
var errPanic = errors.New("panic")

// CacheOptions keep of each claim only what an admission needs: a cluster may have
// a great many of them.
func CacheOptions() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{
		&corev1.PersistentVolumeClaim{}: {Transform: func(obj any) (any, error) {
			claim, ok := obj.(*corev1.PersistentVolumeClaim)
			if !ok {
				return obj, nil
			}
			return &corev1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, ResourceVersion: claim.ResourceVersion,
				},
				Spec: corev1.PersistentVolumeClaimSpec{
					VolumeName: claim.Spec.VolumeName, StorageClassName: claim.Spec.StorageClassName, Resources: claim.Spec.Resources,
				},
			}, nil
		}},
	}
}

// Setup adds the webhook to mgr, which serves it whether or not it leads; the
// leader alone renews the certificate. The manager's client must read from the
// API server itself, and its cache have CacheOptions. Without an address there is
// nothing to set up.
func Setup(ctx context.Context, mgr manager.Manager, cfg Config, driver string) error {
	if cfg.Address == "" {
		return nil
	}
	host, port, err := cfg.listen()
	if err != nil {
		return err
	}
	h := &handler{gatherer: gatherer{informed: mgr.GetCache(), driver: driver}, weights: cfg.Weights}
	for _, obj := range []client.Object{
		&corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}, &storagev1.StorageClass{},
		&v1alpha1.CachedVolume{}, &v1alpha1.CachePool{}, &corev1.Node{},
	} {
		informer, err := mgr.GetCache().GetInformer(ctx, obj, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("informer of %T: %w", obj, err)
		}
		h.informers = append(h.informers, informer)
	}
	certs := &certificates{
		client: mgr.GetClient(), key: client.ObjectKey{Namespace: cfg.Namespace, Name: cfg.Name},
		host: cfg.host(), now: time.Now,
	}
	server := webhook.NewServer(webhook.Options{Host: host, Port: port, TLSOpts: []func(*tls.Config){func(t *tls.Config) {
		t.MinVersion = tls.VersionTLS12
		t.NextProtos = []string{"http/1.1"} // as the metrics endpoint: nothing is gained by HTTP/2
		t.GetCertificate = certs.serving
	}}})
	server.Register(Path, &admission.Webhook{Handler: h})
	return errors.Join(mgr.Add(server), mgr.Add(everywhere(certs.follow)), mgr.Add(manager.RunnableFunc(certs.keep)))
}

// everywhere is a runnable that does not need to lead.
type everywhere func(context.Context) error

// Start implements manager.Runnable.
func (f everywhere) Start(ctx context.Context) error { return f(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (everywhere) NeedLeaderElection() bool { return false }

// informer reports whether its first list has arrived.
type informer interface{ HasSynced() bool }

// handler answers admission reviews of pods.
type handler struct {
	gatherer
	weights   Weights
	informers []informer
}

// Handle implements admission.Handler. It lets every pod pass, whatever happens: an
// answer that says no, or one with a status of failure, would stop the pod in
// spite of the webhook's failurePolicy.
func (h *handler) Handle(ctx context.Context, req admission.Request) admission.Response {
	response := admission.Allowed("")
	patch, err := h.patch(ctx, req)
	if err != nil {
		klog.FromContext(ctx).Error(err, "A pod is scheduled without preferences")
		return response
	}
	if patch != nil {
		klog.FromContext(ctx).V(4).Info("Pod prefers nodes", "patch", string(patch))
		response.Patch, response.PatchType = patch, ptr.To(admissionv1.PatchTypeJSONPatch)
	}
	return response
}

// patch returns the JSON patch for a pod, nil if it stays as it is.
func (h *handler) patch(ctx context.Context, req admission.Request) (patch []byte, err error) {
	defer func() {
		if r := recover(); r != nil {
			patch, err = nil, fmt.Errorf("%w: %v", errPanic, r)
		}
	}()
	if !h.synced() {
		return nil, nil
	}
	pod := &corev1.Pod{}
	if err := json.Unmarshal(req.Object.Raw, pod); err != nil {
		return nil, fmt.Errorf("decode the pod: %w", err)
	}
	if pod.Spec.NodeName != "" || pod.Annotations[Annotation] == Off {
		return nil, nil
	}
	caches, err := h.caches(ctx, req.Namespace, pod)
	if err != nil || len(caches) == 0 {
		return nil, err
	}
	pools, err := h.pools(ctx, req.Namespace)
	if err != nil {
		return nil, err
	}
	hostnames, err := h.hostnames(ctx, pod)
	if err != nil {
		return nil, err
	}
	preferences := Prefer(caches, pools, h.weights, func(node string) bool { return hostnames[node] != "" })
	add := terms(preferences, hostnames)
	if len(add) == 0 {
		return nil, nil
	}
	return json.Marshal(patchFor(pod, add))
}

// synced reports whether all informers have what there is, so that reading them
// does not wait.
func (h *handler) synced() bool {
	for _, i := range h.informers {
		if !i.HasSynced() {
			return false
		}
	}
	return true
}
