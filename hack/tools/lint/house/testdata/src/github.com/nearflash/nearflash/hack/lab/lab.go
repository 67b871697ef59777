package lab

import (
	_ "os/exec"

	_ "github.com/google/licensecheck"
	_ "github.com/nearflash/nearflash/hack/images"
	_ "github.com/nearflash/nearflash/pkg/hostexec"
)
