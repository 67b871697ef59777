package kubectl

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nearflash/nearflash/pkg/bench"
	"github.com/nearflash/nearflash/pkg/figures"
	"github.com/nearflash/nearflash/pkg/podexec"
	"github.com/nearflash/nearflash/pkg/scratch"
)

// ssdOvertime is what a measurement of the SSD alone takes besides its runs, in which it writes up to
// scratch.MaxBytes once.
const ssdOvertime = 3 * time.Minute

// meter asks nodes what they have counted, as top does.
type meter struct {
	session *session
	live    live
	// pods are those of the node plugin, by node.
	pods map[string]*corev1.Pod
}

// Measure implements bench.Meter.
func (m *meter) Measure(ctx context.Context, node, volume string) (bench.Sample, error) {
	pod, err := m.pod(ctx, node)
	if err != nil {
		return bench.Sample{}, err
	}
	a, err := m.live.askNode(ctx, pod)
	if err != nil {
		return bench.Sample{}, m.failed(pod, err)
	}
	for _, v := range a.Volumes {
		if string(v.ID) == volume {
			return bench.Sample{Time: a.Time, Cache: v.Cache, Totals: v.Totals, BoundsMicros: a.BoundsMicros}, nil
		}
	}
	return bench.Sample{}, fmt.Errorf("node %s does not know volume %s", node, volume)
}

// pod is the node plugin's on a node, nil if it has none. Errors: bench.ErrNoMeter.
func (m *meter) pod(ctx context.Context, node string) (*corev1.Pod, error) {
	if m.pods[node] == nil {
		pods, err := m.session.nodePlugins(ctx)
		if apierrors.IsForbidden(err) {
			return nil, fmt.Errorf("%w: this account may not list pods in all namespaces", bench.ErrNoMeter)
		}
		if err != nil {
			return nil, err
		}
		m.pods = pods
	}
	return m.pods[node], nil
}

// failed is why a pod did not answer.
func (m *meter) failed(pod *corev1.Pod, err error) error {
	if errors.Is(err, podexec.ErrForbidden) {
		return fmt.Errorf("%w: this account needs the right to create pods/exec in namespace %s", bench.ErrNoMeter, pod.Namespace)
	}
	m.pods = nil // of a plugin that was replaced, the next look finds the new pod
	return err
}

// MeasureSSD implements bench.SSDMeter.
func (m *meter) MeasureSSD(ctx context.Context, node string, bytes int64, t scratch.Task) (scratch.Answer, error) {
	pod, err := m.pod(ctx, node)
	if err == nil && pod == nil {
		err = fmt.Errorf("node %s has no pod of the node plugin", node)
	}
	if err != nil {
		return scratch.Answer{}, err
	}
	a, err := m.runSSD(ctx, pod, bytes, t)
	if err != nil {
		return scratch.Answer{}, m.failed(pod, err)
	}
	return a, nil
}

// runSSD runs the plugin's own program in its container.
func (m *meter) runSSD(ctx context.Context, pod *corev1.Pod, bytes int64, t scratch.Task) (scratch.Answer, error) {
	depths := make([]string, len(t.Depths))
	for i, d := range t.Depths {
		depths[i] = strconv.Itoa(d)
	}
	limit := ssdOvertime + time.Duration(len(t.Depths))*t.Time
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	stdout, stderr := bounded{most: scratch.MaxAnswer}, bounded{most: maxReason}
	err := m.live.executor.Run(ctx, podexec.Command{
		Namespace: pod.Namespace, Pod: pod.Name, Container: nodeContainer, Stdout: &stdout, Stderr: &stderr,
		Args: []string{
			nodeProgram, scratch.Command, fmt.Sprintf("--bytes=%d", bytes), fmt.Sprintf("--block-bytes=%d", t.BlockBytes), fmt.Sprintf("--read-percent=%d", t.ReadPercent),
			fmt.Sprintf("--random=%t", t.Random), fmt.Sprintf("--sync-every=%d", t.SyncEvery), "--depths=" + strings.Join(depths, ","), "--time=" + t.Time.String(),
		},
	})
	if err != nil {
		said := strings.TrimPrefix(oneLine(figures.Printable(stderr.text.String())), "nearflash-node "+scratch.Command+": ")
		return scratch.Answer{}, execFailure(err, scratch.Command, limit, said)
	}
	a, err := scratch.Parse(stdout.text.Bytes())
	if errors.Is(err, figures.ErrVersion) {
		return scratch.Answer{}, fmt.Errorf("use the kubectl plugin of its version: %w", err)
	}
	a.Place = figures.Printable(a.Place)
	return a, err
}
