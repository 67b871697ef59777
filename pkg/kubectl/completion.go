package kubectl

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// completionPatience is how long a shell waits for names.
const completionPatience = 3 * time.Second

var shells = []string{"bash", "zsh", "fish", "powershell"}

func newCompletion(f *Factory) *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish|powershell",
		Short: "Print a completion script for kubectl-nearflash",
		Long: `Print a completion script for the program kubectl-nearflash.

For "kubectl nearflash" itself, kubectl asks a program named kubectl_complete-nearflash on the PATH. This makes one:

  cat >~/.local/bin/kubectl_complete-nearflash <<'END'
  #!/bin/sh
  exec kubectl nearflash __complete "$@"
  END
  chmod +x ~/.local/bin/kubectl_complete-nearflash

Commands, flags, claims of the namespace, modes and nodes are completed.`,
		Example:           `  kubectl nearflash completion bash >~/.local/share/bash-completion/completions/kubectl-nearflash`,
		ValidArgsFunction: cobra.FixedCompletions(shells, cobra.ShellCompDirectiveNoFileComp),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("completion takes the name of a shell: one of %s", strings.Join(shells, ", "))
			}
			root := cmd.Root()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(f.Out, true)
			case "zsh":
				return root.GenZshCompletion(f.Out)
			case "fish":
				return root.GenFishCompletion(f.Out, true)
			case "powershell":
				return root.GenPowerShellCompletionWithDesc(f.Out)
			}
			return fmt.Errorf("there is no completion for %s: accepted are %s", args[0], strings.Join(shells, ", "))
		},
	}
}

// completeVolumes completes the claims of the namespace for the first argument
// and words for the argument at position last. With last below 0 every argument
// is a claim.
func (f *Factory) completeVolumes(last int, words ...string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, toComplete string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 && last >= 0 {
			if len(args) > last {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return words, cobra.ShellCompDirectiveNoFileComp
		}
		claims, err := f.claims(cmd.Context())
		if err != nil {
			cobra.CompDebugln(err.Error(), true)
			return nil, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveError
		}
		return unused(claims, args, toComplete), cobra.ShellCompDirectiveNoFileComp
	}
}

// claims lists the claims of the namespace that have a volume of nearflash.
func (f *Factory) claims(ctx context.Context) ([]string, error) {
	s, err := f.connect()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, completionPatience)
	defer cancel()
	volumes, err := s.choose(ctx, nil, false)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, v := range volumes {
		out = append(out, v.Claim)
	}
	return out, nil
}

// completePools completes the nodes that have a pool.
func (f *Factory) completePools(cmd *cobra.Command, args []string, toComplete string) ([]cobra.Completion, cobra.ShellCompDirective) {
	names, err := f.poolNames(cmd.Context())
	if err != nil {
		cobra.CompDebugln(err.Error(), true)
		return nil, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveError
	}
	return unused(names, args, toComplete), cobra.ShellCompDirectiveNoFileComp
}

// completeNode completes a flag that takes a node with a pool. The arguments are
// something else, so that one with the same name hides no node.
func (f *Factory) completeNode(cmd *cobra.Command, _ []string, toComplete string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return f.completePools(cmd, nil, toComplete)
}

// poolNames lists the nodes that have a pool.
func (f *Factory) poolNames(ctx context.Context) ([]string, error) {
	s, err := f.connect()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, completionPatience)
	defer cancel()
	pools, err := s.pools(ctx, nil)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, p := range pools {
		names = append(names, p.Name)
	}
	return names, nil
}

// unused returns the names with a prefix that are not arguments already.
func unused(names, args []string, prefix string) []string {
	var out []string
	for _, n := range names {
		taken := false
		for _, a := range args {
			taken = taken || a == n
		}
		if !taken && strings.HasPrefix(n, prefix) {
			out = append(out, n)
		}
	}
	return out
}
