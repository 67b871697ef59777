package node

import (
	"os"
	"runtime"
)

// atOnce is how many threads run Go code at a time, at least. One that waits for an SSD, or for a command,
// counts as one that runs until the runtime notices, which may take 10 ms (sysmon): on a machine of one
// processor the network would wait for the SSD.
const atOnce = 8

func useProcessors() {
	if n := processors(runtime.NumCPU(), runtime.GOMAXPROCS(0), os.Getenv("GOMAXPROCS")); n > 0 {
		runtime.GOMAXPROCS(n)
	}
}

// processors is what the runtime is to be set to, 0 for what it is: on a machine of enough processors, and
// where somebody, or a limit, wants less than all of them.
func processors(machine, now int, variable string) int {
	if machine >= atOnce || now != machine || variable != "" {
		return 0
	}
	return atOnce
}
