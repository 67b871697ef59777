package kubectl

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/exec"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/figures"
	"github.com/nearflash/nearflash/pkg/podexec"
)

const (
	// nodesAtOnce bounds what the API server has to keep open.
	nodesAtOnce = 16
	// nodeTimeout is longer than the node's own program waits, which says more.
	nodeTimeout = 8 * time.Second
	// reasonsNamed is how many nodes are named that did not answer, and maxReason what is printed
	// of the reason of each.
	reasonsNamed, maxReason = 3, 200

	nodeContainer = "nearflash-node"
	// nodeProgram is where the image has the program, which is on no PATH.
	nodeProgram = "/nearflash-node"
)

// Executor runs a command in a container; podexec.Executor is one.
type Executor interface {
	// Run returns when the command has ended. Errors are those of podexec.Executor.
	Run(ctx context.Context, c podexec.Command) error
}

// live asks nodes what their volumes do now.
type live struct {
	// reported asks nobody.
	reported bool
	// refused is true once the account turned out to lack a right, which is told once.
	refused bool
	// executor is made when the first node is asked.
	executor Executor
}

// nodeAnswer is what came of asking a node.
type nodeAnswer struct {
	node   string
	answer figures.Answer
	err    error
}

// chosen returns the volumes that are named, or else those that are attached, as current does.
func (l *live) chosen(ctx context.Context, f *Factory, s *session, args []string, everywhere bool) (now []*volume, note string, err error) {
	volumes, err := s.choose(ctx, args, everywhere)
	if err != nil {
		return nil, "", err
	}
	if len(args) == 0 {
		volumes = slices.DeleteFunc(volumes, func(v *volume) bool { return !v.attached() })
	}
	return l.current(ctx, f, s, volumes)
}

// current returns volumes with the figures of now, as far as their nodes say them. note is one
// line about those that do not, empty if all do.
func (l *live) current(ctx context.Context, f *Factory, s *session, volumes []*volume) (now []*volume, note string, err error) {
	nodes := nodesOf(volumes)
	if l.reported || l.refused || len(nodes) == 0 {
		return volumes, "", nil
	}
	pods, err := s.nodePlugins(ctx)
	if apierrors.IsForbidden(err) {
		l.refused = true
		return volumes, "The figures are those that nodes reported last: this account may not list pods in all namespaces, and so finds no node plugin to ask.", nil
	}
	if err != nil {
		return nil, "", err
	}
	if l.executor == nil {
		if l.executor, err = f.Executor(); err != nil {
			return nil, "", err
		}
	}
	answers, err := l.ask(ctx, nodes, pods)
	var refusal *execRefused
	switch {
	case errors.As(err, &refusal):
		l.refused = true
		return volumes, fmt.Sprintf("The figures are those that nodes reported last: to ask the nodes, this account needs the right to create pods/exec in namespace %s.", refusal.namespace), nil
	case err != nil:
		return nil, "", err
	}
	return merged(volumes, answers), complaint(answers), nil
}

// nodesOf returns the nodes that have volumes attached.
func nodesOf(volumes []*volume) []string {
	var nodes []string
	for _, v := range volumes {
		if v.byMany() {
			nodes = append(nodes, v.Status.Readers...)
		} else if n := v.node(); n != "" {
			nodes = append(nodes, n)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// nodePlugins returns the pods of the node plugin by node.
func (s *session) nodePlugins(ctx context.Context) (map[string]*corev1.Pod, error) {
	var list corev1.PodList
	if err := s.client.List(ctx, &list, client.MatchingLabels{nameLabel: "nearflash", componentLabel: componentNode}); err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	return pluginsByNode(list.Items), nil
}

// pluginsByNode sorts out the pods of the node plugin. The younger of two on a node is the one that
// shall stay.
func pluginsByNode(pods []corev1.Pod) map[string]*corev1.Pod {
	out := map[string]*corev1.Pod{}
	for i := range pods {
		pod := &pods[i]
		if pod.Labels[componentLabel] != componentNode {
			continue
		}
		if have := out[pod.Spec.NodeName]; have == nil || have.DeletionTimestamp != nil {
			out[pod.Spec.NodeName] = pod
		}
	}
	return out
}

// execRefused is that the account may not exec in the pods of a namespace. It ends the asking: no
// node would be reached.
type execRefused struct{ namespace string }

// Error implements error.
func (e *execRefused) Error() string { return "no exec in namespace " + e.namespace }

// ask asks nodes, some at once. It returns an answer for each, unless the account may not ask, or
// ctx has ended.
func (l *live) ask(ctx context.Context, nodes []string, pods map[string]*corev1.Pod) ([]nodeAnswer, error) {
	answers := make([]nodeAnswer, len(nodes))
	group, asking := errgroup.WithContext(ctx)
	group.SetLimit(nodesAtOnce)
	for i, node := range nodes {
		group.Go(func() error {
			if asking.Err() != nil {
				return asking.Err()
			}
			a, err := l.askNode(asking, pods[node])
			if errors.Is(err, podexec.ErrForbidden) {
				return &execRefused{namespace: pods[node].Namespace}
			}
			answers[i] = nodeAnswer{node: node, answer: a, err: err}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return answers, ctx.Err()
}

// askNode runs the plugin's own program in its container, which asks the plugin.
func (l *live) askNode(ctx context.Context, pod *corev1.Pod) (figures.Answer, error) {
	if pod == nil {
		return figures.Answer{}, errors.New("has no pod of the node plugin")
	}
	ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	stdout, stderr := bounded{most: figures.MaxBytes}, bounded{most: maxReason}
	err := l.executor.Run(ctx, podexec.Command{
		Namespace: pod.Namespace, Pod: pod.Name, Container: nodeContainer, Args: []string{nodeProgram, figures.Command}, Stdout: &stdout, Stderr: &stderr,
	})
	if err != nil {
		return figures.Answer{}, execFailure(err, figures.Command, nodeTimeout, stderr.text.String())
	}
	if stdout.over {
		return figures.Answer{}, fmt.Errorf("answers with more than %d bytes", figures.MaxBytes)
	}
	a, err := figures.Parse(stdout.text.Bytes())
	if errors.Is(err, figures.ErrVersion) {
		return figures.Answer{}, fmt.Errorf("use the kubectl plugin of its version: %w", err)
	}
	if err != nil {
		return figures.Answer{}, fmt.Errorf("its answer cannot be read: %w", err)
	}
	return a, nil
}

// execFailure says in words why a node did not answer. Programs of before take the word for one too
// many, and end.
func execFailure(err error, command string, limit time.Duration, stderr string) error {
	var exit exec.CodeExitError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer within %s: %w", limit, err)
	case strings.Contains(stderr, fmt.Sprintf("unexpected argument %q", command)):
		return fmt.Errorf("its node plugin is of a version before this question: %w", err)
	case errors.As(err, &exit) && stderr != "":
		return errors.New(stderr)
	}
	return err
}

// bounded keeps the beginning of what a node writes.
type bounded struct {
	most int
	text bytes.Buffer
	over bool
}

// Write implements io.Writer. It takes everything: a program that cannot write ends otherwise.
func (b *bounded) Write(p []byte) (int, error) {
	room := max(0, b.most-b.text.Len())
	b.over = b.over || len(p) > room
	b.text.Write(p[:min(room, len(p))])
	return len(p), nil
}

// merged puts what nodes answered in the place of what they had reported. Of a volume counts what
// the node says that has it. The records of volumes are not changed: what differs is a copy.
func merged(volumes []*volume, answers []nodeAnswer) []*volume {
	type place struct{ node, id string }
	said := map[place]*v1alpha1.CacheStatus{}
	for _, a := range answers {
		if a.err != nil {
			continue
		}
		for i := range a.answer.Volumes {
			v := &a.answer.Volumes[i]
			said[place{a.node, string(v.ID)}] = &v.Cache
		}
	}
	out := make([]*volume, len(volumes))
	for i, v := range volumes {
		out[i] = v
		if cache := said[place{v.node(), v.Name}]; cache != nil && v.attached() {
			now := *v
			now.CachedVolume = v.DeepCopy()
			now.Status.Cache = *cache.DeepCopy()
			out[i] = &now
		}
	}
	return out
}

// complaint is one line about nodes whose figures are not of now, or not whole; "" if there are none.
func complaint(answers []nodeAnswer) string {
	var silent, incomplete []string
	for _, a := range answers {
		switch {
		case a.err != nil:
			silent = append(silent, a.node+": "+reason(a.err.Error()))
		case a.answer.Problem != "":
			incomplete = append(incomplete, a.node+": "+reason(a.answer.Problem))
		}
	}
	var parts []string
	if n := len(silent); n > 0 {
		whose := "their"
		if n == 1 {
			whose = "its"
		}
		parts = append(parts, fmt.Sprintf("%d of %s did not answer; %s figures are as last reported: %s", n, count(len(answers), "node"), whose, some(silent)))
	}
	if len(incomplete) > 0 {
		parts = append(parts, fmt.Sprintf("%d of %s could not measure everything: %s", len(incomplete), count(len(answers), "node"), some(incomplete)))
	}
	return strings.Join(parts, "; ")
}

// reason makes a line of what went wrong on a node.
func reason(text string) string {
	text = cmp.Or(oneLine(figures.Printable(text)), "it does not say why")
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "") + "..."
	}
	return text
}

// some names the first of a list.
func some(list []string) string {
	if more := len(list) - reasonsNamed; more > 0 {
		return fmt.Sprintf("%s; and %d more", strings.Join(list[:reasonsNamed], "; "), more)
	}
	return strings.Join(list, "; ")
}
