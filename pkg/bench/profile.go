package bench

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Profile is what fio does to a volume.
type Profile struct {
	// Name is what the report calls it.
	Name string
	// Options are those of fio, in the order in which they are written; see fio(1).
	Options []Option
	// Depth is how many requests are under way at once; 0 if a job file says it.
	Depth int
	// Writes tells that the profile changes the volume.
	Writes bool
	// sections are those of a job file; Options are those of all then.
	sections []section
}

// Option is an option of a job of fio.
type Option struct{ Key, Value string }

// section is a job of a job file.
type section struct {
	name    string
	options []Option
}

// profiles are those that have a name.
var profiles = []Profile{
	{Name: "randread", Depth: 16, Options: []Option{{"rw", "randread"}, {"bs", "4k"}}},
	{Name: "oltp", Depth: 16, Writes: true, Options: []Option{{"rw", "randrw"}, {"rwmixread", "70"}, {"bs", "8k"}, {"fsync", "8"}}},
	{Name: "seq", Depth: 8, Options: []Option{{"rw", "read"}, {"bs", "1m"}}},
	{Name: "zipf", Depth: 16, Options: []Option{{"rw", "randread"}, {"bs", "4k"}, {"random_distribution", "zipf:1.1"}}},
}

// Names lists the profiles that have a name.
func Names() []string {
	names := make([]string, 0, len(profiles))
	for _, p := range profiles {
		names = append(names, p.Name)
	}
	return names
}

// Named returns the profile of a name.
func Named(name string) (Profile, bool) {
	i := slices.IndexFunc(profiles, func(p Profile) bool { return p.Name == name })
	if i < 0 {
		return Profile{}, false
	}
	return profiles[i], true
}

// sequential and wide are what the link is measured by: two patterns that a disk takes differently,
// and a link alike.
var (
	sequential = Profile{Name: "sequential reads of 1 MiB", Depth: 16, Options: []Option{{"rw", "read"}, {"bs", "1m"}}}
	wide       = Profile{Name: "random reads of 1 MiB", Depth: 16, Options: []Option{{"rw", "randread"}, {"bs", "1m"}}}
	fill       = Profile{Name: "fill", Depth: 8, Writes: true, Options: []Option{{"rw", "write"}, {"bs", "1m"}, {"end_fsync", "1"}}}
)

// Task is one run of fio.
type Task struct {
	// Path is the device or file that is read and written.
	Path string
	// Time is how long it runs, in whole seconds; 0 is once over the whole of Path.
	Time time.Duration
	// Depth is used instead of the profile's, unless it is 0. A job file keeps its own.
	Depth int
	// ReadOnly has fio refuse to write.
	ReadOnly bool
}

// JobFile writes a task as a job file of fio.
func (p Profile) JobFile(t Task) string {
	var b strings.Builder
	line := func(key, value string) {
		if value == "" {
			fmt.Fprintln(&b, key)
			return
		}
		fmt.Fprintf(&b, "%s=%s\n", key, value)
	}
	b.WriteString("[global]\n")
	if p.sections == nil {
		line("ioengine", "libaio")
		line("direct", "1")
		line("norandommap", "")
		line("randrepeat", "0")
	}
	for _, o := range p.Options {
		line(o.Key, o.Value)
	}
	if p.sections == nil {
		depth := p.Depth
		if t.Depth > 0 {
			depth = t.Depth
		}
		line("iodepth", strconv.Itoa(depth))
	}
	// From the call to its end: an engine that does the work in the call completes at once afterwards.
	line("lat_percentiles", "1")
	line("filename", escaped(t.Path))
	line("allow_file_create", "0")
	if t.Time > 0 {
		line("time_based", "1")
		line("runtime", strconv.Itoa(int(t.Time.Seconds())))
	}
	for _, s := range p.sections {
		fmt.Fprintf(&b, "[%s]\n", s.name)
		for _, o := range s.options {
			line(o.Key, o.Value)
		}
	}
	if p.sections == nil {
		fmt.Fprintf(&b, "[%s]\n", p.Name)
	}
	return b.String()
}

// escaped is a path as fio takes it: a colon would begin another file (fio(1), filename).
func escaped(path string) string { return strings.ReplaceAll(path, ":", `\:`) }

// CheckPath reports whether fio reads a path as it is: of a job file it cuts off what looks like a comment, or
// a blank at the end, and replaces what looks like a variable.
func CheckPath(path string) bool {
	return !strings.ContainsAny(path, ";#$") && strings.TrimSpace(path) == path && !strings.ContainsFunc(path, unicode.IsControl)
}

// Ours are options of a job file that are left out, because each run sets them: what is measured, and
// for how long.
var ours = []string{"filename", "directory", "runtime", "time_based", "loops", "allow_file_create", "create_only", "readonly", "filename_format"}

// refused are options that a job file may not have, with the reason.
var refused = map[string]string{
	"stonewall":         "all jobs of a file are measured together: give each its own run",
	"wait_for":          "all jobs of a file are measured together: give each its own run",
	"wait_for_previous": "all jobs of a file are measured together: give each its own run",
	"startdelay":        "all jobs of a file are measured together, from the beginning",
	"startdelay_range":  "all jobs of a file are measured together, from the beginning",
	"disable_clat":      "latencies are what is measured",
	"lat_percentiles":   "latencies are what is measured",
	"disable_lat":       "latencies are what is measured",
	"gtod_reduce":       "latencies are what is measured",
	"group_reporting":   "jobs are put together here",
	"nrfiles":           "the volume is one device",
	"exec_prerun":       "nothing else is run in the pod",
	"exec_postrun":      "nothing else is run in the pod",
	"include":           "the file has to have all of it",
}

// ParseJobFile reads a job file of fio (fio(1), "Job file format"). What it reads and writes, and for
// how long, is taken out; options that cannot be measured so are errors that name them.
func ParseJobFile(name, text string) (Profile, error) {
	p := Profile{Name: name}
	var at *[]Option
	for n, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		if line[0] == '[' {
			if !strings.HasSuffix(line, "]") || len(line) == len("[]") {
				return Profile{}, fmt.Errorf("line %d: %q begins no section: accepted is [NAME]", n+1, line)
			}
			if title := line[1 : len(line)-1]; title == "global" {
				if len(p.sections) > 0 {
					return Profile{}, fmt.Errorf("line %d: [global] after a job: accepted is one at the beginning", n+1)
				}
				at = &p.Options
			} else {
				p.sections = append(p.sections, section{name: title})
				at = &p.sections[len(p.sections)-1].options
			}
			continue
		}
		key, value, _ := strings.Cut(line, "=")
		o := Option{strings.TrimSpace(key), strings.TrimSpace(value)}
		if why := refused[o.Key]; why != "" || strings.HasPrefix(o.Key, "include") {
			return Profile{}, fmt.Errorf("line %d: the option %s is not accepted: %s", n+1, o.Key, why)
		}
		if at == nil {
			return Profile{}, fmt.Errorf("line %d: %q stands before the first section: accepted is [global] or [NAME]", n+1, line)
		}
		if !slices.Contains(ours, o.Key) {
			*at = append(*at, o)
		}
	}
	if len(p.sections) == 0 {
		return Profile{}, fmt.Errorf("it has no job: accepted is a section [NAME] beside [global]")
	}
	p.Writes = p.writes()
	return p, nil
}

// writes reports whether a job file changes what it works on.
func (p Profile) writes() bool {
	all := slices.Clone(p.Options)
	for _, s := range p.sections {
		all = append(all, s.options...)
	}
	return slices.ContainsFunc(all, func(o Option) bool {
		return (o.Key == "rw" || o.Key == "readwrite") && o.Value != "read" && o.Value != "randread"
	})
}
