package hosttools

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// multipathConfig is what is read of multipathd's configuration (multipath.conf(5)).
type multipathConfig struct {
	findMultipaths        string
	blacklist, exceptions blacklist
}

// blacklist has the patterns of a section blacklist, or blacklist_exceptions, by their kind, and
// those of devices.
type blacklist struct {
	patterns map[string][]string
	devices  []deviceEntry
}

type deviceEntry struct{ vendor, product string }

// disk is one that multipathd would be asked about.
type disk struct {
	what                      string
	vendor, product           string
	devnode, protocol, serial string
	// paths is how many lead to it.
	paths int
}

// disks are those of volumes. The kernel's target says of itself LIO-ORG; nearflash-target puts
// the product after it (volume.LUNProduct), and caches that nodes export keep the kernel's own.
var disks = []disk{
	{what: "LUNs of nearflash-target", vendor: "LIO-ORG", product: "nf-1", devnode: "sdzz", protocol: "scsi:iscsi", serial: "36001405000000000000000000000000", paths: 2},
	{what: "caches of other nodes", vendor: "LIO-ORG", product: "IBLOCK", devnode: "sdzz", protocol: "scsi:iscsi", serial: "36001405000000000000000000000000", paths: 1},
}

// taken are the disks of volumes that multipathd would make a device over.
func (c multipathConfig) taken() []string {
	var out []string
	for _, d := range disks {
		if c.wants(d.paths) && !c.ignores(d) {
			out = append(out, d.what)
		}
	}
	return out
}

// wants goes by find_multipaths: "strict" takes only what an administrator has named once, "yes"
// what has several paths, and everything else each disk.
func (c multipathConfig) wants(paths int) bool {
	switch c.findMultipaths {
	case "strict":
		return false
	case "yes", "on":
		return paths > 1
	}
	return true
}

// ignores reports whether the blacklist covers a disk, by any of its kinds.
func (c multipathConfig) ignores(d disk) bool {
	for kind, value := range map[string]string{"devnode": d.devnode, "protocol": d.protocol, "wwid": d.serial} {
		if matchesAny(c.blacklist.patterns[kind], value) && !matchesAny(c.exceptions.patterns[kind], value) {
			return true
		}
	}
	return c.blacklist.covers(d) && !c.exceptions.covers(d)
}

func (b blacklist) covers(d disk) bool {
	return slices.ContainsFunc(b.devices, func(e deviceEntry) bool {
		return (e.vendor != "" || e.product != "") && (e.vendor == "" || matches(e.vendor, d.vendor)) && (e.product == "" || matches(e.product, d.product))
	})
}

func matchesAny(patterns []string, value string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, value) })
}

// matches is a match of an extended regular expression; "!" before it means the contrary. One
// that cannot be read matches nothing.
func matches(pattern, value string) bool {
	pattern, not := strings.CutPrefix(pattern, "!")
	re, err := regexp.CompilePOSIX(pattern)
	return err == nil && re.MatchString(value) != not
}

// maxDepth is how deep sections are nested at most: devices, and device in it, are two.
const maxDepth = 8

// parseMultipath reads the answer to "show config": one word a line with its value in quotes,
// and sections in braces.
func parseMultipath(text string) (multipathConfig, error) {
	c := multipathConfig{blacklist: blacklist{patterns: map[string][]string{}}, exceptions: blacklist{patterns: map[string][]string{}}}
	var in []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == '!' {
			continue
		}
		word, rest, _ := strings.Cut(line, " ")
		switch {
		case line == "}":
			if len(in) == 0 {
				return c, errors.New("a section ends that did not begin")
			}
			in = in[:len(in)-1]
		case strings.HasSuffix(line, "{"):
			if in = append(in, strings.TrimSpace(strings.TrimSuffix(line, "{"))); len(in) > maxDepth {
				return c, fmt.Errorf("more than %d sections in each other", maxDepth)
			}
			c.begin(in)
		default:
			c.set(in, word, unquote(rest))
		}
	}
	if len(in) > 0 {
		return c, fmt.Errorf("section %q does not end", in[len(in)-1])
	}
	if c.findMultipaths == "" {
		return c, errors.New("it does not say find_multipaths")
	}
	return c, nil
}

// list is the blacklist that a section belongs to, nil for others.
func (c *multipathConfig) list(in []string) *blacklist {
	switch {
	case len(in) == 0:
		return nil
	case in[0] == "blacklist":
		return &c.blacklist
	case in[0] == "blacklist_exceptions":
		return &c.exceptions
	}
	return nil
}

func (c *multipathConfig) begin(in []string) {
	if b := c.list(in); b != nil && len(in) == 2 && in[1] == "device" {
		b.devices = append(b.devices, deviceEntry{})
	}
}

func (c *multipathConfig) set(in []string, word, value string) {
	b := c.list(in)
	switch {
	case len(in) == 1 && in[0] == "defaults" && word == "find_multipaths":
		c.findMultipaths = value
	case b != nil && len(in) == 1:
		b.patterns[word] = append(b.patterns[word], value)
	case b != nil && len(in) == 2 && in[1] == "device":
		last := &b.devices[len(b.devices)-1]
		switch word {
		case "vendor":
			last.vendor = value
		case "product":
			last.product = value
		}
	}
}

// unquote takes the quotes off a value; a quote within is written twice.
func unquote(s string) string {
	s = strings.TrimSpace(s)
	if len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' {
		s = strings.ReplaceAll(s[1:len(s)-1], `""`, `"`)
	}
	return s
}
