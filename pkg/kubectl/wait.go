package kubectl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/quantity"
)

const (
	// pollInterval is the time between two looks at an object that is waited for.
	pollInterval = time.Second
	// silence is how long a node may not have taken note of a change before that
	// is said.
	silence = 30 * time.Second

	defaultTimeout = 10 * time.Minute
)

// errTimeout is what waiting ends with when its time has run out.
var errTimeout = errors.New("timed out")

// waiting are the flags of commands that wait for a node, and what they need.
type waiting struct {
	wait    bool
	timeout time.Duration
}

func (w *waiting) addFlags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&w.wait, "wait", true, "Wait until the node has done it.")
	cmd.Flags().DurationVar(&w.timeout, "timeout", defaultTimeout, "How long to wait; the request stays when the time has run out. 0 waits for ever.")
}

func (w *waiting) validate() error {
	if w.timeout < 0 {
		return fmt.Errorf("--timeout %s is negative: give a duration such as 10m, or 0 to wait for ever", w.timeout)
	}
	return nil
}

// outcome is what is seen of a volume that is waited for.
type outcome struct {
	// done ends the waiting; text says what has come of it.
	done bool
	// text says how far it is. It is printed when it changes.
	text string
	// silent tells that the node has not taken note yet.
	silent bool
}

// await looks at a volume until judge says that it is done, and prints what
// changes. Errors of judge end it; the API server may fail for a while.
func (f *Factory) await(ctx context.Context, s *session, v *volume, w waiting, out io.Writer, judge func(*volume) (outcome, error)) error {
	start, last := f.Clock.Now(), ""
	for {
		o, err := judge(v)
		if err != nil {
			return fmt.Errorf("%s: %w", v.title(), err)
		}
		elapsed := f.Clock.Now().Sub(start)
		if o.silent && elapsed >= silence {
			o.text = fmt.Sprintf("node %s has not taken note for %s: `%s doctor` shows whether its plugin works", v.node(), silence, name)
		}
		if o.text != "" && o.text != last {
			last = o.text
			if _, err := fmt.Fprintf(out, "%s: %s\n", v.title(), last); err != nil {
				return err
			}
		}
		if o.done {
			return nil
		}
		if w.timeout > 0 && elapsed >= w.timeout {
			return fmt.Errorf("%s: %w after %s (%s): the request stays, repeat the command to wait again", v.title(), errTimeout, w.timeout, last)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", v.title(), ctx.Err())
		case <-f.Clock.After(pollInterval):
		}
		if err := s.refresh(ctx, v); err != nil {
			return err
		}
	}
}

// refresh reads the volume's record again. Failures that pass are no errors: the
// record stays as it was.
func (s *session) refresh(ctx context.Context, v *volume) error {
	record, err := s.record(ctx, v.Name)
	switch {
	case err == nil && record.UID == v.UID:
		v.CachedVolume = record
		return nil
	case err == nil || apierrors.IsNotFound(err):
		return fmt.Errorf("%s: the volume was deleted meanwhile: nothing is left to wait for", v.title())
	case apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err):
		return err
	}
	return nil
}

// leadingBytes is a number of bytes at the beginning of a node's message.
var leadingBytes = regexp.MustCompile(`^\d+ bytes\b`)

// readable makes the number of bytes at the beginning of a message short.
func readable(message string) string {
	return leadingBytes.ReplaceAllStringFunc(message, func(s string) string {
		n, err := strconv.ParseInt(s[:len(s)-len(" bytes")], 10, 64)
		if err != nil {
			return s
		}
		return quantity.Text(n)
	})
}

// judgeApplied waits until the node has done what the spec of a generation asks
// for. A volume that is attached nowhere takes the spec as it is then when it is
// attached next.
func judgeApplied(generation int64, done func(*volume) string) func(*volume) (outcome, error) {
	return func(v *volume) (outcome, error) {
		c := v.condition(v1alpha1.ConditionApplied)
		switch {
		case !v.attached():
			return outcome{done: true, text: "attached nowhere: it takes effect when a pod next uses the volume"}, nil
		case c == nil || c.ObservedGeneration < generation || c.Status == metav1.ConditionUnknown:
			return outcome{silent: true, text: "waiting for node " + v.node()}, nil
		case c.Status == metav1.ConditionTrue:
			return outcome{done: true, text: done(v)}, nil
		}
		switch c.Reason {
		case v1alpha1.ReasonApplying:
			return outcome{text: fmt.Sprintf("node %s applies it: %s", v.node(), readable(c.Message))}, nil
		case v1alpha1.ReasonFlushing:
			return outcome{text: fmt.Sprintf("node %s flushes: %s", v.node(), readable(c.Message))}, nil
		case v1alpha1.ReasonRejected:
			return outcome{}, fmt.Errorf("node %s refuses it: %s: ask for something else, the volume goes on as it was", v.node(), c.Message)
		}
		return outcome{}, fmt.Errorf("node %s cannot do it now (%s: %s): it is tried again by itself, `%s doctor` says what helps", v.node(), c.Reason, c.Message, name)
	}
}
