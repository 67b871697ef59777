package metricserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"

	"github.com/nearflash/nearflash/pkg/testutil/apiserver"
)

// TestServe serves with the permissions that WithAuthenticationAndAuthorization
// documents, and lets a real API server judge the clients.
func TestServe(t *testing.T) {
	admin := apiserver.StartBare(t)
	accounts := newAccounts(t, admin)
	reviewer := rest.CopyConfig(admin)
	reviewer.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:default:plugin", Groups: []string{"system:serviceaccounts", "system:authenticated"},
	}
	t.Run("self-signed", func(t *testing.T) {
		addr := start(t, Config{Secure: true}, reviewer, answer())
		conf := &tls.Config{InsecureSkipVerify: true}
		cases := map[string]struct {
			url, token string
			want       int
		}{
			"permitted":          {"https://" + addr + "/metrics", accounts.reader, http.StatusOK},
			"no token":           {"https://" + addr + "/metrics", "", http.StatusUnauthorized},
			"without permission": {"https://" + addr + "/metrics", accounts.foreign, http.StatusForbidden},
			// The answer of the filter of controller-runtime.
			"not a token":  {"https://" + addr + "/metrics", "nonsense", http.StatusInternalServerError},
			"another path": {"https://" + addr + "/metrics/x", accounts.reader, http.StatusNotFound},
		}
		for name, tc := range cases {
			t.Run(name, func(t *testing.T) {
				code, body := get(t, tc.url, tc.token, conf)
				if code != tc.want {
					t.Errorf("status %d, want %d: %s", code, tc.want, body)
				}
				if shown := strings.Contains(body, "nearflash_answer 42"); shown != (tc.want == http.StatusOK) {
					t.Errorf("metrics shown: %v, with status %d: %s", shown, code, body)
				}
			})
		}
	})
	t.Run("in plain text", func(t *testing.T) {
		addr := start(t, Config{Secure: true}, reviewer, answer())
		// The server closes the connection, which may overtake its answer.
		if code, body := get(t, "http://"+addr+"/metrics", accounts.reader, nil); code != http.StatusBadRequest && code != 0 {
			t.Errorf("status %d: %s", code, body)
		}
	})
	t.Run("own certificate", func(t *testing.T) { testCertDir(t, reviewer, accounts.reader) })
}

// testCertDir wants clients to be able to verify the certificate, also after it
// was renewed.
func testCertDir(t *testing.T, api *rest.Config, token string) {
	dir := t.TempDir()
	first := writeCertificate(t, dir)
	addr := start(t, Config{Secure: true, CertDir: dir}, api, answer())
	if code, body := get(t, "https://"+addr+"/metrics", token, &tls.Config{RootCAs: first}); code != http.StatusOK {
		t.Fatalf("status %d: %s", code, body)
	}
	second := writeCertificate(t, dir)
	deadline := time.Now().Add(30 * time.Second)
	for {
		code, body := get(t, "https://"+addr+"/metrics", token, &tls.Config{RootCAs: second})
		if code == http.StatusOK {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the renewed certificate is not used: %d %s", code, body)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func TestServeInPlainText(t *testing.T) {
	addr := start(t, Config{}, nil, answer())
	if code, body := get(t, "http://"+addr+"/metrics", "", nil); code != http.StatusOK || !strings.Contains(body, "nearflash_answer 42") {
		t.Errorf("%d %s", code, body)
	}
}

// TestPartialFailure: what can be gathered is served although something cannot.
func TestPartialFailure(t *testing.T) {
	bad := prometheus.NewRegistry()
	desc := prometheus.NewDesc("nearflash_broken", "Never works.", nil, nil)
	bad.MustRegister(invalid{desc})
	addr := start(t, Config{}, nil, prometheus.Gatherers{answer(), bad})
	if code, body := get(t, "http://"+addr+"/metrics", "", nil); code != http.StatusOK || !strings.Contains(body, "nearflash_answer 42") {
		t.Errorf("%d %s", code, body)
	}
}

type invalid struct{ *prometheus.Desc }

func (i invalid) Describe(ch chan<- *prometheus.Desc) { ch <- i.Desc }
func (i invalid) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.NewInvalidMetric(i.Desc, errors.New("out of order"))
}

func TestServeFails(t *testing.T) {
	cases := map[string]struct {
		cfg  Config
		want string
	}{
		"no such address": {Config{Address: "192.0.2.1:1"}, "metrics endpoint"},
		"no certificate":  {Config{Address: "127.0.0.1:0", Secure: true, CertDir: t.TempDir()}, "tls.crt"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			err := Serve(t.Context(), tc.cfg, &rest.Config{Host: "https://192.0.2.1"}, answer())
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
	if err := Serve(t.Context(), Config{}, nil, nil); err != nil {
		t.Errorf("without an address: %v", err)
	}
}

// answer gathers one metric.
func answer() prometheus.Gatherer {
	r := prometheus.NewRegistry()
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "nearflash_answer", Help: "Of the test."})
	g.Set(42)
	r.MustRegister(g)
	return r
}

// start serves until the test ends, on the address that it returns.
func start(t *testing.T, cfg Config, api *rest.Config, source prometheus.Gatherer) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- serve(ctx, cfg, api, source, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-result; err != nil {
			t.Errorf("ended with %v", err)
		}
	})
	return listener.Addr().String()
}

// get returns status and body, or 0 and an error's text.
func get(t *testing.T, url, token string, conf *tls.Config) (code int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: conf, DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return resp.StatusCode, err.Error()
	}
	return resp.StatusCode, string(text)
}

// accounts are tokens: reader may get /metrics, foreign may not.
type accounts struct{ reader, foreign string }

// newAccounts also makes the account that the plugin judges clients with.
func newAccounts(t *testing.T, admin *rest.Config) accounts {
	t.Helper()
	api := apiserver.Client(t, admin)
	role := func(name, account string, rule rbacv1.PolicyRule) {
		meta := metav1.ObjectMeta{Name: name}
		if err := api.Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{rule}}); err != nil {
			t.Fatal(err)
		}
		err := api.Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: meta,
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: account}},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	role("tokens", "plugin", rbacv1.PolicyRule{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"tokenreviews"}, Verbs: []string{"create"}})
	role("access", "plugin", rbacv1.PolicyRule{APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"subjectaccessreviews"}, Verbs: []string{"create"}})
	role("metrics", "reader", rbacv1.PolicyRule{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}})
	set, err := kubernetes.NewForConfig(admin)
	if err != nil {
		t.Fatal(err)
	}
	token := func(account string) string {
		sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: account}}
		if err := api.Create(t.Context(), sa); err != nil {
			t.Fatal(err)
		}
		answer, err := set.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return answer.Status.Token
	}
	return accounts{reader: token("reader"), foreign: token("foreign")}
}

// writeCertificate makes a certificate for 127.0.0.1 in dir and returns what
// verifies it.
func writeCertificate(t *testing.T, dir string) *x509.CertPool {
	t.Helper()
	certificate, key, err := certutil.GenerateSelfSignedCertKey("127.0.0.1", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"tls.crt": certificate, "tls.key": key} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(certificate) {
		t.Fatal("the certificate cannot be read")
	}
	return pool
}
