package kubectl

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/adopt"
	"github.com/nearflash/nearflash/pkg/durable"
)

// originsLabels are on the namespace of origins, which the chart makes.
var originsLabels = client.MatchingLabels{"app.kubernetes.io/name": "nearflash", "app.kubernetes.io/component": "origins"}

// adopting is what adopt and release have in common.
type adopting struct {
	*Factory
	session

	claim, origins, file string
	yes, dryRun, exists  bool
	timeout              time.Duration
}

func (o *adopting) addFlags(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.BoolVarP(&o.yes, "yes", "y", false, "Do not ask.")
	fs.BoolVar(&o.dryRun, "dry-run", false, "Print what would be done, and do nothing.")
	fs.StringVar(&o.file, "save", "", "Write the manifests of the original claim and PersistentVolume to this file, too.")
	fs.StringVar(&o.origins, "origins-namespace", "", "The namespace of origins (origins.namespace of the chart); by default the one with the chart's labels.")
	fs.DurationVar(&o.timeout, "timeout", defaultTimeout, "How long to wait for others in each step; the same command goes on later. 0 waits for ever.")
}

func (o *adopting) complete(claim string) error {
	o.claim = claim
	for _, word := range claimWords {
		o.claim = strings.TrimPrefix(o.claim, word+"/")
	}
	var err error
	o.session, err = o.connect()
	return err
}

func (o *adopting) validate(verb string) error {
	if o.claim == "" || strings.Contains(o.claim, "/") {
		return fmt.Errorf("%q does not name a claim: write `%s %s PVC`", o.claim, name, verb)
	}
	if o.timeout < 0 {
		return fmt.Errorf("--timeout %s is negative: give a duration such as 10m, or 0 to wait for ever", o.timeout)
	}
	if !o.yes && !o.dryRun && !o.Interactive {
		return fmt.Errorf("%s deletes the claim and makes it again, and there is nobody to ask: look at it with --dry-run, then add --yes", verb)
	}
	return nil
}

func (o *adopting) key() types.NamespacedName {
	return types.NamespacedName{Namespace: o.namespace, Name: o.claim}
}

func (o *adopting) say(text string) error {
	_, err := fmt.Fprintf(o.Out, "%s: %s\n", o.claim, text)
	return err
}

// adopter returns what does the work, once it is known where origins are.
func (o *adopting) adopter(ctx context.Context) (*adopt.Adopter, error) {
	namespace, err := o.originsNamespace(ctx)
	return adopt.New(adopt.Config{
		Client: o.client, Origins: namespace, Now: o.Clock.Now, After: o.Clock.After, Report: o.say, Patience: o.timeout, VolumeExists: o.exists,
	}), err
}

// originsNamespace finds the namespace of origins, and sees to it that it is there.
func (o *adopting) originsNamespace(ctx context.Context) (string, error) {
	if o.origins != "" {
		err := o.client.Get(ctx, client.ObjectKey{Name: o.origins}, &corev1.Namespace{})
		if apierrors.IsNotFound(err) {
			return "", fmt.Errorf("--origins-namespace %s: there is no such namespace: accepted is origins.namespace of the chart", o.origins)
		}
		if err != nil {
			return "", fmt.Errorf("read namespace %s: %w", o.origins, err)
		}
		return o.origins, nil
	}
	var list corev1.NamespaceList
	if err := o.client.List(ctx, &list, originsLabels); err != nil {
		return "", fmt.Errorf("look for the namespace of origins: %w: name it with --origins-namespace", err)
	}
	switch len(list.Items) {
	case 0:
		return "", fmt.Errorf("no namespace of origins is found by the chart's labels: install nearflash with origins.enabled (docs/how-to/cache-any-csi-volume.md), or name it with --origins-namespace")
	case 1:
		return list.Items[0].Name, nil
	}
	var names []string
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return "", fmt.Errorf("%d namespaces have the labels of origins: name one of %s with --origins-namespace", len(names), strings.Join(names, ", "))
}

// agree shows a plan and asks for consent. goOn is false if nothing is to be done.
func (o *adopting) agree(p adopt.Plan) (goOn bool, err error) {
	if len(p.Steps) == 0 {
		return false, nil
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s: this is to be done, in namespace %s:\n", o.claim, o.namespace)
	for i, s := range p.Steps {
		fmt.Fprintf(&text, "  %d. %s\n", i+1, s)
	}
	for _, w := range p.Warnings {
		fmt.Fprintf(&text, "warning: %s\n", w)
	}
	if _, err := fmt.Fprint(o.Out, text.String()); err != nil {
		return false, err
	}
	if o.dryRun {
		return false, o.say("nothing was changed (--dry-run)")
	}
	if err := o.confirm(o.yes); err != nil {
		return false, err
	}
	if o.file != "" {
		if err := durable.WriteFile(o.file, p.Manifests); err != nil {
			return false, fmt.Errorf("--save %s: %w: nothing was changed", o.file, err)
		}
	}
	return true, nil
}

// titled puts the claim before an error.
func (o *adopting) titled(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", o.claim, err)
}

// again adds to an error what to do if the API server did not answer, which may have happened
// between any two steps.
func again(err error) error {
	var request *url.Error
	if errors.As(err, &request) {
		return fmt.Errorf("%w: nothing is lost, and the same command goes on", err)
	}
	return err
}
