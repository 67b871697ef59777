package cluster

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	groupsnapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/kube"
)

// DriverName is the CSI driver under test.
const DriverName = "csi.nearflash.io"

// Options say where the cluster is and what runs in it.
type Options struct {
	// Kubeconfig is a path; empty means KUBECONFIG or ~/.kube/config.
	Kubeconfig string
	// LabCommand is the lab program with its first arguments; empty means that
	// the cluster is not a lab.
	LabCommand string
	// StorageContainer is the container of a container engine in which the storage
	// server runs, for a cluster that is not a lab; empty if there is none.
	StorageContainer string
	// WorkloadImage is the image of all pods.
	WorkloadImage string
}

// DefaultOptions reads what `hack/lab run` puts into the environment: the lab
// program and the lab's identity; or what hack/kind/ring.sh puts there: the
// container of the storage server.
func DefaultOptions() Options {
	o := Options{
		LabCommand: os.Getenv("NEARFLASH_LAB"), StorageContainer: os.Getenv("NEARFLASH_STORAGE_CONTAINER"),
		WorkloadImage: "nearflash.local/workload:1",
	}
	if id := os.Getenv("NEARFLASH_LAB_ID"); o.LabCommand != "" && id != "" {
		o.LabCommand += " --name " + id
	}
	return o
}

// Cluster is a connection to a cluster with the driver installed.
type Cluster struct {
	Options
	// API reads and writes objects, never from a cache.
	API client.Client
	// Clients is for subresources that API does not have: logs, proxy, exec.
	Clients kubernetes.Interface
	REST    *rest.Config
	// Host runs commands on the machines of the cluster.
	Host Host
	// Lab is nil outside a lab.
	Lab *Lab
	// Workers are the names of the nodes that run the driver, sorted.
	Workers []string
	// Namespace is the driver's.
	Namespace string
	// SecretParameters are the StorageClass parameters that name the CHAP
	// secrets, as the chart's own classes have them.
	SecretParameters map[string]string
}

// Connect connects and waits until the driver serves on every node.
func Connect(ctx context.Context, o Options) (*Cluster, error) {
	c := &Cluster{Options: o}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.Kubeconfig
	var err error
	if c.REST, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig(); err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	c.REST.QPS, c.REST.Burst = 200, 400
	scheme, err := kube.NewScheme()
	if err == nil {
		err = groupsnapshotv1.AddToScheme(scheme) // the driver itself never sees a group's objects
	}
	if err != nil {
		return nil, err
	}
	if c.API, err = client.New(c.REST, client.Options{Scheme: scheme}); err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	if c.Clients, err = kubernetes.NewForConfig(c.REST); err != nil {
		return nil, fmt.Errorf("clientset: %w", err)
	}
	c.Host = podHost{c}
	if o.LabCommand != "" {
		c.Lab = &Lab{command: strings.Fields(o.LabCommand)}
		c.Host = c.Lab
	}
	if err := c.discover(ctx); err != nil {
		return nil, fmt.Errorf("find the driver in the cluster: %w", err)
	}
	return c, nil
}

// discover finds out what the chart installed.
func (c *Cluster) discover(ctx context.Context) error {
	if err := c.AwaitDriver(ctx, 3*time.Minute); err != nil {
		return err
	}
	pods, err := c.DriverPods(ctx)
	if err != nil {
		return err
	}
	c.Namespace = pods[0].Namespace
	var classes storagev1.StorageClassList
	if err := c.API.List(ctx, &classes); err != nil {
		return err
	}
	for _, class := range classes.Items {
		if class.Provisioner != DriverName {
			continue
		}
		c.SecretParameters = map[string]string{}
		for k, v := range class.Parameters {
			if strings.HasPrefix(k, "csi.storage.k8s.io/") && strings.Contains(k, "-secret-") {
				c.SecretParameters[k] = v
			}
		}
		return nil
	}
	return fmt.Errorf("no StorageClass of provisioner %s to take the CHAP secret's name from", DriverName)
}

// AwaitDriver waits until all driver pods are ready, every node plugin has
// registered with its kubelet and every pool is ready. It sets Workers.
func (c *Cluster) AwaitDriver(ctx context.Context, timeout time.Duration) error {
	return Await(ctx, timeout, func(ctx context.Context) (string, error) {
		if lacks, err := c.pluginsNotReady(ctx); lacks != "" || err != nil {
			return lacks, err
		}
		return c.poolsNotReady(ctx)
	})
}

// AwaitPlugins is AwaitDriver whatever the pools say.
func (c *Cluster) AwaitPlugins(ctx context.Context, timeout time.Duration) error {
	return Await(ctx, timeout, c.pluginsNotReady)
}

func (c *Cluster) pluginsNotReady(ctx context.Context) (string, error) {
	pods, err := c.DriverPods(ctx)
	if err != nil {
		return "", err
	}
	nodes, controllers := 0, 0
	for i := range pods {
		if !PodReady(&pods[i]) {
			return fmt.Sprintf("pod %s is not ready", pods[i].Name), nil
		}
		switch pods[i].Labels[componentLabel] {
		case componentNode:
			nodes++
		case componentController:
			controllers++
		}
	}
	if nodes == 0 || controllers == 0 {
		return fmt.Sprintf("%d driver pods, %d of them node plugins and %d controllers", len(pods), nodes, controllers), nil
	}
	registered, err := c.registeredNodes(ctx)
	if err != nil {
		return "", err
	}
	if len(registered) != nodes {
		return fmt.Sprintf("driver registered on %v, %d node plugins run", registered, nodes), nil
	}
	c.Workers = registered
	return "", nil
}

func (c *Cluster) registeredNodes(ctx context.Context) ([]string, error) {
	var list storagev1.CSINodeList
	if err := c.API.List(ctx, &list); err != nil {
		return nil, err
	}
	var names []string
	for i := range list.Items {
		if kube.Registered(&list.Items[i], DriverName) {
			names = append(names, list.Items[i].Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

func (c *Cluster) poolsNotReady(ctx context.Context) (string, error) {
	for _, n := range c.Workers {
		var pool v1alpha1.CachePool
		err := c.API.Get(ctx, client.ObjectKey{Name: n}, &pool)
		if client.IgnoreNotFound(err) != nil {
			return "", err
		}
		if err != nil || !meta.IsStatusConditionTrue(pool.Status.Conditions, v1alpha1.ConditionReady) {
			return fmt.Sprintf("CachePool %s is not ready: %v", n, pool.Status.Conditions), nil
		}
	}
	return "", nil
}

// The labels that the chart puts on the driver's pods.
const (
	nameLabel           = "app.kubernetes.io/name"
	componentLabel      = "app.kubernetes.io/component"
	componentNode       = "node"
	componentController = "controller"
	componentIscsid     = "iscsid"
)

// DriverPods lists the pods of the driver that are not being deleted. An empty
// list is an error.
func (c *Cluster) DriverPods(ctx context.Context) ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := c.API.List(ctx, &list, client.MatchingLabels{nameLabel: "nearflash"}); err != nil {
		return nil, err
	}
	// One that has ended for good stays beside the one that its Deployment has made instead.
	pods := slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
		return p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded
	})
	if len(pods) == 0 {
		return nil, fmt.Errorf("no pod with label %s=nearflash", nameLabel)
	}
	return pods, nil
}

// NodePlugin returns the driver's pod on a node.
func (c *Cluster) NodePlugin(ctx context.Context, node string) (*corev1.Pod, error) {
	return c.podOn(ctx, componentNode, node)
}

// Iscsid returns the pod on a node of the iscsid that the chart brings.
func (c *Cluster) Iscsid(ctx context.Context, node string) (*corev1.Pod, error) {
	return c.podOn(ctx, componentIscsid, node)
}

func (c *Cluster) podOn(ctx context.Context, component, node string) (*corev1.Pod, error) {
	return c.driverPod(ctx, func(p *corev1.Pod) bool {
		return p.Labels[componentLabel] == component && p.Spec.NodeName == node
	})
}

// Controller returns a pod of the driver's controller.
func (c *Cluster) Controller(ctx context.Context) (*corev1.Pod, error) {
	return c.driverPod(ctx, func(p *corev1.Pod) bool { return p.Labels[componentLabel] == componentController })
}

func (c *Cluster) driverPod(ctx context.Context, match func(*corev1.Pod) bool) (*corev1.Pod, error) {
	pods, err := c.DriverPods(ctx)
	if err != nil {
		return nil, err
	}
	for i := range pods {
		if match(&pods[i]) {
			return &pods[i], nil
		}
	}
	return nil, fmt.Errorf("none of %d driver pods matches", len(pods))
}
