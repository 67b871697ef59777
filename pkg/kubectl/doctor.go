package kubectl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// severity is how bad a finding is.
type severity string

const (
	// sevError is what keeps volumes from being used, or puts data at risk.
	sevError severity = "error"
	// sevWarning is what costs speed or will become worse.
	sevWarning severity = "warning"
	// sevOK is a check that has found nothing.
	sevOK severity = "ok"
)

var severities = []severity{sevError, sevWarning, sevOK}

// finding is one thing that was found, or not.
type finding struct {
	Severity severity `json:"severity"`
	// Object is what it is about, as kind/name.
	Object  string `json:"object"`
	Message string `json:"message"`
	// Remedy says what to do; a check that found nothing has none.
	Remedy string `json:"remedy,omitempty"`
}

// diagnosis is the report of doctor.
type diagnosis struct {
	Errors   int       `json:"errors"`
	Warnings int       `json:"warnings"`
	Findings []finding `json:"findings"`
}

func (d *diagnosis) add(s severity, object, remedy, format string, args ...any) {
	d.Findings = append(d.Findings, finding{Severity: s, Object: object, Message: oneLine(fmt.Sprintf(format, args...)), Remedy: remedy})
	switch s {
	case sevError:
		d.Errors++
	case sevWarning:
		d.Warnings++
	case sevOK:
	}
}

// ok notes what a check has found in order.
func (d *diagnosis) ok(object, format string, args ...any) { d.add(sevOK, object, "", format, args...) }

// bad reports whether more than OK was found since a length of the list.
func (d *diagnosis) bad(since int) bool {
	return slices.ContainsFunc(d.Findings[since:], func(f finding) bool { return f.Severity != sevOK })
}

type doctorOptions struct {
	*Factory
	session

	format string
}

func newDoctor(f *Factory) *cobra.Command {
	o := &doctorOptions{Factory: f}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find out what is wrong, and what helps",
		Long: `Find out what is wrong with nearflash in the cluster, and what helps.

It looks at the CustomResourceDefinitions, the controller, what the storage servers last told the controller and whether they take its orders, every node (plugin, registration with the kubelet, kernel and tools, pool, SSDs), the
StorageClasses, every volume, what other CSI drivers have below them, and the caches that follow their pods to other nodes. Each finding has its remedy. The exit status is 1 if one of them is an error.`,
		Example: `  kubectl nearflash doctor
  kubectl nearflash doctor -o json`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              run(o),
	}
	cmd.Flags().StringVarP(&o.format, "output", "o", "", "Output format. One of: (json, yaml).")
	return cmd
}

// Complete implements options.
func (o *doctorOptions) Complete(args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("doctor takes no arguments: leave out %s; `%s describe %s` looks at one volume", args[0], name, args[0])
	}
	var err error
	o.session, err = o.connect()
	return err
}

// Validate implements options.
func (o *doctorOptions) Validate() error { return checkPlain(o.format) }

// Run implements options.
func (o *doctorOptions) Run(ctx context.Context) error {
	d := &diagnosis{Findings: []finding{}}
	if o.checkDefinitions(ctx, d) {
		facts, err := o.gather(ctx)
		if err != nil {
			return err
		}
		now := o.Clock.Now()
		checkController(d, facts)
		o.checkStorage(ctx, d, facts)
		checkNodes(d, facts)
		checkClasses(d, facts)
		checkVolumes(d, facts, now)
		checkOrigins(d, facts, now)
		checkMoves(d, facts, now)
	}
	slices.SortStableFunc(d.Findings, func(a, b finding) int {
		return slices.Index(severities, a.Severity) - slices.Index(severities, b.Severity)
	})
	if err := o.print(d); err != nil {
		return err
	}
	if d.Errors > 0 {
		return errors.New(count(d.Errors, "problem") + " found: see the findings marked error and their remedies")
	}
	return nil
}

func (o *doctorOptions) print(d *diagnosis) error {
	if o.format != "" {
		return plain(o.Out, o.format, d)
	}
	return d.write(o.Out)
}

// write prints the report for people: what is wrong comes first.
func (d *diagnosis) write(out io.Writer) error {
	var b strings.Builder
	for _, f := range d.Findings {
		fmt.Fprintf(&b, "%-8s %s: %s\n", f.Severity, f.Object, f.Message)
		if f.Remedy != "" {
			fmt.Fprintf(&b, "%-8s remedy: %s\n", "", f.Remedy)
		}
	}
	fmt.Fprintf(&b, "%s, %s\n", count(d.Errors, "error"), count(d.Warnings, "warning"))
	_, err := io.WriteString(out, b.String())
	return err
}

// stuckAfter is how long something may take before it counts as stuck.
const stuckAfter = 5 * time.Minute
