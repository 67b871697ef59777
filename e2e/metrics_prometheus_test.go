//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
)

// prometheusVariable names the program; hack/cluster-ring.sh sets it.
const prometheusVariable = "NEARFLASH_PROMETHEUS"

var _ = Describe("Prometheus", Label("metrics", "lab"), func() {
	It("scrapes every plugin, and the chart's alerts fire and resolve", Label("slow"), func(ctx SpecContext) {
		s := newSpace(ctx)
		Expect(awaitEmptyPool(ctx, nodeA)).To(Succeed())
		p := startPrometheus(ctx, s)

		By("finding all plugins")
		pods, err := k.DriverPods(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(p.await(ctx, `up{job="nearflash"} == 1`, func(found []series) bool { return len(found) == len(pods) })).To(Succeed())

		By("filling the pool of a node with one cache")
		pool, err := poolOf(ctx, nodeA)
		Expect(err).NotTo(HaveOccurred())
		size := fmt.Sprintf("%dMi", pool.Status.Capacity.Value()*95/100>>20)
		tenth := fmt.Sprintf("%dMi", pool.Status.Capacity.Value()/10>>20)
		big, err := s.volume(ctx, volumeSpec{name: "big", mode: v1alpha1.CacheModeWritethrough, kind: block, size: size, cacheSize: size})
		Expect(err).NotTo(HaveOccurred())
		Expect(big.start(ctx, nodeA)).To(Succeed())
		Expect(big.awaitCondition(ctx, v1alpha1.ReasonCacheActive)).To(Succeed())
		expectFigures(ctx, p, big)
		expectDashboard(ctx, p)
		Expect(p.awaitAlert(ctx, "NearflashPoolNearlyFull", map[string]string{"node": nodeA, "severity": "warning"})).To(Succeed())

		By("seeing no alert about a volume that has its cache")
		quiet, err := p.alerts(ctx, "NearflashVolumeUncached", map[string]string{"node": nodeA})
		Expect(err).NotTo(HaveOccurred())
		Expect(quiet).To(BeEmpty(), "the rules have been evaluated, and every volume of the node has its cache")

		By("attaching a volume for whose cache there is no room")
		small, err := s.volume(ctx, volumeSpec{name: "small", mode: v1alpha1.CacheModeWritethrough, kind: block, size: tenth, cacheSize: tenth})
		Expect(err).NotTo(HaveOccurred())
		Expect(small.start(ctx, nodeA)).To(Succeed())
		Expect(small.expectUncached(ctx, v1alpha1.ReasonPoolFull)).To(Succeed())
		labels := map[string]string{"node": nodeA, "severity": "warning"}
		Expect(p.awaitAlert(ctx, "NearflashVolumeUncached", labels)).To(Succeed())
		loud, err := p.alerts(ctx, "NearflashVolumeUncached", labels)
		Expect(err).NotTo(HaveOccurred())
		Expect(loud).To(HaveExactElements(HaveField("value", 1.0)), "the node has two volumes, of which one has its cache")

		By("giving the room up, so that the running pod gets its cache")
		Expect(big.stop(ctx)).To(Succeed())
		Expect(p.awaitResolved(ctx, "NearflashPoolNearlyFull")).To(Succeed())
		Expect(small.awaitCondition(ctx, v1alpha1.ReasonCacheActive)).To(Succeed())
		Expect(p.awaitResolved(ctx, "NearflashVolumeUncached")).To(Succeed())
	}, NodeTimeout(specLimit))
})

// expectFigures reads and writes in the pod and wants to find that of its volume.
func expectFigures(ctx context.Context, p *prometheus, v *vol) {
	GinkgoHelper()
	selector := fmt.Sprintf(`pv=%q,namespace=%q,pvc=%q,node=%q`, v.PV, v.space.name, v.claim, v.node)
	Expect(p.await(ctx, fmt.Sprintf(`nearflash_volume_info{%s,volume=%q,mode="writethrough",health="Healthy"}`, selector, v.Handle), one)).To(Succeed())
	Expect(p.await(ctx, fmt.Sprintf(`nearflash_volume_cached{%s} == 1`, selector), one)).To(Succeed())
	sum, err := v.write(ctx, 0, 8)
	Expect(err).NotTo(HaveOccurred())
	for range 2 {
		Expect(v.verify(ctx, 0, 8, sum)).To(Succeed())
	}
	for _, query := range []string{
		// Every read is at least one access.
		`sum(nearflash_volume_cache_accesses_total{%s,operation="read"}) >= 16`,
		`nearflash_volume_io_bytes_total{%s,device="volume",operation="read"} >= 2*8*1024*1024`,
		`nearflash_volume_io_bytes_total{%s,device="volume",operation="write"} >= 8*1024*1024`,
		// What was written went to the origin: the cache is writethrough.
		`nearflash_volume_io_bytes_total{%s,device="origin",operation="write"} >= 8*1024*1024`,
		`histogram_quantile(0.99, nearflash_volume_io_duration_seconds_bucket{%s,device="volume"}) > 0`,
		`histogram_quantile(0.99, nearflash_volume_io_duration_seconds_bucket{%s,device="origin"}) > 0`,
	} {
		Expect(p.await(ctx, fmt.Sprintf(query, selector), one)).To(Succeed())
	}
}

func one(found []series) bool { return len(found) == 1 }

// expectDashboard wants Prometheus to answer every query of the dashboard.
func expectDashboard(ctx context.Context, p *prometheus) {
	GinkgoHelper()
	d, err := readDashboard()
	Expect(err).NotTo(HaveOccurred())
	for _, panel := range d.Panels {
		for _, target := range panel.Targets {
			_, err := p.query(ctx, dashboardQuery(target.Expr, time.Minute, time.Hour))
			Expect(err).NotTo(HaveOccurred(), "panel %q", panel.Title)
		}
	}
}

// prometheus is a running Prometheus server.
type prometheus struct{ url string }

// startPrometheus runs Prometheus on this machine until the spec ends. It finds
// the plugins as a PodMonitor of the chart does, by labels and by the name of the
// port, and shows the token of an account that has the chart's role for it.
func startPrometheus(ctx context.Context, s *space, more ...scrape) *prometheus {
	GinkgoHelper()
	program := os.Getenv(prometheusVariable)
	Expect(program).NotTo(BeEmpty(), "%s is not set: name a Prometheus, as hack/cluster-ring.sh does", prometheusVariable)
	dir := GinkgoT().TempDir()
	write := func(name string, text []byte) {
		Expect(os.WriteFile(filepath.Join(dir, name), text, 0o600)).To(Succeed())
	}
	write("token", []byte(readerToken(ctx, s)))
	write("rules.yaml", hastyRules(ctx))
	jobs := ""
	for i, m := range more {
		write(fmt.Sprintf("more-%d-rules.yaml", i), m.rules)
		for name, text := range m.files {
			write(name, text)
		}
		jobs += m.job
	}
	write("prometheus.yaml", fmt.Appendf(nil, `
global: {scrape_interval: 3s, scrape_timeout: 3s, evaluation_interval: 1s}
rule_files: [rules.yaml, more-*-rules.yaml]
scrape_configs:
  - job_name: nearflash
    scheme: https
    honor_labels: true
    tls_config: {insecure_skip_verify: true}
    authorization: {credentials_file: token}
    kubernetes_sd_configs:
      - role: pod
        kubeconfig_file: %s
        namespaces: {names: [%s]}
    relabel_configs:
      - {action: keep, source_labels: [__meta_kubernetes_pod_label_app_kubernetes_io_name], regex: nearflash}
      - {action: keep, source_labels: [__meta_kubernetes_pod_container_port_name], regex: metrics}
%s`, os.Getenv("KUBECONFIG"), k.Namespace, jobs))
	address := freeAddress(ctx)
	log, err := os.Create(filepath.Join(dir, "log"))
	Expect(err).NotTo(HaveOccurred())
	command := exec.Command(program, "--config.file=prometheus.yaml", "--storage.tsdb.path=data", "--web.listen-address="+address)
	command.Dir, command.Stdout, command.Stderr = dir, log, log
	Expect(command.Start()).To(Succeed())
	DeferCleanup(func() {
		_ = command.Process.Kill() // it may have ended by itself
		_ = command.Wait()         // with the error of having been killed
		if CurrentSpecReport().Failed() {
			text, _ := os.ReadFile(log.Name()) // what can be had
			AddReportEntry("log of Prometheus", string(text))
		}
		Expect(log.Close()).To(Succeed())
	})
	return &prometheus{url: "http://" + address}
}

// scrape is what a Prometheus asks besides the plugins: an entry of scrape_configs, rules, and the files
// that the entry names.
type scrape struct {
	job   string
	rules []byte
	files map[string][]byte
}

// readerToken makes an account that may get /metrics, and returns its token.
func readerToken(ctx context.Context, s *space) string {
	GinkgoHelper()
	account := metav1.ObjectMeta{Namespace: s.name, Name: "prometheus"}
	Expect(k.API.Create(ctx, &corev1.ServiceAccount{ObjectMeta: account})).To(Succeed())
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: s.name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "nearflash-metrics-reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: s.name, Name: account.Name}},
	}
	Expect(k.API.Create(ctx, binding)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) { Expect(k.API.Delete(ctx, binding)).To(Succeed()) }, NodeTimeout(soon))
	answer, err := k.Clients.CoreV1().ServiceAccounts(s.name).CreateToken(ctx, account.Name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	return answer.Status.Token
}

// hastyRules are the chart's alerts, which fire hastily.
func hastyRules(ctx context.Context) []byte {
	GinkgoHelper()
	text, err := exec.CommandContext(ctx, "helm", "template", "nearflash", chart(),
		"--set", "metrics.alerts.enabled=true", "--show-only", "templates/metrics/alerts.yaml").Output()
	Expect(err).NotTo(HaveOccurred())
	var object struct {
		Spec ruleFile `json:"spec"`
	}
	Expect(yaml.Unmarshal(text, &object)).To(Succeed())
	return object.Spec.hastily()
}

// ruleFile is a file of rules.
type ruleFile struct {
	Groups []struct {
		Name  string           `json:"name"`
		Rules []map[string]any `json:"rules"`
	} `json:"groups"`
}

// hastily is the file with rules that fire as soon as they are true for two seconds, and look back less far.
func (f ruleFile) hastily() []byte {
	GinkgoHelper()
	for _, group := range f.Groups {
		for _, rule := range group.Rules {
			rule["for"] = "2s"
			rule["expr"] = hasty(fmt.Sprint(rule["expr"]))
		}
	}
	text, err := yaml.Marshal(f)
	Expect(err).NotTo(HaveOccurred())
	return text
}

// chart is the chart's directory, below the working directory or one above it.
func chart() string {
	GinkgoHelper()
	dir, err := os.Getwd()
	Expect(err).NotTo(HaveOccurred())
	for {
		path := filepath.Join(dir, "deploy", "helm", "nearflash")
		if _, err := os.Stat(path); err == nil {
			return path
		}
		Expect(filepath.Dir(dir)).NotTo(Equal(dir), "the working directory is not in a checkout")
		dir = filepath.Dir(dir)
	}
}

func freeAddress(ctx context.Context) string {
	GinkgoHelper()
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	Expect(err).NotTo(HaveOccurred())
	Expect(listener.Close()).To(Succeed())
	return listener.Addr().String()
}

// series is one of the answers to a query.
type series struct {
	labels map[string]string
	value  float64
}

// get asks the HTTP API and decodes its data.
func (p *prometheus) get(ctx context.Context, path string, data any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // it is only read
	var answer struct {
		Status string          `json:"status"`
		Error  string          `json:"error"`
		Data   json.RawMessage `json:"data"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return fmt.Errorf("%s: status %d: %w", path, resp.StatusCode, err)
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s: %s", path, answer.Error)
	}
	return json.Unmarshal(answer.Data, data)
}

func (p *prometheus) query(ctx context.Context, expr string) ([]series, error) {
	var data struct {
		ResultType string `json:"resultType"`
		Result     []struct {
			Metric map[string]string `json:"metric"`
			Value  [2]any            `json:"value"`
		} `json:"result"`
	}
	if err := p.get(ctx, "/api/v1/query?query="+url.QueryEscape(expr), &data); err != nil {
		return nil, err
	}
	if data.ResultType != "vector" {
		return nil, fmt.Errorf("%s: a %s, want a vector", expr, data.ResultType)
	}
	var found []series
	for _, r := range data.Result {
		_, value, err := sample(r.Value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", expr, err)
		}
		found = append(found, series{r.Metric, value})
	}
	return found, nil
}

// sample is one of Prometheus: a time in seconds, and a value as text.
func sample(v [2]any) (at, value float64, err error) {
	at, _ = v[0].(float64)
	text, _ := v[1].(string)
	value, err = strconv.ParseFloat(text, 64)
	return at, value, err
}

// await waits until the answer to a query is as it should be.
func (p *prometheus) await(ctx context.Context, expr string, ok func([]series) bool) error {
	return cluster.AwaitEvery(ctx, time.Second, soon, func(ctx context.Context) (string, error) {
		found, err := p.query(ctx, expr)
		if err != nil || ok(found) {
			return "", err
		}
		return fmt.Sprintf("%s is %v", expr, found), nil
	})
}

// alerts are those of a name and with some labels that are firing, with the values of their rules.
func (p *prometheus) alerts(ctx context.Context, name string, labels map[string]string) ([]series, error) {
	var data struct {
		Alerts []struct {
			Labels map[string]string `json:"labels"`
			State  string            `json:"state"`
			Value  string            `json:"value"`
		} `json:"alerts"`
	}
	if err := p.get(ctx, "/api/v1/alerts", &data); err != nil {
		return nil, err
	}
	var firing []series
	for _, a := range data.Alerts {
		matches := a.State == "firing" && a.Labels["alertname"] == name
		for label, value := range labels {
			matches = matches && a.Labels[label] == value
		}
		if !matches {
			continue
		}
		value, err := strconv.ParseFloat(a.Value, 64)
		if err != nil {
			return nil, fmt.Errorf("alert %s: %w", name, err)
		}
		firing = append(firing, series{a.Labels, value})
	}
	return firing, nil
}

func (p *prometheus) awaitAlert(ctx context.Context, name string, labels map[string]string) error {
	return p.awaitFiring(ctx, name, labels, 1, late)
}

func (p *prometheus) awaitResolved(ctx context.Context, name string) error {
	return p.awaitFiring(ctx, name, nil, 0, late)
}

func (p *prometheus) awaitFiring(ctx context.Context, name string, labels map[string]string, want int, limit time.Duration) error {
	return cluster.AwaitEvery(ctx, time.Second, limit, func(ctx context.Context) (string, error) {
		firing, err := p.alerts(ctx, name, labels)
		if err != nil || len(firing) == want {
			return "", err
		}
		return fmt.Sprintf("%d alerts %s%v are firing, want %d: %v", len(firing), name, labels, want, firing), nil
	})
}
