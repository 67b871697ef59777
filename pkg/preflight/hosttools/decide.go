package hosttools

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// page is where the remedies are.
const page = "docs/how-to/host-tools.md"

// Facts are what the host says of its tools.
type Facts struct {
	// Udev reports whether udev runs, and Rules has the texts of the files of rules that are in
	// force, by their names.
	Udev  bool
	Rules map[string]string

	Multipath MultipathFacts
	LVM       LVMFacts
	MD        MDFacts
}

// MDFacts are about the host's MD RAID.
type MDFacts struct {
	// Tool reports whether the host has mdadm, and Config has the texts of its files.
	Tool   bool
	Config string
}

// MultipathFacts are about multipathd.
type MultipathFacts struct {
	Runs bool
	// Config is its answer to "show config", and Err why there is none.
	Config string
	Err    error
}

// LVMFacts are about the host's LVM.
type LVMFacts struct {
	// Tool reports whether the host has LVM's program.
	Tool bool
	// Config is the answer of lvmconfig with all defaults, and Err why there is none.
	Config string
	Err    error
	// UseDevicesFile is what the host's own files say of use_devicesfile, "" if nothing: the
	// default differs between distributions.
	UseDevicesFile string
	// DevicesFile reports whether the file with the devices of LVM is there.
	DevicesFile bool
}

// Problems says which of the host's tools look into what pods write, or take its disks, with the
// remedy; nil if none does. What could not be found out counts as a problem. Of udev, and what it
// starts or what is there without it, it is one problem.
func (f Facts) Problems() error { return errors.Join(f.udev(), f.withoutUdev(), f.multipathd()) }

// Note says what the host's tools do only if somebody runs them, with what to do about it; "" if
// nothing, or if Problems says more. The rule keeps udev from handing volumes to them, and not
// those who run a command from having it look into every disk.
func (f Facts) Note() string {
	_, commands, limits := f.scanning()
	if !f.Udev || f.udev() != nil || len(commands) == 0 {
		return ""
	}
	return fmt.Sprintf("commands of an administrator such as %s find what pods write; to keep them away too: %s (%s)", strings.Join(commands, " and "), strings.Join(limits, "; "), page)
}

// withoutUdev: nobody tells tools to leave volumes alone where no udev runs. They look into every disk
// whenever something starts them.
func (f Facts) withoutUdev() error {
	tools, commands, limits := f.scanning()
	if f.Udev || len(tools) == 0 {
		return nil
	}
	return fmt.Errorf("the host has no udev, and nothing keeps its %s (%s) from what pods write; remedy: %s (%s)", strings.Join(tools, " and "), strings.Join(commands, ", "), strings.Join(limits, "; "), page)
}

// scanning are the tools that look into every disk when they are run, the commands that do, and the
// settings that keep them away.
func (f Facts) scanning() (tools, commands, limits []string) {
	if f.LVM.Tool && !f.LVM.limited() {
		tools, commands = append(tools, "LVM"), append(commands, "vgchange --activate y")
		limits = append(limits, `global_filter = [ "a|^/dev/DISK$|", "r|.*|" ] in /etc/lvm/lvm.conf with the host's own disks, or LVM's devices file`)
	}
	if f.MD.Tool && !f.MD.limited() {
		tools, commands = append(tools, "MD RAID"), append(commands, "mdadm --assemble --scan")
		limits = append(limits, `AUTO -all in mdadm.conf`)
	}
	return tools, commands, limits
}

// autoLine is a line of mdadm.conf(5) that says what is assembled without being named.
var autoLine = regexp.MustCompile(`(?im)^\s*auto\s+(.*)$`)

// limited reports whether mdadm assembles only arrays that its configuration names: the first word of
// the line that fits an array decides.
func (f MDFacts) limited() bool {
	m := autoLine.FindStringSubmatch(f.Config)
	return m != nil && strings.HasPrefix(strings.TrimSpace(m[1])+" ", "-all ")
}

func (f Facts) udev() error {
	if !f.Udev {
		return nil
	}
	const remedy = "remedy: node.udevRule of the chart, or the rule of " + page
	switch have, there := f.Rules[RuleFile]; {
	case there && sameRule(have, rule):
		return nil
	case there:
		return fmt.Errorf("the udev rule %s on the node is not the one of this version; %s", RuleFile, remedy)
	}
	text := "the host's udev names links in /dev/disk by what pods write"
	if tools := f.tools(); len(tools) > 0 {
		text += ", and hands it to " + strings.Join(tools, ", ")
	}
	return fmt.Errorf("%s: no rule %s is on the node; %s", text, RuleFile, remedy)
}

// starts are the tools that rules of udev start, and what tells such a rule.
var starts = []struct {
	tool string
	line *regexp.Regexp
}{
	{"LVM", regexp.MustCompile(`\bpvscan\b`)},
	{"MD RAID", regexp.MustCompile(`\bmdadm\b.*\s(--incremental|-I)\s`)},
	{"btrfs", regexp.MustCompile(`\{builtin\}\+?="btrfs `)},
	{"bcache", regexp.MustCompile(`\bbcache-register\b`)},
	{"dmraid", regexp.MustCompile(`\bdmraid`)},
}

// tools are those that udev starts for whatever it finds on a disk.
func (f Facts) tools() []string {
	var out []string
	for _, s := range starts {
		if f.started(s.line) && (s.tool != "LVM" || !f.LVM.keepsOut()) {
			out = append(out, s.tool)
		}
	}
	return out
}

func (f Facts) started(by *regexp.Regexp) bool {
	for _, text := range f.Rules {
		if slices.ContainsFunc(active(text), by.MatchString) {
			return true
		}
	}
	return false
}

func (f Facts) multipathd() error {
	const remedy = "remedy: the blacklist of " + page
	m := f.Multipath
	if !m.Runs {
		return nil
	}
	if m.Err != nil {
		return fmt.Errorf("multipathd runs on the node, and whether it leaves the disks of volumes alone is not known: %w; %s", m.Err, remedy)
	}
	config, err := parseMultipath(m.Config)
	if err != nil {
		return fmt.Errorf("multipathd runs on the node, and its configuration cannot be read: %w; %s", err, remedy)
	}
	if taken := config.taken(); len(taken) > 0 {
		return fmt.Errorf("multipathd takes %s for itself (find_multipaths %q, and no entry of its blacklist covers them); %s", strings.Join(taken, " and "), config.findMultipaths, remedy)
	}
	return nil
}
