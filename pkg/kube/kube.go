// Package kube says how the plugins reach the API server, and with which types; and it keeps Secrets
// that the controller makes.
package kube

import (
	"errors"
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// QPS and Burst bound the requests of a plugin to the API server, a second and at once.
// client-go's defaults of 5 and 10 would make volumes wait for each other, and a node that
// comes back for the volumes of its pods.
const QPS, Burst = 50, 100

// Config returns how to reach the API server: the file of the environment
// variable KUBECONFIG if it is set, else as a pod does.
func Config() (*rest.Config, error) {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		clientcmd.NewDefaultClientConfigLoadingRules(), &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("no way to the API server: %w; remedy: run in a pod with a service account, or set KUBECONFIG", err)
	}
	config.QPS, config.Burst = QPS, Burst
	return config, nil
}

// NewScheme returns a scheme with the types of Kubernetes, of its snapshots, which a cluster
// need not have, and of nearflash.
func NewScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme), snapshotv1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("scheme: %w", err)
	}
	return scheme, nil
}

// NewMapper returns the places of nearflash's own kinds. Whoever watches nothing else need not ask
// the API server for everything that it serves, which is most of what a start would ask for.
func NewMapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper([]schema.GroupVersion{v1alpha1.GroupVersion})
	for _, kind := range []string{"CachedVolume", "CachePool", "CacheMigration", "CacheHotSet"} {
		m.Add(v1alpha1.GroupVersion.WithKind(kind), meta.RESTScopeRoot)
	}
	return m
}
