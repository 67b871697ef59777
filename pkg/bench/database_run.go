package bench

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/nearflash/nearflash/pkg/podexec"
)

const (
	// settleLoad is how long a database works before it is measured whose volume has no cache to warm:
	// its memory begins empty.
	settleLoad = 15 * time.Second
	// firstTime after a move belongs to the move: the database reads what it needs into its memory.
	firstTime = 20 * time.Second
	// throughMove is longer than the end of a pod takes, which ends pgbench too; goneLimit is the most
	// that pgbench takes to notice that its database is gone.
	throughMove, goneLimit = time.Hour, 30 * time.Second
)

// database makes a database on a volume, measures it, and moves it.
func (r *Runner) database(ctx context.Context, v *volume) error {
	d := r.plan.Database
	row := DatabaseRow{Volume: v.Name, Mode: string(v.Mode), Clients: d.Clients, Scale: d.Scale, MemoryBytes: d.Memory.Value()}
	r.Say("%s: %d accounts are made", v.Name, 100_000*d.Scale)
	if err := r.inDatabase(ctx, v, d.prepare(), fillLimit, io.Discard); err != nil {
		return fmt.Errorf("fill the database: %w", err)
	}
	if err := r.warmDatabase(ctx, v, &row); err != nil {
		return err
	}
	r.Say("%s: measuring for %s", v.Name, r.plan.Runtime)
	before, known := r.settled(ctx, v)
	began := r.Now()
	log := &transactionLog{now: r.Now, from: began}
	if err := r.pgbench(ctx, v, log, r.plan.Runtime); err != nil {
		return err
	}
	after, alsoKnown := r.settled(ctx, v)
	row.Measured = phaseOf("measured", log.all(), log.start(), log.start()+r.plan.Runtime.Seconds())
	row.Measured.HitPercent = readHits(v, before, after, known && alsoKnown)
	r.Say("%s: %s", v.Name, row.Measured.text())
	r.report.Databases = append(r.report.Databases, row)
	if !v.cached() || r.plan.Other == "" {
		return nil
	}
	return r.databaseMoves(ctx, v, &r.report.Databases[len(r.report.Databases)-1])
}

// warmDatabase has a database work until its cache is warm, or for a moment if it has none.
func (r *Runner) warmDatabase(ctx context.Context, v *volume, row *DatabaseRow) error {
	if !v.cached() {
		return r.pgbench(ctx, v, &transactionLog{now: r.Now, from: r.Now()}, settleLoad)
	}
	warm, series, err := r.warmUp(ctx, v, ProfilePostgres, func(ctx context.Context) (Load, error) {
		log := &transactionLog{now: r.Now, from: r.Now()}
		if err := r.pgbench(ctx, v, log, warmWindow); err != nil {
			return Load{}, err
		}
		p := phaseOf("", log.all(), log.start(), log.start()+warmWindow.Seconds())
		if p.Latency == nil {
			return Load{}, nil
		}
		return Load{IOPS: p.TPS, Latency: *p.Latency}, nil
	})
	row.WarmUp, row.Series = warm, series
	return err
}

// databaseMoves moves a warm database to the other node with its cache, warms it there, and moves it
// back without.
func (r *Runner) databaseMoves(ctx context.Context, v *volume, row *DatabaseRow) error {
	if v.handle == "" {
		r.note("%s: not moved: its name on the nodes is not known.", v.Name)
		return nil
	}
	if err := r.databaseMove(ctx, v, row, r.plan.Other, true); err != nil {
		return fmt.Errorf("move with the cache: %w", err)
	}
	if err := r.warmDatabase(ctx, v, &DatabaseRow{}); err != nil {
		return err
	}
	if err := r.forget(ctx, v); err != nil {
		return err
	}
	if err := r.databaseMove(ctx, v, row, r.plan.Node, false); err != nil {
		return fmt.Errorf("move without the cache: %w", err)
	}
	return nil
}

// databaseMove moves a database while pgbench uses it: its pod is deleted, and made on the other node.
func (r *Runner) databaseMove(ctx context.Context, v *volume, row *DatabaseRow, to string, warm bool) error {
	m := DatabaseMove{Warm: warm, From: v.node, To: to}
	began := r.Now()
	since := func() float64 { return r.Now().Sub(began).Seconds() }
	r.Say("%s: moving from %s to %s", v.Name, m.From, to)
	before, hits, err := r.untilMoved(ctx, v, began, &m)
	if err != nil {
		return err
	}
	if err := r.start(ctx, v, to); err != nil {
		return err
	}
	m.AwayTo = since()
	m.AwaySeconds = m.AwayTo - m.AwayFrom
	after, firstHits, lastHits, err := r.afterMove(ctx, v, began)
	if err != nil {
		return err
	}
	all := append(before.all(), after.all()...)
	first := after.start() + firstTime.Seconds()
	end := first + r.plan.Runtime.Seconds()
	m.Phases = []Phase{
		phaseOf("before", all, before.start(), m.AwayFrom), phaseOf("during", all, m.AwayFrom, first), phaseOf("after", all, first, end),
	}
	for i, h := range []*float64{hits, firstHits, lastHits} {
		m.Phases[i].HitPercent = h
	}
	m.GapSeconds, m.Series = longestGap(all), secondsOf(all, before.start(), end)
	if warm {
		if m.Method, err = r.method(ctx, v); err != nil {
			return err
		}
	}
	row.Moves = append(row.Moves, m)
	r.Say("%s", row.moveText(m))
	return nil
}

// untilMoved has pgbench work for the runtime, and ends the pod below it.
func (r *Runner) untilMoved(ctx context.Context, v *volume, began time.Time, m *DatabaseMove) (*transactionLog, *float64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	log, ended := &transactionLog{now: r.Now, from: began}, make(chan error, 1)
	from, known := r.sample(ctx, v)
	go func() { ended <- r.pgbench(ctx, v, log, r.plan.Runtime+throughMove) }()
	select {
	case err := <-ended:
		return nil, nil, fmt.Errorf("pgbench ended before the move: %w", orEarly(err))
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	case <-r.After(r.plan.Runtime):
	}
	to, alsoKnown := r.sample(ctx, v)
	m.AwayFrom = r.Now().Sub(began).Seconds()
	if err := r.stop(ctx, v); err != nil {
		return nil, nil, err
	}
	// It fails, as its database is gone; a connection that nobody ended would hold it.
	select {
	case <-ended:
	case <-r.After(goneLimit):
		cancel()
		<-ended
	}
	if len(log.all()) == 0 {
		return nil, nil, fmt.Errorf("%w: nothing was committed before the move", ErrPgbench)
	}
	return log, readHits(v, from, to, known && alsoKnown), nil
}

// afterMove has pgbench work on the new node, and tells the hits of its first time from the others.
func (r *Runner) afterMove(ctx context.Context, v *volume, began time.Time) (log *transactionLog, first, then *float64, err error) {
	log = &transactionLog{now: r.Now, from: began}
	ended := make(chan error, 1)
	from, known := r.sample(ctx, v)
	go func() { ended <- r.pgbench(ctx, v, log, firstTime+r.plan.Runtime) }()
	select {
	case err := <-ended:
		return nil, nil, nil, fmt.Errorf("pgbench after the move: %w", orEarly(err))
	case <-r.After(firstTime):
	}
	middle, alsoKnown := r.sample(ctx, v)
	if err := <-ended; err != nil {
		return nil, nil, nil, fmt.Errorf("pgbench after the move: %w", err)
	}
	to, stillKnown := r.settled(ctx, v)
	return log, readHits(v, from, middle, known && alsoKnown), readHits(v, middle, to, alsoKnown && stillKnown), nil
}

// orEarly is an error, or one that says that pgbench had none, and more to do.
func orEarly(err error) error {
	if err == nil {
		return fmt.Errorf("%w: it ended early", ErrPgbench)
	}
	return err
}

// readHits is the hit rate of reads between two samples of a volume with a cache, if they are known.
func readHits(v *volume, from, to Sample, known bool) *float64 {
	if !known || !v.cached() {
		return nil
	}
	if c := between(from, to); c != nil {
		return c.ReadHitPercent
	}
	return nil
}

// pgbench runs it in the pod of a volume, and returns what it said.
func (r *Runner) pgbench(ctx context.Context, v *volume, log *transactionLog, long time.Duration) error {
	if err := r.inDatabase(ctx, v, r.plan.Database.load(int(long.Seconds())), long+overtime, log); err != nil {
		return err
	}
	return log.check()
}

// inDatabase runs a script in the pod of a database.
func (r *Runner) inDatabase(ctx context.Context, v *volume, script string, limit time.Duration, stdout io.Writer) error {
	timed, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	stderr := bounded{most: maxReason}
	err := r.Exec.Run(timed, podexec.Command{
		Namespace: r.plan.Namespace, Pod: v.pod, Container: serverName, Args: []string{"sh", "-c", script}, Stdout: stdout, Stderr: &stderr,
	})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case timed.Err() != nil:
		return fmt.Errorf("pgbench has not ended within %s: %w", limit, err)
	}
	return fmt.Errorf("pgbench: %s: %w", strings.TrimSpace(stderr.String()), err)
}
