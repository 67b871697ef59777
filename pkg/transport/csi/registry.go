package csi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/nearflash/nearflash/pkg/transport"
)

const (
	// askTimeout is what kubelet gives a registration socket (GenerateRegisterPluginFunc in
	// pkg/kubelet/pluginmanager/operationexecutor).
	askTimeout = time.Second
	// askAtOnce bounds the questions at one time, maxSockets the sockets that are asked at all.
	askAtOnce  = 64
	maxSockets = 256
	// maxNamed is how many drivers an error lists.
	maxNamed = 16
)

// registry finds node plugins by their registration sockets.
type registry struct {
	dir     string
	timeout time.Duration

	mu        sync.Mutex
	endpoints map[string]string
}

func newRegistry(dir string, timeout time.Duration) *registry {
	return &registry{dir: dir, timeout: timeout, endpoints: map[string]string{}}
}

// known is where a driver was found before.
func (r *registry) known(driver string) (string, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	socket, ok := r.endpoints[driver]
	return socket, ok
}

// forget forgets an endpoint that does not answer.
func (r *registry) forget(driver, socket string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.endpoints[driver] == socket {
		delete(r.endpoints, driver)
	}
}

// find asks all registration sockets, and of those that name the driver takes the youngest
// whose endpoint is that driver: kubelet too goes by who has registered last, and a plugin that
// was killed leaves its socket.
func (r *registry) find(ctx context.Context, driver string) (string, error) {
	sockets, err := r.sockets()
	if err != nil {
		return "", fmt.Errorf("%w: %w", missing(driver), err)
	}
	answers := make([]answer, len(sockets))
	var g errgroup.Group
	g.SetLimit(askAtOnce)
	for i, socket := range sockets {
		g.Go(func() error {
			answers[i] = r.ask(ctx, socket, driver)
			return nil
		})
	}
	_ = g.Wait() // none returns one
	if err := ctx.Err(); err != nil {
		return "", err
	}
	var problems []error
	var others []string
	for _, a := range answers {
		switch {
		case a.err != nil:
			problems = append(problems, a.err)
		case a.driver == driver:
			r.mu.Lock()
			defer r.mu.Unlock()
			r.endpoints[driver] = a.endpoint
			return a.endpoint, nil
		case a.driver != "":
			others = append(others, a.driver)
		}
	}
	others = slices.Compact(slices.Sorted(slices.Values(others)))
	if len(others) > maxNamed {
		others = append(others[:maxNamed], "...")
	}
	if len(problems) > maxNamed {
		problems = problems[:maxNamed]
	}
	err = fmt.Errorf("%w; in %s there are %q", missing(driver), r.dir, others)
	return "", errors.Join(append([]error{err}, problems...)...)
}

// missing is the error of a driver that does not run here.
func missing(driver string) error {
	return fmt.Errorf("%w: the node plugin of the CSI driver %s is not registered on this node: have its DaemonSet run here (its node selector and tolerations), and look at its pod's log", transport.ErrNoDaemon, driver)
}

// sockets are the registration sockets, youngest first, also those in folders, as kubelet
// takes them: whatever their name, unless it begins with a dot (pluginwatcher).
func (r *registry) sockets() ([]string, error) {
	type socket struct {
		path string
		made time.Time
	}
	var found []socket
	err := filepath.WalkDir(r.dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil && path == r.dir:
			return err
		case err != nil:
			return nil // went away, or is nobody's to read
		case path != r.dir && strings.HasPrefix(e.Name(), "."):
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		case e.IsDir() || e.Type() != fs.ModeSocket:
			return nil
		}
		info, err := e.Info()
		if err != nil {
			return nil // went away
		}
		found = append(found, socket{path: path, made: info.ModTime()})
		return nil
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	slices.SortStableFunc(found, func(a, b socket) int { return b.made.Compare(a.made) })
	paths := make([]string, 0, len(found))
	for _, s := range found[:min(len(found), maxSockets)] {
		paths = append(paths, s.path)
	}
	return paths, nil
}

// answer is what a registration socket says: the name of a CSI driver, "" for another plugin.
type answer struct {
	driver, endpoint string
	err              error
}

// ask asks one registration socket, and of one that names the wanted driver also the endpoint
// that it names. kubelet believes the first; here a socket that lies must hide no other.
func (r *registry) ask(ctx context.Context, socket, wanted string) answer {
	info, err := r.getInfo(ctx, socket)
	if err != nil {
		return answer{err: fmt.Errorf("%s does not say who it is: %s", socket, plain(err.Error(), nil))}
	}
	if info.GetType() != registerapi.CSIPlugin || !driverPattern.MatchString(info.GetName()) {
		return answer{}
	}
	if info.GetName() != wanted {
		return answer{driver: info.GetName()}
	}
	if !speaksV1(info.GetSupportedVersions()) {
		return answer{err: fmt.Errorf("%s: %s speaks CSI in versions %q, and 1.x is needed", socket, wanted, info.GetSupportedVersions()[:min(maxNamed, len(info.GetSupportedVersions()))])}
	}
	endpoint, err := socketOf(info.GetEndpoint(), socket)
	if err != nil {
		return answer{err: fmt.Errorf("%s: %s", socket, plain(err.Error(), nil))}
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	name, err := pluginName(ctx, endpoint)
	if err != nil {
		return answer{err: fmt.Errorf("%s registers %s at %s, which does not answer: %s", socket, wanted, endpoint, plain(err.Error(), nil))}
	}
	if name != wanted {
		return answer{err: fmt.Errorf("%s registers %s at %s, which is %q", socket, wanted, endpoint, plain(name, nil))}
	}
	return answer{driver: wanted, endpoint: endpoint}
}

func (r *registry) getInfo(ctx context.Context, socket string) (*registerapi.PluginInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	conn, err := connect(socket)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	return registerapi.NewRegistrationClient(conn).GetInfo(ctx, &registerapi.InfoRequest{})
}

// speaksV1 reports whether one of the versions is 1.x. kubelet takes the highest that it
// knows, and with it any 1.x (highestSupportedVersion in pkg/volume/csi/csi_plugin.go).
func speaksV1(versions []string) bool {
	return slices.ContainsFunc(versions, func(v string) bool {
		major, _, _ := strings.Cut(strings.TrimPrefix(v, "v"), ".")
		return cmp.Or(major, "0") == "1"
	})
}
