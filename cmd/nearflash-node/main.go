// Command nearflash-node is the node plugin of the nearflash CSI driver: it
// attaches volumes through a cache on the SSDs of its node.
package main

import (
	"context"

	"github.com/nearflash/nearflash/pkg/app"
	"github.com/nearflash/nearflash/pkg/app/node"
	"github.com/nearflash/nearflash/pkg/version"
)

func main() {
	cfg := node.Config{Version: version.Version}
	app.Main(app.Command{Name: "nearflash-node", AddFlags: cfg.AddFlags, Run: func(ctx context.Context) error {
		if err := cfg.Validate(); err != nil {
			return err
		}
		return node.Run(ctx, cfg)
	}})
}
