// Command nearflash-controller is the controller plugin of the nearflash CSI
// driver: it makes, fences and deletes volumes. "nearflash-controller check" tells
// whether an installation works.
package main

import (
	"context"
	"os"

	"github.com/nearflash/nearflash/pkg/app"
	"github.com/nearflash/nearflash/pkg/app/controller"
	"github.com/nearflash/nearflash/pkg/version"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "check" {
		check := controller.Check{Out: os.Stdout}
		app.Main(app.Command{Name: "nearflash-controller check", Args: os.Args[2:], AddFlags: check.AddFlags, Run: check.Run})
		return
	}
	cfg := controller.Config{Version: version.Version}
	app.Main(app.Command{Name: "nearflash-controller", AddFlags: cfg.AddFlags, Run: func(ctx context.Context) error {
		if err := cfg.Validate(); err != nil {
			return err
		}
		return controller.Run(ctx, cfg)
	}})
}
