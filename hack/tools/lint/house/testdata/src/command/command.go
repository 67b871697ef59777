package command

import (
	"context"
	"os/exec"
)

func run(ctx context.Context) {
	_ = exec.CommandContext(ctx, "true").Run()
	_ = exec.Command("true").Run() // want `use exec.CommandContext`
}
