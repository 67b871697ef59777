// Command kubectl-nearflash is the kubectl plugin of nearflash: on the PATH, it is
// called as `kubectl nearflash`.
package main

import (
	"os"

	"github.com/nearflash/nearflash/pkg/kubectl"
)

func main() { os.Exit(kubectl.Main()) }
