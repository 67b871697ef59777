//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// dumpLines is how much of each log a failed spec shows.
const dumpLines = 80

// dump writes what explains a failure to the spec's output.
func (s *space) dump(ctx context.Context) {
	var events eventsv1.EventList
	if err := k.API.List(ctx, &events, client.InNamespace(s.name)); err == nil {
		for _, e := range events.Items {
			fmt.Fprintf(GinkgoWriter, "event %s %s/%s %s: %s\n", e.Type, e.Regarding.Kind, e.Regarding.Name, e.Reason, e.Note)
		}
	}
	for _, v := range s.volumes {
		if cv, err := k.CachedVolume(ctx, v.Volume); err == nil {
			fmt.Fprintf(GinkgoWriter, "CachedVolume %s: %+v\n", v.Handle, cv.Status)
		}
	}
	pods, err := k.DriverPods(ctx)
	if err != nil {
		fmt.Fprintf(GinkgoWriter, "driver pods: %v\n", err)
		return
	}
	for i := range pods {
		for _, container := range pods[i].Spec.Containers {
			dumpLog(ctx, &pods[i], container.Name)
		}
	}
	for _, node := range k.Workers {
		out, err := k.Host.Run(ctx, node, "dmsetup table; lvs -a; ls -R /var/lib/nearflash; dmesg | tail -n 20")
		fmt.Fprintf(GinkgoWriter, "==> %s (%v)\n%s\n", node, err, out)
	}
}

func dumpLog(ctx context.Context, pod *corev1.Pod, container string) {
	for _, previous := range []bool{true, false} {
		lines := int64(dumpLines)
		req := k.Clients.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
			Container: container, TailLines: &lines, Previous: previous,
		})
		text, err := req.DoRaw(ctx)
		if previous && err != nil {
			continue
		}
		fmt.Fprintf(GinkgoWriter, "==> %s %s, previous %t (%v)\n%s\n", pod.Name, container, previous, err, bytes.TrimSpace(text))
	}
}
