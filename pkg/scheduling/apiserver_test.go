package scheduling

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/nearflash/nearflash/pkg/driver"
	"github.com/nearflash/nearflash/pkg/testutil/apiserver"
)

// What the chart calls the webhook's objects in its kept renderings.
const (
	namespace = "nearflash-system"
	name      = "nearflash-scheduling"
)

// cluster is a real API server with the chart's webhook configuration.
type cluster struct {
	config *rest.Config
	api    client.Client
	// address is where the API server looks for the webhook.
	address string
}

// TestAPIServer has a real API server admit pods: first with a webhook that is
// broken, then with the real one.
func TestAPIServer(t *testing.T) {
	config := apiserver.Start(t)
	c := &cluster{config: config, api: apiserver.Client(t, config)}
	c.install(t)
	c.makeWorld(t)
	t.Run("webhook hangs", c.testHanging)
	t.Run("webhook away", c.testAway)
	t.Run("certificates", c.testCertificates)
	t.Run("webhook serves", c.testServing)
}

// install makes the Secret and the configuration of the chart. Its Service leads to
// this process instead of to pods: there is no network of pods here.
func (c *cluster) install(t *testing.T) {
	t.Helper()
	c.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	listener := listen(t, "127.0.0.1:0")
	c.address = listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	_, text, err := net.SplitHostPort(c.address)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	c.create(t, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "127.0.0.1"},
	})
	kinds := []string{"Secret", "MutatingWebhookConfiguration"}
	for _, object := range rendered(t) {
		i := slices.Index(kinds, object.GetKind())
		if i < 0 || object.GetName() != name {
			continue
		}
		kinds = slices.Delete(kinds, i, i+1)
		c.create(t, object)
	}
	if len(kinds) > 0 {
		t.Fatalf("the rendered chart has no %v of the webhook", kinds)
	}
	conf := c.configuration(t)
	for i := range conf.Webhooks {
		p := int32(port)
		conf.Webhooks[i].ClientConfig.Service.Port = &p
	}
	if err := c.api.Update(t.Context(), conf); err != nil {
		t.Fatal(err)
	}
}

// rendered are the objects of a rendering that is kept beside the chart's tests.
func rendered(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	file, err := os.Open(filepath.Join("..", "..", "deploy", "helm", "nearflash", "tests", "snapshots", "static.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	var out []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(file, 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(&object.Object); errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			t.Fatal(err)
		}
		out = append(out, object)
	}
}

func (c *cluster) configuration(t *testing.T) *admissionregistrationv1.MutatingWebhookConfiguration {
	t.Helper()
	conf := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := c.api.Get(t.Context(), client.ObjectKey{Name: name}, conf); err != nil {
		t.Fatal(err)
	}
	return conf
}

func (c *cluster) create(t *testing.T, obj client.Object) {
	t.Helper()
	if err := c.api.Create(t.Context(), obj); err != nil {
		t.Fatalf("create %T %s: %v", obj, obj.GetName(), err)
	}
}

// pod makes a pod with a claim, which must always be possible, and returns it and
// the time that it took.
func (c *cluster) pod(t *testing.T, claim string, change func(*corev1.Pod)) (*corev1.Pod, time.Duration) {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "pod-"},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "nearflash.local/none:none"}},
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}},
		},
	}
	if change != nil {
		change(pod)
	}
	started := time.Now()
	c.create(t, pod)
	return pod, time.Since(started)
}

// testHanging has somebody accept the API server's connection and say nothing.
func (c *cluster) testHanging(t *testing.T) {
	listener := listen(t, c.address)
	defer func() { _ = listener.Close() }()
	accepted := make(chan struct{}, 1)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			defer func() { _ = conn.Close() }()
			select {
			case accepted <- struct{}{}:
			default:
			}
		}
	}()
	// The API server learns of the configuration a moment after it is stored.
	eventually(t, "the API server calls the webhook", func() bool {
		pod, took := c.pod(t, "warm", nil)
		select {
		case <-accepted:
		default:
			return false
		}
		if pod.Spec.Affinity != nil {
			t.Errorf("affinity %v, want none", pod.Spec.Affinity)
		}
		if took > 8*time.Second { // timeoutSeconds 2, on a busy machine
			t.Errorf("a pod took %v", took)
		}
		return true
	})
}

// testAway has nobody listen.
func (c *cluster) testAway(t *testing.T) {
	pod, took := c.pod(t, "warm", nil)
	if pod.Spec.Affinity != nil {
		t.Errorf("affinity %v, want none", pod.Spec.Affinity)
	}
	if took > 8*time.Second {
		t.Errorf("a pod took %v", took)
	}
}

// serve runs the webhook until the end of the test.
func (c *cluster) serve(t *testing.T) {
	t.Helper()
	logger, ctx := ktesting.NewTestContext(t)
	ctrl.SetLogger(klog.NewKlogr())
	mgr, err := ctrl.NewManager(c.config, manager.Options{
		Scheme: c.api.Scheme(), Logger: logger, Metrics: server.Options{BindAddress: "0"},
		Cache: cache.Options{ByObject: CacheOptions()},
		NewClient: func(config *rest.Config, o client.Options) (client.Client, error) {
			o.Cache = nil
			return client.New(config, o)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Address: c.address, Namespace: namespace, Name: name, Weights: Weights{Warm: 80, Free: 20}}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	if err := Setup(ctx, mgr, cfg, driver.Name); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("manager: %v", err)
		}
	})
}

func listen(t *testing.T, address string) net.Listener {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for range 300 {
		if done() {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("waited in vain until %s", what)
}
