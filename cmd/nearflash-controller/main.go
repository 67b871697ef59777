// Command nearflash-controller is the controller plugin of the nearflash CSI
// driver: it makes, fences and deletes volumes.
package main

import (
	"context"

	"github.com/nearflash/nearflash/pkg/app"
	"github.com/nearflash/nearflash/pkg/app/controller"
	"github.com/nearflash/nearflash/pkg/version"
)

func main() {
	cfg := controller.Config{Version: version.Version}
	app.Main(app.Command{Name: "nearflash-controller", AddFlags: cfg.AddFlags, Run: func(ctx context.Context) error {
		if err := cfg.Validate(); err != nil {
			return err
		}
		return controller.Run(ctx, cfg)
	}})
}
