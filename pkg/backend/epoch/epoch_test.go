package epoch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/backend/backendtest"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	namespace = "nearflash"
	server    = "test" // backendtest's
	initiator = "iqn.1993-08.org.debian:01:a"
)

var errKilled = errors.New("killed")

func TestDecide(t *testing.T) {
	consent := &Takeover{Epoch: "other"}
	for name, tc := range map[string]struct {
		server string
		record Record
		drawn  bool
		want   step
	}{
		"nothing is known anywhere":                {want: stepDraw},
		"the server has lost its epoch":            {record: Record{Current: "a"}, want: stepDraw},
		"a new leader":                             {server: "a", record: Record{Current: "a"}, want: stepDraw},
		"killed between intent and swap":           {server: "a", record: Record{Current: "a", Pending: "b"}, want: stepSwap},
		"the same, on a server without an epoch":   {record: Record{Pending: "b"}, want: stepSwap},
		"killed after the swap, or answer lost":    {server: "b", record: Record{Current: "a", Pending: "b"}, want: stepConfirm},
		"the same, own epoch":                      {server: "b", record: Record{Current: "a", Pending: "b"}, drawn: true, want: stepConfirm},
		"own epoch is about to be put there":       {server: "a", record: Record{Current: "a", Pending: "b"}, drawn: true, want: stepSwap},
		"own epoch was there":                      {server: "b", record: Record{Current: "b"}, drawn: true, want: stepDone},
		"another cluster":                          {server: "other", record: Record{Current: "a"}, want: stepRefused},
		"another cluster, in the middle of a swap": {server: "other", record: Record{Current: "a", Pending: "b"}, drawn: true, want: stepRefused},
		"another cluster, and nothing is recorded": {server: "other", want: stepRefused},
		"an administrator's word":                  {server: "other", record: Record{Current: "a", Takeover: consent}, want: stepDraw},
		"the same, drawn":                          {server: "other", record: Record{Current: "a", Pending: "b", Takeover: consent}, want: stepSwap},
		"the word was about another epoch":         {server: "third", record: Record{Current: "a", Takeover: consent}, want: stepRefused},
	} {
		t.Run(name, func(t *testing.T) {
			if got := decide(tc.server, tc.record, tc.drawn); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

// TestOneCluster: controllers of one cluster, one after the other and beside each other,
// are never refused, however often they swap.
func TestOneCluster(t *testing.T) {
	c := newCluster(newStorage(t))
	first, second := c.controller(), c.controller()
	seen := []string{}
	for range 3 {
		for _, k := range []*Keeper{first, second, c.controller()} {
			wantOrders(t, "a controller", k, false)
			if err := k.Swap(t.Context()); err != nil {
				t.Fatal(err)
			}
			r := c.record(t)
			if r.Current == "" || r.Pending != "" || slices.Contains(seen, r.Current) {
				t.Fatalf("record %+v after %v, want another epoch", r, seen)
			}
			seen = append(seen, r.Current)
			wantOrders(t, "first", first, false)
			wantOrders(t, "second", second, false)
		}
	}
}

// TestKillAnywhere ends the process before and after each write of a swap. Neither the
// next one nor one that has been running all the time is ever refused.
func TestKillAnywhere(t *testing.T) {
	for _, first := range []bool{true, false} { // the cluster's first epoch, and a later one
		stop := 1
		for ; ; stop++ {
			c := newCluster(newStorage(t))
			running := c.controller()
			if !first {
				wantOrders(t, "before", running, false)
			}
			end := c.steps(t, func(n int) error {
				if n >= stop {
					return errKilled
				}
				return nil
			})
			err := c.controller().Swap(t.Context())
			end()
			what := fmt.Sprintf("first %v, stopped at %d", first, stop)
			if err != nil && !errors.Is(err, errKilled) {
				t.Fatalf("%s: %v", what, err)
			}
			wantOrders(t, what+": running", running, false)
			next := c.controller()
			wantOrders(t, what+": next", next, false)
			wantOrders(t, what+": running", running, false)
			if r := c.record(t); r.Pending != "" || r.Refused != nil {
				t.Errorf("%s: record %+v", what, r)
			}
			if err == nil {
				break
			}
		}
		if stop != 7 {
			t.Errorf("a swap has %d points, want 6: before and after intent, swap and confirmation", stop-1)
		}
	}
}

// TestStalled lets a controller stall before and after each write of a swap, while
// another one of the cluster swaps: begins, or goes on with what the first has recorded.
// However far that one comes, the first goes on from there, and nobody is refused.
func TestStalled(t *testing.T) {
	for point := 1; point <= 6; point++ {
		for far := 1; far <= 10; far++ {
			c := newCluster(newStorage(t))
			stalled, other := c.controller(), c.controller()
			wantOrders(t, "before", stalled, false)
			c.steps(t, func(n int) error {
				if n != point {
					return nil
				}
				end := c.steps(t, func(n int) error {
					if n >= far {
						return errKilled
					}
					return nil
				})
				err := other.Swap(t.Context())
				end()
				if err != nil && !errors.Is(err, errKilled) {
					t.Errorf("point %d, far %d: the other: %v", point, far, err)
				}
				return nil
			})
			err := stalled.Swap(t.Context())
			c.step, c.storage.Step = nil, nil
			what := fmt.Sprintf("point %d, far %d", point, far)
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
			for _, k := range []*Keeper{stalled, other, c.controller()} {
				wantOrders(t, what, k, false)
			}
		}
	}
}

// TestTwoClusters makes a second cluster from a copy of etcd at each point of a swap of
// the first. Whoever swaps next, and in whatever order: exactly one goes on in the end,
// and the other one changes nothing from then on.
func TestTwoClusters(t *testing.T) {
	for point := 1; point <= 7; point++ {
		for _, copyFirst := range []bool{false, true} {
			t.Run(fmt.Sprintf("copied at %d, copy starts first %v", point, copyFirst), func(t *testing.T) {
				one := newCluster(newStorage(t))
				a := one.controller()
				wantOrders(t, "alone", a, false)
				var two *cluster
				end := one.steps(t, func(n int) error {
					if n == point {
						two = one.copied(t)
					}
					return nil
				})
				if err := a.Swap(t.Context()); err != nil {
					t.Fatal(err)
				}
				end()
				if two == nil {
					two = one.copied(t)
				}
				b := two.controller()
				pair := []*Keeper{a, b}
				if copyFirst {
					slices.Reverse(pair)
				}
				winner := pair[0]
				if err := winner.Swap(t.Context()); err != nil { // the copy was of before
					winner = pair[1]
				}
				if err := winner.Swap(t.Context()); err != nil {
					t.Fatalf("both are refused: %v", err)
				}
				loser, of := a, one
				if winner == a {
					loser, of = b, two
				}
				wantOrders(t, "winner", winner, false)
				wantOrders(t, "loser", loser, true)
				wantOrders(t, "loser, restarted", of.controller(), true)
				if err := winner.Swap(t.Context()); err != nil {
					t.Fatal(err)
				}
				wantOrders(t, "winner, later", winner, false)
				wantOrders(t, "loser, later", loser, true)
			})
		}
	}
}

// TestSetBack: etcd is set back below a controller that runs. It is refused at its next
// order, and so are its successors, until an administrator says that the server is this
// cluster's.
func TestSetBack(t *testing.T) {
	for _, empty := range []bool{false, true} {
		c := newCluster(newStorage(t))
		k := c.controller()
		wantOrders(t, "before", k, false)
		backup := c.object(t)
		if empty {
			backup = nil
		}
		if err := k.Swap(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.setBack(t, backup)
		wantOrders(t, "running", k, true)
		wantOrders(t, "restarted", c.controller(), true)
		r := c.record(t)
		if r.Refused == nil || r.Refused.Since.Unix() != 1e9 {
			t.Fatalf("record %+v, want it to say since when it is refused", r)
		}
		if got := <-c.events.Events; !strings.Contains(got, "Warning "+ReasonRefused) || len(c.events.Events) > 0 {
			t.Errorf("event %q, and %d more", got, len(c.events.Events))
		}
		wantTakenOver(t, k, "")
		before := backend.WithTakeover(t.Context(), "")
		c.consent(t)
		wantTakenOver(t, k, r.Refused.Epoch) // before any order under it
		wantOrders(t, "with consent", k, false)
		wantOrders(t, "restarted with consent", c.controller(), false)
		if err := k.Swap(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantTakenOver(t, c.controller(), r.Refused.Epoch)
		if err := k.Unexport(before, "v", backend.Export{Initiator: "iqn.2026-11.org.example:a"}); !errors.Is(err, volume.ErrBusy) {
			t.Errorf("an order that was decided before the takeover: %v, want ErrBusy", err)
		}
		if err := k.Unexport(backend.WithTakeover(t.Context(), r.Refused.Epoch), "v", backend.Export{Initiator: "iqn.2026-11.org.example:a"}); err != nil {
			t.Errorf("an order that was decided since: %v", err)
		}
		if r := c.record(t); r.Refused != nil || r.Takeover != nil || r.Pending != "" {
			t.Errorf("record %+v after the takeover", r)
		}
	}
}

func wantTakenOver(t *testing.T, k *Keeper, want string) {
	t.Helper()
	if got, err := k.TakenOver(t.Context()); err != nil || got != want {
		t.Errorf("the last takeover is %q, %v, want %q", got, err, want)
	}
}

// TestConsentIsForOneEpoch: the word is about the epoch that was met. If the other
// cluster goes on meanwhile, it has to be said again.
func TestConsentIsForOneEpoch(t *testing.T) {
	one := newCluster(newStorage(t))
	a := one.controller()
	wantOrders(t, "first", a, false)
	two := one.copied(t)
	b := two.controller()
	wantOrders(t, "second", b, false)
	wantOrders(t, "first, refused", a, true)
	one.consent(t)
	if err := b.Swap(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantOrders(t, "first, consent is of before", a, true)
	if r := one.record(t); r.Takeover != nil || r.Refused.Epoch != two.record(t).Current {
		t.Errorf("record %+v, want the consent gone and the new epoch noted", r)
	}
	wantOrders(t, "second", b, false)
	one.consent(t)
	wantOrders(t, "first, with consent", a, false)
	wantOrders(t, "second, refused", b, true)
}

// old is a server of a version that knows no epochs.
type old struct{ backendtest.Store }

func (old) Epoch(context.Context) (backend.Epoch, error) {
	return backend.Epoch{}, backend.ErrNoEpochs
}

// TestOldServer: it is used as before; once it is upgraded, the next order brings an
// epoch.
func TestOldServer(t *testing.T) {
	c := newCluster(newStorage(t))
	k := c.controller()
	k.Backend = old{c.storage}
	for i, err := range orders(t.Context(), k) {
		if err != nil {
			t.Errorf("order %d: %v", i, err)
		}
	}
	if c.object(t) != nil {
		t.Error("an epoch was recorded")
	}
	k.Backend = c.storage
	wantOrders(t, "upgraded", k, false)
	if e, err := c.storage.Epoch(t.Context()); err != nil || e.Value == "" || e.Value != c.record(t).Current {
		t.Errorf("epoch %+v, %v; record %+v", e, err, c.record(t))
	}
	// A server that lost its directory begins anew, without anybody's word.
	other := newStorage(t)
	k.Backend = other
	wantOrders(t, "new directory", k, false)
	if err := k.Swap(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantOrders(t, "new directory, swapped", k, false)
}

// TestLeader: who leads swaps at once, every ten minutes, and when the record is not as
// he left it; a consent is soon seen.
func TestLeader(t *testing.T) {
	c := newCluster(newStorage(t))
	k := c.controller()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.Start(ctx) }()
	// until steps the clock by one look at a time.
	until := func(what string, is func(Record) bool) (looks int) {
		t.Helper()
		for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(time.Millisecond) {
			if !c.clock.HasWaiters() {
				continue
			}
			if is(c.record(t)) {
				return looks
			}
			c.clock.Step(pollInterval)
			looks++
		}
		t.Fatalf("%s: record %+v", what, c.record(t))
		return 0
	}
	until("first swap", func(r Record) bool { return r.Current != "" && r.Pending == "" })
	first := c.record(t)
	looks := until("next swap", func(r Record) bool { return r != first })
	if want := int(swapInterval / pollInterval); looks != want {
		t.Errorf("swapped again after %d looks, want %d", looks, want)
	}
	c.setBack(t, nil)
	if looks = until("set back", func(r Record) bool { return r.Refused != nil }); looks > 2 {
		t.Errorf("that etcd was set back was seen after %d looks", looks)
	}
	c.consent(t)
	if looks = until("consent", func(r Record) bool { return r.Refused == nil && r.Current != "" }); looks > 2 {
		t.Errorf("the consent was seen after %d looks", looks)
	}
	wantOrders(t, "in the end", c.controller(), false)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestRecordDamaged: what cannot be read is not taken for "none".
func TestRecordDamaged(t *testing.T) {
	c := newCluster(newStorage(t))
	wantOrders(t, "before", c.controller(), false)
	obj := c.object(t)
	obj.Data[server] = "{"
	if err := c.objects.Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	for _, err := range orders(t.Context(), c.controller()) {
		if !errors.Is(err, volume.ErrBackend) || !strings.Contains(err.Error(), RecordName) {
			t.Errorf("got %v, want an error that names the object", err)
		}
	}
}

// TestRecordNewer: a record of a later format is neither acted on nor overwritten, and the error
// says what to do. One without a number is of format 1, and what is written has it.
func TestRecordNewer(t *testing.T) {
	c := newCluster(newStorage(t))
	wantOrders(t, "before", c.controller(), false)
	obj := c.object(t)
	if !strings.HasPrefix(obj.Data[server], `{"format":1,`) {
		t.Errorf("written %s", obj.Data[server])
	}
	obj.Data[server] = strings.Replace(obj.Data[server], `"format":1,`, "", 1)
	if err := c.objects.Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	wantOrders(t, "of before formats", c.controller(), false)
	obj = c.object(t)
	obj.Data[server] = `{"format":2,"current":{"epochs":[1,2]}}`
	if err := c.objects.Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	k := c.controller()
	for _, err := range append(orders(t.Context(), k), k.Swap(t.Context())) {
		if !errors.Is(err, ErrNewer) || !errors.Is(err, volume.ErrBackend) || !strings.Contains(err.Error(), "format 2, known is 1: install that version again") {
			t.Errorf("got %v, want an error that says what to do", err)
		}
	}
	if now := c.object(t); now.Data[server] != obj.Data[server] {
		t.Errorf("the record became %s", now.Data[server])
	}
}
