package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/nearflash/nearflash/hack/lab/internal/plan"
)

// ErrEtcd is returned for an answer of etcd that is none.
var ErrEtcd = errors.New("etcd does not answer as expected")

// ErrNoBackup is returned for a backup of etcd that was not made.
var ErrNoBackup = errors.New("there is no such backup of etcd")

// kubelet is the name of that service of a worker.
const kubelet = "kubelet"

// etcdGrace is how long etcd may take to end in order.
const etcdGrace = 10 * time.Second

// backupName is what a backup may be called: it becomes a folder.
var backupName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]*$`)

// backup is the folder of a backup of etcd.
func (l *Lab) backup(name string) (string, error) {
	if !backupName.MatchString(name) {
		return "", fmt.Errorf("backup %q: a name of a-z, 0-9 and - is wanted", name)
	}
	return filepath.Join(l.Paths.Root, "etcd-backup-"+name), nil
}

// KillControl ends programs of the control plane at once, all of them without a name.
func (l *Lab) KillControl(ctx context.Context, names []string) error {
	unlock, err := l.Lock(ctx, lockWait)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := l.load(); err != nil {
		return err
	}
	return l.stopControl(ctx, names, 0)
}

// stopControl ends programs of the control plane, the last started first.
func (l *Lab) stopControl(ctx context.Context, names []string, grace time.Duration) error {
	all := controlPlane()
	for _, name := range names {
		if !slices.Contains(all, name) {
			return fmt.Errorf("the control plane has no %q, only %v", name, all)
		}
	}
	for _, name := range slices.Backward(all) {
		if len(names) > 0 && !slices.Contains(names, name) {
			continue
		}
		rec, err := l.Procs.Get(name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			err = l.Procs.Stop(ctx, rec, grace)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// StartControl starts what does not run of the control plane and waits until it is
// ready.
func (l *Lab) StartControl(ctx context.Context) error {
	s, unlock, err := l.lockState(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return l.startControlPlane(ctx, s.Bin)
}

// ReplaceControl ends a program of the control plane at once, and starts the one at a path in its place,
// also from then on. Without a path it is the lab's own again.
func (l *Lab) ReplaceControl(ctx context.Context, name, path string) error {
	s, unlock, err := l.lockState(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if path == "" {
		path = filepath.Join(l.Paths.Bin(), name)
	}
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return fmt.Errorf("%q is no program: %w", path, errors.Join(err, os.ErrInvalid))
	}
	if err := l.stopControl(ctx, []string{name}, 0); err != nil {
		return err
	}
	s.Bin[name] = path
	return errors.Join(l.save(s), l.startControlPlane(ctx, s.Bin))
}

// SaveEtcd copies what etcd has, which is stopped for that moment. The API server
// waits for it.
func (l *Lab) SaveEtcd(ctx context.Context, name string) error {
	s, unlock, err := l.lockState(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	dir, err := l.backup(name)
	if err != nil {
		return err
	}
	if err := l.stopControl(ctx, []string{etcd}, etcdGrace); err != nil {
		return err
	}
	err = replaceFolder(dir, l.Paths.Etcd())
	return errors.Join(err, l.startControlPlane(ctx, s.Bin))
}

// RestoreEtcd kills the whole control plane, gives etcd what it had at the time of a
// backup, and starts it again. Revisions do not go back, as with the options that
// etcdutl has for Kubernetes (--bump-revision): otherwise whoever watches would go on
// from a revision that has not been yet, and see nothing of the restore.
func (l *Lab) RestoreEtcd(ctx context.Context, name string) error {
	s, unlock, err := l.lockState(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	dir, err := l.backup(name)
	if err != nil {
		return err
	}
	if _, err := os.Stat(dir); err != nil {
		return fmt.Errorf("%w: %s", ErrNoBackup, name)
	}
	before, err := l.etcdRevision(ctx)
	if err != nil {
		return err
	}
	if err := l.stopControl(ctx, nil, 0); err != nil {
		return err
	}
	if err := replaceFolder(l.Paths.Etcd(), dir); err != nil {
		return err
	}
	if err := l.startProcess(ctx, l.controlSpec(etcd, s.Bin[etcd])); err != nil {
		return err
	}
	if err := l.passRevision(ctx, before); err != nil {
		return err
	}
	return l.startControlPlane(ctx, s.Bin)
}

// FreshControl kills the whole control plane and starts one that knows nothing: etcd is
// empty, keys and addresses are those of before. On return the workers that run have
// registered again. The driver is not installed.
func (l *Lab) FreshControl(ctx context.Context) error {
	s, unlock, err := l.lockState(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := l.stopControl(ctx, nil, 0); err != nil {
		return err
	}
	if err := os.RemoveAll(l.Paths.Etcd()); err != nil {
		return fmt.Errorf("data of etcd: %w", err)
	}
	if err := l.startControlPlane(ctx, s.Bin); err != nil {
		return err
	}
	var running []plan.Node
	for _, n := range plan.Workers() {
		rec, err := l.Procs.Get(n.Name)
		if errors.Is(err, os.ErrNotExist) || err == nil && !rec.Alive() {
			continue
		}
		// A kubelet registers its node when it starts, and not again when it is gone.
		if err == nil {
			err = l.agent(n, s.Token).Restart(ctx, kubelet)
		}
		if err != nil {
			return err
		}
		running = append(running, n)
	}
	return l.awaitGuests(ctx, s, running)
}

// revisionMargin is more than what may have been written between the look at the
// revision and the end of etcd.
const revisionMargin = 1000

// passRevision writes until etcd is past a revision.
func (l *Lab) passRevision(ctx context.Context, before int64) error {
	now := int64(0)
	err := until(ctx, "etcd", func(ctx context.Context) (bool, error) {
		if err := l.mustLive(etcd); err != nil {
			return true, err
		}
		var err error
		now, err = l.etcdRevision(ctx)
		return err == nil, err
	})
	for ; err == nil && now < before+revisionMargin; now++ {
		// Outside of what the API server reads.
		err = l.askEtcd(ctx, "kv/put", map[string]string{"key": "bGFi"}, nil)
	}
	return err
}

func (l *Lab) etcdRevision(ctx context.Context) (int64, error) {
	var answer struct {
		Header struct {
			Revision int64 `json:"revision,string"`
		} `json:"header"`
	}
	err := l.askEtcd(ctx, "kv/range", map[string]string{"key": "bGFi"}, &answer)
	return answer.Header.Revision, err
}

// askEtcd calls etcd's API in its JSON form.
func (l *Lab) askEtcd(ctx context.Context, what string, request, answer any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, etcdURL+"/v3/"+what, bytes.NewReader(body))
	if err != nil {
		return err
	}
	c := http.Client{Transport: &http.Transport{DialContext: l.NS.DialContext, DisableKeepAlives: true}, Timeout: etcdGrace}
	res, err := c.Do(req)
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%w: etcd answers %s to %s", ErrEtcd, res.Status, what)
	}
	if answer == nil {
		return nil
	}
	return json.NewDecoder(res.Body).Decode(answer)
}

// replaceFolder makes dst a copy of src.
func replaceFolder(dst, src string) error {
	if err := os.RemoveAll(dst); err != nil {
		return fmt.Errorf("data of etcd: %w", err)
	}
	if err := os.CopyFS(dst, os.DirFS(src)); err != nil {
		return fmt.Errorf("data of etcd: %w", err)
	}
	// etcd wants it for itself alone.
	if err := os.Chmod(dst, 0o700); err != nil {
		return fmt.Errorf("data of etcd: %w", err)
	}
	return nil
}
