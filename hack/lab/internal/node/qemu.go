package node

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/nearflash/nearflash/hack/lab/internal/agentapi"
	"github.com/nearflash/nearflash/hack/lab/internal/proc"
)

// QEMU runs guests with a distribution's kernel in a whole machine: an emulated one,
// which needs nothing of the host, or with KVM.
type QEMU struct {
	// Program is qemu-system-x86_64.
	Program string
	// Initramfs has the agent, Modules is an ext4 image of the kernel's /lib/modules.
	Initramfs, Modules string
	CPUs               int
	KVM                bool
	// Folders are those of the host that the guest sees besides its share; a guest
	// names them by [FolderTag].
	Folders []string
}

// shareTag names a guest's share.
const shareTag = "share"

// FolderTag is the name of one of [QEMU]'s folders in the guest.
func FolderTag(i int) string { return fmt.Sprintf("folder%d", i) }

// maxVirtioDisks is the number of names with one letter.
const maxVirtioDisks = 26

// Spec implements [Backend]. What the guest writes over its root is in a file of
// TMPDIR that has no name any more; RootCOW and Boot are not used.
func (q QEMU) Spec(g Guest) (proc.Spec, error) {
	if len(g.Disks)+2 > maxVirtioDisks {
		return proc.Spec{}, fmt.Errorf("%w: %s has %d disks, at most %d are possible", ErrGuest, g.Name, len(g.Disks), maxVirtioDisks-2)
	}
	for _, p := range append(append([]string{q.Program, g.Kernel, q.Initramfs, q.Modules, g.Share, g.RootBase, g.RunDir}, g.Disks...), q.Folders...) {
		if p == "" || strings.ContainsAny(p, " \t\n,\"") {
			return proc.Spec{}, fmt.Errorf("%w: path %q is empty or has blanks, commas or quotes", ErrGuest, p)
		}
	}
	if q.CPUs < 1 {
		return proc.Spec{}, fmt.Errorf("%w: %d CPUs, at least 1 is needed", ErrGuest, q.CPUs)
	}
	// Five levels of page tables cost an emulator time and nobody needs them here. Its
	// CMPXCHG16B was seen to leave rubbish in the flags, of which a guest died.
	accel, cpu := "tcg,thread=multi", "max,la57=off,cx16=off"
	if q.KVM {
		accel, cpu = "kvm", "host"
	}
	modules := len(g.Disks) + 1
	args := []string{
		"-accel", accel, "-cpu", cpu, "-smp", strconv.Itoa(q.CPUs), "-m", strconv.Itoa(g.MemoryMiB),
		"-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio", "-device", "virtio-rng-pci",
		"-monitor", "unix:" + monitorSocket + ",server=on,wait=off",
		"-kernel", g.Kernel, "-initrd", q.Initramfs,
		// An oops ends the guest, and a panic shows on the console why. On a busy machine the
		// emulated timer is late for the kernel's check of it, and the time-stamp counter for
		// its watchdog: that would patch the kernel's code late, of which a guest died.
		// Without kaslr an address that Registers shows has a name in the kernel's System.map.
		// A processor that has run nothing else for a minute ends the guest too, and the
		// console shows what each of them was at: it was seen, and lasted until somebody looked.
		"-append", fmt.Sprintf("console=ttyS0 quiet nokaslr oops=panic softlockup_panic=1 watchdog_thresh=30 panic_print=0x40 panic=-1 "+
			"no_timer_check tsc=unstable mitigations=off rdinit=/%s %s=%s %s=%s %s=%s", agentapi.AgentFile, agentapi.ShareEnv, shareTag, agentapi.RootEnv, virtioDisk(0), agentapi.ModulesEnv, virtioDisk(modules)),
		// A crash of the guest loses nothing that its disks have acknowledged, since the host lives on.
		// The lab's other guests hold locks on the image, which none of them writes.
		"-drive", "if=virtio,format=raw,cache=unsafe,snapshot=on,file.locking=off,file=" + g.RootBase,
	}
	for _, d := range g.Disks {
		args = append(args, "-drive", "if=virtio,format=raw,cache=unsafe,discard=unmap,file="+d)
	}
	args = append(args, "-drive", "if=virtio,format=raw,readonly=on,file="+q.Modules)
	args = append(args, smartDisks()...)
	for tag, folder := range append([]string{g.Share}, q.Folders...) {
		name := shareTag
		if tag > 0 {
			name = FolderTag(tag - 1)
		}
		args = append(args, "-virtfs", "local,security_model=none,multidevs=remap,mount_tag="+name+",path="+folder)
	}
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + g.RunDir, "TMPDIR=" + g.RunDir}
	return proc.Spec{Name: g.Name, Path: q.Program, Args: args, Env: env, Dir: g.RunDir, Log: g.Console}, nil
}

// smartDisks are two NVMe disks for the tests of SMART, by their serial numbers: one is well, the
// other says that it has become unreliable (bit 2 of NVMe's critical warnings). Nothing is kept on them.
func smartDisks() []string {
	var args []string
	for i, d := range []string{"serial=well", "serial=failing,smart_critical_warning=4"} {
		name := fmt.Sprintf("smart%d", i)
		args = append(args, "-blockdev", "driver=null-co,size=67108864,read-zeroes=on,node-name="+name, "-device", "nvme,drive="+name+","+d)
	}
	return args
}

// monitorSocket is QEMU's monitor, relative to the guest's RunDir.
const monitorSocket = "monitor"

// monitorPrompt ends each answer of the monitor.
const monitorPrompt = "(qemu) "

// Registers returns what QEMU shows of a guest's processors: where each of them is, also when
// its kernel does not answer any more.
func (QEMU) Registers(ctx context.Context, g Guest) (string, error) {
	dir, err := os.Open(g.RunDir)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	// The folder's path may be longer than a socket's may be.
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), monitorSocket))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	r := bufio.NewReader(conn)
	if _, err := answer(r); err != nil { // its greeting
		return "", err
	}
	if _, err := io.WriteString(conn, "info registers -a\n"); err != nil {
		return "", err
	}
	return answer(r)
}

// answer reads until the monitor waits for a command.
func answer(r *bufio.Reader) (string, error) {
	var said strings.Builder
	for !strings.HasSuffix(said.String(), monitorPrompt) {
		c, err := r.ReadByte()
		if err != nil {
			return said.String(), fmt.Errorf("QEMU's monitor: %w", err)
		}
		said.WriteByte(c)
	}
	return said.String(), nil
}

// virtioDisk is the name of a disk in the guest, in the order of the command line.
func virtioDisk(i int) string { return "/dev/vd" + string(rune('a'+i)) }
