package kubectl

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	domain "github.com/nearflash/nearflash/pkg/volume"
)

// change is what the commands have in common that change one volume.
type change struct {
	*Factory
	session
	output
	waiting

	reference string
}

func newChange(f *Factory) change { return change{Factory: f, output: newOutput(false)} }

func (c *change) addFlags(cmd *cobra.Command) {
	c.waiting.addFlags(cmd)
	c.output.addFlags(cmd)
}

func (c *change) complete(reference string) error {
	c.reference = reference
	if err := c.output.complete(); err != nil {
		return err
	}
	var err error
	c.session, err = c.connect()
	return err
}

func (c *change) validate() error {
	if err := checkReference(c.reference); err != nil {
		return err
	}
	return c.waiting.validate()
}

// out is where words for people go.
func (c *change) out() io.Writer { return c.messages(c.Factory) }

func (c *change) say(v *volume, format string, args ...any) error {
	_, err := fmt.Fprintf(c.out(), "%s: %s\n", v.title(), fmt.Sprintf(format, args...))
	return err
}

// patchSpec writes a change of the spec. A change that the API server refuses is
// named with its reason.
func (s *session) patchSpec(ctx context.Context, v *volume, mutate func(*v1alpha1.CachedVolumeSpec)) error {
	before := v.DeepCopy()
	mutate(&v.Spec)
	if err := s.client.Patch(ctx, v.CachedVolume, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("change CachedVolume %s: %w", v.Name, err)
	}
	return nil
}

// apply writes a change of the spec and waits until the node has done it. done
// says what has come of it.
func (c *change) apply(ctx context.Context, v *volume, mutate func(*v1alpha1.CachedVolumeSpec), done func(*volume) string) error {
	if v.PV != nil && v.PV.Spec.VolumeAttributesClassName != nil && *v.PV.Spec.VolumeAttributesClassName != "" {
		err := c.say(v, "note: the claim names the VolumeAttributesClass %s and goes on to do so; this change lasts until it is given another class", *v.PV.Spec.VolumeAttributesClassName)
		if err != nil {
			return err
		}
	}
	if err := c.patchSpec(ctx, v, mutate); err != nil {
		return err
	}
	switch {
	case v.byMany(): // states.md, Readers
		if err := c.say(v, "requested: each of its readers (%s) takes the change when the volume is attached there anew", domain.NamesOfReaders(v.Status.Readers)); err != nil {
			return err
		}
	case c.wait:
		if err := c.await(ctx, &c.session, v, c.waiting, c.out(), judgeApplied(v.Generation, done)); err != nil {
			return err
		}
	}
	return c.object(c.client, c.Out, v.CachedVolume)
}

// request asks the node by a token that set writes into the spec, and waits until it has answered, or
// says that it was asked.
func (c *change) request(ctx context.Context, v *volume, set func(*v1alpha1.CachedVolumeSpec, string), asked func(token string) string, judge func(token string) func(*volume) (outcome, error)) error {
	token := c.Clock.Now().UTC().Format(time.RFC3339Nano)
	if err := c.patchSpec(ctx, v, func(spec *v1alpha1.CachedVolumeSpec) { set(spec, token) }); err != nil {
		return err
	}
	if !c.wait {
		return c.say(v, "%s", asked(token))
	}
	return c.await(ctx, &c.session, v, c.waiting, c.out(), judge(token))
}

// either does what was asked for, or takes that back.
func (c *change) either(ctx context.Context, back bool, takeBack, ask func(context.Context, *volume) error) error {
	v, err := c.resolve(ctx, c.reference)
	if err != nil {
		return err
	}
	do := ask
	if back {
		do = takeBack
	}
	if err := do(ctx, v); err != nil {
		return err
	}
	return c.object(c.client, c.Out, v.CachedVolume)
}

// attachedAs says what the volume runs as now.
func attachedAs(v *volume) string {
	c := v.condition(v1alpha1.ConditionCached)
	switch {
	case v.Spec.CacheMode == v1alpha1.CacheModeNone:
		return fmt.Sprintf("done: no cache on node %s", v.node())
	case c != nil && c.Reason != v1alpha1.ReasonCacheActive:
		return fmt.Sprintf("done, but there is no cache on node %s (%s: %s)", v.node(), c.Reason, c.Message)
	}
	return fmt.Sprintf("done: mode %s on node %s", v.Spec.CacheMode, v.node())
}

// confirm asks unless that was answered beforehand.
func (f *Factory) confirm(yes bool) error {
	if yes {
		return nil
	}
	if _, err := fmt.Fprint(f.ErrOut, "Go on? [y/N] "); err != nil {
		return err
	}
	// The end of the input is an answer too: no.
	answer, _ := bufio.NewReader(f.In).ReadString('\n')
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return fmt.Errorf("nothing was changed: answer y, or add --yes")
}
