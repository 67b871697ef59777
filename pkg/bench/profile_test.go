package bench

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestJobFile(t *testing.T) {
	const common = "[global]\nioengine=libaio\ndirect=1\nnorandommap\nrandrepeat=0\n"
	own, err := ParseJobFile("mine.fio", "; of mine\n[global]\nioengine = psync\nfilename=/dev/sda\nruntime=7\n\n[readers]\nrw=randread\nbs=16k\nnumjobs=2\n# more\n[log]\nrw=write\nbs=4k\nfdatasync=1\n")
	if err != nil {
		t.Fatal(err)
	}
	if !own.Writes || own.Depth != 0 || own.Name != "mine.fio" {
		t.Errorf("read %+v", own)
	}
	oltp, _ := Named("oltp")
	for name, c := range map[string]struct {
		profile Profile
		task    Task
		want    string
	}{
		"a profile": {
			profile: oltp, task: Task{Path: "/dev/x", Time: 30 * time.Second},
			want: common + "rw=randrw\nrwmixread=70\nbs=8k\nfsync=8\niodepth=16\nlat_percentiles=1\nfilename=/dev/x\nallow_file_create=0\ntime_based=1\nruntime=30\n[oltp]\n",
		},
		"another depth": {
			profile: oltp, task: Task{Path: "/dev/x", Time: 2 * time.Second, Depth: 1},
			want: common + "rw=randrw\nrwmixread=70\nbs=8k\nfsync=8\niodepth=1\nlat_percentiles=1\nfilename=/dev/x\nallow_file_create=0\ntime_based=1\nruntime=2\n[oltp]\n",
		},
		"once over all of it": {
			profile: fill, task: Task{Path: "/dev/x"},
			want: common + "rw=write\nbs=1m\nend_fsync=1\niodepth=8\nlat_percentiles=1\nfilename=/dev/x\nallow_file_create=0\n[fill]\n",
		},
		"a name with colons": {
			profile: fill, task: Task{Path: "/data/a:b::c"},
			want: common + "rw=write\nbs=1m\nend_fsync=1\niodepth=8\nlat_percentiles=1\nfilename=/data/a\\:b\\:\\:c\nallow_file_create=0\n[fill]\n",
		},
		"a job file keeps its depth": {
			profile: own, task: Task{Path: "/data/y", Time: 5 * time.Second, Depth: 64},
			want: "[global]\nioengine=psync\nlat_percentiles=1\nfilename=/data/y\nallow_file_create=0\ntime_based=1\nruntime=5\n[readers]\nrw=randread\nbs=16k\nnumjobs=2\n[log]\nrw=write\nbs=4k\nfdatasync=1\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, c.profile.JobFile(c.task)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestParseJobFileErrors(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"nothing":              {"", "it has no job: accepted is a section [NAME]"},
		"only what all have":   {"[global]\nrw=read\n", "it has no job"},
		"no section":           {"rw=read\n[x]\n", `line 1: "rw=read" stands before the first section`},
		"half a section":       {"[x\nrw=read\n", `line 1: "[x" begins no section: accepted is [NAME]`},
		"a section of nothing": {"[]\n", "begins no section"},
		"global twice":         {"[x]\n[global]\n", "line 2: [global] after a job"},
		"one after the other":  {"[x]\nrw=read\n[y]\nstonewall\n", "line 4: the option stonewall is not accepted: all jobs of a file are measured together"},
		"no latencies":         {"[x]\ngtod_reduce=1\n", "line 2: the option gtod_reduce is not accepted: latencies are what is measured"},
		"a command":            {"[x]\nexec_prerun=rm -rf /\n", "the option exec_prerun is not accepted"},
		"another file":         {"[x]\ninclude other.fio\n", "is not accepted"},
	} {
		t.Run(name, func(t *testing.T) {
			if p, err := ParseJobFile("x", c.text); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%+v, %v, want %q", p, err, c.want)
			}
		})
	}
}

// A job file that only reads may be run on a claim that exists.
func TestWrites(t *testing.T) {
	for text, want := range map[string]bool{
		"[x]\nrw=randread": false, "[x]": false, "[x]\nreadwrite=read": false, "[x]\nrw=randrw": true, "[global]\nrw=trim\n[x]": true, "[x]\nrw=read\n[y]\nreadwrite=write": true,
	} {
		if p, err := ParseJobFile("x", text); err != nil || p.Writes != want {
			t.Errorf("%q writes: %v, %v", text, p.Writes, err)
		}
	}
}

func TestCheckPath(t *testing.T) {
	for path, want := range map[string]bool{
		"base/large": true, "a:b": true, "with a blank": true, "größe": true,
		"a;b": false, "a#b": false, "${HOME}": false, "$ncpus": false, "blank ": false, " blank": false, "a\nb": false, "": true,
	} {
		if got := CheckPath(path); got != want {
			t.Errorf("%q: %v", path, got)
		}
	}
}
