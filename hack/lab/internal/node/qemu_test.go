package node

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func machine() QEMU {
	return QEMU{Program: "/q", Initramfs: "/s/initramfs", Modules: "/k/modules.ext4", CPUs: 2, Folders: []string{"/work"}}
}

func TestQEMUSpec(t *testing.T) {
	g := guest()
	got, err := machine().Spec(g)
	if err != nil {
		t.Fatal(err)
	}
	want := "-accel tcg,thread=multi -cpu max,la57=off,cx16=off -smp 2 -m 512 -nodefaults -display none -no-reboot -serial stdio -device virtio-rng-pci -monitor unix:monitor,server=on,wait=off " +
		"-kernel /k/linux -initrd /s/initramfs -append console=ttyS0 quiet nokaslr oops=panic softlockup_panic=1 watchdog_thresh=30 panic_print=0x40 panic=-1 no_timer_check tsc=unstable mitigations=off rdinit=/agent nfshare=share nfroot=/dev/vda nfmodules=/dev/vdd " +
		"-drive if=virtio,format=raw,cache=unsafe,snapshot=on,file.locking=off,file=/k/base.ext4 " +
		"-drive if=virtio,format=raw,cache=unsafe,discard=unmap,file=/s/ssd0 -drive if=virtio,format=raw,cache=unsafe,discard=unmap,file=/s/ssd1 " +
		"-drive if=virtio,format=raw,readonly=on,file=/k/modules.ext4 " +
		"-blockdev driver=null-co,size=67108864,read-zeroes=on,node-name=smart0 -device nvme,drive=smart0,serial=well " +
		"-blockdev driver=null-co,size=67108864,read-zeroes=on,node-name=smart1 -device nvme,drive=smart1,serial=failing,smart_critical_warning=4 " +
		"-virtfs local,security_model=none,multidevs=remap,mount_tag=share,path=/s/share -virtfs local,security_model=none,multidevs=remap,mount_tag=folder0,path=/work"
	if diff := cmp.Diff(want, strings.Join(got.Args, " ")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	q := machine()
	q.KVM = true
	if got, err = q.Spec(g); err != nil || strings.Join(got.Args[:4], " ") != "-accel kvm -cpu host" {
		t.Errorf("with KVM: %v, %v", got.Args, err)
	}
}

func TestQEMUSpecRefuses(t *testing.T) {
	tests := map[string]func(*Guest, *QEMU){
		"comma in a folder": func(_ *Guest, q *QEMU) { q.Folders = []string{"/a,b"} },
		"missing modules":   func(_ *Guest, q *QEMU) { q.Modules = "" },
		"no processor":      func(_ *Guest, q *QEMU) { q.CPUs = 0 },
		"too many disks":    func(g *Guest, _ *QEMU) { g.Disks = make([]string, maxVirtioDisks) },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			g, q := guest(), machine()
			change(&g, &q)
			if _, err := q.Spec(g); !errors.Is(err, ErrGuest) {
				t.Errorf("error %v, want %v", err, ErrGuest)
			}
		})
	}
}

// TestRegisters asks a monitor that speaks as QEMU's does, below a path that is too long for a socket.
func TestRegisters(t *testing.T) {
	const said = "info registers -a\r\nCPU#0\r\nRIP=ffffffff81000000\r\n(qemu) "
	g := Guest{RunDir: filepath.Join(t.TempDir(), strings.Repeat("long", 40))}
	if _, err := (QEMU{}).Registers(t.Context(), g); err == nil {
		t.Error("a guest without a monitor has no error")
	}
	if err := os.Mkdir(g.RunDir, 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(g.RunDir)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "unix", fmt.Sprintf("/proc/self/fd/%d/monitor", dir.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "QEMU 7.2.0 monitor - type 'help' for more information\r\n(qemu) ")
		if line, err := bufio.NewReader(conn).ReadString('\n'); err == nil && line == "info registers -a\n" {
			_, _ = io.WriteString(conn, said)
		}
	}()
	if got, err := (QEMU{}).Registers(t.Context(), g); err != nil || got != said {
		t.Errorf("Registers = %q, %v", got, err)
	}
}

func TestWriteInitramfs(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"agent": "#!", "m/order": "a.ko\n", "m/a.ko": "abcde"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(dir, "initramfs")
	if err := WriteInitramfs(out, filepath.Join(dir, "agent"), filepath.Join(dir, "m")); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	// A header of 110 characters, the name, and the content, each up to four bytes.
	var names []string
	for at := 0; at < len(b); {
		var size, length int
		for field, to := range map[int]*int{6: &size, 11: &length} {
			for _, c := range b[at+6+8*field : at+14+8*field] {
				*to = *to<<4 | strings.IndexByte("0123456789abcdef", c)
			}
		}
		names = append(names, string(b[at+110:at+110+length-1]))
		at += (110 + length + 3) &^ 3
		if names[len(names)-1] == "modules/a.ko" && !bytes.Equal(b[at:at+size], []byte("abcde")) {
			t.Errorf("content %q", b[at:at+size])
		}
		at += (size + 3) &^ 3
	}
	if diff := cmp.Diff([]string{"dev", "newroot", "modules", "modules/a.ko", "modules/order", "agent", "TRAILER!!!"}, names); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if err := WriteInitramfs(out, filepath.Join(dir, "absent"), filepath.Join(dir, "m")); err == nil {
		t.Error("an agent that is not there is no error")
	}
}
