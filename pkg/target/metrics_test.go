package target_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"google.golang.org/grpc"

	"github.com/nearflash/nearflash/pkg/target"
	"github.com/nearflash/nearflash/pkg/target/lvol/lvoltest"
	"github.com/nearflash/nearflash/pkg/target/targetclient"
	"github.com/nearflash/nearflash/pkg/version"
)

// metered is a server with metrics, and how to ask for them.
type metered struct {
	svc     *target.Service
	m       *machine
	ca      *authority
	srv     *target.Server
	address string
}

// withMetrics starts a server whose metrics are served at a loopback address, whatever the
// configuration names, and prepares the machine before.
func withMetrics(t *testing.T, c target.MetricsConfig, prepare func(*metered)) *metered {
	t.Helper()
	x := &metered{m: newMachine(t), ca: newAuthority(t, "ca")}
	x.ca.issue("server")
	x.m.cfg.TLS = target.TLSConfig{CertFile: x.ca.file("server.pem"), KeyFile: x.ca.file("server-key.pem"), ClientCAFile: x.ca.file("ca.pem")}
	x.m.cfg.Metrics = c
	svc, stop := x.m.start(t)
	t.Cleanup(stop)
	x.svc, x.srv = svc, target.NewServer(svc, "v9")
	if prepare != nil {
		prepare(x)
	}
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	x.address = lis.Addr().String()
	stopMetrics, err := target.ServeMetrics(t.Context(), x.m.cfg, x.srv, lis)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stopMetrics)
	return x
}

// get asks for the metrics, with TLS if there is a configuration of it.
func (x *metered) get(t *testing.T, conf *tls.Config) (code int, body string, err error) {
	t.Helper()
	scheme := "http"
	if conf != nil {
		scheme = "https"
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, scheme+"://"+x.address+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: conf, DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// scrape returns the values of nearflash's own metrics by name and labels, and of histograms
// the counts, as soon as the first check has ended.
func (x *metered) scrape(t *testing.T) map[string]float64 {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		code, body, err := x.get(t, nil)
		if err != nil || code != http.StatusOK {
			t.Fatalf("scrape: %d, %v, %s", code, err, body)
		}
		parser := expfmt.NewTextParser(model.LegacyValidation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if families["nearflash_target_check_success"] != nil {
			return values(families)
		}
		if time.Now().After(deadline) {
			t.Fatalf("no check has ended:\n%s", body)
		}
	}
}

func values(families map[string]*dto.MetricFamily) map[string]float64 {
	out := map[string]float64{}
	for name, family := range families {
		if !strings.HasPrefix(name, "nearflash_") {
			continue
		}
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			key := strings.TrimPrefix(name, "nearflash_") + "{" + strings.Join(labels, ",") + "}"
			if h := m.GetHistogram(); h != nil {
				out[key] = float64(h.GetSampleCount())
			} else {
				out[key] = m.GetGauge().GetValue()
			}
		}
	}
	return out
}

const epochOne = "EPOCHEPOCHEPOCH1"

// busy gives the server something to count.
func busy(t *testing.T) func(*metered) {
	return func(x *metered) {
		t.Helper()
		mustCreate(t, x.svc, "thin", target.Thin)
		mustCreate(t, x.svc, "idle", target.Thin)
		mustCreate(t, x.svc, "thick", target.Thick)
		_, snapErr := x.svc.CreateSnapshot(t.Context(), target.SnapshotRequest{Name: "s", Volume: "thin", Hold: "by=x"})
		_, thinErr := x.svc.ExportVolume(t.Context(), "thin", nodeA, account("a"), 1)
		_, thickErr := x.svc.ExportVolume(t.Context(), "thick", nodeB, account("b"), 1)
		if err := errors.Join(snapErr, thinErr, thickErr, x.svc.SwapEpoch(t.Context(), "", epochOne)); err != nil {
			t.Fatal(err)
		}
		x.m.kernel.Session(iqnBase+"thin:g1", nodeA)
		x.m.lvm.PoolPercent = 96
		x.m.lvm.AddForeign("somebody-elses")
	}
}

// TestMetrics: what is served is what the machine has.
func TestMetrics(t *testing.T) {
	const loopback = "127.0.0.1:9811"
	x := withMetrics(t, target.MetricsConfig{Listen: loopback}, busy(t))
	began := time.Now()
	got := x.scrape(t)
	for key, least := range map[string]float64{
		"target_check_duration_seconds{}": 0, "target_check_timestamp_seconds{}": float64(began.Add(-time.Minute).Unix()),
	} {
		if v, ok := got[key]; !ok || v < least || v > float64(time.Now().Add(time.Minute).Unix()) {
			t.Errorf("%s = %v, there: %v", key, v, ok)
		}
		delete(got, key)
	}
	for key := range got {
		if strings.HasPrefix(key, "build_info{") {
			if !strings.Contains(key, "component=target") || !strings.Contains(key, "version="+version.Version) {
				t.Errorf("build: %s", key)
			}
			delete(got, key)
		}
	}
	ends := x.ends(t)
	want := map[string]float64{
		"target_info{epoch=" + epochOne + ",server_id=s1}": 1,
		"target_problems{}":                     1, // the pool is nearly full
		"target_check_success{}":                1,
		"target_volume_group_capacity_bytes{}":  64*lvoltest.ExtentBytes + 1024*mib,
		"target_volume_group_free_bytes{}":      62 * lvoltest.ExtentBytes,
		"target_pool_capacity_bytes{}":          1024 * mib,
		"target_pool_used_ratio{}":              0.96,
		"target_pool_promised_bytes{}":          24 * mib, // two volumes and a snapshot
		"target_pool_metadata_capacity_bytes{}": 4 * mib,
		"target_pool_metadata_used_ratio{}":     0.1,
		"target_volumes{provisioning=thin}":     2,
		"target_volumes{provisioning=thick}":    1,
		"target_snapshots{}":                    1,
		"target_exports{}":                      2,
		"target_admissions{}":                   2,
		"target_sessions{}":                     1,
		"target_exported_bytes{}":               16 * mib,
		"target_certificate_not_after_timestamp_seconds{certificate=server}":    ends["server.pem"],
		"target_certificate_not_after_timestamp_seconds{certificate=client_ca}": ends["ca.pem"],
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// ends are the last moments of the certificates by file.
func (x *metered) ends(t *testing.T) map[string]float64 {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(x.ca.file("server.pem"), x.ca.file("server-key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	return map[string]float64{"server.pem": float64(pair.Leaf.NotAfter.Unix()), "ca.pem": float64(x.ca.cert.NotAfter.Unix())}
}

// TestScrapeRunsNothing: clients of /metrics cannot make the server run a command as root.
func TestScrapeRunsNothing(t *testing.T) {
	x := withMetrics(t, target.MetricsConfig{Listen: "127.0.0.1:9811"}, busy(t))
	x.scrape(t) // the first check has ended; the next is half a minute away
	before := x.m.lvm.Lines()
	for range 5 {
		x.scrape(t)
	}
	if after := x.m.lvm.Lines(); len(after) != len(before) {
		t.Errorf("scrapes ran %q", after[len(before):])
	}
}

// TestOneCheck: a check runs each report of LVM once, however many volumes there are.
func TestOneCheck(t *testing.T) {
	lines := 0
	x := withMetrics(t, target.MetricsConfig{Listen: "127.0.0.1:9811"}, func(x *metered) {
		busy(t)(x)
		lines = len(x.m.lvm.Lines())
	})
	x.scrape(t)
	var ran []string
	for _, line := range x.m.lvm.Lines()[lines:] {
		name, _, _ := strings.Cut(line, " ")
		ran = append(ran, name)
	}
	if diff := cmp.Diff([]string{"vgs", "lvs"}, ran); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestIncompleteCheck: what cannot be read is absent and no zero, and the check says so.
func TestIncompleteCheck(t *testing.T) {
	pool := []string{"pool_capacity_bytes", "pool_used_ratio", "pool_promised_bytes", "pool_metadata_capacity_bytes", "pool_metadata_used_ratio"}
	counts := []string{"volumes", "snapshots", "admissions", "sessions", "exported_bytes"}
	cases := map[string]struct {
		breakIt  func(t *testing.T, x *metered)
		absent   []string
		problems float64
	}{
		"a pool that does not zero": {func(_ *testing.T, x *metered) { x.m.lvm.PoolZero = "" }, pool, 1},
		"a record that is damaged": {func(t *testing.T, x *metered) {
			if err := os.WriteFile(x.m.dir+"/thin.json", []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, counts, 0},
		"an epoch that is damaged": {func(t *testing.T, x *metered) {
			if err := os.WriteFile(x.m.dir+"/epoch", []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, []string{"info"}, 0},
		"a certificate that is gone": {func(t *testing.T, x *metered) {
			if err := os.Remove(x.ca.file("ca.pem")); err != nil {
				t.Fatal(err)
			}
		}, []string{"certificate_not_after_timestamp_seconds{certificate=client_ca}"}, 0},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			x := withMetrics(t, target.MetricsConfig{Listen: "127.0.0.1:9811"}, func(x *metered) {
				busy(t)(x)
				x.m.lvm.PoolPercent = 10
				tc.breakIt(t, x)
			})
			got := x.scrape(t)
			if got["target_check_success{}"] != 0 || got["target_problems{}"] != tc.problems {
				t.Errorf("success %v, problems %v, want 0 and %v", got["target_check_success{}"], got["target_problems{}"], tc.problems)
			}
			missing := map[string]bool{}
			for _, all := range slices.Concat(pool, counts, []string{"info", "exports", "volume_group_free_bytes", "certificate_not_after_timestamp_seconds{certificate=server}", "certificate_not_after_timestamp_seconds{certificate=client_ca}"}) {
				there := slices.ContainsFunc(slices.Collect(maps.Keys(got)), func(key string) bool {
					return key == "target_"+all || strings.HasPrefix(key, "target_"+all+"{")
				})
				if !there {
					missing[all] = true
				}
			}
			want := map[string]bool{}
			for _, name := range tc.absent {
				want[name] = true
			}
			if diff := cmp.Diff(want, missing); diff != "" {
				t.Errorf("absent (-want +got):\n%s", diff)
			}
		})
	}
}

// TestCheckTellsProblems: whoever is woken by a number finds the words in the log.
func TestCheckTellsProblems(t *testing.T) {
	x := withMetrics(t, target.MetricsConfig{Listen: "127.0.0.1:9811"}, nil)
	if err := target.CheckMetrics(t.Context(), x.svc); err != nil {
		t.Errorf("nothing is wrong: %v", err)
	}
	x.m.lvm.PoolPercent = 96
	if err := target.CheckMetrics(t.Context(), x.svc); err == nil || !strings.Contains(err.Error(), "data is 96.0 % full") {
		t.Errorf("a full pool: %v", err)
	}
	x.m.lvm.PoolZero = ""
	if err := target.CheckMetrics(t.Context(), x.svc); err == nil || strings.Count(err.Error(), "does not zero") != 1 {
		t.Errorf("a pool that does not zero, once: %v", err)
	}
}

// TestCallsAreCounted: by method and code, also those of clients that are refused.
func TestCallsAreCounted(t *testing.T) {
	x := withMetrics(t, target.MetricsConfig{Listen: "127.0.0.1:9811"}, nil)
	x.ca.issue("controller")
	x.ca.issue("somebody")
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conf := x.m.cfg.TLS
	conf.AllowedClientNames = []string{"controller"}
	g, err := target.NewGRPC(logr.Discard(), conf, x.srv)
	if err != nil {
		t.Fatal(err)
	}
	serveUntilEnd(t, g, lis)
	c := connect(t, x.ca.client(lis.Addr().String(), "controller"))
	_, createErr := c.CreateVolume(t.Context(), "v1", 8*mib, targetclient.Thin)
	_, getErr := c.GetVolume(t.Context(), "none")
	_, deniedErr := connect(t, x.ca.client(lis.Addr().String(), "somebody")).Health(t.Context())
	if createErr != nil || !errors.Is(getErr, targetclient.ErrNotFound) || !errors.Is(deniedErr, targetclient.ErrDenied) {
		t.Fatalf("%v, %v, %v", createErr, getErr, deniedErr)
	}
	got := x.scrape(t)
	for key, want := range map[string]float64{"code=OK,method=CreateVolume": 1, "code=NotFound,method=GetVolume": 1, "code=PermissionDenied,method=Health": 1} {
		if n := got["target_call_duration_seconds{"+key+"}"]; n != want {
			t.Errorf("%s: %v calls, want %v", key, n, want)
		}
	}
}

func serveUntilEnd(t *testing.T, g *grpc.Server, lis net.Listener) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- g.Serve(lis) }()
	t.Cleanup(func() {
		g.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestMetricsTLS: beyond the machine itself, only who shows a certificate of the right CA, and
// has the right name, is answered.
func TestMetricsTLS(t *testing.T) {
	scrapers := newAuthority(t, "scrapers")
	scrapers.issue("prometheus")
	scrapers.issue("somebody")
	x := withMetrics(t, target.MetricsConfig{Listen: "192.0.2.1:9811", ClientCAFile: scrapers.file("ca.pem"), AllowedClientNames: []string{"prometheus"}}, nil)
	x.ca.issue("prometheus")
	roots := x509.NewCertPool()
	roots.AddCert(x.ca.cert)
	with := func(a *authority, cn string) *tls.Config {
		conf := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
		if a != nil {
			pair, err := tls.LoadX509KeyPair(a.file(cn+".pem"), a.file(cn+"-key.pem"))
			if err != nil {
				t.Fatal(err)
			}
			// Also if the server does not name the CA.
			conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
		}
		return conf
	}
	old := with(scrapers, "prometheus")
	old.MaxVersion = tls.VersionTLS12
	cases := map[string]struct {
		conf *tls.Config
		want int // 0: no answer
	}{
		"right":                             {with(scrapers, "prometheus"), http.StatusOK},
		"name that is not allowed":          {with(scrapers, "somebody"), http.StatusForbidden},
		"no certificate":                    {with(nil, ""), 0},
		"certificate of the controllers CA": {with(x.ca, "prometheus"), 0},
		"old TLS":                           {old, 0},
		"plain text":                        {nil, http.StatusBadRequest},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			code, body, err := x.get(t, tc.conf)
			if code != tc.want || (err != nil) != (tc.want == 0) {
				t.Errorf("status %d, %v, want %d", code, err, tc.want)
			}
			if shown := strings.Contains(body, "nearflash_"); shown != (tc.want == http.StatusOK) {
				t.Errorf("metrics shown: %v", shown)
			}
		})
	}
	t.Run("every name", func(t *testing.T) {
		y := withMetrics(t, target.MetricsConfig{Listen: "192.0.2.1:9811", ClientCAFile: scrapers.file("ca.pem")}, nil)
		roots.AddCert(y.ca.cert)
		if code, _, err := y.get(t, with(scrapers, "somebody")); code != http.StatusOK {
			t.Errorf("with a certificate: %d, %v", code, err)
		}
		if code, _, err := y.get(t, with(nil, "")); err == nil {
			t.Errorf("without a certificate: %d", code)
		}
	})
}

// TestMetricsWithdrawnCA: a scraper keeps its connection, and is refused on it once its CA is taken out of the file.
func TestMetricsWithdrawnCA(t *testing.T) {
	scrapers, next := newAuthority(t, "scrapers"), newAuthority(t, "next")
	scrapers.issue("prometheus")
	x := withMetrics(t, target.MetricsConfig{Listen: "192.0.2.1:9811", ClientCAFile: scrapers.file("ca.pem")}, nil)
	pair, err := tls.LoadX509KeyPair(scrapers.file("prometheus.pem"), scrapers.file("prometheus-key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(x.ca.cert)
	kept := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13}}
	defer kept.CloseIdleConnections()
	scrape := func() (code int, closed bool) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+x.address+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := (&http.Client{Timeout: 10 * time.Second, Transport: kept}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil { // the connection is kept for the next
			t.Fatal(err)
		}
		return resp.StatusCode, resp.Close
	}
	if code, closed := scrape(); code != http.StatusOK || closed {
		t.Fatalf("status %d, connection closed: %v", code, closed)
	}
	scrapers.copyOver(next, "ca.pem")
	if code, closed := scrape(); code != http.StatusForbidden || !closed {
		t.Errorf("with a CA that was withdrawn: status %d, connection closed: %v", code, closed)
	}
}

// TestMetricsAddress: without one nothing is served; one that is taken keeps the server from
// starting, as that of the service does.
func TestMetricsAddress(t *testing.T) {
	x := withMetrics(t, target.MetricsConfig{Listen: "127.0.0.1:9811"}, nil)
	if stop, err := target.StartMetrics(t.Context(), target.Config{}, x.srv); err != nil {
		t.Error(err)
	} else {
		stop()
	}
	taken := target.Config{Metrics: target.MetricsConfig{Listen: x.address}}
	if _, err := target.StartMetrics(t.Context(), taken, x.srv); err == nil || !strings.Contains(err.Error(), "metrics.listen") {
		t.Errorf("an address that is taken: %v", err)
	}
}

// TestCheckTLS: the files of /metrics are checked before the server starts, by their keys.
func TestCheckTLS(t *testing.T) {
	ca := newAuthority(t, "ca")
	ca.issue("server")
	c := target.Config{TLS: target.TLSConfig{CertFile: ca.file("server.pem"), KeyFile: ca.file("server-key.pem"), ClientCAFile: ca.file("ca.pem")}}
	if err := c.CheckTLS(); err != nil {
		t.Error(err)
	}
	c.Metrics = target.MetricsConfig{Listen: "192.0.2.1:9811", ClientCAFile: ca.file("none.pem")}
	if err := c.CheckTLS(); err == nil || !strings.Contains(err.Error(), "metrics.clientCAFile") {
		t.Errorf("a CA that is not there: %v", err)
	}
}
