// Command nearflash-node is the node plugin of the nearflash CSI driver: it
// attaches volumes through a cache on the SSDs of its node. "nearflash-node rescue"
// flushes the cache of a node that is lost. "nearflash-node iscsid" becomes open-iscsi's daemon, for
// hosts that have none. "nearflash-node freeze" is what the plugin runs to
// freeze a filesystem and to thaw it, whatever has become of the plugin; "nearflash-node scrub"
// suspends a device and resumes it in the same way. "nearflash-node figures"
// prints what the plugin in the same container measures now, and "nearflash-node ssd" measures the SSDs
// alone, on a logical volume that the plugin hands out.
package main

import (
	"context"
	"os"

	"github.com/nearflash/nearflash/pkg/app"
	"github.com/nearflash/nearflash/pkg/app/node"
	"github.com/nearflash/nearflash/pkg/attach/scrub"
	"github.com/nearflash/nearflash/pkg/figures"
	"github.com/nearflash/nearflash/pkg/freeze"
	"github.com/nearflash/nearflash/pkg/scratch"
	"github.com/nearflash/nearflash/pkg/version"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == freeze.Command {
		os.Exit(freeze.Guard(os.Args[2:], os.Stderr))
	}
	if len(os.Args) > 1 && os.Args[1] == scrub.Command {
		os.Exit(scrub.Guard(os.Args[2:], os.Stdout, os.Stderr))
	}
	if len(os.Args) > 1 && os.Args[1] == "rescue" {
		rescue := node.Rescue{Out: os.Stdout}
		app.Main(app.Command{Name: "nearflash-node rescue", Args: os.Args[2:], AddFlags: rescue.AddFlags, Run: rescue.Run})
		return
	}
	if len(os.Args) > 1 && os.Args[1] == "iscsid" {
		daemon := node.ISCSID{}
		app.Main(app.Command{Name: "nearflash-node iscsid", Args: os.Args[2:], AddFlags: daemon.AddFlags, Run: daemon.Run})
		return
	}
	if len(os.Args) > 1 && os.Args[1] == figures.Command {
		ask := node.Figures{Out: os.Stdout}
		app.Main(app.Command{Name: "nearflash-node figures", Args: os.Args[2:], AddFlags: ask.AddFlags, Run: ask.Run})
		return
	}
	if len(os.Args) > 1 && os.Args[1] == scratch.Command {
		measure := node.SSD{Out: os.Stdout}
		app.Main(app.Command{Name: "nearflash-node ssd", Args: os.Args[2:], AddFlags: measure.AddFlags, Run: measure.Run})
		return
	}
	cfg := node.Config{Version: version.Version}
	app.Main(app.Command{Name: "nearflash-node", AddFlags: cfg.AddFlags, Run: func(ctx context.Context) error {
		if err := cfg.Validate(); err != nil {
			return err
		}
		return node.Run(ctx, cfg)
	}})
}
