package node

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/nearflash/nearflash/hack/lab/internal/agentapi"
)

// WriteInitramfs writes what a kernel without a built-in driver of its root boots
// from: the agent, the modules of a folder with their order, and the folders that the
// agent mounts on.
func WriteInitramfs(path, agent, modules string) (err error) {
	out, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("initramfs: %w", err)
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	buf := bufio.NewWriter(out)
	a := archive{out: buf}
	for _, dir := range []string{"dev", agentapi.NewRoot, agentapi.BootModules} {
		a.add(dir, cpioFolder|0o755, nil)
	}
	entries, err := os.ReadDir(modules)
	if err != nil {
		return fmt.Errorf("initramfs: %w", err)
	}
	for _, e := range entries {
		a.addFile(filepath.Join(agentapi.BootModules, e.Name()), 0o644, filepath.Join(modules, e.Name()))
	}
	a.addFile(agentapi.AgentFile, 0o755, agent)
	a.add("TRAILER!!!", 0, nil)
	if err := errors.Join(a.err, buf.Flush()); err != nil {
		return fmt.Errorf("initramfs: %w", err)
	}
	return nil
}

// archive writes cpio's format newc, which the kernel unpacks
// (Documentation/driver-api/early-userspace/buffer-format.rst).
type archive struct {
	out     io.Writer
	written int64
	inode   int
	err     error
}

// Types of a file in the mode of an entry.
const (
	cpioFolder = 0o040000
	cpioFile   = 0o100000
)

func (a *archive) addFile(name string, mode uint32, path string) {
	content, err := os.ReadFile(path)
	if err != nil {
		a.err = errors.Join(a.err, err)
		return
	}
	a.add(name, cpioFile|mode, content)
}

func (a *archive) add(name string, mode uint32, content []byte) {
	a.inode++
	// Magic, inode, mode, uid, gid, links, time, size, two device numbers of the
	// file and two of what it stands for, length of the name, checksum.
	a.print(fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		a.inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name)+1, 0) + name + "\x00")
	a.pad()
	a.print(string(content))
	a.pad()
}

// pad fills up to a multiple of four bytes.
func (a *archive) pad() { a.print("\x00\x00\x00"[:-a.written&3]) }

func (a *archive) print(s string) {
	if a.err == nil {
		_, a.err = io.WriteString(a.out, s)
	}
	a.written += int64(len(s))
}
