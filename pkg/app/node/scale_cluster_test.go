package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/hotset"
	"github.com/nearflash/nearflash/pkg/backend/backendtest"
	"github.com/nearflash/nearflash/pkg/kube"
	"github.com/nearflash/nearflash/pkg/provision"
	"github.com/nearflash/nearflash/pkg/testutil/apiserver"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// patience is for the largest cluster on a busy machine.
	patience = 10 * time.Minute
	// workers is how many objects are made, and volumes staged, at the same time.
	workers = 16
	shop    = "shop"
	account = "nearflash-node"
)

// fleet is a cluster of node plugins in one process, each on a machine of its own in memory.
type fleet struct {
	t testing.TB
	// ctx has a logger that says nothing: hundreds of plugins say too much.
	ctx     context.Context
	admin   *rest.Config
	api     client.WithWatch
	set     *kubernetes.Clientset
	control *provision.Service
	// volumes is how many each node has.
	volumes int
	// now is the time of the attachers, by which hot sets are due. It stands still.
	now     atomic.Int64
	members []*member
}

// member is a node.
type member struct {
	name    string
	machine *machine
	config  *rest.Config
	traffic *apiserver.Traffic
	plugin  *plugin
	stop    context.CancelFunc
	ended   chan error
}

// newFleet is a cluster with the chart's accounts, and a storage server in memory.
func newFleet(t testing.TB, admin *rest.Config, volumes int) *fleet {
	t.Helper()
	f := connect(t, admin)
	f.volumes = volumes
	apiserver.InstallChart(t, f.api, "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
	f.make(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shop}})
	f.control = provision.New(provision.Config{Client: f.api, Servers: map[string]provision.Server{"": {Backend: backendtest.New(1 << 50)}}, Events: &events.FakeRecorder{}})
	return f
}

// connect is a cluster with nothing but nearflash's definitions.
func connect(t testing.TB, admin *rest.Config) *fleet {
	t.Helper()
	ctrl.SetLogger(logr.Discard())
	admin = rest.CopyConfig(admin)
	admin.QPS = -1 // the cluster's other parts are not what is measured
	f := &fleet{t: t, ctx: logr.NewContext(t.Context(), logr.Discard()), admin: admin, api: apiserver.Client(t, admin)}
	f.now.Store(time.Now().UnixNano())
	var err error
	if f.set, err = kubernetes.NewForConfig(admin); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fleet) make(objects ...client.Object) {
	f.t.Helper()
	for _, o := range objects {
		if err := f.api.Create(f.ctx, o); err != nil {
			f.t.Fatal(err)
		}
	}
}

// parallel does something for every number from first to last, not included.
func (f *fleet) parallel(first, last int, do func(i int) error) {
	f.t.Helper()
	var next atomic.Int64
	next.Store(int64(first))
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for errs[w] == nil {
				i := int(next.Add(1)) - 1
				if i >= last {
					return
				}
				errs[w] = do(i)
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			f.t.Fatal(err)
		}
	}
}

// grow makes nodes until there are that many. Each has a pod of the DaemonSet, to which the token
// of its plugin is bound.
func (f *fleet) grow(nodes int) {
	f.t.Helper()
	first := len(f.members)
	for i := first; i < nodes; i++ {
		name := fmt.Sprintf("scale-node-%04d", i)
		f.members = append(f.members, &member{name: name, machine: newMachine(f.t, name, f.volumes), traffic: &apiserver.Traffic{}})
	}
	f.parallel(first, nodes, func(i int) error {
		m := f.members[i]
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: apiserver.ChartNamespace, Name: "plugin-of-" + m.name},
			Spec:       corev1.PodSpec{NodeName: m.name, ServiceAccountName: account, Containers: []corev1.Container{{Name: "c", Image: "nearflash.local/none:none"}}},
		}
		if err := f.api.Create(f.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.name}}); err != nil {
			return err
		}
		if err := f.api.Create(f.ctx, pod); err != nil {
			return err
		}
		request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
		}}
		answer, err := f.set.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(f.ctx, account, request, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		m.config = f.account(m, answer.Status.Token)
		return nil
	})
}

// account reaches the API server as the plugin of a node, over a connection of its own: client-go
// shares those of clients with the same authorities.
func (f *fleet) account(m *member, token string) *rest.Config {
	config := rest.AnonymousClientConfig(f.admin)
	config.BearerToken = token
	config.CAData = append(append([]byte{}, f.admin.CAData...), "\n# "+m.name+"\n"...)
	config.QPS, config.Burst, config.Timeout = kube.QPS, kube.Burst, apiTimeout
	return m.traffic.Counted(config)
}

// flags are the chart's defaults, but for ports and addresses.
func (m *member) flags() Config {
	return Config{
		Endpoint: "unix://" + filepath.Join(m.machine.dir, "csi.sock"), NodeName: m.name, StateDir: filepath.Join(m.machine.dir, "state"),
		PoolDevices: stringList{m.machine.ssd()}, PoolRedundancy: string(v1alpha1.RedundancyNone), InitiatorNameFile: m.machine.initiatorFile(),
		NodeIP: "127.0.0.1", WarmStartPort: 3262, WarmStartMethod: volume.WordAuto, WarmStartBandwidth: 64 << 20,
		RetainedCacheTTL: 72 * time.Hour, ReportInterval: 30 * time.Second, HotSetInterval: 30 * time.Minute, HotSetSize: hotset.MaxBytes,
		Stream: StreamConfig{Addresses: addressList{netip.MustParseAddr("127.0.0.1")}, TokenFile: filepath.Join(m.machine.dir, "token"), Account: "system:serviceaccount:" + apiserver.ChartNamespace + ":" + account},
	}
}

// start starts the plugins of nodes at once.
func (f *fleet) start(members ...*member) {
	f.t.Helper()
	begun := make(chan error, len(members))
	for _, m := range members {
		ctx, stop := context.WithCancel(f.ctx)
		m.stop, m.ended = stop, make(chan error, 1)
		go func() {
			cfg := m.flags()
			err := runOn(ctx, cfg, m.config, m.machine.host(cfg), func(p *plugin) {
				p.attacher.Now = func() time.Time { return time.Unix(0, f.now.Load()) }
				m.plugin = p
				begun <- nil
			})
			if err != nil {
				begun <- fmt.Errorf("%s: %w", m.name, err)
			}
			m.ended <- err
		}()
	}
	for range members {
		if err := <-begun; err != nil {
			f.t.Fatal(err)
		}
	}
}

// settled waits until each plugin knows its volumes, and has reported its pool.
func (f *fleet) settled() {
	f.t.Helper()
	for _, m := range f.members {
		f.until(m.name+" is ready", func() bool {
			list, err := m.plugin.owned.List(f.ctx)
			_, perr := m.plugin.requested.List(f.ctx)
			return err == nil && perr == nil && len(list) == m.staged() && m.plugin.pool.View().Ready
		})
	}
	f.until("all pools are reported", func() bool {
		var pools v1alpha1.CachePoolList
		if err := f.api.List(f.ctx, &pools); err != nil {
			return false
		}
		ready := 0
		for _, p := range pools.Items {
			if meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionReady) {
				ready++
			}
		}
		return ready == len(f.members)
	})
}

// staged is how many volumes the node has.
func (m *member) staged() int {
	m.machine.mu.Lock()
	defer m.machine.mu.Unlock()
	return len(m.machine.mounts)
}

// end stops plugins.
func (f *fleet) end(members ...*member) {
	f.t.Helper()
	for _, m := range members {
		m.stop()
	}
	for _, m := range members {
		if err := <-m.ended; err != nil {
			f.t.Errorf("%s ended with %v", m.name, err)
		}
	}
}

func (f *fleet) until(what string, done func() bool) {
	f.t.Helper()
	for deadline := time.Now().Add(patience); !done(); {
		if time.Now().After(deadline) {
			f.t.Fatalf("never: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (f *fleet) volume(node, i int) volume.ID {
	return volume.ID(fmt.Sprintf("pvc-scale-%04d-%02d", node, i))
}

// attach makes the volumes of nodes, as the controller makes and publishes them, and stages each.
func (f *fleet) attach(first, last int) {
	f.t.Helper()
	f.parallel(first*f.volumes, last*f.volumes, func(i int) error {
		m, id := f.members[i/f.volumes], f.volume(i/f.volumes, i%f.volumes)
		pvc := &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: string(id)},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(lunBytes, resource.BinarySI)}},
			},
		}
		if err := f.api.Create(f.ctx, pvc); err != nil {
			return err
		}
		spec := volume.Spec{
			CapacityBytes: lunBytes, Mode: volume.ModeWritethrough, Cache: volume.Size{Bytes: cacheBytes}, Claim: &volume.Claim{Namespace: shop, Name: string(id)},
		}
		if _, err := f.control.Create(f.ctx, id, spec); err != nil {
			return err
		}
		chap := &volume.Credentials{Username: "user", Password: "password-of-user"}
		publication, err := f.control.Publish(f.ctx, id, m.name, nil, chap)
		if err != nil {
			return err
		}
		return m.stage(f.ctx, volume.StageRequest{
			ID: id, StagingPath: "/staging/" + string(id), FSType: "ext4", Publication: publication, Credentials: chap,
		})
	})
}

// stage stages a volume as the kubelet does, which asks again.
func (m *member) stage(ctx context.Context, r volume.StageRequest) (err error) {
	for range 10 {
		if err = m.plugin.attacher.Stage(ctx, r); !errors.Is(err, volume.ErrUnavailable) {
			return err
		}
	}
	return err
}

// take returns what all nodes have asked for since the last time.
func (f *fleet) take() apiserver.Counts {
	var out apiserver.Counts
	for _, m := range f.members {
		out.Add(m.traffic.Take())
	}
	return out
}

// count is how many objects of a kind there are.
func (f *fleet) count(kind string) int {
	f.t.Helper()
	// Of what there may be hundreds of megabytes of, the names are enough.
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	if err := f.api.List(f.ctx, list, &client.ListOptions{Limit: 1}); err != nil {
		f.t.Fatal(err)
	}
	n := len(list.Items)
	if more := list.RemainingItemCount; more != nil {
		n += int(*more)
	}
	return n
}
