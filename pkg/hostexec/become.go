package hostexec

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// Become replaces this process by a program, which gets its PID, its environment and its streams
// (execve(2)). It returns if that fails only.
func Become(name string, args ...string) error {
	path, err := exec.LookPath(name)
	if err == nil {
		err = syscall.Exec(path, append([]string{name}, args...), os.Environ())
	}
	return fmt.Errorf("become %s: %w", name, err)
}
