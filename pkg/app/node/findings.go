package node

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/volume"
)

// findings are what the preflight said last. hostNote is none.
type findings struct {
	essential, iscsi, cache, warm, tracking, sending, integrity, host, hostNote atomic.Pointer[string]
}

// set notes a finding, nil for none, and logs it if it is new.
func set(ctx context.Context, p *atomic.Pointer[string], err error) {
	text := line(err)
	if old := p.Swap(text); (old == nil || *old != *text) && *text != "" {
		klog.FromContext(ctx).Error(nil, "Preflight", "finding", *text)
	}
}

func line(err error) *string {
	text := ""
	if err != nil {
		text = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return &text
}

func (f *findings) update(ctx context.Context, n inspector) {
	found := n.Examine(ctx)
	set(ctx, &f.essential, found.Essential)
	set(ctx, &f.iscsi, found.ISCSI)
	set(ctx, &f.cache, found.Cache)
	set(ctx, &f.warm, found.WarmMove)
	set(ctx, &f.tracking, found.WriteTracking)
	set(ctx, &f.sending, found.Sending)
	f.integrity.Store(line(found.Integrity)) // nobody's concern as long as no pool asks for it
}

func read(p *atomic.Pointer[string]) string {
	if s := p.Load(); s != nil {
		return *s
	}
	return "not examined yet"
}

// noStreams is why no cache comes by stream where nothing was configured for that.
const noStreams = "streams are not configured"

// streamProblem says why no cache can come to this node by stream, or "".
func (p *plugin) streamProblem() string {
	if p.streamClient == nil {
		return noStreams
	}
	if p.stream.PublicKey() == "" {
		return "other nodes know no key of this one while it listens nowhere for streams: " + read(&p.findings.sending)
	}
	return read(&p.findings.tracking)
}

// problems is every finding that is an operator's concern, in one line; "" if there is none.
func (p *plugin) problems() string {
	iscsi := ""
	if p.initiator != "" || p.noInitiator != nil {
		iscsi = read(&p.findings.iscsi)
	}
	integrity := ""
	if p.pool != nil && p.pool.View().Integrity {
		integrity = read(&p.findings.integrity)
	}
	out := append([]string{read(&p.findings.essential), iscsi, read(&p.findings.cache), integrity}, moveProblems(moveFacts{
		Asked: p.cfg.Method(), Clone: read(&p.findings.warm), Stream: p.streamProblem(), Sending: read(&p.findings.sending),
	})...)
	return strings.Join(slices.DeleteFunc(out, func(s string) bool { return s == "" }), "; ")
}

// moveFacts are what moveProblems rests on.
type moveFacts struct {
	// Asked is the method that the node asks for; empty leaves it open.
	Asked volume.MoveMethod
	// Clone and Stream say why no cache can come to this node by that method, and Sending why
	// none can leave it by stream; or they are empty. Clone speaks of both directions.
	Clone, Stream, Sending string
}

// moveProblems is what stands against caches that follow their pods to this node, and from it. One
// method is enough, unless one is asked for.
func moveProblems(f moveFacts) []string {
	switch {
	case f.Asked == volume.MethodClone:
		return []string{f.Clone}
	case f.Asked == volume.MethodStream:
		return []string{f.Stream, f.Sending}
	case f.Clone == "":
		return nil
	case f.Stream == "":
		return []string{f.Sending}
	case f.Stream == noStreams:
		return []string{f.Clone}
	}
	return []string{f.Clone, f.Stream}
}
