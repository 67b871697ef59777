package hosttools

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// lvmConfig is what is read of LVM's configuration (lvm.conf(5)).
type lvmConfig struct {
	eventActivation      bool
	filter, globalFilter []string
}

// keepsOut reports whether LVM does not take what udev shows it, or not from devices of volumes.
func (f LVMFacts) keepsOut() bool {
	c, err := parseLVM(f.Config)
	return f.Err == nil && err == nil && !c.eventActivation || f.limited()
}

// limited reports whether none of LVM's commands looks into devices of volumes.
func (f LVMFacts) limited() bool {
	if f.Err != nil {
		return false
	}
	c, err := parseLVM(f.Config)
	if err != nil {
		return false
	}
	// Where the files say nothing, only somebody who uses the devices file has made it.
	byFile := f.DevicesFile && (f.UseDevicesFile == "1" || f.UseDevicesFile == "")
	return byFile || c.rejectsVolumes()
}

// volumeDevices are the names of devices of volumes as LVM may see them: the volume's own, its cached
// data below checksums, one of another driver's volume, a disk, and the kubelet's loop device over a raw block volume.
var volumeDevices = [][]string{
	{"/dev/dm-9", "/dev/mapper/nf-pvc-0"},
	{"/dev/dm-8", "/dev/mapper/nearflash-0123456789.pvc-0.data"},
	{"/dev/sdzz"},
	{"/dev/loop99"},
}

// rejectsVolumes reports whether a filter rejects all of them.
func (c lvmConfig) rejectsVolumes() bool {
	return !slices.ContainsFunc(volumeDevices, func(names []string) bool {
		return accepts(c.filter, names) && accepts(c.globalFilter, names)
	})
}

// accepts evaluates a filter: the first pattern that matches a name decides on the name, a device
// is accepted if one of its names is, or if no pattern matches any.
func accepts(filter, names []string) bool {
	rejected := false
	for _, name := range names {
		for _, pattern := range filter {
			if len(pattern) < 3 {
				continue
			}
			re, err := regexp.Compile(pattern[2 : len(pattern)-1])
			if err != nil || !re.MatchString(name) {
				continue
			}
			if pattern[0] == 'a' {
				return true
			}
			rejected = true
			break
		}
	}
	return !rejected
}

// parseLVM reads the answer of lvmconfig to names of settings: a line key=value for each.
func parseLVM(text string) (lvmConfig, error) {
	c := lvmConfig{eventActivation: true}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		key, value, found := strings.Cut(line, "=")
		if !found {
			continue
		}
		var err error
		switch key {
		case "event_activation":
			c.eventActivation = value != "0"
		case "filter":
			c.filter, err = words(value)
		case "global_filter":
			c.globalFilter, err = words(value)
		}
		if err != nil {
			return c, fmt.Errorf("setting %s: %w", key, err)
		}
	}
	return c, nil
}

// words reads a list such as ["a|.*|","r|x|"], or one word in quotes. A backslash keeps the
// meaning of a quote.
func words(value string) ([]string, error) {
	var out []string
	var word strings.Builder
	in, escaped := false, false
	for _, r := range value {
		switch {
		case escaped:
			word.WriteRune(r)
			escaped = false
		case in && r == '\\':
			escaped = true
		case r == '"' && in:
			out = append(out, word.String())
			word.Reset()
			in = false
		case r == '"':
			in = true
		case in:
			word.WriteRune(r)
		}
	}
	if in || escaped {
		return nil, fmt.Errorf("%q ends within a word", value)
	}
	return out, nil
}
