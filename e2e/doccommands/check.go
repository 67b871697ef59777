package doccommands

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Checker knows what exists.
type Checker struct {
	// Root is the source tree.
	Root string
	// Helm, Kubectl and Lab are the programs that are asked for their flags; Promtool
	// checks queries.
	Helm, Kubectl, Lab, Promtool string

	facts   facts
	helps   map[string]help
	problem func(format string, args ...any)
	// output runs a program and returns all that it prints.
	output func(program string, args ...string) (string, error)
	// span says that a span of the text is being checked: it may be the name of a
	// command alone.
	span bool
}

// system are programs of the nodes, of the storage server and of the reader's machine
// that documents use and that are not checked. One that is missing here is reported:
// it may be misspelt.
var system = []string{
	"apt-get", "arping", "bash", "blkdiscard", "blockdev", "cat", "cd", "chmod", "cmp", "cp", "ctr", "df", "dmsetup", "docker", "echo", "exit", "fio", "fsck.ext4", "git", "grep", "head", "install", "ip",
	"journalctl", "ls", "lsblk", "lvchange", "lvcreate", "lvs", "mkdir", "mkfs.ext4", "modprobe", "mount", "openssl", "printf", "rm", "rmdir", "sh", "sha256sum", "sleep", "sudo", "sync", "systemctl",
	"tar", "targetcli", "tc", "test", "tr", "umount", "vgchange", "vgcreate", "vgremove", "vgs", "wipefs", "xargs",
}

// checked are programs whose words are checked.
func (c *Checker) checked() map[string]func(command) {
	return map[string]func(command){
		"kubectl": c.kubectl, "helm": c.helm, "make": c.make, "go": c.goTool,
		"nearflash-node": c.program, "nearflash-controller": c.program, "nearflash-target": c.program,
	}
}

// Document returns a line for everything in a document that does not exist.
func (c *Checker) Document(ctx context.Context, name, text string) ([]string, error) {
	if err := c.load(); err != nil {
		return nil, err
	}
	c.output = func(program string, args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	var problems []string
	for _, b := range blocks(text) {
		c.problem = func(format string, args ...any) {
			problems = append(problems, fmt.Sprintf("%s:%d: %s", name, b.line, fmt.Sprintf(format, args...)))
		}
		c.block(b)
	}
	return problems, nil
}

func (c *Checker) block(b block) {
	c.span = b.info == infoSpan
	switch first, _, _ := strings.Cut(b.text, "\n"); {
	case c.isScript(b):
		c.script(b.text)
	case b.info == "promql":
		c.promql(b.text)
	case b.info == "yaml" || strings.HasPrefix(first, "apiVersion:"):
		c.yaml(b.text)
	case c.span:
		if spanOfInterest.MatchString(b.text) && !strings.Contains(b.text, "...") {
			c.script(b.text)
		}
	case usagePattern.MatchString(b.text):
	case b.info == infoIndented && c.looksLikeValues(b.text):
		c.yaml(b.text)
	}
}

// isScript says whether a block, which is no span, is something to type.
func (c *Checker) isScript(b block) bool {
	switch b.info {
	case "sh", "bash", "console":
		return true
	case infoSpan, "promql", "yaml":
		return false
	}
	first, _, _ := strings.Cut(b.text, "\n")
	return !usagePattern.MatchString(b.text) && (strings.HasPrefix(first, "$ ") || c.knows(first))
}

var (
	spanOfInterest = regexp.MustCompile(`^([A-Z_]+=\S* )*(kubectl |helm |make |go run |hack/[a-z/-]+\.sh)`)
	// usagePattern is how cobra writes what a command takes.
	usagePattern = regexp.MustCompile(`\[flags\]|\[[A-Z]+\.\.\.\]|[a-z]\|[a-z]+\|`)
	assignment   = regexp.MustCompile(`^[A-Z_]+=\S*\s+`)
)

// knows says whether a line begins with a program that is known.
func (c *Checker) knows(line string) bool {
	for assignment.MatchString(line) {
		line = assignment.ReplaceAllString(line, "")
	}
	word, _, _ := strings.Cut(strings.TrimSpace(line), " ")
	return c.checked()[word] != nil || slices.Contains(system, word) || strings.HasPrefix(word, "hack/") && strings.HasSuffix(word, ".sh")
}

// script checks the commands of a block.
func (c *Checker) script(text string) {
	found, err := commands(typed(text))
	if err != nil {
		c.problem("the shell does not understand this: %v", err)
		return
	}
	for _, cmd := range found {
		c.command(cmd)
	}
}

// typed is what a block gives to type: where prompts are shown, what stands on other
// lines is output.
func typed(text string) string {
	if !strings.HasPrefix(text, "$ ") {
		return text
	}
	var shown strings.Builder
	for line := range strings.Lines(text) {
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			shown.WriteString(command)
		}
	}
	return shown.String()
}

func (c *Checker) command(cmd command) {
	program := cmd.args[0]
	switch check := c.checked()[filepath.Base(program)]; {
	case check != nil:
		check(cmd)
	case strings.HasPrefix(program, "hack/") || strings.HasPrefix(program, "./hack/"):
		c.scriptFile(cmd)
	case strings.HasPrefix(program, "_output/") || strings.HasPrefix(program, "$"):
		// Built by a command before it.
	case slices.Contains(system, program):
	default:
		c.problem("program %q is not known: is it misspelt? If not, add it to the list in e2e/doccommands", program)
	}
	if program == "make" || strings.HasPrefix(program, "hack/") {
		c.variables(cmd)
	}
}

// variables checks what is set for a target or a script: something must read it.
func (c *Checker) variables(cmd command) {
	for _, name := range slices.Sorted(maps.Keys(cmd.env)) {
		value := cmd.env[name]
		if !c.facts.variables[name] {
			c.problem("nothing reads the variable %s", name)
		}
		switch name {
		case "LABELS":
			c.labels(value)
		case "RUN":
			c.tests(value)
		}
	}
}

// labels checks a filter of the e2e suite.
func (c *Checker) labels(filter string) {
	for _, word := range labelPattern.FindAllString(filter, -1) {
		if !c.facts.labels[word] {
			c.problem("no spec of the e2e suite has the label %q", word)
		}
	}
}

var labelPattern = regexp.MustCompile(`[a-z][a-z0-9-]*`)

// tests checks a pattern of names of tests.
func (c *Checker) tests(pattern string) {
	re, err := regexp.Compile(pattern)
	if err != nil {
		c.problem("%q: %v", pattern, err)
		return
	}
	if !slices.ContainsFunc(c.facts.tests, re.MatchString) {
		c.problem("no test matches %q", pattern)
	}
}

// make checks the targets.
func (c *Checker) make(cmd command) {
	for _, target := range cmd.args[1:] {
		name, value, isVariable := strings.Cut(target, "=")
		switch {
		case strings.HasPrefix(target, "-"):
		case isVariable:
			c.variables(command{env: map[string]string{name: value}})
		case !c.facts.targets[target]:
			c.problem("the Makefile has no target %q", target)
		}
	}
}

// scriptFile checks that a script is there.
func (c *Checker) scriptFile(cmd command) {
	info, err := c.stat(cmd.args[0])
	switch {
	case err != nil:
		c.problem("%s: no such file", cmd.args[0])
	case info.IsDir() || info.Mode()&0o111 == 0:
		c.problem("%s is not executable", cmd.args[0])
	}
}
