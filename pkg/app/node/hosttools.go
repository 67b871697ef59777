package node

import (
	"context"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/preflight/hosttools"
)

// placeUdevRule writes the rule that keeps the host's udev away from volumes, or removes it.
// Nothing rests on it: a host where it cannot be written has a finding.
func (p *plugin) placeUdevRule(ctx context.Context) {
	if err := p.host.placeRule(p.cfg.UdevRule); err != nil {
		klog.FromContext(ctx).Error(err, "Rule of udev could not be written or removed", "wanted", p.cfg.UdevRule, "directory", hosttools.RuleDir)
	}
}

// hostProblems is what the last look at the host's tools found; looked is false before it.
func (p *plugin) hostProblems() (problem, note string, looked bool) {
	if n := p.findings.hostNote.Load(); n != nil {
		note = *n
	}
	if s := p.findings.host.Load(); s != nil {
		return *s, note, true
	}
	return "", note, false
}

// lookAtHostTools notices what an administrator changes of the host's tools. They are looked at
// beside everything else: no volume waits for them.
func (p *plugin) lookAtHostTools(ctx context.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		note, problems := p.host.tools.Look(ctx)
		if old := p.findings.hostNote.Swap(&note); (old == nil || *old != note) && note != "" {
			klog.FromContext(ctx).Info("Preflight", "note", note)
		}
		set(ctx, &p.findings.host, problems)
	}, hostToolsEvery)
}
