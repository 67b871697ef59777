package bench

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ErrPgbench is wrapped by the error of an output that is no log of pgbench.
var ErrPgbench = errors.New("not the log of pgbench")

// transaction is one that was committed.
type transaction struct {
	// end is in seconds from the moment that everything of a measurement is counted from.
	end float64
	// micros is how long it took.
	micros int64
}

// transactionLog takes the output of Database.load: a line when pgbench begins, one for each
// transaction (pgbench, "Per-Transaction Logging"), and one at the end. It is safe for concurrent use.
type transactionLog struct {
	now func() time.Time
	// from is the moment that seconds are counted from.
	from time.Time

	mu sync.Mutex
	// rest is a line that has not come whole.
	rest  []byte
	begun time.Time
	// first is when the first transaction began, in microseconds of the node's clock. It is taken for
	// the moment when the line of the beginning came: nodes' clocks may differ.
	first        int64
	transactions []transaction
	// ended is pgbench's exit status.
	ended *int
}

// Write implements io.Writer.
func (l *transactionLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, p...)
	for {
		line, rest, whole := bytes.Cut(l.rest, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		l.rest = rest
		l.line(string(line))
	}
}

// line takes a line. What pgbench says beside the transactions is skipped, and so are those that
// failed, whose time is a word.
func (l *transactionLog) line(text string) {
	fields := strings.Fields(text)
	switch {
	case text == "begin":
		l.begun = l.now()
		return
	case len(fields) == 2 && fields[0] == "end":
		if status, err := strconv.Atoi(fields[1]); err == nil {
			l.ended = &status
		}
		return
	case len(fields) < 6:
		return
	}
	// client, number of its transaction, microseconds, script, and when it ended: seconds, microseconds.
	var n [6]int64
	for i := range n {
		var err error
		if n[i], err = strconv.ParseInt(fields[i], 10, 64); err != nil {
			return
		}
	}
	end := n[4]*1_000_000 + n[5]
	if len(l.transactions) == 0 {
		l.first = end - n[2]
	}
	at := l.begun.Sub(l.from).Seconds() + float64(end-l.first)/1e6
	l.transactions = append(l.transactions, transaction{end: at, micros: n[2]})
}

// all returns the transactions until now.
func (l *transactionLog) all() []transaction {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]transaction(nil), l.transactions...)
}

// start is when pgbench began, in seconds.
func (l *transactionLog) start() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.begun.Sub(l.from).Seconds()
}

// check returns an error unless pgbench came to its own end.
func (l *transactionLog) check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.ended == nil:
		return fmt.Errorf("%w: it has no end", ErrPgbench)
	case *l.ended != 0:
		return fmt.Errorf("pgbench ended with status %d", *l.ended)
	case len(l.transactions) == 0:
		return fmt.Errorf("%w: it has no transaction", ErrPgbench)
	}
	return nil
}

// Phase is a part of the time in which a database was measured.
type Phase struct {
	Name string `json:"name"`
	// From and To are in seconds of the series.
	From float64 `json:"from"`
	To   float64 `json:"to"`
	// Transactions were committed in it, TPS of them a second of all its time.
	Transactions int     `json:"transactions"`
	TPS          float64 `json:"tps"`
	// Latency is of these transactions; absent if there were none. How long clients waited for a
	// database that was away is not in it.
	Latency *Latency `json:"latency,omitempty"`
	// HitPercent is of the reads of the volume; absent if it is not known.
	HitPercent *float64 `json:"hitPercent,omitempty"`
}

// phaseOf is what of transactions ended from one moment to another.
func phaseOf(name string, transactions []transaction, from, to float64) Phase {
	p, h := Phase{Name: name, From: from, To: to}, histogram{}
	for _, t := range transactions {
		if t.end >= from && t.end < to {
			p.Transactions++
			h[1000*t.micros]++
		}
	}
	if to > from {
		p.TPS = float64(p.Transactions) / (to - from)
	}
	if p.Transactions > 0 {
		l := h.latency()
		p.Latency = &l
	}
	return p
}

// Second is one of a series of transactions.
type Second struct {
	// Seconds is its beginning.
	Seconds float64 `json:"seconds"`
	TPS     float64 `json:"tps"`
	// P99Micros is absent if nothing was committed in it.
	P99Micros *float64 `json:"p99Micros,omitempty"`
}

// secondsOf are all whole seconds from one moment to another, those without a transaction too.
func secondsOf(transactions []transaction, from, to float64) []Second {
	var out []Second
	if to <= from {
		return out
	}
	seconds := make([]histogram, int(to-from))
	for _, t := range transactions {
		if i := int(t.end - from); t.end >= from && i < len(seconds) {
			if seconds[i] == nil {
				seconds[i] = histogram{}
			}
			seconds[i][1000*t.micros]++
		}
	}
	for i, h := range seconds {
		s := Second{Seconds: from + float64(i), TPS: float64(h.total())}
		if len(h) > 0 {
			p99 := h.latency().P99Micros
			s.P99Micros = &p99
		}
		out = append(out, s)
	}
	return out
}

// longestGap is the longest time in which nothing was committed.
func longestGap(transactions []transaction) float64 {
	gap := 0.0
	for i := 1; i < len(transactions); i++ {
		gap = max(gap, transactions[i].end-transactions[i-1].end)
	}
	return gap
}
