package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/exec"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/podexec"
)

const (
	// aloneShare of the runtime, and at least minAlone, is what one request at a time is measured for.
	aloneShare, minAlone = 0.5, 2 * time.Second
	// linkTime is how long each of the two patterns of Link is measured.
	linkTime = 5 * time.Second
	// sampleEvery is the time between two looks at a volume that is measured: a node passes over its
	// volumes once a second at most.
	sampleEvery = 2 * time.Second
	// maxOutput is more than fio prints, and maxReason what is shown of its complaints.
	maxOutput, maxReason = 16 << 20, 400
	// overtime is how much later than its time fio may end, and fillLimit the most that writing a
	// volume takes.
	overtime, fillLimit = 3 * time.Minute, 6 * time.Hour
	// settle is longer than a node's counts may be old (observe.Sampler.Current): what is asked so
	// long after a volume became idle has all that was done before.
	settle = 1100 * time.Millisecond
)

// Executor runs a command in a container; podexec.Executor is one.
type Executor interface {
	// Run returns when the command has ended. Errors are those of podexec.Executor.
	Run(ctx context.Context, c podexec.Command) error
}

// Runner carries a plan out.
type Runner struct {
	Client client.Client
	Exec   Executor
	Meter  Meter
	// SSD measures the node's SSD alone; nil leaves that out.
	SSD   SSDMeter
	Now   func() time.Time
	After func(time.Duration) <-chan time.Time
	// Say tells a person how far it is.
	Say func(format string, args ...any)

	plan   *Plan
	report *Report
	// blind is true once nodes turned out not to say what they count.
	blind bool
}

// Run measures everything of a plan. The report is that of what was measured, also with an error. It
// deletes nothing at the end: that is a Cleaner's, however the run ended; but what is not needed any
// more is deleted on the way.
func (r *Runner) Run(ctx context.Context, p *Plan) (*Report, error) {
	r.plan, r.blind = p, false
	r.report = &Report{Version: reportVersion, Run: p.Run, Began: r.Now().UTC().Truncate(time.Second), Node: p.Node, Image: p.Image, Rows: []Row{}}
	if p.Subjects[0].Claim == "" {
		r.report.VolumeSize = p.Size.String()
	}
	var err error
	for _, s := range p.Subjects {
		if err = r.subject(ctx, s); err != nil {
			err = fmt.Errorf("%s: %w", s.Name, err)
			break
		}
	}
	if err == nil {
		err = r.ssd(ctx)
	}
	r.report.Seconds = r.Now().Sub(r.report.Began).Seconds()
	return r.report, err
}

// note adds a note to the report, once.
func (r *Runner) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	for _, n := range r.report.Notes {
		if n == text {
			return
		}
	}
	r.report.Notes = append(r.report.Notes, text)
}

// subject measures everything on one volume.
func (r *Runner) subject(ctx context.Context, s Subject) error {
	r.Say("%s: a volume is made on node %s", s.Name, r.plan.Node)
	v, err := r.make(ctx, s)
	if err != nil {
		return err
	}
	measure := r.profiles
	if r.plan.Database != nil {
		measure = r.database
	}
	if err := measure(ctx, v); err != nil {
		return err
	}
	if r.plan.Keep {
		return nil
	}
	r.Say("%s: the volume is deleted", s.Name)
	return r.drop(ctx, v)
}

// profiles measures fio's profiles on a volume.
func (r *Runner) profiles(ctx context.Context, v *volume) error {
	if v.Claim == "" {
		r.Say("%s: %s are written once", v.Name, r.plan.Size.String())
		if _, err := r.fio(ctx, v, fill, Task{}); err != nil {
			return fmt.Errorf("fill the volume: %w", err)
		}
	}
	if !v.cached() {
		if err := r.link(ctx, v); err != nil {
			return err
		}
	}
	for _, p := range r.plan.Profiles {
		row, err := r.row(ctx, v, p)
		if err != nil {
			return fmt.Errorf("profile %s: %w", p.Name, err)
		}
		r.report.Rows = append(r.report.Rows, *row)
	}
	if v.cached() && r.plan.Other != "" {
		return r.moves(ctx, v, r.plan.Profiles[0])
	}
	return nil
}

// link measures what the way to the origin carries, by a volume without a cache.
func (r *Runner) link(ctx context.Context, v *volume) error {
	var l Link
	for _, m := range []struct {
		profile Profile
		rate    *float64
	}{{sequential, &l.SequentialBytesPerSecond}, {wide, &l.RandomBytesPerSecond}} {
		r.Say("%s: %s", v.Name, m.profile.Name)
		load, err := r.fio(ctx, v, m.profile, Task{Time: linkTime})
		if err != nil {
			return fmt.Errorf("%s: %w", m.profile.Name, err)
		}
		*m.rate = load.BytesPerSecond
	}
	r.report.Link = &l
	return nil
}

// row warms a volume for a profile and measures it.
func (r *Runner) row(ctx context.Context, v *volume, p Profile) (*Row, error) {
	row := &Row{Volume: v.Name, Mode: string(v.Mode), Profile: p.Name, Depth: r.depth(p)}
	began := r.Now()
	if v.cached() {
		var err error
		if row.WarmUp, row.Series, err = r.warmUp(ctx, v, p.Name, r.window(v, p)); err != nil {
			return nil, err
		}
	}
	if row.Depth > 1 {
		r.Say("%s, %s: measuring one request at a time", v.Name, p.Name)
		alone, counted, err := r.measured(ctx, v, p, Task{Time: max(minAlone, time.Duration(aloneShare*float64(r.plan.Runtime))), Depth: 1}, nil)
		if err != nil {
			return nil, err
		}
		row.Alone, row.AloneCounted = &alone, counted
	}
	r.Say("%s, %s: measuring for %s", v.Name, p.Name, r.plan.Runtime)
	var err error
	row.Load, row.Counted, err = r.measured(ctx, v, p, Task{Time: r.plan.Runtime, Depth: r.plan.Depth}, &watch{began: began, series: &row.Series})
	if err != nil {
		return nil, err
	}
	e := Evidence{Depth: row.Depth, Deep: row.Load, AloneCounted: row.AloneCounted, DeepCounted: row.Counted, Cached: v.cached(), Link: r.report.Link}
	if row.Alone != nil {
		e.Alone = *row.Alone
	}
	row.Verdict = Judge(e)
	r.Say("%s, %s: %.0f requests/s, p99 %s: %s", v.Name, p.Name, row.Load.IOPS, Text(row.Load.Latency.P99Micros), row.Verdict.Limit)
	return row, nil
}

// depth is how many requests a profile has under way, 0 if only its job file knows.
func (r *Runner) depth(p Profile) int {
	if p.sections == nil && r.plan.Depth > 0 {
		return r.plan.Depth
	}
	return p.Depth
}

// window is a round of reading by fio.
func (r *Runner) window(v *volume, p Profile) func(context.Context) (Load, error) {
	return func(ctx context.Context) (Load, error) {
		return r.fio(ctx, v, p, Task{Time: warmWindow, Depth: r.plan.Depth})
	}
}

// warmUp has a volume be used, window by window, until its hit rate is flat, or the time is up.
func (r *Runner) warmUp(ctx context.Context, v *volume, name string, use func(context.Context) (Load, error)) (*WarmUp, []Point, error) {
	r.Say("%s, %s: warming, for %s at most", v.Name, name, r.plan.WarmLimit)
	began, w := r.Now(), &WarmUp{}
	var series []Point
	before, known := r.settled(ctx, v)
	for {
		load, err := use(ctx)
		if err != nil {
			return nil, nil, fmt.Errorf("warm: %w", err)
		}
		now, alsoKnown := r.settled(ctx, v)
		window := windowOf(before, now, known && alsoKnown)
		window.IOPS, window.Seconds = load.IOPS, r.Now().Sub(began).Seconds()
		before, known = now, alsoKnown
		w.Windows = append(w.Windows, window)
		series = append(series, Point{Seconds: window.Seconds, HitPercent: window.HitPercent, IOPS: &load.IOPS, MeanMicros: &load.Latency.MeanMicros})
		state := warmth(w.Windows)
		w.Flat, w.By, w.Seconds = state.Flat, state.By, window.Seconds
		if w.Flat {
			break
		}
		if r.Now().Sub(began) >= r.plan.WarmLimit {
			r.note("%s, %s: the hit rate was not flat after %s of warming (%s): --warm-limit gives it longer", v.Name, name, r.plan.WarmLimit, w.By)
			break
		}
	}
	r.Say("%s, %s: warming took %s; hit rate %s", v.Name, name, w.text(), percent(w.Windows[len(w.Windows)-1].HitPercent))
	return w, series, nil
}

// windowOf is what a node says of a window of warming.
func windowOf(from, to Sample, known bool) Window {
	var w Window
	if !known {
		return w
	}
	if c := to.Cache; c.UsedBytes != nil && c.SizeBytes != nil {
		w.UsedBytes, w.SizeBytes = *c.UsedBytes, *c.SizeBytes
	}
	c := between(from, to)
	switch {
	case c != nil && c.ReadHitPercent != nil:
		w.HitPercent = c.ReadHitPercent
	case c != nil:
		w.HitPercent = c.WriteHitPercent
	case to.Cache.HitRate.ReadPercent != nil:
		p := float64(*to.Cache.HitRate.ReadPercent)
		w.HitPercent = &p
	}
	return w
}

// watch is where the points of a run go.
type watch struct {
	began  time.Time
	series *[]Point
}

// measured runs a task and compares what the node has counted before and after it. While it runs, the
// node is asked again and again if there is a watch.
func (r *Runner) measured(ctx context.Context, v *volume, p Profile, t Task, w *watch) (Load, *Counted, error) {
	before, known := r.settled(ctx, v)
	type result struct {
		load Load
		err  error
	}
	done := make(chan result, 1)
	go func() {
		load, err := r.fio(ctx, v, p, t)
		done <- result{load, err}
	}()
	last, ended := before, result{}
	for waiting := true; waiting; {
		var tick <-chan time.Time
		if w != nil && known && !r.blind {
			tick = r.After(sampleEvery)
		}
		select {
		case ended = <-done:
			waiting = false
		case <-tick:
			if now, ok := r.sample(ctx, v); ok {
				w.add(last, now)
				last = now
			}
		}
	}
	after, alsoKnown := r.settled(ctx, v)
	if ended.err != nil {
		return Load{}, nil, ended.err
	}
	if !known || !alsoKnown {
		return ended.load, nil, nil
	}
	return ended.load, between(before, after), nil
}

// add adds a point of what was done between two samples.
func (w *watch) add(from, to Sample) {
	c, apart := between(from, to), to.Time.Sub(from.Time).Seconds()
	if c == nil || apart <= 0 || c.Volume == nil {
		return
	}
	iops := float64(c.Volume.Operations) / apart
	*w.series = append(*w.series, Point{Seconds: to.at.Sub(w.began).Seconds(), HitPercent: c.ReadHitPercent, IOPS: &iops, MeanMicros: &c.Volume.MeanMicros})
}

// sample asks the volume's node; known is false if it does not say. A run goes on without.
func (r *Runner) sample(ctx context.Context, v *volume) (s Sample, known bool) {
	if r.blind || v.handle == "" {
		return Sample{}, false
	}
	s, err := r.Meter.Measure(ctx, v.node, v.handle)
	s.at = r.Now()
	switch {
	case errors.Is(err, ErrNoMeter):
		r.blind = true
		r.note("Hit rates, and what SSD and origin took, are not known: %s.", err)
		return Sample{}, false
	case err != nil:
		if ctx.Err() == nil {
			r.note("Node %s did not always say what it counts: %s.", v.node, err)
		}
		return Sample{}, false
	case s.Totals == nil:
		r.note("The node plugin of %s is of a version that does not say what it counts; hit rates are those of the last five minutes.", v.node)
	}
	return s, true
}

// settled samples a volume that nobody uses now.
func (r *Runner) settled(ctx context.Context, v *volume) (s Sample, known bool) {
	if r.blind || v.handle == "" {
		return Sample{}, false
	}
	select {
	case <-ctx.Done():
		return Sample{}, false
	case <-r.After(settle):
	}
	return r.sample(ctx, v)
}

// script runs fio with a job file on standard input, between two looks at the node's processors.
const script = `read -r line </proc/stat; echo "$line"
fio %s--output-format=json+ - || exit
read -r line </proc/stat; echo "$line"`

// fio runs a profile in the pod of a volume.
func (r *Runner) fio(ctx context.Context, v *volume, p Profile, t Task) (Load, error) {
	t.Path, t.ReadOnly = v.path(), v.Claim != ""
	limit := fillLimit
	if t.Time > 0 {
		limit = t.Time + overtime
	}
	timed, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	flags := ""
	if t.ReadOnly {
		flags = "--readonly "
	}
	stdout, stderr := bounded{most: maxOutput}, bounded{most: maxReason}
	err := r.Exec.Run(timed, podexec.Command{
		Namespace: r.plan.Namespace, Pod: v.pod, Container: "fio", Args: []string{"sh", "-c", fmt.Sprintf(script, flags)},
		Stdin: strings.NewReader(p.JobFile(t)), Stdout: &stdout, Stderr: &stderr,
	})
	var exit exec.CodeExitError
	switch {
	case errors.As(err, &exit) && exit.Code == notFound:
		return Load{}, fmt.Errorf("the image %s has no fio (%s): name one that has with --image: %w", r.plan.Image, strings.TrimSpace(stderr.String()), err)
	case err != nil && ctx.Err() != nil:
		return Load{}, ctx.Err()
	case err != nil && timed.Err() != nil:
		return Load{}, fmt.Errorf("fio has not ended within %s: %w", limit, err)
	case err != nil:
		return Load{}, fmt.Errorf("fio: %s: %w", strings.TrimSpace(stderr.String()), err)
	}
	return parseLoad(stdout.Bytes())
}

// notFound is how a shell ends that does not find a program.
const notFound = 127

// bounded keeps the beginning of an output.
type bounded struct {
	bytes.Buffer
	most int
}

// Write implements io.Writer. It takes everything: a program that cannot write ends otherwise.
func (b *bounded) Write(p []byte) (int, error) {
	b.Buffer.Write(p[:min(max(0, b.most-b.Len()), len(p))])
	return len(p), nil
}

// podProblem says in a few words why a pod does not run.
func podProblem(p *corev1.Pod) string {
	parts := []string{"pod " + p.Name + " is " + string(p.Status.Phase)}
	for _, c := range p.Status.Conditions {
		// Two of them often say the same.
		if c.Status != corev1.ConditionTrue && c.Message != "" && !slices.Contains(parts, c.Message) {
			parts = append(parts, c.Message)
		}
	}
	for _, c := range p.Status.ContainerStatuses {
		if c.State.Waiting != nil {
			parts = append(parts, strings.TrimSpace(c.State.Waiting.Reason+" "+c.State.Waiting.Message))
		}
		if c.State.Terminated != nil && c.State.Terminated.Message != "" {
			parts = append(parts, strings.Join(strings.Fields(c.State.Terminated.Message), " "))
		}
	}
	return strings.Join(parts, "; ")
}
