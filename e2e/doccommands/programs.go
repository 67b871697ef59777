package doccommands

import (
	"flag"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/app/controller"
	"github.com/nearflash/nearflash/pkg/app/node"
	"github.com/nearflash/nearflash/pkg/figures"
	"github.com/nearflash/nearflash/pkg/kubectl"
)

// help is what a program says of one of its commands.
type help struct {
	text string
	// flags maps a flag, with its hyphens, to whether it takes a value.
	flags map[string]bool
}

var (
	// cobraFlag is a line of helm and of the lab: "  -f, --values strings   text".
	cobraFlag = regexp.MustCompile(`(?m)^ +(?:(-[a-zA-Z]), )?(--[a-z0-9-]+)( [^ \n]+)?(?:  |$)`)
	// kubectlFlag is a line of kubectl: "    -o, --output='':".
	kubectlFlag = regexp.MustCompile(`(?m)^ +(?:(-[a-zA-Z]), )?(--[a-z0-9-]+)=([^\n]*):$`)
)

// globalOptions is the command of kubectl that prints the flags of all its commands.
var globalOptions = []string{"options"}

// ask returns the help of a command of a program, whose flags are those of the
// program's other words too.
func (c *Checker) ask(program string, words ...string) (help, error) {
	key := strings.Join(append([]string{program}, words...), " ")
	if h, ok := c.helps[key]; ok {
		return h, nil
	}
	args := append(slices.Clone(words), "--help")
	if slices.Equal(words, globalOptions) {
		args = words
	}
	text, err := c.output(program, args...)
	if err != nil {
		first, _, _ := strings.Cut(text, "\n")
		return help{}, fmt.Errorf("%s: %w: %s", key, err, first)
	}
	h := help{text: text, flags: map[string]bool{}}
	for _, m := range cobraFlag.FindAllStringSubmatch(h.text, -1) {
		h.flags[m[2]] = m[3] != ""
		h.flags[m[1]] = m[3] != ""
	}
	for _, m := range kubectlFlag.FindAllStringSubmatch(h.text, -1) {
		takes := m[3] != "true" && m[3] != "false"
		h.flags[m[2]] = takes
		h.flags[m[1]] = takes
	}
	c.helps[key] = h
	return h, nil
}

// parsed are the words of a command line: what was given to each flag, and the rest.
type parsed struct {
	flags map[string][]string
	words []string
	// after is what stands behind "--".
	after []string
}

// parse takes flags and words apart and reports flags that do not exist.
func (c *Checker) parse(what string, args []string, known map[string]bool) parsed {
	p := parsed{flags: map[string][]string{}}
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			p.after = args[i+1:]
			break
		}
		if !strings.HasPrefix(arg, "-") || arg == "-" {
			p.words = append(p.words, arg)
			continue
		}
		name, value, given := strings.Cut(arg, "=")
		takes, ok := known[name]
		if !ok && len(name) > 2 && name[1] != '-' {
			// -nNAME: the value follows at once.
			if takes, ok = known[name[:2]], known[name[:2]]; ok {
				name, value, given = name[:2], arg[2:], true
			}
		}
		if !ok {
			c.problem("%s has no flag %s", what, name)
			continue
		}
		if takes && !given && i+1 < len(args) {
			i++
			value = args[i]
		}
		p.flags[name] = append(p.flags[name], value)
	}
	return p
}

func (p parsed) all(names ...string) []string {
	var values []string
	for _, name := range names {
		values = append(values, p.flags[name]...)
	}
	return values
}

// plugin checks a call of kubectl nearflash as the plugin itself parses it.
func (c *Checker) plugin(args []string) {
	root := kubectl.New(&kubectl.Factory{
		IOStreams: genericiooptions.NewTestIOStreamsDiscard(), Config: genericclioptions.NewConfigFlags(true),
	})
	if len(args) == 0 || slices.Equal(args, []string{"--help"}) {
		return
	}
	cmd, rest, err := root.Find(args)
	if err != nil || cmd == root {
		c.problem("kubectl nearflash has no command %q", args[0])
		return
	}
	if c.span && len(rest) == 0 {
		return
	}
	cmd.InitDefaultHelpFlag()
	if err := cmd.ParseFlags(rest); err != nil {
		c.problem("kubectl nearflash %s: %v", cmd.Name(), err)
		return
	}
	if help, _ := cmd.Flags().GetBool("help"); help {
		return
	}
	if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil {
		c.problem("kubectl nearflash %s: %v", cmd.Name(), err)
	}
}

// program checks the flags of one of the project's own programs.
func (c *Checker) program(cmd command) {
	args := cmd.args[1:]
	flags := flag.NewFlagSet(cmd.args[0], flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Bool("version", false, "")
	klog.InitFlags(flags)
	first := ""
	if len(args) > 0 {
		first = args[0]
	}
	switch {
	case strings.HasSuffix(cmd.args[0], "nearflash-node") && first == "rescue":
		(&node.Rescue{}).AddFlags(flags)
		args = args[1:]
	case strings.HasSuffix(cmd.args[0], "nearflash-node") && first == figures.Command:
		(&node.Figures{}).AddFlags(flags)
		args = args[1:]
	case strings.HasSuffix(cmd.args[0], "nearflash-node"):
		(&node.Config{}).AddFlags(flags)
	case strings.HasSuffix(cmd.args[0], "nearflash-controller") && first == "check":
		(&controller.Check{}).AddFlags(flags)
		args = args[1:]
	case strings.HasSuffix(cmd.args[0], "nearflash-controller"):
		(&controller.Config{}).AddFlags(flags)
	default:
		c.targetFlags(flags)
	}
	if err := flags.Parse(args); err != nil {
		c.problem("%s: %v", cmd.args[0], err)
	} else if flags.NArg() > 0 {
		c.problem("%s takes no word %q", cmd.args[0], flags.Arg(0))
	}
}

var targetFlag = regexp.MustCompile(`fs\.(String|Bool)Var\(&\w+, "([a-z-]+)"`)

// targetFlags reads the flags of nearflash-target from its source: they are few, and
// local to it.
func (c *Checker) targetFlags(flags *flag.FlagSet) {
	const source = "cmd/nearflash-target/main.go"
	text, err := c.read(source)
	if err != nil {
		c.problem("%v", err)
		return
	}
	found := targetFlag.FindAllStringSubmatch(text, -1)
	if len(found) == 0 {
		c.problem("%s defines no flags in a form that is understood", source)
	}
	for _, m := range found {
		if m[1] == "Bool" {
			flags.Bool(m[2], false, "")
		} else {
			flags.String(m[2], "", "")
		}
	}
}

// goTool checks the packages that are named, and the words given to the lab.
func (c *Checker) goTool(cmd command) {
	for i, arg := range cmd.args {
		if pattern, ok := strings.CutPrefix(arg, "./"); ok {
			if _, err := c.stat(strings.TrimSuffix(pattern, "/...")); err != nil && pattern != "..." {
				c.problem("go %s: no package %s", cmd.args[1], arg)
			}
			if cmd.args[1] != "run" {
				continue
			}
			if arg == "./hack/lab" {
				c.lab(cmd.args[i+1:])
			}
			return
		}
	}
}

// lab checks a call of the lab, and the command that it is to run.
func (c *Checker) lab(args []string) {
	if len(args) == 0 || c.span && args[0] == strings.ToUpper(args[0]) {
		return // the name of no command, or a word that stands for one
	}
	words := []string{args[0]}
	if len(args) > 1 && (args[0] == "net" || args[0] == "images" || args[0] == "guest") {
		words = append(words, args[1])
	}
	h, err := c.ask(c.Lab, words...)
	if err != nil || !strings.Contains(h.text, "lab "+strings.Join(words, " ")) {
		c.problem("the lab has no command %q (%v)", strings.Join(words, " "), err)
		return
	}
	p := c.parse("lab "+words[0], args[len(words):], h.flags)
	if words[0] == "run" && len(p.after) > 0 {
		for i, word := range p.after {
			if filter, ok := strings.CutPrefix(word, "-ginkgo.label-filter="); ok {
				c.labels(filter)
			} else if i == 0 {
				c.command(command{args: p.after})
			}
		}
	}
}
