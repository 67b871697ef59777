// Command nearflash-target is the storage server of nearflash: LVM volumes of a
// Linux machine, exported over iSCSI, managed through gRPC with mutual TLS.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"

	"github.com/nearflash/nearflash/pkg/app"
	"github.com/nearflash/nearflash/pkg/target"
	"github.com/nearflash/nearflash/pkg/version"
)

func main() {
	var config string
	var check, withdraw bool
	app.Main(app.Command{
		Name: "nearflash-target",
		AddFlags: func(fs *flag.FlagSet) {
			fs.StringVar(&config, "config", "", "configuration `file` (YAML)")
			fs.BoolVar(&withdraw, "withdraw", false, "end all exports in the kernel, and keep them recorded, for a start on another machine; then exit")
			fs.BoolVar(&check, "check-config", false, "check the configuration and the TLS files, then exit")
		},
		Run: func(ctx context.Context) error { return run(ctx, config, check, withdraw) },
	})
}

func run(ctx context.Context, config string, check, withdraw bool) error {
	if config == "" {
		return errors.New("--config is required")
	}
	cfg, err := target.LoadConfig(config)
	if err != nil {
		return err
	}
	if check {
		if err := cfg.CheckTLS(); err != nil {
			return err
		}
		_, err := fmt.Println("configuration is valid")
		return err
	}
	if withdraw {
		return target.Withdraw(ctx, cfg)
	}
	return target.Run(ctx, cfg, version.Version)
}
