package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nearflash/nearflash/hack/lab/internal/agentapi"
	"github.com/nearflash/nearflash/hack/lab/internal/kube"
	"github.com/nearflash/nearflash/hack/lab/internal/netns"
	"github.com/nearflash/nearflash/hack/lab/internal/plan"
)

// Exec runs a command as root in a guest and returns its exit code.
func (l *Lab) Exec(ctx context.Context, name string, r agentapi.ExecRequest, stdout, stderr io.Writer) (int, error) {
	agent, err := l.Agent(name)
	if err != nil {
		return 0, err
	}
	// A dead guest's address answers nothing at all.
	if err := l.mustLive(name); err != nil {
		return 0, err
	}
	return agent.Exec(ctx, r, stdout, stderr)
}

// Environ adds to an environment what a program needs to work with the lab.
func (l *Lab) Environ(env []string) []string {
	set := map[string]string{
		"KUBECONFIG":       l.Kubeconfig(),
		"NEARFLASH_LAB_ID": l.ID,
		"PATH":             l.Paths.Bin() + string(os.PathListSeparator) + lookup(env, "PATH"),
	}
	// No proxy can reach into the lab's network.
	for _, name := range []string{"NO_PROXY", "no_proxy"} {
		set[name] = strings.Trim(lookup(env, name)+",127.0.0.1,"+plan.HostIP+","+plan.ServiceRange, ",")
	}
	out := slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		_, replaced := set[name]
		return replaced
	})
	for _, name := range slices.Sorted(maps.Keys(set)) {
		out = append(out, name+"="+set[name])
	}
	return out
}

func lookup(env []string, name string) string {
	for _, kv := range slices.Backward(env) {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

// Kubeconfig is the administrator's. Its server is reached from the lab's
// network namespace only.
func (l *Lab) Kubeconfig() string { return l.Paths.Kubeconfig("admin") }

// MustBeUp returns [ErrNotUp] unless the lab is there.
func (l *Lab) MustBeUp() error {
	s, err := l.load()
	if err != nil {
		return err
	}
	if !s.Complete {
		return fmt.Errorf("%w completely (lab %s)", ErrNotUp, l.ID)
	}
	return nil
}

// Cut drops everything between two ends of the network.
func (l *Lab) Cut(ctx context.Context, a, b string, oneWay bool) error {
	cuts, err := netns.ParseCut(a, b, oneWay)
	if err != nil {
		return err
	}
	return l.recut(ctx, func(have []netns.Cut) []netns.Cut { return netns.Merge(have, cuts) })
}

// Heal ends all cuts.
func (l *Lab) Heal(ctx context.Context) error {
	return l.recut(ctx, func([]netns.Cut) []netns.Cut { return nil })
}

func (l *Lab) recut(ctx context.Context, change func([]netns.Cut) []netns.Cut) error {
	s, unlock, err := l.lockState(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	s.Cuts = change(s.Cuts)
	if err := l.NS.Apply(s.Cuts); err != nil {
		return err
	}
	return l.save(s)
}

// Status writes what there is of the lab. It returns [ErrNotUp] when there is
// none, and [ErrEnded] when a part of it does not run or does not answer.
func (l *Lab) Status(ctx context.Context, w io.Writer) error {
	s, err := l.load()
	if err != nil {
		return err
	}
	var broken []string
	fmt.Fprintf(w, "lab %s of %s\nstate %s\ncomplete %v, driver %v, cuts %v\n\n", l.ID, s.Checkout, l.Paths.Root, s.Complete, s.Driver, s.Cuts)
	for _, name := range slices.Concat(controlPlane(), s.nodeNames(), s.Origin.processes()) {
		how := "ended"
		if rec, err := l.Procs.Get(name); err == nil && rec.Alive() {
			how = fmt.Sprintf("runs, pid %d", rec.PID)
		} else {
			broken = append(broken, name)
		}
		fmt.Fprintf(w, "%-24s %s\n", name, how)
	}
	fmt.Fprintln(w)
	for _, n := range s.nodes() {
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		st, err := l.agent(n, s.Token).Status(ctx)
		cancel()
		if err != nil {
			fmt.Fprintf(w, "%-24s agent does not answer\n", n.Name)
			continue
		}
		fmt.Fprintf(w, "%-24s set up %v %s, starts of services %v\n", n.Name, st.Ready, st.Error, st.Services)
		for _, step := range st.Timeline {
			fmt.Fprintf(w, "%-24s   %6.2f s %s\n", "", step.Seconds, step.Name)
		}
	}
	nodes, err := l.nodes(ctx)
	if err != nil {
		broken = append(broken, "the API server")
	}
	for _, n := range nodes {
		fmt.Fprintf(w, "%-24s Ready %v, taints %v: %s\n", n.Name, n.Ready, n.Taints, n.Reason)
	}
	if len(broken) > 0 {
		return fmt.Errorf("%w: %s", ErrEnded, strings.Join(broken, ", "))
	}
	return nil
}

func (l *Lab) nodes(ctx context.Context) ([]kube.Node, error) {
	api, err := l.api()
	if err != nil {
		return nil, err
	}
	return api.Nodes(ctx)
}

func (s state) nodeNames() []string {
	var out []string
	for _, n := range s.nodes() {
		out = append(out, n.Name)
	}
	return out
}

// containerLogs prints the ends of all containers' logs and of the kernel's.
const containerLogs = `for f in /var/log/pods/*/*/*.log; do
	[ -e "$f" ] || continue
	echo; echo "==> $(hostname): $f"; tail -n "$1" "$f"
done
echo; echo "==> $(hostname): kernel"; dmesg | tail -n "$1"
`

// Logs writes the last lines of every log: host processes, consoles, services in
// guests, and, from guests that live, containers and kernels. A failed `up` has
// logs too.
func (l *Lab) Logs(ctx context.Context, lines int, w io.Writer) error {
	dir := l.Paths.Logs()
	s, err := l.load()
	up := err == nil
	if errors.Is(err, ErrNotUp) {
		dir = l.Paths.FailedLogs()
		if _, statErr := os.Stat(dir); statErr != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(w, "\n==> %s\n%s", path, lastLines(b, lines))
		return err
	})
	if err != nil {
		return fmt.Errorf("logs: %w", err)
	}
	if !up {
		return nil
	}
	for _, n := range s.nodes() {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		req := agentapi.ExecRequest{Argv: []string{"bash", "-c", containerLogs, "logs", fmt.Sprint(lines)}}
		if _, err := l.agent(n, s.Token).Exec(ctx, req, w, w); err != nil {
			fmt.Fprintf(w, "\n==> %s: no logs from inside: %v\n", n.Name, err)
		}
		cancel()
	}
	return nil
}

// lastLines returns the last n lines of a text, all of it for n <= 0.
func lastLines(b []byte, n int) []byte {
	if n <= 0 {
		return b
	}
	end := len(bytes.TrimRight(b, "\n"))
	at := end
	for range n {
		if at = bytes.LastIndexByte(b[:at], '\n'); at < 0 {
			return b
		}
	}
	return b[at+1:]
}
