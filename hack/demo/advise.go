package main

import (
	"bytes"
	"context"
	"fmt"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/nearflash/nearflash/pkg/kubectl"
)

// learns is said where nothing else can be: a demo is over before anything is known.
const learns = "What a cache of another size would answer is known after half an hour of a load; ask again then, of a volume of your own.\n"

// advise asks for advice about the volumes, while all are attached, and after all that was read.
func (d *demo) advise(ctx context.Context, t *table) error {
	d.say("asking for advice")
	var out, errOut bytes.Buffer
	f := kubectl.NewFactory()
	f.IOStreams, f.Interactive, f.Terminal = genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: &out, ErrOut: &errOut}, false, false
	if kubectl.Execute(ctx, f, []string{"advise", "-n", d.name}) != 0 {
		return fmt.Errorf("advise: %s", errOut.String())
	}
	t.advice = fmt.Sprintf("$ kubectl nearflash advise -n %s\n%s%s\n%s", d.name, errOut.String(), out.String(), learns)
	return nil
}
