package kubectl

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/yaml"
)

// Formats of -o with a meaning of their own here.
const (
	formatName = "name"
	formatWide = "wide"
)

// output is the flag -o: a table for people unless objects are asked for.
type output struct {
	flags *genericclioptions.PrintFlags
	// hasWide tells that the table has more columns on request.
	hasWide bool

	wide    bool
	printer printers.ResourcePrinter
}

func newOutput(hasWide bool) output {
	return output{flags: genericclioptions.NewPrintFlags(""), hasWide: hasWide}
}

func (o *output) addFlags(cmd *cobra.Command) {
	o.flags.AddFlags(cmd)
	cmd.Flag("output").Usage = fmt.Sprintf("Output format. One of: (%s).", strings.Join(o.formats(), ", "))
}

func (o *output) formats() []string {
	formats := o.flags.AllowedFormats()
	if o.hasWide {
		formats = append(formats, formatWide)
	}
	return formats
}

// complete understands the flags.
func (o *output) complete() error {
	format := *o.flags.OutputFormat
	template := *o.flags.TemplatePrinterFlags.TemplateArgument
	switch {
	case format == "" && template == "":
		return nil
	case format == formatWide && o.hasWide:
		o.wide = true
		return nil
	}
	printer, err := o.flags.ToPrinter()
	if genericclioptions.IsNoCompatiblePrinterError(err) {
		return fmt.Errorf("-o %s is not known: accepted are %s", format, strings.Join(o.formats(), ", "))
	}
	o.printer = printer
	return err
}

// table reports whether to print for people.
func (o *output) table() bool { return o.printer == nil }

// messages is where words for people go: not between objects.
func (o *output) messages(f *Factory) io.Writer {
	if o.table() {
		return f.Out
	}
	return f.ErrOut
}

// object prints an object, and nothing when a table was asked for.
func (o *output) object(c client.Client, out io.Writer, obj client.Object) error {
	if o.table() {
		return nil
	}
	if err := setKind(c, obj); err != nil {
		return err
	}
	return o.printer.PrintObj(obj, out)
}

// list prints objects as kubectl prints what it gets.
func (o *output) list(c client.Client, out io.Writer, objs []client.Object) error {
	list := &corev1.List{Items: []runtime.RawExtension{}}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("List"))
	for _, obj := range objs {
		if err := setKind(c, obj); err != nil {
			return err
		}
		// Lists have no name of their own.
		if *o.flags.OutputFormat == formatName {
			if err := o.printer.PrintObj(obj, out); err != nil {
				return err
			}
			continue
		}
		list.Items = append(list.Items, runtime.RawExtension{Object: obj})
	}
	if *o.flags.OutputFormat == formatName {
		return nil
	}
	return o.printer.PrintObj(list, out)
}

// setKind writes into the object what it is: typed clients leave it out.
func setKind(c client.Client, obj client.Object) error {
	gvk, err := apiutil.GVKForObject(obj, c.Scheme())
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	obj.GetObjectKind().SetGroupVersionKind(gvk)
	return nil
}

// objectsOf returns the records of volumes for list.
func objectsOf(volumes []*volume) []client.Object {
	out := make([]client.Object, 0, len(volumes))
	for _, v := range volumes {
		out = append(out, v.CachedVolume)
	}
	return out
}

// table prints rows under a head, aligned as kubectl does.
func table(out io.Writer, head []string, rows [][]string) error {
	w := printers.GetNewTabWriter(out)
	for _, row := range append([][]string{head}, rows...) {
		if _, err := fmt.Fprintln(w, strings.Join(row, "\t")); err != nil {
			return err
		}
	}
	return w.Flush()
}

// Formats of what is no object of the API.
const (
	formatJSON = "json"
	formatYAML = "yaml"
)

// checkPlain refuses a format that plain does not have.
func checkPlain(format string) error {
	switch format {
	case "", formatJSON, formatYAML:
		return nil
	}
	return fmt.Errorf("-o %s is not known: accepted are %s, %s", format, formatJSON, formatYAML)
}

// plain prints a value that is no object of the API.
func plain(out io.Writer, format string, value any) error {
	text, err := json.MarshalIndent(value, "", "    ")
	if err == nil && format == formatYAML {
		text, err = yaml.JSONToYAML(text)
	}
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	_, err = fmt.Fprintln(out, strings.TrimRight(string(text), "\n"))
	return err
}
