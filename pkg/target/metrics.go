package target

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/nearflash/nearflash/pkg/metrics"
	"github.com/nearflash/nearflash/pkg/passes"
	"github.com/nearflash/nearflash/pkg/target/lvol"
)

const (
	// checkInterval is how often the figures are renewed: each time lvs and vgs run.
	checkInterval = 30 * time.Second
	// checkTimeout bounds a check, so that LVM which hangs is told as a failure.
	checkTimeout = 25 * time.Second
)

// watch finds the figures of /metrics, so that no scrape runs a command.
type watch struct {
	svc  *Service
	said atomic.Pointer[metrics.TargetFacts]
}

// check renews the figures, and returns what is wrong with the server in words. What it cannot
// read is missing then: an old figure would look like health.
func (w *watch) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	began := time.Now()
	f, err := w.svc.facts(ctx)
	f.Ended = time.Now()
	f.Took = f.Ended.Sub(began)
	w.said.Store(&f)
	return err
}

// facts are the figures of this moment. The error has the server's problems, and what could not
// be read.
func (s *Service) facts(ctx context.Context) (metrics.TargetFacts, error) {
	f := metrics.TargetFacts{ServerID: s.cfg.ServerID}
	st, lvmErr := s.vols.Status(ctx)
	problems := s.problemsWith(st.Problems, lvmErr)
	f.Problems = len(problems)
	if st.GroupBytes > 0 {
		f.Group = &metrics.TargetGroup{CapacityBytes: st.GroupBytes, FreeBytes: st.FreeBytes}
	}
	if p := st.Pool; p != nil {
		f.Pool = &metrics.TargetPool{
			CapacityBytes: p.SizeBytes, PromisedBytes: p.PromisedBytes, MetadataBytes: p.MetadataBytes,
			UsedRatio: p.DataPercent / 100, MetadataUsedRatio: p.MetadataPercent / 100,
		}
	}
	var errs []error
	if st.Listed {
		count, err := s.countVolumes(st)
		if errs = append(errs, err); err == nil {
			f.Volumes = &count
		}
	}
	targets, err := s.tree.Targets(s.cfg.iqnBase())
	if errs = append(errs, err); err == nil {
		n := len(targets)
		f.Exports = &n
	}
	epoch, err := s.Epoch(ctx)
	if errs = append(errs, err); err == nil {
		f.Epoch = &epoch
	}
	f.Certificates, err = s.cfg.certificates()
	err = errors.Join(append(errs, err)...)
	f.Complete = lvmErr == nil && err == nil
	for _, p := range problems {
		err = errors.Join(err, errors.New(p))
	}
	return f, err
}

func (s *Service) countVolumes(st lvol.Status) (n metrics.TargetVolumes, err error) {
	n.Snapshots = len(st.Snapshots)
	for _, v := range st.Volumes {
		if v.Thin {
			n.Thin++
		} else {
			n.Thick++
		}
		d, err := s.describe(v)
		if err != nil {
			return n, err
		}
		n.Admissions += len(d.Exports)
		if len(d.Exports) > 0 {
			n.ExportedBytes += v.SizeBytes
		}
		for _, e := range d.Exports {
			if e.LoggedIn {
				n.Sessions++
			}
		}
	}
	return n, nil
}

// certificates are the ends of the certificates in the files that the server uses.
func (c Config) certificates() (map[string]time.Time, error) {
	files := map[string]string{"server": c.TLS.CertFile, "client_ca": c.TLS.ClientCAFile}
	if c.Metrics.ClientCAFile != "" {
		files["metrics_client_ca"] = c.Metrics.ClientCAFile
	}
	out, errs := map[string]time.Time{}, []error{}
	for _, name := range slices.Sorted(maps.Keys(files)) { // errors are told once as long as their text is the same
		end, err := firstEnd(files[name])
		if err != nil {
			errs = append(errs, fmt.Errorf("certificate %s: %w", name, err))
			continue
		}
		out[name] = end
	}
	return out, errors.Join(errs...)
}

// startMetrics serves metrics, and finds them, until stop. Without an address it does nothing.
func startMetrics(ctx context.Context, cfg Config, srv *Server) (stop func(), err error) {
	if cfg.Metrics.Listen == "" {
		return func() {}, nil
	}
	lis, err := new(net.ListenConfig).Listen(ctx, "tcp", cfg.Metrics.Listen)
	if err != nil {
		return nil, fmt.Errorf("metrics.listen: %w", err)
	}
	return serveMetrics(ctx, cfg, srv, lis)
}

// serveMetrics closes the listener in every case. What becomes of it once it serves is logged
// alone: volumes are made and exported without metrics, too.
func serveMetrics(ctx context.Context, cfg Config, srv *Server, lis net.Listener) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	log := logr.FromContextOrDiscard(ctx).WithName("metrics")
	w := &watch{svc: srv.svc}
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		metrics.BuildInfo("target"), metrics.NewTarget(w.said.Load), srv.calls,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	handler := metrics.Handler(ctx, registry)
	if cfg.Metrics.encrypted() {
		files := cfg.metricsTLS()
		conf, err := files.config()
		if err != nil {
			cancel()
			return nil, errors.Join(err, lis.Close())
		}
		lis, handler = tls.NewListener(lis, conf), onlyTrusted(files, onlyNamed(cfg.Metrics.AllowedClientNames, handler))
	}
	var running sync.WaitGroup
	running.Go(func() {
		passes.Repeat(ctx, checkInterval, w.check, func(err error) { log.Error(err, "The check for metrics found something wrong") })
	})
	running.Go(func() {
		log.Info("Serving metrics", "address", lis.Addr().String(), "encrypted", cfg.Metrics.encrypted())
		if err := metrics.Serve(ctx, lis, handler); err != nil {
			log.Error(err, "Metrics are not served any more")
		}
	})
	return func() {
		cancel()
		running.Wait()
	}, nil
}

// onlyNamed refuses clients by the name in their certificate, as allowClients does.
func onlyNamed(allowed []string, handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := ""
		if shown := r.TLS.PeerCertificates; len(shown) > 0 {
			name = shown[0].Subject.CommonName
		}
		if len(allowed) > 0 && !slices.Contains(allowed, name) {
			http.Error(w, "the client's name is not in metrics.allowedClientNames", http.StatusForbidden)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// onlyTrusted refuses clients whose certificate is not good any more, as judgeClients does, and
// ends their connections.
func onlyTrusted(files tlsFiles, handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := files.trusted(r.TLS.PeerCertificates); err != nil {
			w.Header().Set("Connection", "close")
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		handler.ServeHTTP(w, r)
	})
}
