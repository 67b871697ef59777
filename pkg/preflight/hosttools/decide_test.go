package hosttools

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Lines of rules as distributions have them: of lvm2, mdadm, systemd, bcache-tools and dmraid.
const (
	lvmRule    = `IMPORT{program}="/sbin/lvm pvscan --cache --listvg --checkcomplete --vgonline --autoactivation event --udevoutput --journal=output $env{DEVNAME}"`
	lvmOldRule = `RUN+="/sbin/lvm pvscan --background --cache --activate ay --major $major --minor $minor", ENV{LVM_SCANNED}="1"`
	mdRule     = `ACTION=="add|change", IMPORT{program}="/sbin/mdadm --incremental --export $devnode --offroot $env{DEVLINKS}"`
	mdOldRule  = `ACTION=="add", RUN+="/sbin/mdadm -I $env{DEVNAME}"`
	btrfsRule  = `IMPORT{builtin}="btrfs ready $devnode"`
	bcacheRule = `RUN+="bcache-register $tempnode"`
	dmraidRule = `RUN+="/sbin/dmraid-activate %k"`
	otherRule  = `ACTION=="remove", ENV{ID_PATH}=="?*", RUN+="/sbin/mdadm -If $name --path $env{ID_PATH}"`
)

// Answers of lvmconfig.
const (
	lvmDefault  = "filter=[\"a|.*|\"]\nglobal_filter=[\"a|.*|\"]\nevent_activation=1\n"
	lvmOwnDisks = "filter=[\"a|.*|\"]\nglobal_filter=[\"a|^/dev/nvme0n1p3$|\",\"r|.*|\"]\nevent_activation=1\n"
	lvmOnlyDM   = "filter=[\"r|^/dev/mapper/nf-|\"]\nglobal_filter=[\"a|.*|\"]\nevent_activation=1\n"
	lvmNoEvents = "filter=[\"a|.*|\"]\nglobal_filter=[\"a|.*|\"]\nevent_activation=0\n"
)

func sample(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestUdevProblems(t *testing.T) {
	withRule := func(text string, more ...string) map[string]string {
		return map[string]string{RuleFile: text, "60-others.rules": strings.Join(more, "\n")}
	}
	rules := func(lines ...string) map[string]string {
		return map[string]string{"60-others.rules": "# bcache-register\n" + strings.Join(lines, "\n")}
	}
	for name, tc := range map[string]struct {
		f Facts
		// want are words of the problem, none for none; not are words that it must not have.
		want, not []string
	}{
		"no udev":                        {f: Facts{Rules: rules(lvmRule)}},
		"the rule":                       {f: Facts{Udev: true, Rules: withRule(rule, lvmRule, mdRule)}},
		"the rule, with other comments":  {f: Facts{Udev: true, Rules: withRule("# ours\n\n" + strings.Join(active(rule), "\n"))}},
		"an older rule":                  {f: Facts{Udev: true, Rules: withRule("KERNEL==\"dm-*\"\n")}, want: []string{"not the one of this version", "remedy"}},
		"a rule that is out of force":    {f: Facts{Udev: true, Rules: withRule("")}, want: []string{"not the one of this version"}},
		"nobody but udev":                {f: Facts{Udev: true, Rules: rules(otherRule)}, want: []string{"/dev/disk", "remedy", page}, not: []string{"hands"}},
		"all of them":                    {f: Facts{Udev: true, Rules: rules(lvmRule, mdRule, btrfsRule, bcacheRule, dmraidRule), LVM: LVMFacts{Config: lvmDefault}}, want: []string{"hands it to LVM, MD RAID, btrfs, bcache, dmraid"}},
		"older rules":                    {f: Facts{Udev: true, Rules: rules(lvmOldRule, mdOldRule), LVM: LVMFacts{Config: lvmDefault}}, want: []string{"hands it to LVM, MD RAID:"}},
		"LVM, of which nothing is known": {f: Facts{Udev: true, Rules: rules(lvmRule), LVM: LVMFacts{Err: errors.New("no lvmconfig")}}, want: []string{"LVM"}},
		"LVM, all but loop devices":      {f: Facts{Udev: true, Rules: rules(lvmRule), LVM: LVMFacts{Config: `filter=["r|^/dev/(mapper/nf-\|dm-\|sd)|"]`}}, want: []string{"LVM"}},
		"LVM, unreadable":                {f: Facts{Udev: true, Rules: rules(lvmRule), LVM: LVMFacts{Config: `filter=["r|.*|`}}, want: []string{"LVM"}},
		"LVM for its own disks":          {f: Facts{Udev: true, Rules: rules(lvmRule), LVM: LVMFacts{Config: lvmOwnDisks}}, want: []string{"/dev/disk"}, not: []string{"LVM"}},
		"LVM not for caches alone":       {f: Facts{Udev: true, Rules: rules(lvmRule), LVM: LVMFacts{Config: lvmOnlyDM}}, want: []string{"LVM"}},
		"LVM without events":             {f: Facts{Udev: true, Rules: rules(lvmRule), LVM: LVMFacts{Config: lvmNoEvents}}, want: []string{"/dev/disk"}, not: []string{"LVM"}},
		"LVM by a devices file":          {f: Facts{Udev: true, Rules: rules(lvmRule), LVM: LVMFacts{Config: lvmDefault, UseDevicesFile: "1", DevicesFile: true}}, want: []string{"/dev/disk"}, not: []string{"LVM"}},
		"LVM by one, as it is the default": {f: Facts{Udev: true, Rules: rules(lvmRule), LVM: LVMFacts{Config: lvmDefault, DevicesFile: true}},
			want: []string{"/dev/disk"}, not: []string{"LVM"}},
		"LVM without the devices file that it may use":  {f: Facts{Udev: true, Rules: rules(lvmRule), LVM: LVMFacts{Config: lvmDefault, UseDevicesFile: "1"}}, want: []string{"LVM"}},
		"LVM with a devices file that it shall not use": {f: Facts{Udev: true, Rules: rules(lvmRule), LVM: LVMFacts{Config: lvmDefault, UseDevicesFile: "0", DevicesFile: true}}, want: []string{"LVM"}},
	} {
		t.Run(name, func(t *testing.T) { judge(t, tc.f.Problems(), tc.want, tc.not) })
	}
}

// TestScanning: LVM and MD RAID, which look into every disk when they are run, are one problem where
// nothing keeps them away, and a note where the rule keeps udev from starting them.
func TestScanning(t *testing.T) {
	withRule := map[string]string{RuleFile: rule, "60-others.rules": lvmRule + "\n" + mdRule}
	lvm, md := LVMFacts{Tool: true, Config: lvmDefault}, MDFacts{Tool: true}
	filtered := LVMFacts{Tool: true, Config: lvmOwnDisks}
	for name, tc := range map[string]struct {
		f Facts
		// want and note are words of the problem and of the note, none for none; not are words that
		// neither may have.
		want, note, not []string
	}{
		"no tools":                          {f: Facts{}},
		"the rule":                          {f: Facts{Udev: true, Rules: withRule}},
		"the rule, and LVM":                 {f: Facts{Udev: true, Rules: withRule, LVM: lvm}, note: []string{"vgchange", `global_filter = [ "a|^/dev/DISK$|", "r|.*|" ]`, page}, not: []string{"mdadm"}},
		"the rule, and MD RAID":             {f: Facts{Udev: true, Rules: withRule, LVM: filtered, MD: md}, note: []string{"mdadm --assemble --scan", "AUTO -all"}, not: []string{"vgchange", "global_filter"}},
		"the rule, and both":                {f: Facts{Udev: true, Rules: withRule, LVM: lvm, MD: md}, note: []string{"vgchange", "mdadm"}},
		"the rule, and a filter":            {f: Facts{Udev: true, Rules: withRule, LVM: filtered}},
		"the rule, and a devices file":      {f: Facts{Udev: true, Rules: withRule, LVM: LVMFacts{Tool: true, Config: lvmDefault, DevicesFile: true}}},
		"the rule, and LVM without events":  {f: Facts{Udev: true, Rules: withRule, LVM: LVMFacts{Tool: true, Config: lvmNoEvents}}, note: []string{"vgchange"}},
		"the rule, and nobody knows of LVM": {f: Facts{Udev: true, Rules: withRule, LVM: LVMFacts{Tool: true, Err: errors.New("no answer")}}, note: []string{"vgchange"}},
		"no rule: one problem":              {f: Facts{Udev: true, Rules: map[string]string{"60-others.rules": lvmRule}, LVM: lvm, MD: md}, want: []string{"hands it to LVM", "node.udevRule"}, not: []string{"vgchange", "\n"}},
		"no udev, and LVM":                  {f: Facts{LVM: lvm}, want: []string{"no udev", "nothing keeps its LVM (", "global_filter", page}, not: []string{"mdadm", "\n"}},
		"no udev, and MD RAID":              {f: Facts{MD: md, LVM: filtered}, want: []string{"no udev", "MD RAID", "AUTO -all"}, not: []string{"LVM"}},
		"no udev, and both: one problem":    {f: Facts{LVM: lvm, MD: md}, want: []string{"LVM and MD RAID"}, not: []string{"\n"}},
		"no udev, and filters":              {f: Facts{LVM: filtered, MD: MDFacts{Tool: true, Config: "DEVICE partitions\nAUTO -all\n"}}},
		"no udev, MD RAID for some":         {f: Facts{MD: MDFacts{Tool: true, Config: "AUTO +1.x -all\n"}}, want: []string{"MD RAID"}},
		"no udev, and multipathd":           {f: Facts{LVM: lvm, Multipath: MultipathFacts{Runs: true, Err: errors.New("refused")}}, want: []string{"LVM", "multipathd"}},
	} {
		t.Run(name, func(t *testing.T) {
			var note error
			if text := tc.f.Note(); text != "" {
				note = errors.New(text)
			}
			judge(t, tc.f.Problems(), tc.want, nil)
			judge(t, note, tc.note, nil)
			for _, w := range tc.not {
				if said := errors.Join(tc.f.Problems(), note); said != nil && strings.Contains(said.Error(), w) {
					t.Errorf("%q has %q", said, w)
				}
			}
		})
	}
}

// TestPage: the how-to has the files as they are.
func TestPage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("../../..", page))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\n" + rule + "```", RuleDir + "/" + RuleFile} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s lacks %s", page, want)
		}
	}
	_, blacklist, _ := strings.Cut(string(text), "```\nblacklist {")
	blacklist, _, _ = strings.Cut(blacklist, "```")
	c, err := parseMultipath("defaults {\n\tfind_multipaths \"yes\"\n}\nblacklist {" + blacklist)
	if taken := c.taken(); err != nil || len(taken) > 0 {
		t.Errorf("with the page's blacklist multipathd takes %v, %v", taken, err)
	}
}

func judge(t *testing.T, err error, want, not []string) {
	t.Helper()
	if (err != nil) != (len(want) > 0) {
		t.Fatalf("got %v, want words %q", err, want)
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q lacks %q", err, w)
		}
	}
	for _, w := range not {
		if strings.Contains(err.Error(), w) {
			t.Errorf("%q has %q", err, w)
		}
	}
}

// TestMultipathProblems goes by what multipath-tools 0.9.4 of Debian 12 shows, with its defaults
// and with the file of the how-to.
func TestMultipathProblems(t *testing.T) {
	def, listed := sample(t, "multipath-default.txt"), sample(t, "multipath-blacklist.txt")
	find := func(text, word string) string {
		for _, was := range []string{"strict", "on"} {
			text = strings.Replace(text, `find_multipaths "`+was+`"`, `find_multipaths "`+word+`"`, 1)
		}
		return text
	}
	entry := func(text, section, line string) string {
		return strings.Replace(text, "\n"+section+" {\n", "\n"+section+" {\n"+line+"\n", 1)
	}
	device := "\tdevice {\n\t\tvendor \"LIO-ORG\"\n\t}"
	for name, tc := range map[string]struct {
		config    string
		want, not []string
	}{
		"only what is named":        {config: def},
		"several paths":             {config: find(def, "yes"), want: []string{"LUNs of nearflash-target", `find_multipaths "yes"`, page}, not: []string{"caches"}},
		"as newer ones say it":      {config: find(def, "on"), want: []string{"LUNs of nearflash-target"}},
		"every disk":                {config: find(def, "greedy"), want: []string{"LUNs of nearflash-target and caches of other nodes"}},
		"every disk, older word":    {config: find(def, "no"), want: []string{"LUNs", "caches of other nodes"}},
		"every disk, after a pause": {config: find(def, "smart"), want: []string{"LUNs", "caches of other nodes"}},
		"a word of the future":      {config: find(def, "perhaps"), want: []string{"LUNs", "caches of other nodes"}},
		"listed":                    {config: listed},
		"listed, every disk":        {config: find(listed, "greedy"), want: []string{"caches of other nodes"}, not: []string{"LUNs"}},
		"the vendor listed":         {config: entry(find(def, "greedy"), "blacklist", device)},
		"listed, and an exception":  {config: entry(listed, "blacklist_exceptions", device), want: []string{"LUNs"}},
		"all of iSCSI":              {config: entry(find(def, "greedy"), "blacklist", "\tprotocol \"scsi:iscsi\"")},
		"all disks":                 {config: entry(find(def, "greedy"), "blacklist", "\tdevnode \"^sd\"")},
		"all but some":              {config: entry(find(def, "greedy"), "blacklist", "\twwid \"!^3600a098\"")},
		"an entry of nothing":       {config: entry(find(def, "yes"), "blacklist", "\tdevice {\n\t}"), want: []string{"LUNs"}},
		"a pattern that is none":    {config: entry(find(def, "yes"), "blacklist", "\tdevnode \"(\""), want: []string{"LUNs"}},
		"no answer":                 {config: "", want: []string{"cannot be read", "find_multipaths"}},
		"cut off":                   {config: def[:len(def)/2], want: []string{"cannot be read", "does not end"}},
		"timeout":                   {config: "timeout\n", want: []string{"cannot be read"}},
		"no beginning":              {config: "}\n" + def, want: []string{"cannot be read"}},
	} {
		t.Run(name, func(t *testing.T) {
			judge(t, Facts{Multipath: MultipathFacts{Runs: true, Config: tc.config}}.Problems(), tc.want, tc.not)
		})
	}
	judge(t, Facts{Multipath: MultipathFacts{Config: find(def, "greedy")}}.Problems(), nil, nil)
	judge(t, Facts{Multipath: MultipathFacts{Runs: true, Err: errors.New("refused")}}.Problems(), []string{"not known", "refused", page}, nil)
}

// TestFilters: what LVM's manual says of filters.
func TestFilters(t *testing.T) {
	names := []string{"/dev/dm-3", "/dev/mapper/nf-x"}
	for name, tc := range map[string]struct {
		filter []string
		want   bool
	}{
		"none":                       {nil, true},
		"by one name":                {[]string{"r|^/dev/mapper/nf-|"}, false},
		"by another delimiter":       {[]string{"r/nf-/"}, false},
		"accepted by another name":   {[]string{"r|/nf-|", "a|/dm-|"}, true},
		"the first pattern decides":  {[]string{"a|/nf-|", "r|.*|"}, true},
		"rejected as all":            {[]string{"a|^/dev/sda|", "r|.*|"}, false},
		"short patterns are ignored": {[]string{"r", "", "r|"}, true},
	} {
		if got := accepts(tc.filter, names); got != tc.want {
			t.Errorf("%s: accepted %t, want %t", name, got, tc.want)
		}
	}
}

func FuzzParseMultipath(f *testing.F) {
	for _, name := range []string{"multipath-default.txt", "multipath-blacklist.txt"} {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Add("blacklist {\n device {\n vendor \"\n}\n product \"x\"\n}\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parseMultipath(text)
		if taken := c.taken(); err == nil && c.findMultipaths == "strict" && taken != nil {
			t.Errorf("strict takes %v", taken)
		}
	})
}

func FuzzParseLVM(f *testing.F) {
	for _, text := range []string{lvmDefault, lvmOwnDisks, lvmOnlyDM, lvmNoEvents, `filter=["r|a\"|"]`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parseLVM(text)
		if keeps := (LVMFacts{Config: text}).keepsOut(); keeps != (err == nil && (!c.eventActivation || c.rejectsVolumes())) {
			t.Errorf("keeps out %t, parsed %+v, %v", keeps, c, err)
		}
	})
}

func FuzzRules(f *testing.F) {
	for _, text := range []string{rule, lvmRule, mdOldRule, otherRule, "#x\n\n y"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		err := Facts{Udev: true, Rules: map[string]string{RuleFile: text}}.Problems()
		if (err == nil) != sameRule(text, rule) {
			t.Errorf("got %v", err)
		}
	})
}
