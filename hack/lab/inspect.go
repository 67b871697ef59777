package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func newStatus(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show processes, guests and nodes; fails when a part is missing",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			lab, err := o.lab()
			if err != nil {
				return err
			}
			return lab.Status(cmd.Context(), os.Stdout)
		},
	}
}

func newLogs(o *options) *cobra.Command {
	var lines int
	cmd := &cobra.Command{
		Use:   "logs",
		Short: "Print the logs of host processes, guests and containers",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			lab, err := o.lab()
			if err != nil {
				return err
			}
			return lab.Logs(cmd.Context(), lines, os.Stdout)
		},
	}
	cmd.Flags().IntVar(&lines, "tail", 50, "lines of each log")
	return cmd
}

func newKubeconfig(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print the path of the administrator's kubeconfig, for use within `lab run`",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			lab, err := o.labUp()
			if err != nil {
				return err
			}
			fmt.Println(lab.Kubeconfig())
			return nil
		},
	}
}

func newRun(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "run -- COMMAND...",
		Short: "Run a program of the host within the lab's network, with kubectl and helm on PATH",
		Long: `Sets KUBECONFIG, NEARFLASH_LAB (this program, for the program to call),
NEARFLASH_LAB_ID and PATH. The program replaces this one: signals and exit status
are its own. The lab's network leads nowhere else.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			lab, err := o.labUp()
			if err != nil {
				return err
			}
			env, err := withLabProgram(lab.Environ(os.Environ()))
			if err != nil {
				return err
			}
			path, err := lookPath(args[0], env)
			if err != nil {
				return err
			}
			runtime.LockOSThread() // the namespace is the thread's; exec makes it the process's
			if err := lab.NS.Join(); err != nil {
				return err
			}
			return fmt.Errorf("run %s: %w", path, unix.Exec(path, args, env))
		},
	}
}

// labEnv names the lab program to those that it runs.
const labEnv = "NEARFLASH_LAB"

func withLabProgram(env []string) ([]string, error) {
	for _, kv := range env {
		if strings.HasPrefix(kv, labEnv+"=") {
			return env, nil
		}
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("this program's path: %w", err)
	}
	return append(env, labEnv+"="+self), nil
}

// lookPath finds a program by the PATH of the environment that it will have.
func lookPath(name string, env []string) (string, error) {
	for _, kv := range env {
		if path, ok := strings.CutPrefix(kv, "PATH="); ok {
			if err := os.Setenv("PATH", path); err != nil {
				return "", fmt.Errorf("PATH: %w", err)
			}
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("run: %w", err)
	}
	return path, nil
}
