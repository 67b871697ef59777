package mount

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	mountutils "k8s.io/mount-utils"

	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/volume"
)

// blkid answers like blkid(8).
type blkid struct {
	status int
	out    string
}

func (b blkid) Await(context.Context, ...string) error { return nil }

func (b blkid) Run(_ context.Context, cmd hostexec.Cmd) (hostexec.Result, error) {
	if b.status != 0 {
		return hostexec.Result{}, hostexec.NewExitError(cmd, b.status, nil)
	}
	return hostexec.Result{Stdout: []byte(b.out)}, nil
}

func TestIdentify(t *testing.T) {
	for name, tc := range map[string]struct {
		answer blkid
		want   string
		fails  bool
	}{
		"filesystem":                   {answer: blkid{out: "DEVNAME=/dev/x\nTYPE=ext4\n"}, want: "ext4"},
		"filesystem and a boot sector": {answer: blkid{out: "DEVNAME=/dev/x\nPTTYPE=dos\nTYPE=xfs\n"}, want: "xfs"},
		"partitions":                   {answer: blkid{out: "PTTYPE=gpt\n"}, want: "a table of partitions (gpt)"},
		"nothing that it knows":        {answer: blkid{status: blkidNothing}},
		"too much":                     {answer: blkid{status: blkidAmbiguous}, want: "more than one filesystem"},
		"wrong use":                    {answer: blkid{status: 4}, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := New(tc.answer).identify(t.Context(), "/dev/x")
			if got != tc.want || (err != nil) != tc.fails {
				t.Errorf("got %q, %v, want %q", got, err, tc.want)
			}
		})
	}
}

// TestProbeUnreadable: what cannot be read is an error, never blank. What blkid would
// answer does not count.
func TestProbeUnreadable(t *testing.T) {
	c, err := New(blkid{status: blkidNothing}).Probe(t.Context(), t.TempDir()+"/no-such-device")
	if !errors.Is(err, volume.ErrUnavailable) || c != (volume.Content{}) {
		t.Errorf("got %+v, %v, want ErrUnavailable", c, err)
	}
}

// TestMkfs: what is made can be mounted by the oldest kernel that is supported.
func TestMkfs(t *testing.T) {
	for fsType, want := range map[string]string{
		"ext4": "mkfs.ext4 -q -F -m0 -O ^orphan_file -E nodiscard /dev/x",
		"xfs":  "mkfs.xfs -q -f -K -c options=/usr/share/xfsprogs/mkfs/lts_5.15.conf /dev/x",
	} {
		cmd, err := mkfs("/dev/x", fsType)
		if err != nil || cmd.String() != want {
			t.Errorf("%s: %q, %v, want %q", fsType, cmd, err, want)
		}
	}
	if _, err := mkfs("/dev/x", "btrfs"); !errors.Is(err, volume.ErrInvalid) || !strings.Contains(err.Error(), `"btrfs"`) {
		t.Errorf("got %v, want ErrInvalid that names the type", err)
	}
}

// TestMountOptions: an XFS volume and its clone are mounted beside each other.
func TestMountOptions(t *testing.T) {
	for name, tc := range map[string]struct {
		fsType        string
		options, want []string
	}{
		"xfs":           {"xfs", nil, []string{"nouuid"}},
		"xfs, noatime":  {"xfs", []string{"noatime"}, []string{"nouuid", "noatime"}},
		"xfs, as asked": {"xfs", []string{"ro", "nouuid"}, []string{"ro", "nouuid"}},
		"ext4":          {"ext4", []string{"noatime"}, []string{"noatime"}},
	} {
		t.Run(name, func(t *testing.T) {
			mounter := mountutils.NewFakeMounter(nil)
			h := &Host{run: blkid{}, mounter: mounter}
			if err := h.Mount(t.Context(), "/dev/x", t.TempDir()+"/m", tc.fsType, tc.options); err != nil {
				t.Fatal(err)
			}
			if got := mounter.MountPoints; len(got) != 1 || !slices.Equal(got[0].Opts, tc.want) {
				t.Errorf("mounted with %+v, want %q", got, tc.want)
			}
		})
	}
}
