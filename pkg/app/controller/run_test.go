package controller

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/app/metricserver"
	"github.com/nearflash/nearflash/pkg/chapaccount"
	"github.com/nearflash/nearflash/pkg/loginaccount/keeper"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/scheduling"
	"github.com/nearflash/nearflash/pkg/testutil/apiserver"
	"github.com/nearflash/nearflash/pkg/testutil/loopback"
)

// webhook is the name of the scheduling webhook's objects.
const webhook = "nearflash-scheduling"

// app is a running controller.
type app struct {
	url string
	// metrics is the URL of the metrics, token that of an account that may get
	// them.
	metrics, token string
	// webhook is the address of the scheduling webhook.
	webhook string
	conn    *grpc.ClientConn
	stop    context.CancelFunc
	result  chan error
}

// scrapeToken returns a token of an account with the chart's role for it.
func scrapeToken(t testing.TB, config *rest.Config) string {
	t.Helper()
	admin := rest.CopyConfig(config)
	admin.Impersonate = rest.ImpersonationConfig{}
	set, err := kubernetes.NewForConfig(admin)
	if err != nil {
		t.Fatal(err)
	}
	request := &authenticationv1.TokenRequest{}
	answer, err := set.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), scraper, request, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return answer.Status.Token
}

func startApp(t testing.TB, config *rest.Config, change func(*Config)) *app {
	t.Helper()
	return startWith(t, config, change, func(ctx context.Context, cfg Config) error { return run(ctx, cfg, config) })
}

// startWith starts a controller by begin; config is only for its tokens.
func startWith(t testing.TB, config *rest.Config, change func(*Config), begin func(context.Context, Config) error) *app {
	t.Helper()
	cfg := Config{
		Endpoint: "unix://" + filepath.Join(t.TempDir(), "csi.sock"), Version: "v9",
		LeaderElect: true, LeaderElectionNamespace: namespace, HealthAddress: loopback.FreeAddress(t),
		Metrics:    metricserver.Config{Address: loopback.FreeAddress(t), Secure: true},
		Scheduling: scheduling.Config{Address: loopback.FreeAddress(t), Namespace: namespace, Name: webhook},
	}
	change(&cfg)
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	a := &app{webhook: cfg.Scheduling.Address, url: "http://" + cfg.HealthAddress, metrics: "https://" + cfg.Metrics.Address + "/metrics", token: scrapeToken(t, config), stop: cancel, result: make(chan error, 1)}
	go func() { a.result <- begin(ctx, cfg) }()
	var err error
	if a.conn, err = grpc.NewClient(cfg.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.conn.Close() })
	a.waitFor(t, "/healthz", http.StatusOK)
	eventually(t, "the controller leads", func() bool {
		return strings.Contains(a.scrape(t), `leader_election_master_status{name="nearflash-controller"} 1`)
	})
	return a
}

// end stops the controller and wants it to end without an error.
func (a *app) end(t testing.TB) {
	t.Helper()
	a.stop()
	if err := <-a.result; err != nil {
		t.Errorf("ended with %v", err)
	}
}

func (a *app) get(t testing.TB, path string) (code int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, a.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	return loopback.Answer(t, http.DefaultClient, req)
}

// scrape returns the metrics once they are served, and wants nobody to get them
// without a token.
func (a *app) scrape(t testing.TB) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, a.metrics, nil)
	if err != nil {
		t.Fatal(err)
	}
	insecure := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	var text string
	eventually(t, "metrics are served", func() bool {
		req.Header.Set("Authorization", "Bearer "+a.token)
		code, body := loopback.Answer(t, insecure, req)
		text = body
		return code == http.StatusOK
	})
	req.Header.Del("Authorization")
	if code, _ := loopback.Answer(t, insecure, req); code != http.StatusUnauthorized {
		t.Errorf("metrics without a token: status %d, want %d", code, http.StatusUnauthorized)
	}
	return text
}

func (a *app) waitFor(t testing.TB, path string, want int) (body string) {
	t.Helper()
	code := 0
	for range 600 {
		if code, body = a.get(t, path); code == want {
			return body
		}
		select {
		case err := <-a.result:
			t.Fatalf("ended with %v", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
	t.Fatalf("%s answers %d %s, want %d", path, code, body, want)
	return ""
}

// TestRun runs the whole controller against a real API server with no more than
// the chart's permissions: without a storage server, and with one that is not
// there.
func TestRun(t *testing.T) {
	admin := apiserver.Start(t)
	api := apiserver.Client(t, admin)
	installAccount(t, api)
	config := account(admin)
	pool := &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}
	if err := api.Create(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	pool.Status.InitiatorIQN = "iqn.1993-08.org.debian:01:a"
	if err := api.Status().Update(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	t.Run("no storage server", func(t *testing.T) { testStatic(t, config, api) })
	t.Run("storage server away", func(t *testing.T) { testAway(t, config, api) })
	t.Run("scale", func(t *testing.T) { testScale(t, admin, config) })
}

// account reaches the API server with the permissions of the chart.
func account(admin *rest.Config) *rest.Config {
	config := rest.CopyConfig(admin)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + namespace + ":nearflash-controller",
		Groups:   []string{"system:serviceaccounts", "system:authenticated"},
	}
	return config
}

// block is how a pod uses a raw block volume.
func block() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
}

func testStatic(t *testing.T, config *rest.Config, api client.Client) {
	a := startApp(t, config, func(c *Config) { c.CHAPSecret, c.CHAPUsername = "nearflash-chap", "nearflash" })
	defer a.end(t)
	a.waitFor(t, "/readyz", http.StatusOK)
	eventually(t, "the CHAP account is made", func() bool {
		secret := &corev1.Secret{}
		err := api.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "nearflash-chap"}, secret)
		return err == nil && string(secret.Data[chapaccount.UsernameKey]) == "nearflash" && len(secret.Data[chapaccount.PasswordKey]) >= 24
	})
	info, err := csi.NewIdentityClient(a.conn).GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
	if err != nil || info.GetName() != "csi.nearflash.io" || info.GetVendorVersion() != "v9" {
		t.Errorf("plugin info %v, %v", info, err)
	}
	probe, err := csi.NewIdentityClient(a.conn).Probe(t.Context(), &csi.ProbeRequest{})
	if err != nil || !probe.GetReady().GetValue() {
		t.Errorf("probe %v, %v", probe, err)
	}
	c := csi.NewControllerClient(a.conn)
	capability := block()
	_, err = c.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "pvc-1", VolumeCapabilities: []*csi.VolumeCapability{capability}})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("create without a storage server: %v, want InvalidArgument", err)
	}
	pub, err := c.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{
		VolumeId: "lun-1", NodeId: "node-a", VolumeCapability: capability,
		VolumeContext: map[string]string{"portals": "192.0.2.1:3260", "iqn": "iqn.2003-01.org.example:disk1"},
	})
	if err != nil || pub.GetPublishContext()["generation"] != "1" || pub.GetPublishContext()["node"] != "node-a" {
		t.Fatalf("publish: %v, %v", pub, err)
	}
	setDirty(t, api, v1alpha1.DirtyStatePossiblyDirty)
	eventually(t, "the volume is released", func() bool {
		_, err := c.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: "lun-1", NodeId: "node-a"})
		if err != nil && status.Code(err) != codes.Aborted { // the reconciler may be at it
			t.Fatal(err)
		}
		return err == nil
	})
	eventually(t, "an event tells of the unflushed writes", func() bool {
		list := &eventsv1.EventList{}
		if err := api.List(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool {
			return e.Regarding.Name == "lun-1" && e.Reason == "UnflushedWrites" && e.Type == "Warning"
		})
	})
	eventually(t, "a volume that waits for a node which is gone has a metric", func() bool {
		return strings.Contains(a.scrape(t), `nearflash_unflushed_volume_node_lost{namespace="",node="node-a",pv="lun-1",pvc=""} 1`)
	})
	setDirty(t, api, v1alpha1.DirtyStateClean)
	// No PersistentVolume has lun-1: the reconciler runs if the record goes.
	eventually(t, "the record of lun-1 goes", func() bool {
		err := api.Get(t.Context(), client.ObjectKey{Name: "lun-1"}, &v1alpha1.CachedVolume{})
		return client.IgnoreNotFound(err) == nil && err != nil
	})
	lease := &coordinationv1.Lease{}
	if err := api.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: leaseName}, lease); err != nil {
		t.Errorf("lease of the leader: %v", err)
	}
	a.testWebhook(t, api)
	text := a.scrape(t)
	for _, want := range []string{
		`csi_plugin_operations_seconds_count{driver_name="csi.nearflash.io",grpc_status_code="InvalidArgument",method_name="/csi.v1.Controller/CreateVolume"} 1`,
		`nearflash_build_info{commit="`,
		`controller_runtime_reconcile_total{controller="cachedvolume",result="success"}`, "process_start_time_seconds",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
}

// testWebhook connects to the scheduling webhook as the API server does.
func (a *app) testWebhook(t *testing.T, api client.Client) {
	t.Helper()
	eventually(t, "the scheduling webhook is trusted", func() bool {
		conf := &admissionregistrationv1.MutatingWebhookConfiguration{}
		if err := api.Get(t.Context(), client.ObjectKey{Name: webhook}, conf); err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(conf.Webhooks[0].ClientConfig.CABundle) {
			return false
		}
		dialer := &tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: webhook + "." + namespace + ".svc"}}
		conn, err := dialer.DialContext(t.Context(), "tcp", a.webhook)
		if err != nil {
			return false
		}
		_ = conn.Close() // nothing was sent
		return true
	})
}

// setDirty writes the dirty mark of lun-1 as its node would.
func setDirty(t *testing.T, api client.Client, state v1alpha1.DirtyState) {
	t.Helper()
	err := records.UpdateStatus(t.Context(), api, "lun-1", func(obj *v1alpha1.CachedVolume) error {
		obj.Status.DirtyState = state
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// testAway wants the controller to be ready, to say what is wrong, and to serve what
// needs no storage server.
func testAway(t *testing.T, config *rest.Config, api client.Client) {
	var addresses []string
	a := startApp(t, config, func(c *Config) { addresses = awayTargets(t, c) })
	defer a.end(t)
	a.waitFor(t, "/readyz", http.StatusOK)
	eventually(t, "the key of accounts is made", func() bool {
		_, err := (&keeper.Keeper{Client: api, Namespace: namespace}).Key(t.Context())
		return err == nil
	})
	c := csi.NewControllerClient(a.conn)
	if _, err := c.ListVolumes(t.Context(), &csi.ListVolumesRequest{}); err != nil {
		t.Error(err)
	}
	a.waitFor(t, "/healthz", http.StatusOK)
	for _, address := range addresses {
		eventually(t, "a storage server that is away has a metric", func() bool {
			return strings.Contains(a.scrape(t), `nearflash_storage_server_up{address="`+address+`"} 0`)
		})
	}
	_, err := c.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: "pvc-2", VolumeCapabilities: []*csi.VolumeCapability{block()}, Parameters: map[string]string{"target": "third"},
	})
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "accepted are no target (the default server), second") {
		t.Errorf("create on a server that is not configured: %v", err)
	}
}

func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	within(t, 30*time.Second, what, done)
}

func within(t testing.TB, limit time.Duration, what string, done func() bool) {
	t.Helper()
	const pause = 100 * time.Millisecond
	for range limit / pause {
		if done() {
			return
		}
		time.Sleep(pause)
	}
	t.Fatalf("waited in vain until %s", what)
}
