package app

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/app/metricserver"
	"github.com/nearflash/nearflash/pkg/testutil/apiserver"
)

// aToken is of the form of a service account's, and nobody's.
const aToken = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJub2JvZHkifQ.c2lnbmF0dXJlLW9mLW5vYm9keQ"

func TestSecretless(t *testing.T) {
	f := secretless{}
	cut := aToken[:40]
	for name, got := range map[string]any{
		"a body":           second(f.FilterS("Request Body", []any{"logger", "x", bodyKey, `{"spec":{"token":"opaque ` + aToken + `"}}`})),
		"a body in hex":    second(f.FilterS("Request Body", []any{bodyKey, hex.Dump([]byte("opaque " + aToken))})),
		"a value":          second(f.FilterS("Failed", []any{"reason", "[opaque: " + aToken + " has expired]"})),
		"a value, cut":     second(f.FilterS("Failed", []any{"reason", "token " + cut + " has expired"})),
		"an error":         second(f.FilterS("Failed", []any{"err", fmt.Errorf("webhook: %w", errors.New(aToken))})),
		"in a format":      second(f.FilterF("Failed: %v", []any{errors.New("token " + aToken)})),
		"without a format": f.Filter([]any{"token ", aToken}),
	} {
		if text := fmt.Sprint(got); strings.Contains(text, "eyJ") || strings.Contains(name, "body") && strings.Contains(text, "opaque") || !strings.Contains(text, hidden) {
			t.Errorf("%s: %s", name, text)
		}
	}
	// Nothing else is changed.
	fails := errors.New("no such host")
	in := []any{"err", fails, "n", 3, "file", "eyJ.txt", "lonely"}
	msg, out := f.FilterS("Request Body", in)
	if msg != "Request Body" || fmt.Sprint(out) != fmt.Sprint(in) || out[1] != any(fails) {
		t.Errorf("got %q, %v", msg, out)
	}
}

func second(_ string, v []any) any { return v }

// logged is what a program has logged.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) String() string {
	klog.Flush()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// wantWithout fails if a part of a token is in the log, also as a dump of bytes.
func (l *logged) wantWithout(t *testing.T, token string) {
	t.Helper()
	const part = 12
	log := l.String()
	for i := 0; i+part <= len(token); i++ {
		if strings.Contains(log, token[i:i+part]) {
			t.Fatalf("the log has %q of the token %q", token[i:i+part], token)
		}
	}
}

// loudly runs a program that logs everything.
func loudly(t *testing.T, run func(ctx context.Context)) *logged {
	t.Helper()
	before := klog.CaptureState()
	t.Cleanup(before.Restore)
	log := &logged{}
	c := Command{Name: "test", AddFlags: func(*flag.FlagSet) {}, Run: func(ctx context.Context) error {
		klog.SetOutput(log)
		run(ctx)
		return nil
	}}
	if err := c.execute(t.Context(), []string{"-v=10", "-logtostderr=false", "-alsologtostderr=false", "-stderrthreshold=FATAL"}, io.Discard); err != nil {
		t.Fatal(err)
	}
	return log
}

// TestTokensOfScrapes: whoever scrapes the metrics shows a token, which the API server is asked
// about. Nothing of it is in the log, however much is logged.
func TestTokensOfScrapes(t *testing.T) {
	api := apiserver.StartBare(t)
	tokens := []string{"opaque-token-of-somebody", aToken}
	log := loudly(t, func(ctx context.Context) {
		tokens = append(tokens, newToken(t, api))
		for _, token := range tokens {
			scrape(ctx, t, api, token)
			// With the encoding that controller-runtime chooses.
			cl, err := client.New(api, client.Options{})
			if err == nil {
				err = cl.Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}})
			}
			if err != nil {
				t.Error(err)
			}
		}
	})
	if text := log.String(); !strings.Contains(text, `"Request Body"`) || !strings.Contains(text, "tokenreviews") {
		t.Fatalf("no requests are logged, which proves nothing:\n%.2000s", text)
	}
	for _, token := range tokens {
		log.wantWithout(t, token)
	}
}

// TestTokenInAnswer: the API server's text about a token repeats it.
func TestTokenInAnswer(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","status":{"error":"%s has expired"}}`, aToken)
	}))
	defer api.Close()
	log := loudly(t, func(ctx context.Context) { scrape(ctx, t, &rest.Config{Host: api.URL}, aToken) })
	if !strings.Contains(log.String(), "has expired") {
		t.Fatalf("the reason is not logged:\n%s", log)
	}
	log.wantWithout(t, aToken)
}

// newToken is that of a new service account.
func newToken(t *testing.T, api *rest.Config) string {
	t.Helper()
	set, err := kubernetes.NewForConfig(api)
	if err != nil {
		t.Fatal(err)
	}
	accounts := set.CoreV1().ServiceAccounts("default")
	if _, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "scraper"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	answer, err := accounts.CreateToken(t.Context(), "scraper", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return answer.Status.Token
}

// scrape asks a server of metrics with a token that gets none.
func scrape(ctx context.Context, t *testing.T, api *rest.Config, token string) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- metricserver.Serve(ctx, metricserver.Config{Address: address, Secure: true}, api, prometheus.NewRegistry())
	}()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	cl := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := cl.Do(req)
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				t.Errorf("status %d", resp.StatusCode)
			}
			return
		}
		if time.Since(began) > time.Minute {
			t.Fatal(err)
		}
	}
}
