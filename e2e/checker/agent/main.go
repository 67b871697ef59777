// Command agent is the checker's hand beside the data: see checker.Serve. It is
// copied into a pod, or runs on any machine that has the device.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/nearflash/nearflash/e2e/checker"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "wire" {
		if err := runWire(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "wire:", err)
			os.Exit(1)
		}
		return
	}
	var o checker.Options
	flag.StringVar(&o.Volume, "volume", "", "name of the volume, as it is written into the blocks")
	flag.StringVar(&o.Path, "path", "", "device or file")
	flag.BoolVar(&o.Create, "create", false, "make the file first, if it does not exist")
	flag.Int64Var(&o.Blocks, "blocks", 0, "size of the file in blocks of 4 KiB")
	flag.Parse()
	if err := checker.Serve(o, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "checker agent:", err)
		os.Exit(1)
	}
}
